"""Puts single faults into correct kernels and asks Keck whether it notices: python benchmarks/mutants.py.

Mutants are made from the correct candidates of benchmarks/corpus, by operators on the syntax tree (Triton) and on
tokens (CUDA C++), deterministically for a seed. Those that differ from their original in layout only are left out.
They are judged at the tasks' small sizes, which are odd, so that a fault in a mask or a tail is a fault; on a GPU those
that survive are judged at the full sizes as well. Prints a table an operator and writes
benchmarks/results/mutants_{device}.json with every survivor's change. A survivor is a hole in Keck, or equivalent to
its original, or wrong by less than the tolerance: that has to be decided by reading it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "corpus")]

import gpu_report  # noqa: E402
from gpu_report import Clock  # noqa: E402
from mutation import on_cuda, on_triton  # noqa: E402
from mutation.edit import Edit, Mutant, mutant  # noqa: E402
from mutation.equivalent import why_equivalent  # noqa: E402
from read import Entry, entries, task  # noqa: E402

from kernelzero.keck import Limits, open_keck  # noqa: E402
from kernelzero.records import Backend, Candidate, Status, Verdict  # noqa: E402

LANGUAGE = {Backend.TRITON: on_triton, Backend.CUDA: on_cuda}


def mutants(backend: Backend, limit: int, seed: int = 0) -> list[Mutant]:
    """At most `limit` mutants of a backend, spread evenly over operators, then over candidates."""
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    for entry in correct_entries(backend):
        for made in of_entry(entry):
            by_operator[made.operator].append(made)
    for operator, made_here in by_operator.items():
        by_operator[operator] = _spread(made_here, random.Random(f"{seed}/{operator}"))
    chosen: list[Mutant] = []
    while len(chosen) < limit and any(by_operator.values()):
        chosen += [waiting.pop(0) for _, waiting in sorted(by_operator.items()) if waiting]
    return chosen[:limit]


def correct_entries(backend: Backend) -> list[Entry]:
    """Candidates that are correct without any doubt."""
    return [entry for entry in entries(backend) if entry.expect == {"correct"}]


def of_entry(entry: Entry) -> Iterator[Mutant]:
    """Every mutant of one candidate whose text differs from all others in more than its layout."""
    source, backend = entry.candidate.source, entry.candidate.backend
    seen = {LANGUAGE[backend].normal_form(source)}
    for edit in LANGUAGE[backend].edits(source):
        form = _form(backend, source, edit)
        if form is not None and form not in seen:
            seen.add(form)
            yield mutant(entry.task, entry.name, backend, source, edit)


def _form(backend: Backend, source: str, edit: Edit) -> str | None:
    try:
        return LANGUAGE[backend].normal_form(edit.apply(source))
    except SyntaxError:
        return None


def _spread(made: list[Mutant], rng: random.Random) -> list[Mutant]:
    """In an order that takes one of each candidate before a second of any."""
    by_base: dict[str, list[Mutant]] = defaultdict(list)
    for item in rng.sample(made, len(made)):
        by_base[item.base].append(item)
    queues = rng.sample(sorted(by_base.values(), key=lambda queue: queue[0].base), len(by_base))
    return [queue[turn] for turn in range(max(map(len, queues))) for queue in queues if turn < len(queue)]


def judge(made: list[Mutant], keck: Any, sizes: str, clock: Clock) -> dict[int, Verdict]:
    """Verdicts by the mutants' numbers: of all, or of those for which there was time.

    `sizes`: "small", "full", or "both": full for what survives small. Who survives small and was not asked at full
    sizes for want of time has no verdict.
    """
    found = _judge_at(made, range(len(made)), keck, clock, small=sizes != "full")
    if sizes == "both":
        # Code for wide rows (float4, tensor cores) is not reached at small sizes.
        again = [i for i, verdict in found.items() if verdict.status is Status.CORRECT]
        for i in again:
            del found[i]
        found |= _judge_at(made, again, keck, clock, small=False)
    return found


def _judge_at(made: list[Mutant], numbers: Sequence[int], keck: Any, clock: Clock, small: bool) -> dict[int, Verdict]:
    jobs = [(task(made[i].task, small), Candidate(made[i].source, made[i].backend)) for i in numbers]
    found: dict[int, Verdict] = {}
    with clock.part(0.8 if small else 1.0):
        for done, (index, verdict) in enumerate(keck.judge(jobs, timed=False), 1):
            found[numbers[index]] = verdict
            if done % 50 == 0:
                print(f"{done} of {len(jobs)} judged", file=sys.stderr, flush=True)
    return found


def report(made: list[Mutant], verdicts: dict[int, Verdict]) -> dict[str, Any]:
    """Counts an operator, and the survivors with their changes."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    survivors, unjudged, equivalent = [], [], []
    for number, verdict in sorted(verdicts.items()):
        item = made[number]
        table[item.operator][verdict.status.value] += 1
        place = {"base": item.base, "operator": item.operator, "line": item.line, "diff": item.diff}
        if verdict.status is Status.CORRECT and (why := why_equivalent(item)):
            equivalent.append(place | {"why": why})
        elif verdict.status is Status.CORRECT:
            survivors.append(place | {"criterion": verdict.criterion, "reason": verdict.reason})
        elif not verdict.status.is_outcome:
            unjudged.append(place | {"status": verdict.status.value, "reason": verdict.reason})
    judged = sum(v.status.is_outcome for v in verdicts.values()) - len(equivalent)
    return {
        "mutants": len(made),
        "tasks": len({made[number].task for number in verdicts}),
        "judged": judged,
        "killed": judged - len(survivors),
        "by_operator": {name: dict(counts) for name, counts in sorted(table.items())},
        "survivors": survivors,
        "equivalent": equivalent,
        "unjudged": unjudged,
    }


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    statuses = [s.value for s in Status if any(s.value in row for row in result["by_operator"].values())]
    print(f"{'operator':<24}" + "".join(f"{status:>15}" for status in statuses))
    for name, row in result["by_operator"].items():
        print(f"{name:<24}" + "".join(f"{row.get(status, 0):>15}" for status in statuses))
    print(f"{result['mutants']} mutants, {result['tasks']} tasks: {result['judged']} judged, {result['killed']} killed")
    print(f"beside them {len(result['equivalent'])} that compute what their original computes")
    for s in result["survivors"]:
        print(f"\nsurvivor {s['base']}:{s['line']} {s['operator']} ({s['criterion']})\n{s['diff']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--backend", choices=[b.value for b in Backend], help="default: both")
    parser.add_argument("--limit", type=int, default=300, help="mutants a backend")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", choices=["small", "full", "both"], help="default: small on a CPU, both on a GPU")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="for everything")
    parser.add_argument("--out", type=Path, help="default: results/mutants_DEVICE.json")
    parser.add_argument("--list", action="store_true", help="print the mutants and judge nothing")
    arguments = parser.parse_args()
    chosen = [Backend(arguments.backend)] if arguments.backend else list(Backend)
    sizes = arguments.sizes or ("both" if arguments.device == "cuda" else "small")
    made = {backend: mutants(backend, arguments.limit, arguments.seed) for backend in chosen}
    if arguments.list:
        for item in (m for group in made.values() for m in group):
            print(f"{item.operator:<24}{item.base}:{item.line}\n{item.diff}")
        return
    path = arguments.out or HERE / "results" / f"mutants_{arguments.device}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    gpu_report.load_client()
    clock = Clock(arguments.budget_s)
    with open_keck(
        arguments.device, workers=arguments.workers, limits=Limits(timeout_s=30.0), seed=arguments.seed
    ) as keck:
        for backend, group in made.items():
            before = clock.left_s
            results[backend.value] = report(group, judge(group, keck, sizes, clock))
            results[backend.value] |= {"seconds": round(before - clock.left_s, 1), "sizes": sizes}
            show(results[backend.value])
            gpu_report.write(path, results)


if __name__ == "__main__":
    main()
