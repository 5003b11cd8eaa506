"""Keck on a GPU: verdicts an hour, agreement with what is expected, and how far timing alone can mislead.

    python benchmarks/keck_gpu.py [throughput] [itself] [spread] [exploits] [--backend B] [--workers N] [--out FILE]

throughput: all candidates of benchmarks/corpus, each in a process of its own, checked and timed.
itself:     references timed against themselves ("A/A"): how often is one "faster than 1.0"?
spread:     one kernel in 20 fresh processes: the spread of the median ratio.
exploits:   every file of exploits/ that needs a GPU.
Prints a short table last and writes JSON. Interrupted, it reports what it has.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
CORPUS = ROOT / "corpus"
sys.path.insert(0, str(CORPUS))

import read  # noqa: E402

from kernelzero.keck import LocalKeck  # noqa: E402
from kernelzero.records import Backend, Candidate, Task, Verdict  # noqa: E402

EXPLOITS = ROOT.parent / "exploits"
SPREAD_OF = ("softmax_rows", "triton_one_block.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--backend", default="triton", choices=["triton", "cuda"])
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "keck_gpu.json")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts:
        with LocalKeck(options.workers, device="cuda") as keck:
            key = f"{part}_{options.backend}" if part == "throughput" else part
            found[key] = {"workers": keck.workers, **PARTS[part](keck, options)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    for part, values in found.items():
        print(part, {k: v for k, v in values.items() if not isinstance(v, list | dict)})


def throughput(keck: LocalKeck, options: Any) -> dict[str, Any]:
    entries = read.entries(Backend(options.backend))
    tasks = {name: read.task(name) for name in read.task_names()}
    jobs = [(tasks[entry.task], entry.candidate) for entry in entries]
    return {"tasks": len(tasks)} | _judged(keck, jobs, [e.name for e in entries], [e.expect for e in entries])


def exploits(keck: LocalKeck, options: Any) -> dict[str, Any]:
    headers = {path: _header(path) for path in sorted([*EXPLOITS.glob("*.py"), *EXPLOITS.glob("controls/*.py")])}
    chosen = {path: fields for path, fields in headers.items() if fields.get("device") == "cuda"}
    jobs = []
    for path, fields in chosen.items():
        reference = (EXPLOITS / "references" / fields["reference"]).read_text(encoding="utf-8")
        backend = Backend(fields.get("backend", "triton"))
        jobs.append((Task(reference), Candidate(path.read_text(encoding="utf-8"), backend)))
    return _judged(keck, jobs, [p.stem for p in chosen], [set(f["expect"].split("|")) for f in chosen.values()])


def itself(keck: LocalKeck, options: Any) -> dict[str, Any]:
    names = read.task_names()
    tasks = [read.task(names[i % len(names)]) for i in range(options.pairs)]
    started = time.monotonic()
    timings = []
    with contextlib.suppress(KeyboardInterrupt):
        for index, timing in keck.against_itself(tasks):
            timings.append((tasks[index].name, timing))
    ratios = [timing.speedup for _, timing in timings]
    return {
        "pairs": len(timings),
        "seconds": round(time.monotonic() - started, 1),
        "faster_than_1": sum(timing.is_faster for _, timing in timings),
        "slower_than_1": sum(timing.speedup_high < 1 for _, timing in timings),
        "median_distance_from_1": statistics.median(abs(ratio - 1) for ratio in ratios),
        "largest_distance_from_1": max(abs(ratio - 1) for ratio in ratios),
        "rows": sorted([name, t.reference_ms, t.speedup, t.speedup_low, t.speedup_high] for name, t in timings),
    }


def spread(keck: LocalKeck, options: Any) -> dict[str, Any]:
    source = (CORPUS / SPREAD_OF[0] / SPREAD_OF[1]).read_text(encoding="utf-8")
    task = read.task(SPREAD_OF[0])
    jobs = [(task, Candidate(f"{source}\n# process {i}\n")) for i in range(20)]
    ratios = sorted(verdict.speedup for _, verdict in keck.judge(jobs) if verdict.speedup)
    middle = statistics.median(ratios)
    return {
        "processes": len(ratios),
        "median": middle,
        "spread": (ratios[-1] - ratios[0]) / middle,
        "ratios": ratios,
    }


PARTS: dict[str, Callable[[LocalKeck, Any], dict[str, Any]]] = {
    "throughput": throughput,
    "itself": itself,
    "spread": spread,
    "exploits": exploits,
}


def _judged(
    keck: LocalKeck, jobs: Sequence[tuple[Task, Candidate]], names: Sequence[str], expected: Sequence[Any]
) -> dict[str, Any]:
    """Judge all; what disagrees is told at once."""
    started = time.monotonic()
    verdicts: dict[str, Verdict] = {}
    lines = []
    with contextlib.suppress(KeyboardInterrupt):
        for index, verdict in keck.judge(jobs):
            verdicts[names[index]] = verdict
            if verdict.status.value not in expected[index]:
                due = "|".join(sorted(expected[index]))
                lines.append(f"{names[index]}: {verdict.status.value}, expected {due}: {verdict.reason}")
                print("DISAGREES", lines[-1], flush=True)
    seconds = time.monotonic() - started
    rows = [
        [name, v.status.value, v.judged_s, v.rung, v.timing and [v.timing.speedup_low, v.timing.speedup_high]]
        for name, v in sorted(verdicts.items())
    ]
    return {
        "candidates": len(jobs),
        "judged": len(verdicts),
        "seconds": round(seconds, 1),
        "an_hour": round(len(verdicts) / seconds * 3600),
        "disagreements": len(lines),
        "median_judged_s": statistics.median(v.judged_s for v in verdicts.values()),
        "statuses": dict(collections.Counter(v.status.value for v in verdicts.values())),
        "rungs": dict(collections.Counter(v.rung for v in verdicts.values() if v.rung)),
        "lines": lines,
        "rows": rows,
    }


def _header(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# ") and ": " in line]
    return {key: value for key, value in reversed(pairs)}


if __name__ == "__main__":
    main()
