"""Many candidates through one Keck, a share of them hostile: python benchmarks/soak.py --device cuda

    warm    each corpus candidate that is drawn once, so that extensions are built and what follows is alike
    clean   good candidates only
    soak    the same mix, and among them candidates that crash, hang, exit or take all memory (hostile/)

"Good" are the corpus's candidates, right and wrong ones, each with the verdicts that its header allows. Hostile ones
are sent to the same tasks, so that every judge meets them between good ones. Each job has its number in a comment at
its end: no two share a verdict. The text that a CUDA candidate hands to load_inline stays the same, so extensions are
built once (in warm) and come from Keck's cache after that: the soak is no measurement of building.

Checked at the end: every job has one verdict, which is right; no process, folder or GPU memory is left over; good
candidates were judged about as fast as in the clean run. What hostile ones cost is mostly time-outs, --timeout-s each
of one judge, so the ratio is given raw and without the judges' time that they took.
Ends with 1 where anything is misjudged, missing or left over. The soak is as long as fits into --budget-s, by the rate
of the clean run; interrupted or out of time nevertheless, it reports what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "corpus")]

import gpu_report  # noqa: E402
import read  # noqa: E402
from gpu_report import Clock, an_hour, median, ratio, say  # noqa: E402
from hostile import on_cuda, on_triton  # noqa: E402
from hostile.case import Hostile, hosts  # noqa: E402

from kernelzero.keck import open_keck, sandbox  # noqa: E402
from kernelzero.keck.client import Keck, limits_for  # noqa: E402
from kernelzero.records import Backend, Candidate, Status, Task, Verdict  # noqa: E402

HOSTILE = {Backend.TRITON: on_triton.cases, Backend.CUDA: on_cuda.cases}
_SETTLE_S = 5.0
"""How long processes and memory may take to be gone."""


@dataclass(frozen=True)
class Job:
    """One question and the verdicts that are right."""

    name: str
    task: Task
    candidate: Candidate
    expect: frozenset[str]
    hostile: bool = False

    def numbered(self, mark: str) -> Job:
        """The same with a comment at its end, so that it shares its verdict with no other."""
        return replace(self, candidate=replace(self.candidate, source=f"{self.candidate.source}\n# {mark}\n"))


@dataclass(frozen=True)
class Judged:
    """A job's verdict and when it came, in seconds from the start of its part."""

    job: Job
    verdict: Verdict
    at_s: float

    @property
    def is_right(self) -> bool:
        """What a device cannot judge is no misjudgement of a good candidate."""
        if self.verdict.status is Status.UNSUPPORTED and not self.job.hostile:
            return True
        return self.verdict.status.value in self.job.expect


# --- what is judged --------------------------------------------------------------------------------------------------


def good_jobs(options: argparse.Namespace) -> list[Job]:
    """Distinct corpus candidates of the chosen backends, at most --distinct of each, in seeded order."""
    small, found = options.device == "cpu", []
    for backend in options.backends:
        entries = read.entries(backend)
        for entry in _shuffled(entries, f"{options.seed}/{backend.value}")[: options.distinct]:
            found.append(Job(f"good/{entry.name}", read.task(entry.task, small), entry.candidate, entry.expect))
    return _shuffled(found, f"{options.seed}/good")


def hostile_jobs(options: argparse.Namespace, tasks: Sequence[Task]) -> Iterator[Job]:
    """Hostile candidates for ever, each kind as often as the others, sent to some of the tasks."""
    kinds: list[Hostile] = [case for backend in options.backends for case in HOSTILE[backend]()]
    rng = random.Random(f"{options.seed}/hostile")
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            yield Job(f"hostile/{kind.name}", rng.choice(tasks), kind.candidate, kind.expect, hostile=True)


def drawn(options: argparse.Namespace, good: Sequence[Job]) -> list[Job]:
    """The jobs of the soak in order."""
    possible = [read.task(name, options.device == "cpu") for name in hosts()]
    # Tasks that good candidates are sent to as well; where none of those will do, any.
    tasks = [task for task in possible if task in {job.task for job in good}] or possible
    count = round(options.share * options.count)
    ours = itertools.islice(hostile_jobs(options, tasks), count)
    jobs = [*ours, *itertools.islice(itertools.cycle(good), options.count - count)]
    return [job.numbered(f"soak {number}") for number, job in enumerate(_shuffled(jobs, f"{options.seed}/order"))]


def _shuffled(items: Sequence[Any], seed: str) -> list[Any]:
    return random.Random(seed).sample(list(items), len(items))


# --- judging ---------------------------------------------------------------------------------------------------------


def judge(keck: Keck, jobs: Sequence[Job], part: str, clock: Clock, share: float = 1.0, timed: bool = True) -> Part:
    """A part of the measurement; what is misjudged is told at once."""
    found: list[Judged] = []
    indices: Counter[int] = Counter()
    if not clock.left_s:
        return Part(part, len(jobs), (), 0.0, "not begun", 0)
    with clock.part(share) as span:
        for index, verdict in keck.judge([(job.task, job.candidate) for job in jobs], timed=timed):
            indices[index] += 1
            found.append(Judged(jobs[index], verdict, time.monotonic() - span.started))
            if not found[-1].is_right:
                say(f"  MISJUDGED {_told(found[-1])}")
            if len(found) % 50 == 0:
                say(f"  {part}: {len(found)} of {len(jobs)}, {found[-1].at_s:.0f} s")
    seconds = found[-1].at_s if found and not span.cut else span.seconds
    say(f"{part}: {len(found)} of {len(jobs)} in {seconds:.1f} s{f', cut: {span.cut}' if span.cut else ''}")
    return Part(part, len(jobs), tuple(found), seconds, span.cut, sum(n > 1 for n in indices.values()))


@dataclass(frozen=True)
class Part:
    """What a part gave."""

    name: str
    asked: int
    judged: tuple[Judged, ...]
    seconds: float
    cut: str
    doubled: int
    """Jobs that got more than one verdict."""

    def of(self, hostile: bool) -> list[Judged]:
        """The hostile ones, or the good ones."""
        return [j for j in self.judged if j.job.hostile is hostile]

    def to_json(self) -> dict[str, Any]:
        """Counts and rates."""
        good, hostile = self.of(hostile=False), self.of(hostile=True)
        return {
            "asked": self.asked,
            "judged": len(self.judged),
            "doubled": self.doubled,
            "seconds": round(self.seconds, 1),
            "cut": self.cut,
            "an_hour": an_hour(len(self.judged), self.seconds),
            "good_an_hour": an_hour(len(good), self.seconds),
            "good": len(good),
            "hostile": len(hostile),
            "good_median_s": median(j.verdict.judged_s for j in good),
            "hostile_median_s": median(j.verdict.judged_s for j in hostile),
            "good_phases_s": gpu_report.median_phases(j.verdict for j in good),
            "statuses": dict(Counter(j.verdict.status.value for j in self.judged)),
        }


def fitting(jobs: Sequence[Job], clean: Part, left_s: float, workers: int, timeout_s: float) -> int:
    """How many of the jobs `left_s` seconds suffice for: good ones as in the clean run, time-outs of all judges."""
    if not clean.judged:
        return len(jobs)
    good_s, needed = clean.seconds / len(clean.judged), 0.0
    for count, job in enumerate(jobs):
        needed += timeout_s / workers if job.hostile and "timeout" in job.expect else good_s
        if needed > left_s:
            say(f"time for {count} of {len(jobs)} jobs of the soak")
            return count
    return len(jobs)


def _told(judged: Judged) -> str:
    due = "|".join(sorted(judged.job.expect))
    return f"{judged.job.name}: {judged.verdict.status}, expected {due}: {judged.verdict.reason[:200]}"


# --- what is left over -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A descendant of this program."""

    pid: int
    depth: int
    """1: Keck's server, 2: judges, 3: their zygotes, more: what runs modules."""
    state: str
    command: str


def processes() -> list[Process]:
    """All descendants of this program, zombies too."""
    found, level, depth = [], [os.getpid()], 0
    parents = {pid: parent for pid in sandbox.descendants(os.getpid()) if (parent := _parent(pid))}
    while level:
        depth += 1
        level = [pid for pid, parent in parents.items() if parent in level]
        found += [Process(pid, depth, _state(pid), _command(pid)) for pid in level]
    return found


def idle_processes(workers: int, device: str) -> dict[str, Any]:
    """While Keck waits for questions: its own processes, on a GPU a living reference and a child that was started ahead
    for each judge, both with a broker, and nobody else."""
    allowed = {1: 1, 2: workers, 3: workers, 4: 4 * workers if device != "cpu" else 0}

    def surplus(found: list[Process]) -> list[Process]:
        depths = Counter(p.depth for p in found)
        return [p for p in found if depths[p.depth] > allowed.get(p.depth, 0)]

    found = _settled(lambda: [p for p in processes() if p.state != "Z"], lambda found: not surplus(found))
    return {
        "by_depth": dict(sorted(Counter(p.depth for p in found).items())),
        "zombies": sum(p.state == "Z" for p in processes()),
        "surplus": [vars(p) for p in surplus(found)],
    }


def left_processes() -> list[dict[str, Any]]:
    """After closing: descendants that still live. Orphans come to this program (`sandbox.adopt_orphans`)."""

    def living() -> list[Process]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return [p for p in processes() if p.state != "Z"]

    return [vars(p) for p in _settled(living, lambda found: not found)]


def _settled(look: Any, is_done: Any) -> Any:
    deadline = time.monotonic() + _SETTLE_S
    while not is_done(found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _state(pid: int) -> str:
    return (_stat(pid) or ["Z"])[0]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()[:120]
    except OSError:
        return ""


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for temporary files of this program's children; what is in it after closing was left over."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


# --- the report ------------------------------------------------------------------------------------------------------


def misjudged(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """What was not judged as expected in the soak, by name and status, and whether it was so without hostile ones."""
    before = {(j.job.name, j.verdict.status) for p in parts if p.name != "soak" for j in p.judged}
    groups: dict[tuple[str, Status], list[Judged]] = defaultdict(list)
    for part in parts:
        for judged in part.judged if part.name == "soak" else ():
            if not judged.is_right:
                groups[judged.job.name, judged.verdict.status].append(judged)
    return [
        {
            "name": name,
            "status": status.value,
            "expected": sorted(found[0].job.expect),
            "times": len(found),
            "also_without_hostile": (name, status) in before,
            "reasons": sorted({j.verdict.reason[:300] for j in found})[:5],
        }
        for (name, status), found in sorted(groups.items())
    ]


def flickering(parts: Sequence[Part]) -> dict[str, dict[str, int]]:
    """Good candidates that got more than one status, over all parts."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for judged in (j for part in parts for j in part.of(hostile=False)):
        seen[judged.job.name][judged.verdict.status.value] += 1
    return {name: dict(counts) for name, counts in sorted(seen.items()) if len(counts) > 1}


def ratios(clean: Part, soak: Part, workers: int) -> dict[str, float | None]:
    """Good candidates an hour in the soak by those of the clean run; 1: nobody noticed the hostile ones."""
    hostile_s = sum(j.verdict.judged_s for j in soak.of(hostile=True)) / workers
    good = [len(part.of(hostile=False)) / part.seconds if part.seconds else None for part in (soak, clean)]
    without = len(soak.of(hostile=False)) / max(soak.seconds - hostile_s, 0.001)
    medians = [median(j.verdict.judged_s for j in part.of(hostile=False)) for part in (soak, clean)]
    return {
        "raw": ratio(*good),
        "without_hostile_time": ratio(without, good[1]),
        "median_judged_s": ratio(*medians),
        "hostile_s_a_judge": round(hostile_s, 1),
    }


def by_hostile(soak: Part) -> dict[str, dict[str, Any]]:
    """Each kind: how often each status, and the median seconds."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for judged in soak.of(hostile=True):
        groups[judged.job.name].append(judged)
    return {
        name: {
            "expected": "|".join(sorted(found[0].job.expect)),
            "statuses": dict(Counter(j.verdict.status.value for j in found)),
            "median_s": median(j.verdict.judged_s for j in found),
        }
        for name, found in sorted(groups.items())
    }


def show(found: dict[str, Any]) -> None:
    """The table, last."""
    soak = found["soak"]
    if found["hostile"]:
        rows = [(n, v["expected"], _counts(v["statuses"]), v["median_s"]) for n, v in found["hostile"].items()]
        gpu_report.table(("hostile", "expected", "judged", "median s"), rows)
        say("")
    parts = [(name, found[name]) for name in ("warm", "clean", "soak") if name in found]
    gpu_report.table(
        ("part", "asked", "judged", "seconds", "an hour", "good an hour", "good median s", "cut"),
        [
            (n, p["asked"], p["judged"], p["seconds"], p["an_hour"], p["good_an_hour"], p["good_median_s"], p["cut"])
            for n, p in parts
        ],
    )
    for entry in found["misjudged"]:
        known = ", also without hostile ones" if entry["also_without_hostile"] else ""
        say(f"misjudged {entry['times']} times{known}: {entry['name']}: {entry['status']}: {entry['reasons'][0][:150]}")
    for name, statuses in found["flickering"].items():
        say(f"flickers: {name}: {_counts(statuses)}")
    say(f"good ones an hour, soak by clean: {found['ratios']}")
    say(f"no verdict: {soak['asked'] - soak['judged']}, two verdicts: {soak['doubled']}")
    say(f"processes while idle: {found['idle']}; left after closing: {found['left_processes']}")
    say(f"GPU memory MiB before, idle, after: {found['gpu_memory_mib']}; folders left: {found['left_folders']}")
    so_far = " as far as it went" if any(p["cut"] for _, p in parts) else ""
    say(f"all as it should be{so_far}" if not found["faults"] else "FAULTS: " + ", ".join(found["faults"]))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def faults(found: dict[str, Any]) -> list[str]:
    """What must not be; a candidate that is misjudged without hostile ones as well is the corpus's business."""
    soak, memory = found["soak"], found["gpu_memory_mib"]
    # Cut off, Keck's server may be killed before it has removed its folder.
    cut = any(found[part]["cut"] for part in ("warm", "clean", "soak"))
    made = {
        "misjudged": any(not entry["also_without_hostile"] for entry in found["misjudged"]),
        "verdicts missing": soak["judged"] < soak["asked"] and not soak["cut"],
        "verdicts doubled": soak["doubled"],
        "processes left while idle": found["idle"] and found["idle"]["surplus"],
        "processes left after closing": found["left_processes"],
        "folders left": found["left_folders"] and not cut,
        "GPU memory left": memory[0] is not None and memory[2] is not None and memory[2] > memory[0] + 64,
    }
    return [name for name, is_so in made.items() if is_so]


# --- the whole -------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All parts, and what is left after them."""
    gpu_report.load_client()
    sandbox.adopt_orphans()
    with private_folder() as folder:
        return _run(options, folder)


def _run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    clock = Clock(options.budget_s)
    memory = [_memory(options)]
    good = good_jobs(options)
    jobs = drawn(options, good)
    clean_jobs = [
        job.numbered(f"clean {n}") for n, job in enumerate(itertools.islice(itertools.cycle(good), options.clean))
    ]
    limits = limits_for(options.device, options.timeout_s)
    with open_keck(options.device, options.workers, limits) as keck:
        warm = judge(keck, [] if options.no_warm else good, "warm", clock, 0.4, timed=not options.untimed)
        clean = judge(keck, clean_jobs, "clean", clock, 0.4, timed=not options.untimed)
        jobs = jobs[: fitting(jobs, clean, 0.8 * clock.left_s, keck.workers, limits.timeout_s)]
        soak = judge(keck, jobs, "soak", clock, timed=not options.untimed)
        # Cut off, Keck is closed already.
        idle = None if soak.cut else idle_processes(keck.workers, options.device)
        memory.append(_memory(options))
        workers = keck.workers
    left = left_processes()
    memory.append(_settled(lambda: _memory(options), lambda now: now is None or now <= memory[0] + 64))
    parts = (warm, clean, soak)
    found = {
        "machine": gpu_report.machine(options.device),
        "options": _plain(options) | {"workers": workers, "timeout_s": limits.timeout_s},
        **{part.name: part.to_json() for part in parts},
        "ratios": ratios(clean, soak, workers),
        "hostile": by_hostile(soak),
        "misjudged": misjudged(parts),
        "flickering": flickering(parts),
        "idle": idle,
        "left_processes": left,
        "left_folders": sorted(p.name for p in folder.iterdir() if not p.name.startswith("keck-leases-")),
        "gpu_memory_mib": memory,
    }
    return found | {"faults": faults(found)}


def _memory(options: argparse.Namespace) -> int | None:
    number = int(options.device.partition(":")[2] or 0)
    return None if options.device == "cpu" else gpu_report.gpu_memory_mib(number)


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {
        k: [b.value for b in v] if k == "backends" else str(v) if k == "out" else v for k, v in vars(options).items()
    }


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (small sizes, Triton only)")
    parser.add_argument("--backends", default="triton,cuda", help="of triton,cuda")
    parser.add_argument("-n", "--count", type=int, default=2000, help="candidates of the soak")
    parser.add_argument("--share", type=float, default=0.15, help="of them hostile")
    parser.add_argument("--clean", type=int, default=200, help="good candidates of the clean run")
    parser.add_argument("--distinct", type=int, help="corpus candidates a backend that the good ones are; default: all")
    parser.add_argument("--no-warm", action="store_true", help="let the clean run pay for building and for taking on")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--timeout-s", type=float, help="of one candidate; default: Keck's")
    parser.add_argument("--untimed", action="store_true", help="verdicts without times")
    parser.add_argument("--budget-s", type=float, default=540.0, help="for everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "soak.json")
    options = parser.parse_args(arguments)
    options.backends = [Backend(name) for name in options.backends.split(",")]
    if options.device == "cpu":
        options.backends = [Backend.TRITON]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all is as it should be."""
    options = parsed(arguments)
    found = run(options)
    gpu_report.write(options.out, found)
    show(found)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
