"""Writes a run folder as a short run would leave it: `python tests/report_sample.py FOLDER`, then make its report."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from kernelzero.bench import builtin_tasks
from kernelzero.records import (
    ApiSet,
    Attempt,
    Basis,
    Candidate,
    Completion,
    Finish,
    GateReport,
    Proposal,
    Status,
    Task,
    Timing,
    Verdict,
)

MODULE = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, y):
        h = {first}
        h = {second}
        return {third}


def get_inputs():
    return [torch.randn({rows}, 64), torch.randn({rows}, 64)]


def get_init_inputs():
    return []
"""
KERNEL = '''import torch
import triton
import triton.language as tl


@triton.jit
def fused_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """One pass over x and y & <no> temporary in memory."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    h = x + y  # fused
    tl.store(out_ptr + offsets, h * tl.sigmoid(h), mask=mask)


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        n = x.numel()
        fused_kernel[(triton.cdiv(n, 256),)](x, y, out, n, BLOCK=256)
        return out
'''
FIRST = {"torch.add": "torch.add(x, y)", "torch.mul": "torch.mul(x, y)", "torch.sub": "torch.sub(x, y)",
         "torch.maximum": "torch.maximum(x, y)", "nn.Linear": "self.linear(x) + y"}  # fmt: skip
SECOND = {"torch.relu": "torch.relu(h)", "F.gelu": "F.gelu(h)", "F.silu": "F.silu(h)", "torch.tanh": "torch.tanh(h)",
          "F.softplus": "F.softplus(h, beta=2.0)", "F.elu": "F.elu(h)"}  # fmt: skip
THIRD = {"torch.softmax": "torch.softmax(h, dim=-1)", "torch.sum": "torch.sum(h, dim=-1)",
         "torch.mul": "torch.mul(h, x)", "nn.LayerNorm": "self.norm(h)",
         "torch.amax": "torch.amax(h, dim=-1)"}  # fmt: skip
FAILURES = [Status.INCORRECT] * 6 + [Status.COMPILE_ERROR] * 3 + [Status.RUNTIME_ERROR] * 2 + [Status.REJECTED, None]


def attempt(rng: random.Random, task_id: str, chance: float, gain: float = 0.0, kernel: str = KERNEL) -> Attempt:
    """A random attempt that is correct with the given chance."""
    tokens = rng.randint(220, 420)
    if rng.random() < chance:
        speedup = round(rng.uniform(0.8, 2.6) + gain, 3)
        timing = Timing(Basis.MODELLED, speedup * 0.01, 0.01, speedup, speedup, speedup)
        verdict = Verdict(Status.CORRECT, "12 calls agree", "cpu (triton interpreter)", timing=timing)
        return Attempt(task_id, Completion("…", tokens, Finish.STOP), Candidate(kernel), verdict)
    status = rng.choice(FAILURES)
    device = "cpu (triton interpreter)" if status else "not judged"
    verdict = Verdict(status or Status.COMPILE_ERROR, "it differs", device)
    finish = Finish.STOP if status else rng.choice(list(Finish))
    return Attempt(task_id, Completion("…", tokens, finish), Candidate(kernel) if status else None, verdict)


def module(rng: random.Random) -> Task:
    """A random chain of three operators."""
    (a, first), (b, second), (c, third) = (rng.choice(list(part.items())) for part in (FIRST, SECOND, THIRD))
    init = "self.linear = nn.Linear(64, 64)" if a == "nn.Linear" else "pass"
    init = init + "\n        self.norm = nn.LayerNorm(64)" if c == "nn.LayerNorm" else init
    rows = rng.choice([8, 16, 32])
    source = MODULE.format(init=init, first=first, second=second, third=third, rows=rows)
    return Task(source, tuple(sorted({a, b, c})))


def write(folder: Path, name: str, rows: list[dict]) -> None:
    """One JSONL file, keys numbered where rows have none."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"key": str(i), **row}) + "\n" for i, row in enumerate(rows)))


def sample_run(folder: Path, *, seed: int = 0, gain: float = 0.25, rounds: int = 2, tasks: int = 42) -> Path:
    """Write the whole folder; `gain` is what training adds to the chance of being correct."""
    rng = random.Random(seed)
    steps: list[dict] = []
    proposals: list[dict] = []
    attempts: list[dict] = []
    for round_ in range(rounds):
        for step in range(12):
            part = [proposal(rng, round_, step, attempts) for _ in range(8)]
            proposals += part
            steps.append(proposer_step(rng, round_, step, part))
        for step in range(12):
            steps.append(coder_step(rng, round_, step, gain * (round_ * 12 + step) / (rounds * 12)))
    (folder / "bench").mkdir(parents=True, exist_ok=True)
    config = {"rounds": rounds, "coder": {"model": "nano", "learning_rate": 1e-5}}
    (folder / "config.json").write_text(json.dumps(config))
    write(folder, "steps.jsonl", steps)
    write(folder, "proposals.jsonl", proposals)
    write(folder, "attempts.jsonl", attempts)
    write(folder, "pool.jsonl", [])
    for label, extra in (("before", 0.0), ("after", gain)):
        write(folder, f"bench/{label}.jsonl", bench_rows(random.Random(seed + 1), extra, tasks))
    return folder


def proposal(rng: random.Random, round_: int, step: int, attempts: list[dict]) -> dict:
    """One row of proposals.jsonl; what the Coder tried goes to `attempts`."""
    task, completion = module(rng), Completion("…", rng.randint(80, 160), Finish.STOP)
    gate = rng.choice(["", "", "", "", "runs", "uses_apis", "finite"])
    report = GateReport(not gate, gate, "looked at")
    rate = None
    if not gate:
        chance = min(0.95, max(0.05, rng.gauss(0.45, 0.3 - 0.08 * round_)))
        tried = [attempt(rng, task.id, chance) for _ in range(5)]
        rate = sum(bool(a.verdict.correct) for a in tried) / 5
        attempts += [{"round": round_, "role_phase": "proposer", "step": step, **a.to_json()} for a in tried]
    held = Proposal(ApiSet(task.apis), completion, task, report).to_json()
    return {"round": round_, "step": step, **held, "solve_rate": rate}


def proposer_step(rng: random.Random, round_: int, step: int, rows: list[dict]) -> dict:
    """One row of steps.jsonl."""
    rates = [row["solve_rate"] for row in rows if row["solve_rate"] is not None]
    frontier = [1 - 2 * abs(r - 0.5) for r in rates]
    reward = (sum(frontier) - (len(rows) - len(rates))) / len(rows)
    return {
        "round": round_, "role": "proposer", "step": step, "reward": reward, "validity": len(rates) / 8,
        "frontier": sum(frontier) / len(rates) if rates else None,
        "solve_rate": sum(rates) / len(rates) if rates else None, "accuracy": None,
        "speedup": None, "kl": 0.001 * step, "tokens": 120, "truncated": 0,
        "seconds": {"generate": rng.uniform(1, 2), "judge": rng.uniform(2, 4), "train": rng.uniform(1, 2)},
    }  # fmt: skip


def coder_step(rng: random.Random, round_: int, step: int, gain: float) -> dict:
    """One row of steps.jsonl."""
    return {
        "round": round_, "role": "coder", "step": step, "reward": 0.5, "accuracy": min(1, rng.gauss(0.45 + gain, 0.07)),
        "speedup": rng.gauss(1.5 + gain, 0.12) if step != 5 else None,
        "kl": 0.0008 * (round_ * 12 + step), "tokens": 300,
        "truncated": 0.02, "seconds": {"generate": rng.uniform(2, 4), "judge": rng.uniform(3, 5), "train": 1.5},
    }  # fmt: skip


def bench_rows(rng: random.Random, extra: float, tasks: int) -> list[dict]:
    """Rows of one benchmark pass."""
    rows = []
    for task in builtin_tasks()[:tasks]:
        chance = rng.random() * 0.75 + extra * rng.random() * 1.6
        for sample in range(5):
            made = attempt(rng, task.id, chance, gain=extra)
            rows.append({"key": f"{task.id}/{sample}", "task": task.name, "sample": sample, **made.to_json()})
    return rows


if __name__ == "__main__":
    sample_run(Path(sys.argv[1]))
