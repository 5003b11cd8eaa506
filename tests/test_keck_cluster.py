"""Keck on a cluster: workers that die, never start or forget; without Ray, and with it where it is installed."""

from __future__ import annotations

import functools
import os
from collections import Counter, deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck.serve.cluster import ClusterKeck, RayKeck
from kernelzero.keck.serve.schedule import Finished, Lost, Ready, Scheduler
from kernelzero.records import GateReport, Status, Task
from tests.keck_stub import MortalKeck, StubKeck, impossible, jobs_of, verdict_on

ROOT = Path(__file__).resolve().parent.parent


class FakeCrew:
    """Workers without processes: `fate(worker, jobs)` says what becomes of a piece of work, and when it is over.

    A fate is (time, answers given or None for a loss); events come in the order of their times.
    """

    def __init__(self, fate=lambda worker, work: (1, len(work.jobs)), starts=lambda worker, n: "ready"):
        self.given: list[tuple[int, tuple]] = []
        self.started: Counter[int] = Counter()
        self.answered: Counter[tuple] = Counter()
        self.now = 0.0
        self._events: list = []
        self._fate, self._starts = fate, starts

    def start(self, worker):
        self.started[worker] += 1
        how = self._starts(worker, self.started[worker])
        if how != "pending":
            self._at(0, Ready(worker) if how == "ready" else Lost(worker, "did not start"))

    def give(self, worker, work):
        self.given.append((worker, work.jobs))
        takes, count = self._fate(worker, work)
        if count is None:
            self._at(takes, Lost(worker, "died"))
            return
        if work.kind == "verdicts":
            answers = tuple((i, verdict_on(*work.jobs[i], work.timed)) for i in reversed(range(count)))
            self.answered.update(work.jobs[i] for i, _ in answers)
        else:
            answers = tuple((i, GateReport(True, "", "v")) for i in range(count))
        self._at(takes, Finished(worker, answers))

    def wait(self, timeout_s):
        if not self._events:
            return None
        self._events.sort(key=lambda event: event[0])
        self.now, event = self._events.pop(0)
        return event

    def _at(self, later, event):
        self._events.append((self.now + later, event))


def cluster(crew, workers=3, **options):
    return ClusterKeck(Scheduler(crew, workers, **options), "here")


def due(jobs):
    return {i: verdict_on(*job, True) for i, job in enumerate(jobs)}


def test_every_job_is_answered_once_in_small_chunks():
    crew, jobs = FakeCrew(), jobs_of("a", 100, tasks=7)
    answers = list(cluster(crew, chunk=8).judge(jobs))
    assert len(answers) == 100
    assert dict(answers) == due(jobs)
    assert max(len(chunk) for _, chunk in crew.given) <= 8
    assert set(crew.answered.values()) == {1}
    assert {worker for worker, _ in crew.given} == {0, 1, 2}


def test_a_large_task_stays_with_its_worker_until_others_are_idle():
    crew, jobs = FakeCrew(), jobs_of("a", 96, tasks=3)
    list(cluster(crew, chunk=8).judge(jobs))
    pairs = {(worker, task.id) for worker, chunk in crew.given for task, _ in chunk}
    assert len(pairs) == 3


def test_one_large_task_is_shared():
    crew, jobs = FakeCrew(), jobs_of("a", 96, tasks=1)
    list(cluster(crew, chunk=8).judge(jobs))
    assert Counter(worker for worker, _ in crew.given) == {0: 4, 1: 4, 2: 4}


def test_few_jobs_are_spread():
    crew, jobs = FakeCrew(), jobs_of("a", 6, tasks=6)
    list(cluster(crew, chunk=8).judge(jobs))
    assert Counter(worker for worker, _ in crew.given) == {0: 2, 1: 2, 2: 2}


def test_the_jobs_of_a_lost_worker_go_to_another_one():
    deaths = iter([None])

    def fate(worker, work):
        return (1, next(deaths, len(work.jobs))) if worker == 0 else (1, len(work.jobs))

    crew, jobs = FakeCrew(fate), jobs_of("a", 60)
    answers = list(cluster(crew).judge(jobs))
    assert dict(answers) == due(jobs)
    assert len(answers) == 60
    assert set(crew.answered.values()) == {1}
    assert crew.started == {0: 2, 1: 1, 2: 1}
    lost = set(next(chunk for worker, chunk in crew.given if worker == 0))
    again = [(worker, chunk) for worker, chunk in crew.given if len(chunk) == 1 and chunk[0] in lost]
    assert {worker for worker, _ in again} <= {1, 2}


def test_a_job_that_kills_its_workers_takes_no_other_with_it():
    def fate(worker, work):
        return 1, None if any("poison" in c.source for _, c in work.jobs) else len(work.jobs)

    jobs = [*jobs_of("a", 20), *jobs_of("b", 1, words="poison"), *jobs_of("c", 20)]
    crew = FakeCrew(fate)
    answers = dict(cluster(crew).judge(jobs))
    assert {i: v for i, v in answers.items() if i != 20} == {i: v for i, v in due(jobs).items() if i != 20}
    assert answers[20].status is Status.INFRA_ERROR
    assert answers[20].device == "here"
    assert "2 times" in answers[20].reason
    assert sum("poison" in c.source for _, chunk in crew.given for _, c in chunk) == 2


def test_a_worker_that_forgets_a_job_is_asked_elsewhere():
    crew = FakeCrew(lambda worker, work: (1, len(work.jobs) - (worker == 0)))
    jobs = jobs_of("a", 40)
    answers = list(cluster(crew, chunk=4).judge(jobs))
    assert len(answers) == 40
    assert sum(v.status is Status.INFRA_ERROR for _, v in answers) <= 1


def test_a_worker_is_started_again_only_so_often():
    crew = FakeCrew(starts=lambda worker, n: "ready" if worker else "lost")
    jobs = jobs_of("a", 40)
    keck = cluster(crew, workers=2, restarts=3)
    assert dict(keck.judge(jobs)) == due(jobs)
    assert crew.started == {0: 4, 1: 1}
    # The next call gives it another chance.
    assert dict(keck.judge(jobs)) == due(jobs)
    assert crew.started == {0: 8, 1: 1}


def test_without_any_worker_it_is_an_infrastructure_error():
    keck = cluster(FakeCrew(starts=lambda worker, n: "lost"), workers=2, restarts=1)
    with pytest.raises(InfrastructureError, match="all 2 workers are lost: did not start"):
        list(keck.judge(jobs_of("a", 4)))


def test_workers_that_never_become_ready_do_not_hold_up_the_others():
    crew = FakeCrew(starts=lambda worker, n: "pending" if worker else "ready")
    jobs = jobs_of("a", 40)
    assert dict(cluster(crew).judge(jobs)) == due(jobs)
    with pytest.raises(InfrastructureError, match="no worker was ready within 7 s"):
        list(cluster(FakeCrew(starts=lambda worker, n: "pending"), start_s=7).judge(jobs))


def test_a_single_worker_gets_back_what_it_was_lost_with():
    fates = deque([None])
    crew = FakeCrew(lambda worker, work: (1, fates.popleft() if fates else len(work.jobs)))
    jobs = jobs_of("a", 9)
    assert dict(cluster(crew, workers=1).judge(jobs)) == due(jobs)


def test_answers_of_a_call_that_was_given_up_are_not_taken_for_those_of_the_next():
    crew = FakeCrew(lambda worker, work: (5 - worker, len(work.jobs)))
    keck, first, second = cluster(crew), jobs_of("first", 60), jobs_of("second", 60)
    asking = keck.judge(first)
    next(asking)
    asking.close()
    answers = list(keck.judge(second))
    assert len(answers) == 60
    assert dict(answers) == due(second)


def test_reports_and_no_jobs():
    keck = cluster(FakeCrew())
    assert dict(keck.examine([(Task("t"), ["torch.relu"]), (Task("u"), [])])).keys() == {0, 1}
    assert list(keck.judge([])) == []
    never = cluster(FakeCrew(lambda worker, work: (1, None)), restarts=10)
    [(_, report)] = never.examine([(Task("t"), [])])
    assert report.valid is None


@settings(max_examples=60, deadline=None)
@given(
    workers=st.integers(1, 5),
    count=st.integers(0, 60),
    tasks=st.integers(1, 10),
    chunk=st.integers(1, 9),
    fates=st.lists(st.tuples(st.floats(0.1, 9), st.sampled_from(["all", "some", "none", "lost"])), max_size=40),
)
def test_whatever_happens_every_job_is_answered_exactly_once(workers, count, tasks, chunk, fates):
    script = iter(fates)

    def fate(worker, work):
        takes, what = next(script, (1, "all"))
        count = len(work.jobs)
        return takes, {"all": count, "some": count // 2, "none": 0, "lost": None}[what]

    crew, jobs = FakeCrew(fate), jobs_of("a", count, tasks)
    answers = list(cluster(crew, workers, chunk=chunk, restarts=100).judge(jobs))
    assert sorted(index for index, _ in answers) == list(range(count))
    expected = due(jobs)
    assert all(verdict == expected[index] for index, verdict in answers if verdict.status is not Status.INFRA_ERROR)
    assert set(crew.answered.values()) <= {1}


# --- Ray ---


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray")
    import ray

    # The actors import the stub.
    os.environ["PYTHONPATH"] = str(ROOT)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    del os.environ["PYTHONPATH"]
    yield ray
    ray.shutdown()


def test_ray_actors_judge_and_are_replaced(ray, tmp_path):
    jobs = [*jobs_of("a", 30), *jobs_of("b", 1, words="die"), *jobs_of("c", 9)]
    with RayKeck(functools.partial(MortalKeck, tmp_path), chunk=4) as keck:
        assert keck.workers == 2
        answers = list(keck.judge(jobs))
        assert len(answers) == 40
        assert dict(answers) == due(jobs)
        assert dict(keck.examine([(Task("t"), ["torch.relu"])])) == {0: GateReport(True, "", "1 APIs")}
    judged = Counter((tmp_path / "judged").read_text().splitlines())
    # Only the chunk that the dead actor had is judged again.
    assert sum(judged.values()) - len(judged) <= 4


def test_an_error_of_the_user_s_comes_through_ray_as_one_line(ray):
    with RayKeck(impossible, actors=1) as keck, pytest.raises(UsageError, match=r"^this device cannot be$"):
        list(keck.judge(jobs_of("a", 1)))


def test_more_than_the_cluster_has(ray):
    with pytest.raises(UsageError, match="no 1 GPUs"):
        RayKeck(StubKeck, gpus=1)
    with pytest.raises(UsageError, match="room for 2"):
        RayKeck(StubKeck, actors=3)


def test_without_ray_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"kernelzero\[ray\]"):
        RayKeck(StubKeck)
