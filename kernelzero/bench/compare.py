"""Runs beside one another and beside published figures: tables, and the field's plots.

Runs over the same tasks, language and device are also compared task by task, with an interval of the difference; where
they differ in one of these, the reason is given instead of a number. Published figures are shown beside, never tested:
other harnesses found them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.bench.categories import group
from kernelzero.bench.files import write_whole
from kernelzero.bench.plots import Series, bars, line_panels
from kernelzero.bench.published import Published, published_for
from kernelzero.bench.scores import PassData, fast_table, full_summary, read_pass, timed
from kernelzero.bench.tables import per_cent, plain, table
from kernelzero.errors import UsageError
from kernelzero.metrics import MixedError, pass_at_k
from kernelzero.metrics import compare as paired
from kernelzero.records import Status, Timing

_PS = tuple(i / 20 for i in range(61))
"""Thresholds of the fast_p curve, 0 to 3 times as fast."""
_SHOWN = ("pass@1", "pass@5", "pass@10", "fast_1@1", "fast_1.2@1", "fast_2@1")


@dataclasses.dataclass(frozen=True)
class Run:
    """One pass with its summary."""

    name: str
    data: PassData
    summary: dict[str, Any]

    @property
    def backend(self) -> str:
        """The language of its kernels."""
        return str(self.data.settings["backend"])


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Every benchmark pass in the folders, named by folder, and by label where it is not "bench".

    Raises:
        UsageError: a folder has none, or a pass mixes devices.
    """
    runs: list[Run] = []
    for folder in folders:
        labels = _labels(folder)
        for label in labels:
            data = read_pass(folder / "bench", label)
            name = folder.resolve().name if label == "bench" else f"{folder.resolve().name}:{label}"
            same = sum(run.name.split(" (")[0] == name for run in runs)
            try:
                runs.append(Run(f"{name} ({same + 1})" if same else name, data, full_summary(data)))
            except MixedError as error:
                raise UsageError(f"{folder}: {error}") from error
    return runs


def _labels(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise UsageError(f"no such run folder: {folder}")
    found = sorted(path.stem for path in (folder / "bench").glob("*.json") if "." not in path.stem)
    if not found:
        raise UsageError(f"{folder} holds no benchmark: run `kernelzero bench --out {folder}` first")
    return found


def comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the comparison says, as plain JSON."""
    groups = list(dict.fromkeys(g for run in runs for g in run.summary["groups"]))
    published = [p for backend in sorted({run.backend for run in runs}) for p in published_for(backend, groups)]
    return {
        "runs": [{"name": r.name, "model": r.data.settings.get("model"), "settings": _settings(r)} for r in runs],
        "groups": {g: [_row(run, g) for run in runs if g in run.summary["groups"]] for g in groups},
        "published": [{**dataclasses.asdict(p), "backend": p.backend.value} for p in published],
        "differences": [_difference(runs[0], other) for other in runs[1:]],
    }


def _settings(run: Run) -> dict[str, Any]:
    keys = ("backend", "sampling", "device", "policy", "timeout_s")
    return {key: run.data.settings[key] for key in keys if key in run.data.settings}


def _row(run: Run, name: str) -> dict[str, Any]:
    score = run.summary["groups"][name]
    fast = (score["fast"] or {}).get("eager") or {}
    second = score["pass_kernelbench"] or {}
    if score["unavailable"] is None:
        fast = {**fast, **_other_thresholds(run, name)}
    return {
        "run": run.name,
        "backend": run.backend,
        "tasks": score["tasks"],
        "n": score["n"],
        "unavailable": score["unavailable"],
        "figures": {
            **(score["pass"] or {}),
            **{f"fast_{p}@{k.split('@')[1]}": value for p, row in fast.items() for k, value in row.items()},
            **{f"{k} (KernelBench's tolerances)": value for k, value in second.items() if k.startswith("pass@")},
        },
        "speedup": score["speedup"],
        "tokens": score["tokens"],
    }


def _other_thresholds(run: Run, name: str) -> dict[str, Any]:
    """fast_p@1 for those p that only others publish."""
    names = {t for t, task in run.data.names.items() if group(task) == name}
    chosen = {key: a for key, a in run.data.attempts.items() if key[0] in names}
    return fast_table(names, run.data.n, timed(chosen), ps=(1.2,), ks=(1,))


def _difference(first: Run, other: Run) -> dict[str, Any]:
    names = {"from": first.name, "to": other.name}
    try:
        return {**names, "changes": paired(first.summary, other.summary), "reason": None}
    except MixedError as error:
        return {**names, "changes": {}, "reason": str(error)}


def markdown(data: Mapping[str, Any]) -> str:
    """The comparison as tables."""
    parts = ["# Benchmark runs beside one another", "Per cent, with 95 % intervals over tasks."]
    for name, rows in data["groups"].items():
        beside = [p for p in data["published"] if f"level {p['level']}" == name]
        shown = [k for k in _SHOWN if any(k in r["figures"] for r in rows) or any(k in p["figures"] for p in beside)]
        cells = [
            [row["run"], row["backend"], f"{row['n']} × {row['tasks']}",
             *(per_cent(row["figures"].get(k)) for k in shown), plain(row["speedup"], ".2f", "×")]
            for row in rows
        ]  # fmt: skip
        cells += [
            [f"{p['system']} *", p["backend"], "", *(_published(p["figures"].get(k)) for k in shown), ""]
            for p in beside
        ]
        parts += [f"## {name}", table(["", "language", "samples × tasks", *shown, "speedup"], cells)]
        parts += [f"{row['run']}: no pass@k: {row['unavailable']}." for row in rows if row["unavailable"]]
    parts += _differences(data["differences"])
    sources = list(dict.fromkeys(f"{p['source']}. Judged by {p['harness']}. {p['caveat']}." for p in data["published"]))
    if sources:
        parts.append("\\* Published by others, judged by another harness; not to be compared digit by digit:")
        parts.append("\n".join(f"- {source}" for source in sources))
    return "\n\n".join(parts) + "\n"


def _published(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _differences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = []
    for one in found:
        title = f"## From {one['from']} to {one['to']}, task by task"
        if one["reason"]:
            parts += [title, f"Not compared: {one['reason']}."]
            continue
        rows = [
            [name, _change(name, change), "yes" if change["beyond_noise"] else "no"]
            for name, change in one["changes"].items()
        ]
        parts += [title, table(["", "change", "beyond noise"], rows)]
    return parts


def _change(name: str, change: Mapping[str, Any]) -> str:
    if name == "speedup_ratio":
        return plain(change, ".2f", "×")
    if name == "tokens":
        return plain(change, "+.0f")
    ends = change["interval"]
    value = f"{100 * change['value']:+.1f}"
    return value if ends is None else f"{value} ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f})"


# --- plots -----------------------------------------------------------------------------------------------------------


def write_comparison(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """compare.json, compare.md, pass_at_k.svg, fast_p.svg and categories.svg in the folder; the data of the first."""
    data = comparison(runs)
    try:
        write_whole(folder / "compare.json", data)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    published = published_for_plots(data)
    texts = {
        "compare.md": markdown(data),
        "pass_at_k.svg": line_panels(_pass_curves(runs, published), "k", "pass@k, %"),
        "fast_p.svg": line_panels(_fast_curves(runs, published), "p, times as fast as eager", "fast_p@1, %"),
        "categories.svg": _category_bars(runs),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return data


def published_for_plots(data: Mapping[str, Any]) -> list[Published]:
    """The published records of a comparison."""
    backends = {p["backend"] for p in data["published"]}
    return [p for backend in sorted(backends) for p in published_for(backend, data["groups"])]


def _pass_curves(runs: Sequence[Run], published: Sequence[Published]) -> dict[str, list[Series]]:
    panels: dict[str, list[Series]] = defaultdict(list)
    for run in runs:
        for name, score in run.summary["groups"].items():
            if score["unavailable"] is None:
                correct = _correct(run.data, name)
                panels[name].append(Series(run.name, _curve(correct, run.data.n)))
    for p in published:
        points = sorted((float(k[5:]), v) for k, v in p.figures.items() if k.startswith("pass@"))
        if points and panels.get(f"level {p.level}"):
            panels[f"level {p.level}"].append(Series(_title(p), points, published=True))
    return panels or {"no run with a number": []}


def _curve(correct: Sequence[int], n: int) -> list[tuple[float, float]]:
    return [(float(k), sum(pass_at_k(n, c, k) for c in correct) / len(correct)) for k in range(1, n + 1)]


def _correct(data: PassData, name: str) -> list[int]:
    found: Counter[str] = Counter()
    for (task_id, _), attempt in data.attempts.items():
        found[task_id] += attempt.verdict.status is Status.CORRECT
    return [found[task_id] for task_id, task in data.names.items() if group(task) == name]


def _fast_curves(runs: Sequence[Run], published: Sequence[Published]) -> dict[str, list[Series]]:
    panels: dict[str, list[Series]] = defaultdict(list)
    for run in runs:
        for name, score in run.summary["groups"].items():
            if score["unavailable"] is None:
                panels[name].append(Series(run.name, _fast_curve(run.data, name)))
    for p in published:
        points = sorted((float(k[5:-2]), v) for k, v in p.figures.items() if k.startswith("fast_") and k[-2:] == "@1")
        if points and panels.get(f"level {p.level}"):
            panels[f"level {p.level}"].append(Series(_title(p), points, published=True))
    return panels or {"no run with a number": []}


def _fast_curve(data: PassData, name: str) -> list[tuple[float, float]]:
    """fast_p@1 over p; at p = 0 it is the share of samples that are correct (and timed)."""
    lows: dict[str, list[float]] = {t: [] for t, task in data.names.items() if group(task) == name}
    untimed: Counter[str] = Counter()
    for (task_id, _), attempt in data.attempts.items():
        timing: Timing | None = attempt.verdict.timing
        if task_id in lows and attempt.verdict.status is Status.CORRECT:
            lows[task_id] += [timing.speedup_low] if timing else []
            untimed[task_id] += timing is None
    known = {t: data.n - untimed[t] for t in lows if data.n > untimed[t]}
    return [(p, sum(sum(x > p for x in lows[t]) / count for t, count in known.items()) / len(known)) for p in _PS]


def _category_bars(runs: Sequence[Run]) -> str:
    """pass@1 by kind of task, over all groups."""
    shown = [run for run in runs if run.summary["unavailable"] is None]
    rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in shown:
        kinds = run.data.settings.get("categories", {})
        for row in run.summary["per_task"]:
            rates[kinds.get(row["task_id"], "other")][run.name].append(row["correct"] / run.data.n)
    counts = {kind: max(map(len, by_run.values())) for kind, by_run in rates.items()}
    ordered = sorted(rates, key=lambda kind: (-counts[kind], kind))
    groups = {kind: [(name, sum(v) / len(v)) for name, v in rates[kind].items()] for kind in ordered}
    return bars(groups, counts, "pass@1 by kind of task, % (number of tasks)")


def _title(p: Published) -> str:
    return f"{p.system}, {p.backend.value}"
