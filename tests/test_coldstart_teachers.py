"""The teachers: what they are asked, what counts as a lesson, and every way in which an endpoint can fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernelzero.coldstart.prose import prose_before
from kernelzero.coldstart.teachers import Assignment, Principle, TeacherDown, open_teacher, principle_of
from kernelzero.coldstart.teachers.endpoint import EndpointTeacher
from kernelzero.coldstart.teachers.prompt import teacher_prompt
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.records import Backend, Task
from tests.replay_server import ReplayServer, Reply, failed, said

MODULE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
"""
CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
GOOD = f"Tiling: blocks of 1024.\n\nMasks guard the end.\n\n```python\n{CODE}```\n"


def assignment(
    principle: Principle = Principle.TILING, backend: Backend = Backend.TRITON, sample: int = 0
) -> Assignment:
    return Assignment(Task(MODULE), backend, "NVIDIA H200", principle, sample, 3)


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    server = ReplayServer(lambda i, body: said(GOOD))
    yield server
    server.stop()


def teacher(server: ReplayServer, **options: Any) -> EndpointTeacher:
    return EndpointTeacher(server.url, "m", **{"retries": 1, "pause_s": 0.01, "timeout_s": 5.0, **options})


def test_the_prompt_has_the_module_the_gpu_and_one_principle() -> None:
    for principle in Principle:
        text = teacher_prompt(assignment(principle)).messages[-1]["content"]
        assert MODULE.strip() in text and "NVIDIA H200" in text
        assert [p for p in Principle if f"principle is **{p.value}**" in text] == [principle]
    assert "load_inline" in teacher_prompt(assignment(backend=Backend.CUDA)).messages[-1]["content"]


def test_four_samples_or_four_tasks_see_all_principles() -> None:
    assert {principle_of(7, sample) for sample in range(4)} == set(Principle)
    assert {principle_of(number, 1) for number in range(4)} == set(Principle)


def test_a_good_answer_is_reasoning_and_code_with_its_tokens(server: ReplayServer) -> None:
    lesson = teacher(server).teach(assignment(Principle.FUSION))
    assert (lesson.code, lesson.refusal, lesson.principle) == (CODE, "", "fusion")
    assert lesson.reasoning == "Tiling: blocks of 1024.\n\nMasks guard the end."
    assert (lesson.prompt_tokens, lesson.completion_tokens, lesson.tokens) == (100, 50, 150)
    assert server.bodies[0]["seed"] != 0 and server.bodies[0]["model"] == "m"


@pytest.mark.parametrize(
    ("reply", "refusal"),
    [
        (said("I would rather not."), "no_code"),
        (said(""), "no_code"),
        (said(None), "no_code"),
        (said("```python\ndef wrong(:\n```"), "no_code"),
        (said("```python\nx = 1\n```"), "no_code"),
        (said(GOOD[:-20], finish="length"), "truncated"),
        (failed(400, "the prompt is too long"), "bad_request"),
        (failed(422, "no such option"), "bad_request"),
    ],
)
def test_answers_without_a_kernel_are_refused_by_name(server: ReplayServer, reply: Reply, refusal: str) -> None:
    server.script = lambda i, body: reply
    lesson = teacher(server).teach(assignment())
    assert (lesson.refusal, lesson.code) == (refusal, "")
    assert lesson.detail and "\n" not in lesson.detail
    assert len(server.bodies) == 1


def test_of_two_blocks_the_last_counts_and_the_first_is_no_reasoning(server: ReplayServer) -> None:
    draft = CODE.replace("return x", "return x + 1")
    server.script = lambda i, body: said(f"First:\n```python\n{draft}```\nBetter:\n```python\n{CODE}```\n")
    lesson = teacher(server).teach(assignment())
    assert lesson.code == CODE
    assert "return" not in lesson.reasoning and lesson.reasoning.endswith("Better:")


def test_thoughts_stand_in_for_reasoning_that_is_missing(server: ReplayServer) -> None:
    bare = f"```python\n{CODE}```"
    server.script = lambda i, body: said(bare, reasoning_content="I tile.")
    assert teacher(server).teach(assignment()).reasoning == "I tile."
    server.script = lambda i, body: said(f"<think>I fuse.</think>{bare}")
    assert teacher(server).teach(assignment()).reasoning == "I fuse."


@pytest.mark.parametrize(
    "bad", [failed(429), failed(500), failed(503), Reply(200, "{not json"), Reply(200, '{"choices": []}')]
)
def test_what_passes_is_tried_again(server: ReplayServer, bad: Reply) -> None:
    server.script = lambda i, body: said(GOOD) if i == 1 else bad
    assert teacher(server).teach(assignment()).code == CODE
    assert len(server.bodies) == 2


@pytest.mark.parametrize("bad", [failed(429), failed(500), Reply(200, "<html>"), Reply(200, '{"choices": []}')])
def test_what_does_not_pass_says_nothing_about_the_task(server: ReplayServer, bad: Reply) -> None:
    server.script = lambda i, body: bad
    with pytest.raises(TeacherDown) as caught:
        teacher(server).teach(assignment())
    assert "\n" not in str(caught.value)


def test_a_late_answer_is_no_answer(server: ReplayServer) -> None:
    server.script = lambda i, body: Reply(200, said(GOOD).body, wait_s=1.0)
    with pytest.raises(TeacherDown, match="timed out"):
        teacher(server, timeout_s=0.1, retries=0).teach(assignment())


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_ends_it(server: ReplayServer, status: int) -> None:
    server.script = lambda i, body: failed(status, "not for you")
    with pytest.raises(InfrastructureError, match="not for you"):
        teacher(server).teach(assignment())
    assert len(server.bodies) == 1


def test_nobody_there() -> None:
    with pytest.raises(TeacherDown, match="Connection error"):
        EndpointTeacher("http://127.0.0.1:9/v1", "m", retries=0).teach(assignment())


def test_the_most_tokens_of_a_lesson_are_known_beforehand(server: ReplayServer) -> None:
    asked = assignment()
    characters = sum(len(m["content"]) for m in teacher_prompt(asked).messages)
    assert teacher(server, max_tokens=1000).most_tokens(asked) == 1000 + characters // 2


def test_the_rulebook_teaches_in_processes_of_its_own() -> None:
    rulebook = open_teacher("rulebook", workers=1)
    try:
        first, second = (rulebook.teach(assignment(sample=sample)) for sample in (0, 1))
        assert "class ModelNew" in first.code and first.code != second.code
        assert "tiling" in first.principle.split("+") and "Tiling:" in first.reasoning
        again = rulebook.teach(assignment())
        assert (again.code, again.reasoning) == (first.code, first.reasoning)
        unknown = Assignment(
            Task(MODULE.replace("torch.relu(x) * 2", "torch.sort(x)[0]")), Backend.TRITON, "", Principle.TILING, 0, 0
        )
        refused = rulebook.teach(unknown)
        assert refused.refusal == "cannot_write" and "sort" in refused.detail
    finally:
        rulebook.close()


@pytest.mark.parametrize("spec", ["nobody", "http://localhost:1/v1", "./folder"])
def test_a_teacher_that_there_is_not(spec: str) -> None:
    with pytest.raises(UsageError):
        open_teacher(spec)


def test_prose_before_code_that_was_dedented() -> None:
    assert prose_before("Why:\n```\n  a = 1\n```\n", "a = 1\n") == "Why:"
    assert prose_before("no code at all", "x") == "no code at all"
