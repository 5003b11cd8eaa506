"""Does reinforcement learning alone teach the nano Coder? Frontier against blind modules, two seeds, held-out modules.

    python benchmarks/nano_hour.py [--seeds 0 1] [--modules 640] [--held-out 1024] [--device cpu]

One pool of modules with solve rates is made for each seed, then `configs/nano-hour.toml` runs on it with
`curriculum.selection` "frontier" and "blind", and every Coder is measured on the same held-out modules, one sample at
temperature 1. Everything is kept under runs/nano-hour, and what is there is not made again. Prints a table last,
writes benchmarks/results/nano_hour.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from kernelzero.bench import builtin_tasks
from kernelzero.cli import quiet_libraries
from kernelzero.coevolve import coevolve
from kernelzero.coldstart.nano import solve_rate
from kernelzero.coldstart.pool import composed_modules, try_modules, write_pool
from kernelzero.config import load_config, parse_config
from kernelzero.keck import LocalKeck
from kernelzero.metrics import wilson_interval
from kernelzero.normalise import normalised
from kernelzero.policy import open_sampler
from kernelzero.records import Task

ROOT = Path(__file__).resolve().parent.parent
RUNS = Path("runs/nano-hour")
SAMPLES = 8
"""Tries of each module of the pool by the start model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--modules", type=int, default=640)
    parser.add_argument("--held-out", type=int, default=1024)
    parser.add_argument("--device", default="cpu", choices=["cpu", "auto"])
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE", help="overrides, e.g. coder.lr=1e-4"
    )
    options = parser.parse_args()
    quiet_libraries()
    with LocalKeck(options.workers, seed=1) as keck:
        held_out = modules("held-out", options.held_out, 10_000, set(), keck)
        rows = [measured("start", "nano:coder", held_out, keck, options)]
        for seed in options.seeds:
            pool = pool_of(seed, options, {normalised(t.source) for t in held_out}, keck)
            for selection in ("frontier", "blind"):
                name, model, steps = trained(seed, selection, pool, options)
                rows.append(measured(name, model, held_out, keck, options) | steps)
    report(rows)


def modules(name: str, count: int, seed: int, forbidden: set[str], keck: LocalKeck) -> list[Task]:
    """Modules from a file, made if it is not there; never benchmark tasks or forbidden ones."""
    path = RUNS / f"{name}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        forbidden = forbidden | {normalised(task.source) for task in builtin_tasks()}
        made = composed_modules(count, seed, forbidden, keck)
        path.write_text("".join(json.dumps(task.to_json()) + "\n" for task in made))
    return [Task.from_json(json.loads(line)) for line in path.read_text().splitlines()]


def pool_of(seed: int, options: Any, forbidden: set[str], keck: LocalKeck) -> Path:
    """The pool of one seed: modules, and what the start model makes of each."""
    path = RUNS / f"pool-{seed}.jsonl"
    if not path.exists():
        tasks = modules(f"modules-{seed}", options.modules, seed, forbidden, keck)
        sampler = open_sampler("nano:coder", device=None if options.device == "auto" else "cpu")
        write_pool(path, tasks, try_modules(sampler, tasks, keck, SAMPLES, 300, seed))
        sampler.close()
    return path


def trained(seed: int, selection: str, pool: Path, options: Any) -> tuple[str, str, dict[str, Any]]:
    """One run; name, newest checkpoint, and its curves."""
    name = f"{selection}-{seed}"
    data = load_config(ROOT / "configs" / "nano-hour.toml").to_json()
    data["run"] |= {"name": name, "seed": seed, "folder": str(RUNS / name)}
    data["curriculum"] |= {"selection": selection, "pool": str(pool)}
    data["training"]["device"] = options.device
    if options.workers:
        data["keck"]["workers"] = options.workers
    for override in options.set:
        key, _, value = override.partition("=")
        section, _, field = key.partition(".")
        data[section][field] = json.loads(value)
    folder = coevolve(parse_config(data), on_event=_tell)
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    newest = max((folder / "coder").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    curves = {key: [step[key] for step in steps] for key in ("accuracy", "mixed_groups", "kl", "entropy")}
    return name, str(newest), {"train_s": sum(step["step_s"] for step in steps), "curves": curves}


def _tell(event: Any) -> None:
    if event.kind == "step" and event.metrics:
        accuracy = event.metrics.get("solve_rate") or event.metrics.get("accuracy") or 0.0
        print(f"{event.message}  accuracy {accuracy:.3f}  kl {event.metrics.get('kl')}", flush=True)


def measured(name: str, model: str, held_out: list[Task], keck: LocalKeck, options: Any) -> dict[str, Any]:
    """Solve rate of a Coder on the held-out modules."""
    path = RUNS / f"measured-{name}.json"
    if not path.exists():
        started = time.monotonic()
        sampler = open_sampler(model, device=None if options.device == "auto" else "cpu", style="compact")
        found = solve_rate(sampler, held_out, keck, n=1, seed=99)
        sampler.close()
        low, high = wilson_interval(round(found["solve_rate"] * found["tasks"]), found["tasks"])
        found |= {"name": name, "low": low, "high": high, "seconds": time.monotonic() - started}
        path.write_text(json.dumps(found, indent=1))
    return json.loads(path.read_text())


def report(rows: list[dict[str, Any]]) -> None:
    """Table on the screen, JSON in benchmarks/results."""
    results = ROOT / "benchmarks" / "results" / "nano_hour.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{'run':<14}{'solve rate':>12}{'95 % interval':>20}{'training s':>12}")
    for row in rows:
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        print(f"{row['name']:<14}{row['solve_rate']:>12.3f}{interval:>20}{row.get('train_s', 0):>12.0f}")


if __name__ == "__main__":
    main()
