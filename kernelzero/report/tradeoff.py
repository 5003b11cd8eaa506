"""Several runs beside one another: pass@1 against fast_1@1 after training, and which of them no other one beats.

Numbers are those of `kernelzero.metrics`. A run that was measured in another way is listed with the reason. The front
goes by the estimates alone; whether two points can be told apart is for their intervals to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.metrics import MixedError
from kernelzero.report.facts import pass_summary
from kernelzero.report.reading import RunFolder, number
from kernelzero.report.spent import gpu_hours

_SETTING = ("device", "backend", "basis", "baseline")
_NO_DIFFERENCE = ("run.name", "run.folder")
_FIRST = "coder.alpha"


def tradeoff_facts(run: RunFolder, others: Sequence[RunFolder]) -> dict[str, Any] | None:
    """A row a run in the order given, as plain JSON; None without other runs.

    A row's `reason` says why it is not drawn and is None for those that are; `on_front` marks the Pareto front.
    """
    if not others:
        return None
    runs = [run, *others]
    configs = [_flat(one.config) for one in runs]
    differs = _differing(configs)
    rows = [_row(one, config, differs) for one, config in zip(runs, configs, strict=True)]
    _tell_apart(rows)
    _compare_with_first(rows, runs)
    _mark_front([row for row in rows if row["reason"] is None])
    return {"differs": differs, "runs": [{k: v for k, v in row.items() if k != "setting"} for row in rows]}


def _row(run: RunFolder, config: Mapping[str, Any], differs: Sequence[str]) -> dict[str, Any]:
    try:
        after, problem = pass_summary(run.after), ""
    except (MixedError, ValueError) as error:
        after, problem = None, f"its benchmark cannot be summarised: {error}"
    name = run.folder.resolve().name
    return {
        "run": name,
        "label": _label(config, differs) or name,
        "alpha": number(config.get(_FIRST)),
        "pass@1": ((after or {}).get("pass_at_k") or {}).get("pass@1"),
        "fast_1@1": after["fast_1_at_1"] if after else None,
        "speedup": after["speedup"] if after else None,
        "gpu_hours": gpu_hours(run)["total"],
        "reason": problem or _why_not(after),
        "on_front": False,
        "setting": _setting(run, after) if after else None,
    }


def _why_not(after: Mapping[str, Any] | None) -> str | None:
    if after is None:
        return "there is no benchmark after training in this folder"
    if after["unavailable"]:
        return f"its benchmark gives no rates: {after['unavailable']}"
    return None if after["fast_1_at_1"] else "no kernel of its benchmark was timed, so there is no fast_1@1"


def _setting(run: RunFolder, after: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal for two passes to be compared."""
    known = {name: after[name] for name in _SETTING}
    return {"tasks": frozenset(run.after.names), "n": after["n"], "sampling": run.after.sampling, **known}


def _compare_with_first(rows: Sequence[dict[str, Any]], runs: Sequence[RunFolder]) -> None:
    """Give a reason to every run that was given before, or measured unlike the first one that has a benchmark."""
    seen: set[Path] = set()
    first: dict[str, Any] | None = None
    for row, run in zip(rows, runs, strict=True):
        place = run.folder.resolve()
        if place in seen:
            row["reason"] = "its folder was given before"
        if row["reason"] is None:
            first = first or row
            row["reason"] = _difference(first, row)
        seen.add(place)


def _difference(first: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    ours, theirs = row["setting"], first["setting"]
    if ours["tasks"] != theirs["tasks"]:
        shared = len(ours["tasks"] & theirs["tasks"])
        return f"it was measured on other tasks than {first['run']} ({shared} of {len(theirs['tasks'])} are the same)"
    for key in ("n", *_SETTING, "sampling"):
        # What a pass does not say is no difference.
        if ours[key] != theirs[key] and ours[key] is not None and theirs[key] is not None:
            return f"its {key} is {_shown(ours[key])}, that of {first['run']} {_shown(theirs[key])}"
    return None


def _mark_front(rows: Sequence[dict[str, Any]]) -> None:
    places = [(row["pass@1"]["value"], row["fast_1@1"]["value"]) for row in rows]
    for row, (x, y) in zip(rows, places, strict=True):
        row["on_front"] = not any(a >= x and b >= y and (a, b) != (x, y) for a, b in places)


def _flat(config: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(config, Mapping):
        return {path: config}
    return {
        name: value
        for key, held in config.items()
        for name, value in _flat(held, f"{path}.{key}" if path else str(key)).items()
    }


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of which two runs say different values, alpha first; a key that only newer runs know is none."""
    keys = dict.fromkeys(key for config in configs for key in config if key not in _NO_DIFFERENCE)
    found = [key for key in keys if len({json.dumps(c[key], sort_keys=True) for c in configs if key in c}) > 1]
    return sorted(found, key=lambda key: key != _FIRST)


def _label(config: Mapping[str, Any], differs: Sequence[str], most: int = 3) -> str:
    last = [key.rsplit(".", 1)[-1] for key in differs]
    parts = [
        f"{name if last.count(name) == 1 else key.replace('.', ' ')} {_shown(config[key])}"
        for key, name in zip(differs, last, strict=True)
        if key in config
    ]
    more = [f"and {len(parts) - most} more"] if len(parts) > most else []
    return ", ".join([*parts[:most], *more])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else text[:39] + "…"


def _tell_apart(rows: Sequence[dict[str, Any]]) -> None:
    labels = [row["label"] for row in rows]
    for row in rows:
        if labels.count(row["label"]) > 1 and row["label"] != row["run"]:
            row["label"] += f" ({row['run']})"
