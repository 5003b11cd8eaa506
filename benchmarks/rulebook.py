"""The rulebook's kernels for modules of the composer: how many are right, and how fast they are.

    python benchmarks/rulebook.py --device cpu -n 600            small sizes, Triton, in Keck's interpreter
    python benchmarks/rulebook.py --device cuda -n 600           the same modules at a GPU's sizes, timed
    python benchmarks/rulebook.py --device cuda --backend cuda

Draw N is the same module everywhere, so verdicts on a CPU and on a GPU can be held against each other: where
results/rulebook_cpu.json has the draw, the GPU's run says whether it agrees. Prints the share that was composed,
written and correct, and a table of speedups over eager PyTorch by kind of module; writes
results/rulebook_DEVICE_BACKEND.json with a row a draw. Out of time or interrupted, it reports what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import gpu_report  # noqa: E402
from gpu_report import Clock, say  # noqa: E402

from kernelzero.keck import open_keck  # noqa: E402
from kernelzero.records import Backend, Candidate, Task  # noqa: E402

KINDS = ("products", "convolutions", "pooling", "norms", "reductions", "gathers", "losses", "joins", "layout", "binary",
         "pointwise")  # fmt: skip
"""Families of the composer, the one that decides a module's time first: a module is of the first kind that it has."""


@dataclass(frozen=True)
class Draw:
    """One draw: its module and kernel, or why there are none."""

    number: int
    apis: tuple[str, ...]
    kind: str
    module: str = ""
    kernel: str = ""
    refusal: str = ""
    """Why nothing was composed or written."""
    status: str = ""
    reason: str = ""
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    reference_ms: float | None = None


def prepare(job: tuple[int, int, str, str]) -> Draw:
    """Compose and write; runs in a process of its own, on trusted text only."""
    import torch

    from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, write_kernel
    from kernelzero.proposer.composer import CannotCompose, compose_module, draw
    from kernelzero.proposer.composer.families import OPS

    torch.set_num_threads(1)
    seed, number, sizes, backend = job
    api_set = draw(seed, number)
    families = {OPS[api].apply.__module__.rpartition(".")[2] for api in api_set.apis}
    found = Draw(number, api_set.apis, next((kind for kind in KINDS if kind in families), "pointwise"))
    try:
        module = compose_module(api_set, number, sizes).source  # type: ignore[arg-type]
        found = replace(found, module=module)
        kernel = write_kernel(Task(module), variant=number % VARIANTS, backend=Backend(backend))
    except CannotCompose as error:
        return replace(found, refusal=f"compose: {error}"[:200])
    except CannotWrite as error:
        return replace(found, refusal=f"write: {error}"[:200])
    except Exception as error:
        return replace(found, refusal=f"broken: {type(error).__name__}: {error}"[:200])
    return replace(found, kernel=kernel)


def judged(draws: list[Draw], options: argparse.Namespace, clock: Clock) -> list[Draw]:
    """With verdicts, as far as there is time."""
    written = [draw for draw in draws if draw.kernel]
    found = {draw.number: draw for draw in draws}
    jobs = [(Task(d.module), Candidate(d.kernel, Backend(options.backend))) for d in written]
    with open_keck(options.device, options.workers) as keck, clock.part():
        for done, (index, verdict) in enumerate(keck.judge(jobs, timed=options.device != "cpu"), 1):
            draw = replace(written[index], status=verdict.status.value, reason=verdict.reason[:200])
            if verdict.timing:
                t = verdict.timing
                draw = replace(
                    draw, speedup=t.speedup, low=t.speedup_low, high=t.speedup_high, reference_ms=t.reference_ms
                )
            found[draw.number] = draw
            if done % 50 == 0:
                say(f"{done} of {len(jobs)} judged, {clock.left_s:.0f} s left")
    return [found[draw.number] for draw in draws]


def report(draws: list[Draw], before: dict[int, str]) -> dict[str, Any]:
    """Counts, speedups by kind, and agreement with verdicts of before."""
    written = [d for d in draws if d.kernel]
    known = [d for d in written if d.status]
    both = [d for d in known if before.get(d.number) == "correct"]
    kinds = defaultdict(list)
    for draw in known:
        kinds[draw.kind].append(draw)
    return {
        "draws": len(draws),
        "composed": sum(bool(d.module) for d in draws),
        "written": len(written),
        "judged": len(known),
        "statuses": dict(Counter(d.status for d in known)),
        "refusals": dict(Counter(d.refusal.split(":")[0] for d in draws if d.refusal)),
        "correct_before": len(both),
        "correct_before_and_now": sum(d.status == "correct" for d in both),
        "kinds": {kind: _speeds(kinds[kind]) for kind in KINDS if kinds[kind]} | {"all": _speeds(known)},
        "rows": [{k: v for k, v in asdict(d).items() if k not in ("module", "kernel")} for d in draws],
        "wrong": [asdict(d) for d in known if d.status != "correct"][:40],
    }


def _speeds(draws: list[Draw]) -> dict[str, Any]:
    speeds = sorted(d.speedup for d in draws if d.speedup)
    quarters = statistics.quantiles(speeds, n=4) if len(speeds) > 1 else [None] * 3
    return {
        "judged": len(draws),
        "correct": sum(d.status == "correct" for d in draws),
        "timed": len(speeds),
        "median": quarters[1],
        "quarter": quarters[0],
        "three_quarters": quarters[2],
        "faster": sum(bool(d.low and d.low > 1) for d in draws),
        "slower": sum(bool(d.high and d.high < 1) for d in draws),
    }


def show(found: dict[str, Any]) -> None:
    """The tables, last."""
    say(str({k: v for k, v in found.items() if not isinstance(v, list) and k != "kinds"}))
    columns = ("judged", "correct", "timed", "median", "quarter", "three_quarters", "faster", "slower")
    gpu_report.table(("kind", *columns), [(kind, *(v[c] for c in columns)) for kind, v in found["kinds"].items()])
    for draw in found["wrong"][:15]:
        say(f"{draw['number']} {draw['status']}: {draw['reason'][:110]} | {', '.join(draw['apis'])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="triton", choices=["triton", "cuda"])
    parser.add_argument("-n", type=int, default=600, help="draws")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--budget-s", type=float, default=3600.0, help="for everything")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpu_report.load_client()
    clock = Clock(options.budget_s)
    sizes = "small" if options.device == "cpu" else "gpu"
    numbers = range(options.first, options.first + options.n)
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(options.workers or cores) as pool:
        draws = list(pool.map(prepare, [(options.seed, n, sizes, options.backend) for n in numbers], chunksize=4))
    say(f"{sum(bool(d.kernel) for d in draws)} of {len(draws)} written, {clock.left_s:.0f} s left")
    if options.device == "cpu" and options.backend == "cuda":
        parser.error("a CPU does not run CUDA kernels")
    before_file = HERE / "results" / "rulebook_cpu.json"
    before = json.loads(before_file.read_text()) if before_file.exists() else {"seed": None, "rows": []}
    same = before["seed"] == options.seed and options.device != "cpu"
    statuses = {row["number"]: row["status"] for row in before["rows"]} if same else {}
    found = {"seed": options.seed, "sizes": sizes} | report(judged(draws, options, clock), statuses)
    name = "rulebook_cpu.json" if options.device == "cpu" else f"rulebook_cuda_{options.backend}.json"
    gpu_report.write(options.out or HERE / "results" / name, found)
    show(found)


if __name__ == "__main__":
    main()
