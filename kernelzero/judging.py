"""From completions to rewards: read the code, have Keck judge it, turn outcomes into rewards, keep every row.

Rewards come from outcomes only (DESIGN: algorithms). What is external, the models and Keck, comes in through the
protocols of `Services`. Not covered: what happens to the rows (runfolder) and to the rewards (training).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelzero.answers import AnswerJudge, Keck, OnVerdict
from kernelzero.config import Config
from kernelzero.credit import (
    correctness_aware_rewards,
    frontier_reward,
    group_advantages,
    penalised,
    repetition_penalties,
)
from kernelzero.curriculum import pool_row, solve_rate
from kernelzero.diversity import skeleton, watch
from kernelzero.policy.base import Sampler, Style
from kernelzero.records import (
    ApiSet,
    Attempt,
    Backend,
    Completion,
    Extraction,
    Finish,
    GateReport,
    Prompt,
    Proposal,
    Sampling,
    Task,
)


@dataclass(frozen=True)
class Services:
    """Everything outside a run that it works with; `kernelzero.services` makes the real ones."""

    keck: Keck
    gate: Callable[[Sequence[tuple[ApiSet, str]]], Iterator[tuple[int, GateReport]]]
    """Reports on proposed modules with the index of their job, as they finish."""
    open_sampler: Callable[[str], Sampler]
    """A sampler on the model in a folder."""
    resolve_model: Callable[[str], str]
    """A model's name in the configuration to a folder or hub id."""
    style_of: Callable[[str], Style]
    """The prompts that the model in a folder expects."""
    proposer_prompt: Callable[[ApiSet, Style], Prompt]
    coder_prompt: Callable[[Task, Backend, Style], Prompt]
    read_module: Callable[[str, Finish], Extraction]
    read_kernel: Callable[[str, Finish], Extraction]
    api_pool: Callable[[int, int], list[ApiSet]]
    """Size and seed to a pool of API sets."""
    benchmark: Callable[[str, str, Path], dict[str, Any]] | None = None
    """Model folder, label and run folder to a summary; None: no benchmark."""
    is_held_out: Callable[[str], bool] = lambda source: False
    """Whether a module's source is a benchmark task, which nobody may train on."""
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Judged:
    """What became of the completions of one step."""

    rewards: list[float | None]
    rows: dict[str, list[dict[str, Any]]]
    """Rows of the step by file."""
    metrics: dict[str, float | None] = field(default_factory=dict)


def answer_judge(services: Services, config: Config, *, timed: bool, on_verdict: OnVerdict) -> AnswerJudge:
    """A judge for the Coder's answers of one step."""
    return AnswerJudge(services.keck, services.read_kernel, config.coder.backend, timed=timed, on_verdict=on_verdict)


def judge_proposals(
    payloads: Sequence[str],
    completions: Sequence[Completion],
    services: Services,
    config: Config,
    coder: Sampler,
    seed: int,
    on_verdict: OnVerdict,
) -> Judged:
    """Frontier Rewards of proposed modules (FO-GRPO).

    Args:
        payloads: The API set that each completion was asked for, as JSON.
        completions: The Proposer's answers.
        services: Keck and the readers of answers.
        config: The run.
        coder: The frozen Coder; it tries every distinct valid module `coder_samples` times.
        seed: Of its samples.
        on_verdict: Progress.
    """
    api_sets = [ApiSet.from_json(json.loads(payload)) for payload in payloads]
    proposals = _gate(api_sets, completions, services)
    tasks = {p.task.id: p.task for p in proposals if p.task is not None and p.report.valid}
    graphs = {p.task.id: p.report.graph for p in proposals if p.task is not None}
    sampling = Sampling(config.coder.temperature, 1.0, config.coder.max_tokens, seed)
    prompts = [services.coder_prompt(task, config.coder.backend, coder.style) for task in tasks.values()]
    attempts, busy_s = _tried(list(tasks.values()), prompts, coder, sampling, services, config, on_verdict)
    outcomes: dict[str, list[bool | None]] = {task_id: [] for task_id in tasks}
    for attempt in attempts:
        outcomes[attempt.task_id].append(attempt.verdict.correct)
    of_each = [outcomes.get(p.task.id, []) if p.task else [] for p in proposals]
    frontier = [frontier_reward(known, p.report.valid) for p, known in zip(proposals, of_each, strict=True)]
    skeletons = [skeleton(p.task.source) if p.task and p.report.valid else None for p in proposals]
    rewards = penalised(frontier, repetition_penalties(skeletons, config.curriculum.diversity))
    rows = {
        "proposals.jsonl": [
            {**p.to_json(), "task_id": p.task.id if p.task else None, "solve_rate": solve_rate(known), "reward": reward}
            for p, known, reward in zip(proposals, of_each, rewards, strict=True)
        ],
        "attempts.jsonl": [attempt.to_json() for attempt in attempts],
        "pool.jsonl": [
            {**pool_row(task, outcomes[task_id]), "graph": {"nodes": list(graphs[task_id])}}
            for task_id, task in tasks.items()
        ],
    }
    known = [p.report.valid for p in proposals if p.report.valid is not None]
    metrics = {
        "validity": _mean(known),
        "frontier": _mean(frontier),
        "solve_rate": solve_rate(a.verdict.correct for a in attempts),
        **_group_metrics(rewards, [s.id for s in api_sets]),
        **watch([p.task.source for p in proposals if p.task], api_sets),
        "judge_busy_s": round(busy_s, 3),
    }
    return Judged(rewards, rows, metrics)


def judge_kernels(
    payloads: Sequence[str],
    completions: Sequence[Completion],
    services: Services,
    config: Config,
    on_verdict: OnVerdict,
    early: AnswerJudge | None = None,
) -> Judged:
    """Correctness-aware rewards of kernels (CA-GRPO), one group a task.

    Args:
        payloads: The task that each completion was asked for, as JSON.
        completions: The Coder's answers.
        services: Keck and the readers of answers.
        config: The run.
        on_verdict: Progress.
        early: Judges some of the answers already, by their places here.
    """
    tasks = [Task.from_json(json.loads(payload)) for payload in payloads]
    judge = early or answer_judge(services, config, timed=True, on_verdict=on_verdict)
    for place, (task, completion) in enumerate(zip(tasks, completions, strict=True)):
        judge.add(place, task, completion)
    attempts = judge.attempts()
    rewards: list[float | None] = [None] * len(attempts)
    for members in _by_task(attempts).values():
        verdicts = [attempts[i].verdict for i in members]
        group = correctness_aware_rewards(
            [v.correct for v in verdicts], [v.speedup for v in verdicts], config.coder.alpha, config.coder.beta
        )
        for i, reward in zip(members, group, strict=True):
            rewards[i] = reward
    speedups = [a.verdict.speedup for a in attempts if a.verdict.speedup is not None]
    metrics = {
        "accuracy": solve_rate(a.verdict.correct for a in attempts),
        "speedup": math.exp(statistics.fmean(map(math.log, speedups))) if speedups else None,
        **_group_metrics(rewards, [task.id for task in tasks]),
        "judge_busy_s": round(judge.busy_s, 3),
    }
    rows = [{**a.to_json(), "reward": reward} for a, reward in zip(attempts, rewards, strict=True)]
    return Judged(rewards, {"attempts.jsonl": rows}, metrics)


def _tried(
    tasks: Sequence[Task],
    prompts: Sequence[Prompt],
    coder: Sampler,
    sampling: Sampling,
    services: Services,
    config: Config,
    on_verdict: OnVerdict,
) -> tuple[list[Attempt], float]:
    """Each task tried `coder_samples` times, judged while the next answers are drawn; how long judging took."""
    if not tasks:
        return [], 0.0
    judge, n = answer_judge(services, config, timed=False, on_verdict=on_verdict), config.proposer.coder_samples
    try:
        coder.sample(prompts, n, sampling, drawn=lambda p, i, answer: judge.add(p * n + i, tasks[p], answer))
    except BaseException:
        judge.give_up()
        raise
    return judge.attempts(), judge.busy_s


def _gate(api_sets: Sequence[ApiSet], completions: Sequence[Completion], services: Services) -> list[Proposal]:
    extractions = [services.read_module(c.text, c.finish) for c in completions]
    jobs = {(s, e.code): None for s, e in zip(api_sets, extractions, strict=True) if e.code is not None}
    distinct = list(jobs)
    missing = GateReport(None, "keck", "Keck gave no report")
    reports: dict[tuple[ApiSet, str], GateReport] = {}
    for i, report in services.gate(distinct) if distinct else ():
        reports[distinct[i]] = report
    return [
        Proposal(api_set, completion, None, GateReport(False, "parse", " ".join(e.reason.split())))
        if e.code is None
        else Proposal(api_set, completion, Task(e.code, api_set.apis), reports.get((api_set, e.code), missing))
        for api_set, completion, e in zip(api_sets, completions, extractions, strict=True)
    ]


def _by_task(attempts: Sequence[Attempt]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, attempt in enumerate(attempts):
        groups.setdefault(attempt.task_id, []).append(i)
    return groups


def _group_metrics(rewards: Sequence[float | None], ids: Sequence[str]) -> dict[str, float | None]:
    """Mean reward, samples without one, and the share of groups that teach anything."""
    advantages = group_advantages(rewards, ids)
    mixed = {group for advantage, group in zip(advantages, ids, strict=True) if advantage}
    return {
        "reward": _mean(rewards),
        "unrewarded": sum(r is None for r in rewards),
        "mixed_groups": len(mixed) / len(set(ids)),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.fmean(known) if known else None
