"""A pool of modules with solve rates, made beforehand: what the Coder's training draws from when no Proposer runs.

Each module comes from the embedded Proposer or the composer, passes the gates, and is tried by the Coder a few times;
`curriculum.pool` of a configuration takes the file. Nothing that is a benchmark task or one of the held-out modules is
in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelzero.keck import Keck
from kernelzero.normalise import normalised
from kernelzero.records import ApiSet, Backend, Candidate, Completion, Sampling, Task, Verdict

Say = Callable[[str], None]


def composed_modules(count: int, seed: int, forbidden: set[str], keck: Keck) -> list[Task]:
    """Distinct modules from the composer that pass the gates and whose normal form is not forbidden."""
    from kernelzero.proposer import gates
    from kernelzero.proposer.composer import SUPPORTED_APIS, CannotCompose, compose

    rng = random.Random(f"pool {seed}")
    forms = set(forbidden)
    drafts: list[tuple[ApiSet, Task]] = []
    while len(drafts) < count + count // 20:
        api_set = ApiSet(tuple(rng.sample(SUPPORTED_APIS, rng.choice((2, 3)))))
        try:
            task = compose(api_set, rng.randrange(1 << 30))
        except CannotCompose:
            continue
        if normalised(task.source) not in forms:
            forms.add(normalised(task.source))
            drafts.append((api_set, task))
    passed = {i for i, r in gates.check(keck, [(s, t.source) for s, t in drafts]) if r.valid}
    return [task for index, (_, task) in enumerate(drafts) if index in passed][:count]


def sample_and_judge(
    sampler: Any, tasks: Sequence[Task], keck: Keck, n: int, sampling: Sampling
) -> tuple[list[list[Completion]], list[tuple[int, int, Verdict]]]:
    """`n` answers to each module, and (task index, sample number, verdict) of every answer that has code."""
    from kernelzero.coder.extract import extract_kernel
    from kernelzero.coder.prompt import coder_prompt

    prompts = [coder_prompt(task, Backend.TRITON, sampler.style) for task in tasks]
    answers = sampler.sample(prompts, n, sampling)
    jobs, places = [], []
    for index, completions in enumerate(answers):
        for number, completion in enumerate(completions):
            code = extract_kernel(completion.text, completion.finish).code
            if code is not None:
                jobs.append((tasks[index], Candidate(code)))
                places.append((index, number))
    return answers, [(*places[position], verdict) for position, verdict in keck.judge(jobs, timed=False)]


def try_modules(
    sampler: Any, tasks: Sequence[Task], keck: Keck, n: int, max_tokens: int, seed: int
) -> list[list[bool | None]]:
    """Outcomes of `n` samples at temperature 1 for each module; an answer without code is a failure."""
    _, judged = sample_and_judge(sampler, tasks, keck, n, Sampling(1.0, 1.0, max_tokens, seed))
    outcomes: list[list[bool | None]] = [[False] * n for _ in tasks]
    for index, number, verdict in judged:
        outcomes[index][number] = verdict.correct
    return outcomes


def write_pool(path: Path, tasks: Sequence[Task], outcomes: Sequence[Sequence[bool | None]]) -> None:
    """JSONL that `curriculum.pool` reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ({"task": t.to_json(), "outcomes": list(o)} for t, o in zip(tasks, outcomes, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
