"""Verdicts a second on the CPU, beside what a fresh Python process a candidate costs: python benchmarks/keck_cpu.py.

Both judge the same distinct pairs of a composed module and a rule-written Triton kernel. Keck adds to the calls its
rules, its isolation, the front end, and the watching of every access; the fresh process has none of that: it imports,
runs reference and kernel in Triton's plain interpreter on twenty inputs, and compares. Prints a table, writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, write_kernel
from kernelzero.keck import LocalKeck
from kernelzero.proposer.composer import SUPPORTED_APIS, CannotCompose, compose
from kernelzero.records import ApiSet, Candidate, Status, Task

RESULTS = Path(__file__).resolve().parent / "results" / "keck_cpu.json"
FRESH = """
import importlib.util, sys, torch
torch.set_num_threads(1)
def load(path):
    spec = importlib.util.spec_from_file_location(path[:-3].replace("/", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
reference, candidate = load(sys.argv[1]), load(sys.argv[2])
init = reference.get_init_inputs()
torch.manual_seed(0)
model = reference.Model(*init)
torch.manual_seed(0)
new = candidate.ModelNew(*init)
new.load_state_dict(model.state_dict(), strict=False)
with torch.no_grad():
    for seed in range(20):
        torch.manual_seed(seed)
        inputs = reference.get_inputs()
        assert torch.allclose(new(*inputs), model(*inputs), atol=1e-2, rtol=1e-2)
"""


def pairs(count: int, seed: int) -> list[tuple[Task, Candidate]]:
    """Distinct modules with a kernel each."""
    import random

    rng, found = random.Random(seed), []
    apis = sorted(SUPPORTED_APIS)
    while len(found) < count:
        try:
            task = compose(ApiSet(tuple(sorted(rng.sample(apis, rng.choice((2, 3)))))), rng.randrange(1 << 30))
            found.append((task, Candidate(write_kernel(task, variant=len(found) % VARIANTS))))
        except (CannotCompose, CannotWrite):
            continue
    return found


def keck_seconds(jobs: list[tuple[Task, Candidate]], workers: int) -> tuple[float, Counter[str]]:
    """Wall time for all verdicts, the start of the judges left out, and how they ended."""
    with LocalKeck(workers=workers, seed=1) as keck:
        # One verdict each brings the judges up.
        list(keck.judge(jobs[:1] * workers))
        started = time.perf_counter()
        verdicts = [verdict for _, verdict in keck.judge(jobs[workers:])]
        return time.perf_counter() - started, Counter(v.status.value for v in verdicts)


def fresh_seconds(jobs: list[tuple[Task, Candidate]], workers: int) -> tuple[float, int]:
    """Wall time for a fresh Python a pair, as many at once as there are workers, and how many ended well."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:

        def run(number: int) -> bool:
            paths = [Path(folder) / f"{kind}{number}.py" for kind in ("reference", "candidate")]
            for path, source in zip(paths, (jobs[number][0].source, jobs[number][1].source), strict=True):
                path.write_text(source)
            command = [sys.executable, "-c", FRESH, *map(str, paths)]
            return subprocess.run(command, env=environment, capture_output=True).returncode == 0

        started = time.perf_counter()
        right = sum(pool.map(run, range(len(jobs))))
        return time.perf_counter() - started, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="distinct pairs for Keck, at least 40")
    parser.add_argument("--fresh-pairs", type=int, default=8, help="how many of them a fresh process runs as well")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    jobs = pairs(max(arguments.pairs, 40) + arguments.workers, arguments.seed)
    seconds, statuses = keck_seconds(jobs, arguments.workers)
    count = len(jobs) - arguments.workers
    fresh, right = fresh_seconds(jobs[: arguments.fresh_pairs], arguments.workers)
    result = {
        "workers": arguments.workers,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_before": os.getloadavg()[0],
        "keck": {"pairs": count, "seconds": seconds, "verdicts_per_s": count / seconds, "statuses": dict(statuses)},
        "fresh_process": {
            "pairs": arguments.fresh_pairs,
            "seconds": fresh,
            "verdicts_per_s": arguments.fresh_pairs / fresh,
            "right": right,
        },
        "ratio": count / seconds / (arguments.fresh_pairs / fresh),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{'':<28}{'pairs':>6}{'right':>7}{'seconds':>9}{'verdicts/s':>12}")
    row = "{:<28}{:>6}{:>7}{:>9.1f}{:>12.2f}"
    print(row.format(f"Keck, {arguments.workers} workers", count, statuses[Status.CORRECT], seconds, count / seconds))
    print(row.format("a fresh process a candidate", arguments.fresh_pairs, right, fresh, arguments.fresh_pairs / fresh))
    print(f"Keck judges {result['ratio']:.1f} times as many, each task taken on anew.")


if __name__ == "__main__":
    main()
