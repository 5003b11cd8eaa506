"""Judges every Triton candidate of the corpus on the CPU at small sizes: benchmarks/corpus/check_cpu.py.

Prints a line a candidate and ends with 1 where a verdict is not what the candidate's header says. What the interpreter
cannot do ("unsupported": bf16 products, autotuning) is no disagreement. CUDA candidates are not judged here.
"""

from __future__ import annotations

import argparse
from collections import Counter

from kernelzero.keck import Limits, open_keck
from kernelzero.records import Backend, Status, Verdict

from read import Entry, entries, task


def judge(chosen: list[Entry], workers: int) -> list[Verdict]:
    """A verdict for each candidate, in order."""
    jobs = [(task(entry.task, small=True), entry.candidate) for entry in chosen]
    with open_keck("cpu", workers=workers, limits=Limits(timeout_s=60.0), seed=5) as keck:
        found = dict(keck.judge(jobs, timed=False))
    return [found[index] for index in range(len(jobs))]


def agrees(entry: Entry, verdict: Verdict) -> bool:
    """Whether the verdict is one that the header allows."""
    return verdict.status is Status.UNSUPPORTED or verdict.status.value in entry.expect


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names, e.g. softmax_rows/triton_without_max; default: all")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    chosen = [e for e in entries(Backend.TRITON) if not arguments.names or any(n in e.name for n in arguments.names)]
    table: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for entry, verdict in zip(chosen, judge(chosen, arguments.workers), strict=True):
        expect = "|".join(sorted(entry.expect))
        table[expect, verdict.status.value] += 1
        wrong += not agrees(entry, verdict)
        mark = "ok " if agrees(entry, verdict) else "BAD"
        print(f"{mark} {entry.name:<50} {verdict.judged_s:5.1f} s {expect} -> {verdict.status}: {verdict.reason[:150]}")
    print()
    for (expect, status), count in sorted(table.items()):
        print(f"{count:>4}  expected {expect}, judged {status}")
    print(f"{len(chosen)} candidates, {wrong} disagree")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
