"""What a model in training can do, measured by Keck: kernels solved (Coder), modules that pass the gates (Proposer).

Each process of a training draws answers for its share of the questions, the first one has them judged, all get the
rate. Answers are greedy, one a question, so that a change of the rate is a change of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kernelzero.coder.extract import extract_kernel
from kernelzero.coder.prompt import coder_prompt
from kernelzero.coldstart.pairs import Example
from kernelzero.keck import Keck
from kernelzero.metrics import wilson_interval
from kernelzero.policy.base import Sampler, Style
from kernelzero.proposer import gates
from kernelzero.proposer.parse import parse_module
from kernelzero.proposer.prompt import proposer_prompt
from kernelzero.records import ApiSet, Backend, Candidate, Completion, Prompt, Record, Role, Sampling, Task

Outcome = tuple["bool | None", str]
"""Whether an answer is right, None where it could not be told, and how it ended."""


@dataclass(frozen=True)
class Rate(Record):
    """A share of right answers among those that could be judged."""

    right: int
    judged: int
    low: float
    """Ends of Wilson's 95 % interval."""
    high: float
    outcomes: dict[str, int]

    @property
    def value(self) -> float:
        """The share, 0 where nothing could be judged."""
        return self.right / self.judged if self.judged else 0.0


@dataclass(frozen=True)
class Questions:
    """What a role is asked, and how its answers are judged."""

    role: Role
    examples: Sequence[Example]
    style: Style
    backend: Backend = Backend.TRITON
    gpu: str = "NVIDIA H200"
    max_tokens: int = 1024

    def prompts(self) -> list[Prompt]:
        """One prompt an example."""
        return [prompt_of(self.role, e, self.style, self.backend, self.gpu) for e in self.examples]


def prompt_of(role: Role, example: Example, style: Style, backend: Backend, gpu: str) -> Prompt:
    """What a role is asked for one example: its module as a kernel, or a module of its APIs."""
    if role is Role.CODER:
        return coder_prompt(Task(example.module), backend, style, gpu)
    return proposer_prompt(ApiSet(example.apis), style, gpu)


def measure(questions: Questions, sampler: Sampler, open_keck: Callable[[], Keck]) -> Rate:
    """The rate of a model; every process of a training has to call it.

    Args:
        sampler: the model as it is now; each process its own.
        open_keck: called in the first process only.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list, gather_object

    state = PartialState()
    mine = list(range(len(questions.examples)))[state.process_index :: state.num_processes]
    prompts = questions.prompts()
    sampling = Sampling(temperature=0.0, max_tokens=questions.max_tokens, seed=0)
    drawn = sampler.sample([prompts[i] for i in mine], 1, sampling)
    answers: list[Any] = gather_object([(i, c[0].to_json()) for i, c in zip(mine, drawn, strict=True)])
    found: list[Any] = [None]
    if state.is_main_process:
        in_order = [Completion.from_json(c) for _, c in sorted(answers, key=lambda a: a[0])]
        found = [rate_of(judged(questions, in_order, open_keck())).to_json()]
    broadcast_object_list(found)
    return Rate.from_json(found[0])


def judged(questions: Questions, answers: Sequence[Completion], keck: Keck) -> list[Outcome]:
    """How each answer ended; one without code is wrong."""
    extract = extract_kernel if questions.role is Role.CODER else parse_module
    codes = [extract(answer.text, answer.finish).code for answer in answers]
    places = [i for i, code in enumerate(codes) if code is not None]
    outcomes: list[Outcome] = [(False, "no code")] * len(answers)
    asked = [(questions.examples[i], codes[i] or "") for i in places]
    for position, outcome in (_kernels if questions.role is Role.CODER else _modules)(questions, asked, keck):
        outcomes[places[position]] = outcome
    return outcomes


def _kernels(questions: Questions, asked: Sequence[tuple[Example, str]], keck: Keck) -> Iterator[tuple[int, Outcome]]:
    jobs = [(Task(example.module), Candidate(code, questions.backend)) for example, code in asked]
    for position, verdict in keck.judge(jobs, timed=False):
        yield position, (verdict.correct, verdict.status.value)


def _modules(_: Questions, asked: Sequence[tuple[Example, str]], keck: Keck) -> Iterator[tuple[int, Outcome]]:
    for position, report in gates.check(keck, [(ApiSet(example.apis), code) for example, code in asked]):
        yield position, (report.valid, report.gate or "valid")


def rate_of(outcomes: Sequence[Outcome]) -> Rate:
    """Count outcomes."""
    telling = [right for right, _ in outcomes if right is not None]
    low, high = wilson_interval(sum(telling), len(telling)) if telling else (0.0, 1.0)
    return Rate(sum(telling), len(telling), low, high, dict(Counter(how for _, how in outcomes).most_common()))
