"""Tokens a second of the sampling engines on one model and the prompts of the built-in benchmark tasks.

    python benchmarks/sampling.py --model FOLDER --engine transformers|static|vllm [--batch 64] [--tokens 512]

"static" is transformers with its compiled static cache. The start is the time until the model can be asked; then one
small call warms everything up, and one call with all prompts is measured, with a seed. Tokens are those of the
completions, end tokens not counted. Memory is the GPU's that the start and the calls took, weights and cache together
(vLLM takes its whole share at once), or on a CPU the process's peak. Prints a table last, writes JSON to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

from kernelzero.bench import builtin_tasks
from kernelzero.cli import quiet_libraries
from kernelzero.coder.prompt import coder_prompt
from kernelzero.errors import UsageError
from kernelzero.policy import Sampler, open_sampler
from kernelzero.records import Completion, Finish, Sampling

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="nano:coder", help="a folder, a hub id or nano:coder")
    parser.add_argument("--engine", default="transformers", choices=["transformers", "static", "vllm"])
    parser.add_argument("--batch", type=int, default=64, help="samples drawn at once")
    parser.add_argument("--tokens", type=int, default=512, help="the longest answer")
    parser.add_argument("--samples", type=int, default=4, help="samples a task")
    parser.add_argument("--share", type=float, default=0.9, help="vLLM's share of the GPU's memory")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    quiet_libraries()
    try:
        result = measured(options)
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, value in result.items():
        print(f"{name:20} {value if isinstance(value, str) else round(value, 2):>12}")


def measured(options: argparse.Namespace) -> dict[str, Any]:
    free, load = gpu_free(), os.getloadavg()[0]
    started = time.perf_counter()
    sampler = open_sampler(
        options.model,
        engine="vllm" if options.engine == "vllm" else "transformers",
        static_cache=options.engine == "static",
        batch_size=options.batch,
        gpu_memory_utilization=options.share,
    )
    start_s = time.perf_counter() - started
    try:
        numbers = drawn(sampler, options)
        taken = peak_rss() if free is None else free - (gpu_free() or 0)
    finally:
        sampler.close()
    about = {"model": options.model, "engine": options.engine, "machine": machine(), "load_before": load}
    settings = {"batch": options.batch, "max_tokens": options.tokens, "start_s": start_s}
    return about | settings | numbers | {"memory_mib": taken / MIB}


def drawn(sampler: Sampler, options: argparse.Namespace) -> dict[str, float]:
    """A warm-up, then all prompts."""
    prompts = [coder_prompt(task, style=sampler.style) for task in builtin_tasks()]
    started = time.perf_counter()
    sampler.sample(prompts[:2], 2, Sampling(max_tokens=32, seed=1))
    warm_up_s = time.perf_counter() - started
    ends: list[float] = []
    started = time.perf_counter()
    groups = sampler.sample(
        prompts,
        options.samples,
        Sampling(max_tokens=options.tokens, seed=0),
        drawn=lambda prompt, number, completion: ends.append(time.perf_counter() - started),
    )
    seconds = time.perf_counter() - started
    completions: list[Completion] = [c for group in groups for c in group]
    tokens = sum(c.tokens for c in completions)
    return {
        "warm_up_s": warm_up_s,
        "completions": len(completions),
        "tokens": tokens,
        "mean_tokens": tokens / len(completions),
        "cut_off": sum(c.finish is Finish.LENGTH for c in completions) / len(completions),
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "first_s": ends[0],
        "half_s": ends[len(ends) // 2],
    }


def machine() -> str:
    import torch

    return (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, {os.cpu_count()} cores"
    )


def gpu_free() -> int | None:
    """Bytes free on the GPU, whoever uses the rest; None without a GPU."""
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
