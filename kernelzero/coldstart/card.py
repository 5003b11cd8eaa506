"""The data card of a corpus: what is in it, what was refused and why, what it cost. `card.json` and `card.md`."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kernelzero.coldstart.nearness import ANY_OPERATORS, SAME_OPERATORS
from kernelzero.coldstart.rows import CorpusRow, load_answers
from kernelzero.runfolder import read_rows, write_whole

_STAGES = ("draw", "gate", "teach", "judge")
_EXAMPLES = 5
_PACKAGES = ("kernelzero", "torch", "triton", "transformers", "openai", "pyarrow")


def write_card(
    folder: Path, settings: Mapping[str, Any], rows: Mapping[int, CorpusRow], corpus: Sequence[CorpusRow], stopped: str
) -> dict[str, Any]:
    """Write both files; the facts of `card.json`."""
    facts = card_facts(settings, list(rows.values()), corpus)
    answers = load_answers(folder)
    facts["tokens"] = {
        "answers": len(answers),
        "prompt": sum(a.lesson.prompt_tokens for a in answers),
        "completion": sum(a.lesson.completion_tokens for a in answers),
    }
    elapsed = {row["session"]: row["elapsed_s"] for row in read_rows(folder / "sessions.jsonl")}
    facts["seconds"] |= {"wall": round(sum(elapsed.values()), 1), "calls": len(elapsed)}
    facts["stopped"] = stopped
    write_whole(folder / "card.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / "card.md", render(facts))
    return facts


def card_facts(settings: Mapping[str, Any], rows: Sequence[CorpusRow], corpus: Sequence[CorpusRow]) -> dict[str, Any]:
    """Counts of all rows and of those in the corpus."""
    outcomes = Counter(row.refusal or "kept" for row in rows)
    outcomes["kept"] = len(corpus)
    if again := sum(row.kept for row in rows) - len(corpus):
        outcomes["duplicate:kernel"] = again
    return {
        "settings": dict(settings),
        "asked": settings["count"],
        "rows": len(rows),
        "corpus": len(corpus),
        "yield": round(len(corpus) / len(rows), 4) if rows else 0.0,
        "outcomes": _ordered(outcomes),
        "reasons": _reasons(rows),
        "excluded": {
            "exactly": outcomes["benchmark"],
            "nearly": outcomes["near"],
            "limits": {"same_operators": SAME_OPERATORS, "any_operators": ANY_OPERATORS},
        },
        "backend": _ordered(Counter(row.backend for row in corpus)),
        "principle": _ordered(Counter(name for row in corpus for name in row.principle.split("+") if name)),
        "operators": {str(n): c for n, c in sorted(Counter(row.operators for row in corpus).items())},
        "apis": _ordered(Counter(api for row in corpus for api in row.apis)),
        "modules": len({row.task_id for row in corpus}),
        "device": _ordered(Counter(row.device for row in corpus)),
        "rung": _ordered(Counter(row.rung for row in corpus if row.rung)),
        "characters": {
            name: _spread([len(getattr(row, name)) for row in corpus]) for name in ("module", "reasoning", "kernel")
        },
        "speedup": {
            basis: _spread([r.speedup for r in corpus if r.basis == basis and r.speedup is not None])
            for basis in sorted({row.basis for row in corpus} - {""})
        },
        "seconds": {s: round(sum(row.seconds.get(s, 0.0) for row in rows), 1) for s in _STAGES},
        "versions": _versions(),
    }


def _reasons(rows: Iterable[CorpusRow]) -> dict[str, dict[str, int]]:
    """The commonest details of each refusal, numbers in them aside."""
    import re

    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row.refusal and row.refusal != "duplicate":
            detail = re.sub(r"\d+(\.\d+)?", "N", row.detail)[:160]
            found.setdefault(row.refusal, Counter())[detail] += 1
    return {stage: dict(counts.most_common(_EXAMPLES)) for stage, counts in sorted(found.items())}


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Least, quartiles, greatest; nothing for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    at = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
    return {name: round(ordered[round(share * (len(ordered) - 1))], 3) for name, share in at.items()}


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(((k, n) for k, n in counts.items() if n), key=lambda item: (-item[1], item[0])))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def render(facts: Mapping[str, Any]) -> str:
    """The card for people."""
    settings, seconds, tokens = facts["settings"], facts["seconds"], facts["tokens"]
    excluded, limits = facts["excluded"], facts["excluded"]["limits"]
    lines = [
        "# A corpus of verified kernels",
        "",
        f"{facts['corpus']} kernels for {facts['modules']} modules, kept of {facts['rows']} numbers "
        f"({100 * facts['yield']:.1f} %); {facts['asked']} were asked for."
        + (f" Stopped by {facts['stopped']}." if facts["stopped"] else ""),
        "",
        f"Teacher: {settings['teacher']}. Modules: {settings['source']}. Written for: {settings['gpu']}. "
        f"Samples a module: {settings['samples']}. Seed: {settings['seed']}.",
        "",
        f"Not in it: {excluded['exactly']} modules that are a benchmark task and {excluded['nearly']} near one "
        f"(n-grams of the dataflow in common: {limits['same_operators']} with the same operators, "
        f"{limits['any_operators']} with any), against {settings.get('excluded', 'no tasks')}.",
        "",
        f"Seconds: {seconds['wall']} by the clock in {seconds['calls']} calls; summed over rows "
        + ", ".join(f"{stage} {seconds[stage]}" for stage in _STAGES)
        + f". Tokens: {tokens['prompt']} read and {tokens['completion']} written in {tokens['answers']} answers.",
        "",
    ]
    lines += _table("Outcomes", "outcome", facts["outcomes"])
    for stage, reasons in facts["reasons"].items():
        lines += _table(f"Commonest reasons: {stage}", "reason", reasons)
    for title, key in (("Backend", "backend"), ("Device of the verdict", "device"), ("Rung", "rung")):
        lines += _table(title, key, facts[key])
    lines += _table("Principle (a kernel may have several)", "principle", facts["principle"])
    lines += _table("Operators a module", "operators", facts["operators"])
    lines += _spreads("Characters", facts["characters"])
    lines += _spreads("Speedup over PyTorch eager", facts["speedup"])
    lines += _table("APIs", "API", facts["apis"])
    lines += ["Versions: " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()) + ".", ""]
    return "\n".join(lines)


def _table(title: str, what: str, counts: Mapping[str, int]) -> list[str]:
    if not counts:
        return []
    rows = [f"| {str(name).replace('|', '/')} | {n} |" for name, n in counts.items()]
    return [f"## {title}", "", f"| {what} | number |", "|---|---|", *rows, ""]


def _spreads(title: str, spreads: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not any(spreads.values()):
        return []
    names = ("min", "q25", "median", "q75", "max")
    rows = [f"| {key} | " + " | ".join(str(s.get(n, "")) for n in names) + " |" for key, s in spreads.items()]
    return [f"## {title}", "", "| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|", *rows, ""]
