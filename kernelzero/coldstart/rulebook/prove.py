"""Proof by trial: composed modules over random API sets, their rulebook kernels in Triton's interpreter, against eager.

`python -m kernelzero.coldstart.rulebook.prove 300` prints the share that is right. Weights are moved away from their
initial values, three seeds are tried, and the last one also at a hundred times the size. This is the rulebook's own
test of honest kernels in one process; it is no sandbox and no verdict, which only Keck gives.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelzero.coldstart.rulebook import VARIANTS, CannotWrite, write_kernel
from kernelzero.coldstart.rulebook.graph import load
from kernelzero.proposer.composer import SUPPORTED_APIS, CannotCompose, compose
from kernelzero.records import ApiSet, Task, content_id

SEEDS = (0, 1, 2)
LARGE = 100.0
TOLERANCE = 1e-2


def random_sets(number: int, seed: int) -> list[ApiSet]:
    """Single APIs, pairs and triples of supported APIs, pairs and triples twice as often."""
    rng = random.Random(seed)
    return [ApiSet(tuple(rng.sample(SUPPORTED_APIS, rng.choice((1, 2, 2, 3, 3))))) for _ in range(number)]


def fault(task: Task, kernel: str, folder: Path) -> str:
    """What is wrong with a kernel, "" if nothing; `folder` is where its source is put, as Triton needs a file."""
    import torch

    namespace = load(task.source)
    path = folder / f"kernel_{content_id(task.source, kernel)}.py"
    path.write_text(kernel)
    module = _import(path)
    torch.manual_seed(0)
    arguments = namespace["get_init_inputs"]()
    model, candidate = namespace["Model"](*arguments), module.ModelNew(*arguments)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    candidate.load_state_dict(model.state_dict())
    with torch.no_grad():
        for label, inputs in _inputs(namespace):
            message = _difference(model, candidate, inputs)
            if message:
                return f"{label}: {message}"
    return ""


def _import(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _inputs(namespace: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    import torch

    for seed in SEEDS:
        torch.manual_seed(seed)
        inputs = namespace["get_inputs"]()
        yield f"seed {seed}", inputs
    yield "large inputs", [LARGE * x for x in inputs]


def _difference(model: Any, candidate: Any, inputs: list[Any]) -> str:
    import torch

    expected, kept = model(*inputs), [x.clone() for x in inputs]
    output = candidate(*inputs)
    if any(not torch.equal(x, y) for x, y in zip(inputs, kept, strict=True)):
        return "inputs were changed"
    if output.shape != expected.shape or output.dtype != expected.dtype:
        return f"{tuple(output.shape)} {output.dtype} instead of {tuple(expected.shape)} {expected.dtype}"
    if not expected.dtype.is_floating_point:
        return "" if torch.equal(output, expected) else "indices differ"
    if not output.isfinite().all():
        return "not finite"
    if torch.allclose(output, expected, atol=TOLERANCE, rtol=TOLERANCE):
        return ""
    return f"off by {float((output - expected).abs().max()):.3g}"


def prove(number: int, seed: int = 0) -> dict[str, Any]:
    """Compose, write and check; counts of what happened, mean lengths in characters, and the messages of faults."""
    counts: collections.Counter[str] = collections.Counter()
    lengths: list[tuple[int, int]] = []
    messages: list[str] = []
    started, spent = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for i, api_set in enumerate(random_sets(number, seed)):
            began = time.perf_counter()
            try:
                task = compose(api_set, seed + i)
                kernel = write_kernel(task, variant=i % VARIANTS)
            except (CannotCompose, CannotWrite) as error:
                counts[type(error).__name__] += 1
                messages.append(str(error))
                continue
            finally:
                spent += time.perf_counter() - began
            message = fault(task, kernel, Path(folder))
            counts["wrong" if message else "right"] += 1
            lengths.append((len(task.source), len(kernel)))
            if message:
                messages.append(f"{', '.join(api_set.apis)} (seed {seed + i}, variant {i % VARIANTS}): {message}")
    module, kernel_length = (sum(column) / max(1, len(lengths)) for column in zip(*lengths, strict=True))
    return {
        "counts": dict(counts), "module_characters": round(module), "kernel_characters": round(kernel_length),
        "pairs_per_s": round(number / spent, 1), "seconds": round(time.perf_counter() - started, 1),
        "messages": messages,
    }  # fmt: skip


def main() -> int:
    """Print the proof; exit 1 where a kernel was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("number", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    report = prove(options.number, options.seed)
    for key, value in report.items():
        print(f"{key}: {value}" if key != "messages" else "\n".join(value))
    return 1 if report["counts"].get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
