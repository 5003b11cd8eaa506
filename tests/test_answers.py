"""Answers judged while they are drawn."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from kernelzero.answers import AnswerJudge
from kernelzero.errors import InfrastructureError
from kernelzero.keck.feed import Ahead, in_batches
from kernelzero.records import Backend, Completion, Finish, Status, Task
from tests.fakes import FakeKeck, read_anything


def answer(text):
    return Completion(text, len(text), Finish.STOP)


def judge_of(keck=None, on_verdict=lambda done, total: None, timed=True):
    return AnswerJudge(keck or FakeKeck(), read_anything, Backend.TRITON, timed=timed, on_verdict=on_verdict)


def test_verdicts_find_their_answers_and_no_code_is_the_coders_failure():
    texts = ["runtime_error", "", "timeout", "infra_error", "incorrect"]
    judge = judge_of()
    for place in (3, 0, 4, 1, 2):
        judge.add(place, Task("module"), answer(texts[place]))
    attempts = judge.attempts()
    assert [a.verdict.status for a in attempts] == [
        Status.RUNTIME_ERROR,
        Status.COMPILE_ERROR,
        Status.TIMEOUT,
        Status.INFRA_ERROR,
        Status.INCORRECT,
    ]
    assert [a.completion.text for a in attempts] == texts
    assert attempts[1].candidate is None
    assert attempts[1].verdict.correct is False


def test_a_job_that_keck_forgot_is_nobodys_failure():
    class Forgetful(FakeKeck):
        def judge(self, jobs, *, timed=True):
            return itertools.islice(super().judge(jobs, timed=timed), 1)

    judge = judge_of(Forgetful())
    for place, text in enumerate("ab"):
        judge.add(place, Task("m"), answer(text))
    assert [a.verdict.correct is None for a in judge.attempts()] == [True, False]


class Eager(FakeKeck):
    """Judges each job as it comes."""

    def judge(self, jobs, *, timed=True):
        for number, (task, candidate) in enumerate(jobs):
            yield number, self._verdict(task, candidate, timed)


def test_an_answer_is_judged_before_the_last_is_drawn():
    seen = threading.Event()
    judge = judge_of(Eager(), on_verdict=lambda done, total: seen.set())
    judge.add(0, Task("m"), answer("a"))
    assert seen.wait(5)
    judge.add(1, Task("m"), answer("b"))
    judge.add(0, Task("m"), answer("a place that is taken"))
    assert [a.completion.text for a in judge.attempts()] == ["a", "b"]
    assert 0 < judge.busy_s < 10


def test_the_judge_s_error_is_raised_where_the_verdicts_are_asked_for():
    class Dead(FakeKeck):
        def judge(self, jobs, *, timed=True):
            raise InfrastructureError("the judge is down")

    judge = judge_of(Dead())
    judge.add(0, Task("m"), answer("a"))
    with pytest.raises(InfrastructureError, match="down"):
        judge.attempts()


def test_no_answer_with_code_asks_nobody():
    judge = judge_of(keck=object())
    judge.add(0, Task("m"), answer(""))
    assert [a.verdict.status for a in judge.attempts()] == [Status.COMPILE_ERROR]
    assert judge.busy_s == 0
    assert judge_of(keck=object()).attempts() == []


def test_giving_up_stops_the_one_who_answers():
    closed = threading.Event()

    def ask(feed):
        try:
            yield from enumerate(feed)
        finally:
            closed.set()

    ahead = Ahead(ask)
    ahead.put("a")
    ahead.give_up()
    assert closed.wait(5)


def test_batches_are_asked_side_by_side_and_keep_their_numbers():
    calls = []

    def ask(jobs):
        calls.append(len(jobs))
        time.sleep(0.3)
        yield from reversed(list(enumerate(jobs)))

    ahead = Ahead(lambda feed: in_batches(feed, ask, 4))
    started = time.monotonic()
    for job in range(10):
        ahead.put(job)
        time.sleep(0.08)
    assert ahead.finish() == {number: number for number in range(10)}
    assert sum(calls) == 10
    assert 2 <= len(calls) <= 10
    assert time.monotonic() - started < 0.3 * len(calls) + 1.5


def test_an_error_of_one_batch_is_everybodys():
    def ask(jobs):
        raise InfrastructureError("the server is down")

    ahead = Ahead(lambda feed: in_batches(feed, ask, 4))
    ahead.put(1)
    with pytest.raises(InfrastructureError, match="down"):
        ahead.finish()
