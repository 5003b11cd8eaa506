"""Writes a run folder as a short run would leave it: `python tests/report_sample.py FOLDER`, then make its report.

Beside it, what the tests of the report share.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

from kernelzero.bench import builtin_tasks
from kernelzero.normalise import dataflow
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
from kernelzero.report import build_report

EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>'
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


CPU, GPU = "cpu (triton interpreter)", "NVIDIA H200"


def attempt(
    rng: random.Random, task_id: str, chance: float, gain: float = 0.0, kernel: str = KERNEL, device: str = CPU
) -> Attempt:
    """A random attempt that is correct with the given chance; its time is measured on a GPU, modelled on a CPU."""
    tokens = rng.randint(220, 420)
    if rng.random() < chance:
        speedup = round(rng.uniform(0.8, 2.6) + gain, 3)
        basis, near = (Basis.MEASURED, 0.03) if device == GPU else (Basis.MODELLED, 0.0)
        timing = Timing(basis, speedup * 0.01, 0.01, speedup, speedup * (1 - near), speedup * (1 + near))
        verdict = Verdict(Status.CORRECT, "12 calls agree", device, timing=timing)
        return Attempt(task_id, Completion("…", tokens, Finish.STOP), Candidate(kernel), verdict)
    status = rng.choice(FAILURES)
    verdict = Verdict(status or Status.COMPILE_ERROR, "it differs", device if status else "not judged")
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


def sample_run(
    folder: Path,
    *,
    seed: int = 0,
    gain: float = 0.25,
    rounds: int = 2,
    tasks: int = 42,
    gpus: int | None = None,
    alpha: float = 0.5,
    speed_gain: float | None = None,
) -> Path:
    """Write the whole folder.

    gain: what training adds to the chance of being correct, and to the speedup if `speed_gain` is not given. gpus: how
    many the run holds, 0 on a CPU; None for a run of an older version, whose steps say less and whose pool is empty.
    """
    rng = random.Random(seed)
    device = GPU if gpus else CPU
    steps: list[dict] = []
    proposals: list[dict] = []
    attempts: list[dict] = []
    for round_ in range(rounds):
        for step in range(12):
            part = [proposal(rng, round_, step, attempts, device) for _ in range(8)]
            proposals += part
            steps.append(proposer_step(rng, round_, step, part))
        for step in range(12):
            steps.append(coder_step(rng, round_, step, gain * (round_ * 12 + step) / (rounds * 12)))
    pool: list[dict] = []
    if gpus is not None:
        more = random.Random(seed + 2)
        steps = [{**row, **newer_keys(more, row, gpus)} for row in steps]
        pool = [pool_row(row) for row in proposals if row["solve_rate"] is not None]
    (folder / "bench").mkdir(parents=True, exist_ok=True)
    config = {"rounds": rounds, "coder": {"model": "nano", "learning_rate": 1e-5, "alpha": alpha}}
    (folder / "config.json").write_text(json.dumps(config))
    write(folder, "steps.jsonl", steps)
    write(folder, "proposals.jsonl", proposals)
    write(folder, "attempts.jsonl", attempts)
    write(folder, "pool.jsonl", pool)
    speed = gain if speed_gain is None else speed_gain
    for label, extra, faster in (("before", 0.0, 0.0), ("after", gain, speed)):
        write(folder, f"bench/{label}.jsonl", bench_rows(random.Random(seed + 1), extra, tasks, device, faster))
    return folder


def newer_keys(rng: random.Random, row: dict, gpus: int) -> dict:
    """What newer versions say of a step."""
    seconds = row["seconds"]
    said = {
        "step_s": round(sum(seconds.values()), 3),
        "judge_busy_s": seconds["judge"] + rng.uniform(0.3, 0.9) * seconds["generate"],
        "gpu_idle": rng.uniform(0.2, 0.5) if gpus else None,
        "gpus": gpus,
        "rollout_gap": rng.uniform(0.0005, 0.004) if row["step"] else None,
    }
    if row["role"] != "proposer":
        return said
    at = row["round"] * 12 + row["step"]
    variety = {"distinct": 0.95 - 0.01 * at, "api_entropy": 0.9 - 0.005 * at, "top_skeleton": 0.1 + 0.01 * at}
    return said | {key: min(1.0, max(0.0, value + rng.gauss(0, 0.03))) for key, value in variety.items()}


def pool_row(row: dict) -> dict:
    """One row of pool.jsonl, with its graph as nodes."""
    task = Task.from_json(row["task"])
    nodes = [
        {"id": str(n.id), "op": n.op, "label": n.label, "inputs": [str(i) for i in n.inputs], "detail": n.detail}
        for n in dataflow(task.source).nodes
    ]
    kept = {key: row[key] for key in ("round", "step", "solve_rate")}
    return {**kept, "task_id": task.id, "task": task.to_json(), "graph": {"nodes": nodes}}


def proposal(rng: random.Random, round_: int, step: int, attempts: list[dict], device: str = CPU) -> dict:
    """One row of proposals.jsonl; what the Coder tried goes to `attempts`."""
    task, completion = module(rng), Completion("…", rng.randint(80, 160), Finish.STOP)
    gate = rng.choice(["", "", "", "", "runs", "uses_apis", "finite"])
    report = GateReport(not gate, gate, "looked at")
    rate = None
    if not gate:
        chance = min(0.95, max(0.05, rng.gauss(0.45, 0.3 - 0.08 * round_)))
        tried = [attempt(rng, task.id, chance, device=device) for _ in range(5)]
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


def bench_rows(rng: random.Random, extra: float, tasks: int, device: str, faster: float) -> list[dict]:
    """Rows of one benchmark pass."""
    rows = []
    for task in builtin_tasks()[:tasks]:
        chance = rng.random() * 0.75 + extra * rng.random() * 1.6
        for sample in range(5):
            made = attempt(rng, task.id, chance, gain=faster, device=device)
            rows.append({"key": f"{task.id}/{sample}", "task": task.name, "sample": sample, **made.to_json()})
    return rows


class Tags(HTMLParser):
    """Collects tags and text, and checks that what opens is closed."""

    VOID = ("meta", "br", "img")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def report(folder: Path, others: Sequence[Path] = ()) -> tuple[str, str, dict]:
    """The page, its text with single spaces, and the summary; both are checked to be well formed."""
    page = build_report(folder, others).read_text()
    tags = Tags()
    tags.feed(page)
    assert not tags.open and not {"script", "img", "link"} & set(tags.seen)
    summary = json.loads((folder / "summary.json").read_text(), parse_constant=_refuse)
    return page, " ".join(" ".join(tags.text).split()), summary


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def edit(folder: Path, name: str, change: Callable[[dict], dict | None]) -> None:
    """Change every row of a file; rows for which `change` gives None are dropped."""
    path = folder / name
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows if row is not None))


def without(*keys: str) -> Callable[[dict], dict]:
    """A change that drops keys."""
    return lambda row: {key: value for key, value in row.items() if key not in keys}


if __name__ == "__main__":
    sample_run(Path(sys.argv[1]))
