"""Keck on a GPU: verdicts an hour, agreement with what is expected, and how far timing alone can mislead.

    python benchmarks/keck_gpu.py [throughput] [itself] [spread] [exploits] [--backend B] [--workers N] [--out FILE]
                                  [--repeats N] [--budget-s S]

throughput: all candidates of benchmarks/corpus, each in a process of its own, checked and timed; seconds of each phase.
itself:     references timed against themselves ("A/A"): how often is one "faster than 1.0"?
spread:     one kernel in 20 fresh processes: the spread of the median ratio.
exploits:   every file of exploits/ that needs a GPU, --repeats times in random order: which ones flicker?
Prints a short table last and writes JSON. Interrupted, or when the seconds of --budget-s are over, it reports what it
has.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
CORPUS = ROOT / "corpus"
sys.path[:0] = [str(ROOT), str(CORPUS)]

import gpu_report  # noqa: E402
import read  # noqa: E402
from gpu_report import Clock, an_hour, median, say  # noqa: E402

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
    parser.add_argument("--repeats", type=int, default=1, help="of each exploit")
    parser.add_argument("--only", default="", help="exploits whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="of the order of repeated exploits")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="for all parts together")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "keck_gpu.json")
    options = parser.parse_args()
    gpu_report.load_client()
    options.clock = Clock(options.budget_s)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.parts:
        if not options.clock.left_s:
            say(f"{part} is not begun")
            continue
        with LocalKeck(options.workers, device="cuda") as keck:
            key = f"{part}_{options.backend}" if part == "throughput" else part
            found[key] = {"workers": keck.workers, **PARTS[part](keck, options)}
        gpu_report.write(options.out, found)
    for part, values in found.items():
        show(part, values)


def show(part: str, values: dict[str, Any]) -> None:
    """A part's figures in one line, and what needs to be looked at below it."""
    say(f"{part} { {k: v for k, v in values.items() if not isinstance(v, list | dict)} }")
    if values.get("phases_s"):
        say(f"  median seconds: {values['phases_s']}")
        say(f"  summed seconds: {values['phases_sum_s']}")
    for name, statuses in values.get("flickering", {}).items():
        say(f"  flickers: {name}: {statuses}")
    for name, entry in values.get("mismatches", {}).items():
        say(f"  not as expected: {name}: {entry['statuses']}, expected {entry['expected']}")


def throughput(keck: LocalKeck, options: Any) -> dict[str, Any]:
    entries = read.entries(Backend(options.backend))
    tasks = {name: read.task(name) for name in read.task_names()}
    jobs = [Job(e.name, tasks[e.task], e.candidate, e.expect) for e in entries]
    found, facts = _judged(keck, jobs, options.clock)
    verdicts = [verdict for _, verdict in found]
    phases, sums = gpu_report.median_phases(verdicts), gpu_report.summed_phases(verdicts)
    return {"tasks": len(tasks)} | facts | {"phases_s": phases, "phases_sum_s": sums}


def exploits(keck: LocalKeck, options: Any) -> dict[str, Any]:
    jobs = [job.repeated(k) for job in _exploit_jobs(options.only) for k in range(options.repeats)]
    if options.repeats > 1:
        jobs = random.Random(options.seed).sample(jobs, len(jobs))
    found, facts = _judged(keck, jobs, options.clock)
    files = _by_file(found)
    flickering = {name: entry["statuses"] for name, entry in files.items() if len(entry["statuses"]) > 1}
    mismatches = {name: entry for name, entry in files.items() if set(entry["statuses"]) - set(entry["expected"])}
    counts = {"files": len(files), "flickering_files": len(flickering), "mismatched_files": len(mismatches)}
    return counts | facts | {"flickering": flickering, "mismatches": mismatches, "by_file": files}


def itself(keck: LocalKeck, options: Any) -> dict[str, Any]:
    names = read.task_names()
    tasks = [read.task(names[i % len(names)]) for i in range(options.pairs)]
    timings, failures = [], []
    with options.clock.part() as span:
        for index, timing in keck.against_itself(tasks):
            if isinstance(timing, str):
                failures.append(f"{tasks[index].name}: {timing}")
            else:
                timings.append((tasks[index].name, timing))
    ratios = [timing.speedup for _, timing in timings]
    return {
        "pairs": len(timings),
        "seconds": round(span.seconds, 1),
        "cut": span.cut,
        "failed": len(failures),
        "failures": failures,
        "faster_than_1": sum(timing.is_faster for _, timing in timings),
        "slower_than_1": sum(timing.speedup_high < 1 for _, timing in timings),
        "median_distance_from_1": median(abs(ratio - 1) for ratio in ratios),
        "largest_distance_from_1": max((abs(ratio - 1) for ratio in ratios), default=None),
        "rows": sorted([name, t.reference_ms, t.speedup, t.speedup_low, t.speedup_high] for name, t in timings),
    }


def spread(keck: LocalKeck, options: Any) -> dict[str, Any]:
    source = (CORPUS / SPREAD_OF[0] / SPREAD_OF[1]).read_text(encoding="utf-8")
    task = read.task(SPREAD_OF[0])
    jobs = [(task, Candidate(f"{source}\n# process {i}\n")) for i in range(20)]
    found = []
    with options.clock.part() as span:
        for _, verdict in keck.judge(jobs):
            found.append(verdict.speedup)
    ratios = sorted(speedup for speedup in found if speedup)
    middle = statistics.median(ratios or [0.0])
    return {
        "processes": len(ratios),
        "cut": span.cut,
        "median": middle,
        "spread": (ratios[-1] - ratios[0]) / middle if ratios else None,
        "ratios": ratios,
    }


PARTS: dict[str, Callable[[LocalKeck, Any], dict[str, Any]]] = {
    "throughput": throughput,
    "itself": itself,
    "spread": spread,
    "exploits": exploits,
}


@dataclass(frozen=True)
class Job:
    """One question and the statuses that are right."""

    name: str
    task: Task
    candidate: Candidate
    expect: frozenset[str]

    def repeated(self, number: int) -> Job:
        """The same, told from its other repeats by a comment, so that they share no verdict."""
        if not number:
            return self
        source = f"{self.candidate.source}\n# repeat {number}\n"
        return dataclasses.replace(self, candidate=dataclasses.replace(self.candidate, source=source))


def _exploit_jobs(only: str) -> list[Job]:
    jobs = []
    for path in sorted([*EXPLOITS.glob("*.py"), *EXPLOITS.glob("controls/*.py")]):
        fields = gpu_report.exploit_header(path)
        if fields.get("device") != "cuda" or only not in path.stem:
            continue
        reference = (EXPLOITS / "references" / fields["reference"]).read_text(encoding="utf-8")
        candidate = Candidate(path.read_text(encoding="utf-8"), Backend(fields.get("backend", "triton")))
        jobs.append(Job(path.stem, Task(reference), candidate, frozenset(fields["expect"].split("|"))))
    return jobs


def _by_file(found: Sequence[tuple[Job, Verdict]]) -> dict[str, dict[str, Any]]:
    """Each file's statuses over its repeats with their counts, a reason for each, and the speedups."""
    files: dict[str, dict[str, Any]] = {}
    for job, verdict in sorted(found, key=lambda pair: pair[0].name):
        entry = files.setdefault(
            job.name, {"expected": sorted(job.expect), "statuses": {}, "reasons": {}, "speedups": []}
        )
        status = verdict.status.value
        entry["statuses"][status] = entry["statuses"].get(status, 0) + 1
        entry["reasons"].setdefault(status, verdict.reason)
        if verdict.speedup:
            entry["speedups"].append(round(verdict.speedup, 4))
    return files


def _judged(keck: LocalKeck, jobs: Sequence[Job], clock: Clock) -> tuple[list[tuple[Job, Verdict]], dict[str, Any]]:
    """Judge all; what disagrees is told at once."""
    found: list[tuple[Job, Verdict]] = []
    lines = []
    with clock.part() as span:
        for index, verdict in keck.judge([(job.task, job.candidate) for job in jobs]):
            job = jobs[index]
            found.append((job, verdict))
            span.seconds = time.monotonic() - span.started
            if verdict.status.value not in job.expect:
                due = "|".join(sorted(job.expect))
                lines.append(f"{job.name}: {verdict.status.value}, expected {due}: {verdict.reason}")
                say(f"DISAGREES {lines[-1]}")
            if len(found) % 50 == 0:
                say(f"{len(found)} of {len(jobs)} judged, {span.seconds:.0f} s")
    rows = [
        [job.name, v.status.value, v.judged_s, v.rung, v.timing and [v.timing.speedup_low, v.timing.speedup_high]]
        for job, v in sorted(found, key=lambda pair: pair[0].name)
    ]
    return found, {
        "candidates": len(jobs),
        "judged": len(found),
        "seconds": round(span.seconds, 1),
        "cut": span.cut,
        "an_hour": an_hour(len(found), span.seconds),
        "disagreements": len(lines),
        "median_judged_s": median(v.judged_s for _, v in found),
        "statuses": dict(collections.Counter(v.status.value for _, v in found)),
        "rungs": dict(collections.Counter(v.rung for _, v in found if v.rung)),
        "lines": lines,
        "rows": rows,
    }


if __name__ == "__main__":
    main()
