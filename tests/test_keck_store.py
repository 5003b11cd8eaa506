"""The verdict store: what is known is not asked again, whatever happens to processes, threads and the file."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernelzero.errors import UsageError
from kernelzero.keck.serve.store import StoredKeck, StoreKey, VerdictStore, keck_version
from kernelzero.records import Backend, Candidate, GateReport, Status, Task, Verdict
from tests.keck_stub import StubKeck, jobs_of, verdict_on

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keck.sqlite"


def correct_job(name="a"):
    """A job that the stub finds correct."""
    return next(job for job in jobs_of(name, 50) if verdict_on(*job, True).correct)


def wrong_job(name="a"):
    return next(job for job in jobs_of(name, 50) if not verdict_on(*job, True).correct)


def test_known_verdicts_are_not_asked_again(path):
    jobs = jobs_of("a", 30)
    due = {i: verdict_on(*job, True) for i, job in enumerate(jobs)}
    with StoredKeck(StubKeck(), path) as first:
        assert dict(first.judge(jobs[:20])) == {i: due[i] for i in range(20)}
    stub = StubKeck()
    with StoredKeck(stub, path) as second:
        assert dict(second.judge(jobs)) == due
        assert (second.known, second.asked, sum(stub.judged.values())) == (20, 10, 10)
    assert stub.closed


def test_equal_jobs_are_asked_once(path):
    stub, (job, other) = StubKeck(), jobs_of("a", 2)
    with StoredKeck(stub, path) as keck:
        verdicts = sorted(keck.judge([job, other, job, job]), key=lambda pair: pair[0])
    assert [index for index, _ in verdicts] == [0, 1, 2, 3]
    assert verdicts[0][1] == verdicts[2][1] == verdicts[3][1] == verdict_on(*job, True)
    assert set(stub.judged.values()) == {1}


def test_what_is_no_outcome_is_asked_again(path):
    jobs = [*jobs_of("a", 1, words="infra_error"), *jobs_of("b", 1, words="unsupported")]
    with StoredKeck(StubKeck(), path) as keck:
        for _ in range(2):
            statuses = {verdict.status for _, verdict in keck.judge(jobs)}
            assert statuses == {Status.INFRA_ERROR, Status.UNSUPPORTED}
        assert (keck.known, keck.asked, len(keck.store)) == (0, 4, 0)


def test_a_timed_verdict_answers_an_untimed_question_and_not_the_other_way(path):
    task, candidate = job = correct_job()
    with StoredKeck(StubKeck(), path) as keck:
        [(_, untimed)] = keck.judge([job], timed=False)
        [(_, timed)] = keck.judge([job], timed=True)
        assert keck.asked == 2
        keck.store.clear()
        [_] = keck.judge([job], timed=True)
        [(_, again)] = keck.judge([job], timed=False)
        assert keck.asked == 3
    assert timed.timing is not None
    assert again == untimed == verdict_on(task, candidate, False)


def test_a_failure_is_one_with_and_without_a_time(path):
    job = wrong_job()
    with StoredKeck(StubKeck(), path) as keck:
        [_] = keck.judge([job], timed=False)
        assert list(keck.judge([job], timed=True)) == [(0, verdict_on(*job, True))]
        assert keck.asked == 1


def test_fresh_timings_judge_only_what_has_a_time(path):
    good, bad = correct_job(), wrong_job()
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge([good, bad]))
    stub = StubKeck()
    with StoredKeck(stub, path, fresh_timings=True) as keck:
        assert len(list(keck.judge([good, bad]))) == 2
        assert list(stub.judged) == [f"{good[0].id} {good[1].id}"]
        assert len(list(keck.judge([good, bad], timed=False))) == 2
        assert keck.asked == 1


@pytest.mark.parametrize("changed", ["policy", "profile", "baseline", "device", "limits", "version"])
def test_a_verdict_is_found_only_under_its_own_key(path, changed):
    [job] = jobs_of("a", 1)
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge([job]))
    with StoredKeck(StubKeck(), path, key=dataclasses.replace(StoreKey(), **{changed: "other"})) as keck:
        list(keck.judge([job]))
        assert keck.asked == 1
        assert len(keck.store) == 2


def test_the_backend_is_part_of_the_candidate(path):
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge([(Task("t"), Candidate("c", backend)) for backend in Backend]))
        assert keck.asked == len(Backend)


def test_reports_are_kept_and_their_faults_are_not(path):
    class Faulty(StubKeck):
        def examine(self, jobs):
            for i, (task, _) in enumerate(jobs):
                yield (
                    i,
                    GateReport(None, "infrastructure", "gone") if task.source == "bad" else GateReport(True, "", "v"),
                )

    jobs = [(Task("good"), ["torch.relu"]), (Task("bad"), []), (Task("good"), ["torch.relu"]), (Task("good"), [])]
    with StoredKeck(Faulty(), path) as keck:
        assert dict(keck.examine(jobs)).keys() == {0, 1, 2, 3}
        assert dict(keck.examine(jobs)).keys() == {0, 1, 2, 3}
        assert (keck.asked, keck.known) == (4, 3)


def test_a_source_with_a_lone_surrogate(path):
    with StoredKeck(StubKeck(), path) as keck:
        for _ in range(2):
            [(_, verdict)] = keck.judge([(Task("t \ud800"), Candidate("c \udfff\0"))])
        assert keck.asked == 1
        assert verdict.status.is_outcome


def test_sizes_and_clear(path):
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge(jobs_of("a", 10)))
        assert len(keck.store) == keck.store.size().answers == 10
        assert keck.store.size().bytes > 1000
        assert keck.store.clear() == 10
        assert len(keck.store) == 0


def _overwrite(path):
    VerdictStore(path).close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 8000)


def _foreign(path):
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE people (name TEXT)")
    db.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("not a database " * 100),
        lambda path: path.mkdir(),
        lambda path: (path.parent / "keck.sqlite").symlink_to("/proc/version"),
        _foreign,
        _overwrite,
    ],
)
def test_a_damaged_or_foreign_file_is_one_clear_line(path, spoil):
    spoil(path)
    with pytest.raises(UsageError, match=r"keck\.sqlite") as error, StoredKeck(StubKeck(), path) as keck:
        list(keck.judge(jobs_of("a", 2)))
    assert "\n" not in str(error.value)


def test_a_damaged_answer_is_one_clear_line(path):
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge(jobs_of("a", 1)))
        keck.store._connection.execute("UPDATE verdicts SET answer = '{}'")
        with pytest.raises(UsageError, match="damaged"):
            list(keck.judge(jobs_of("a", 1)))


def test_a_foreign_file_stays_as_it_was(path):
    _foreign(path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="something else"):
        VerdictStore(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_threads_share_one_store(path):
    jobs = jobs_of("a", 200)
    with VerdictStore(path) as store:

        def write(part):
            for task, candidate in jobs[part::8]:
                store.put_verdict(task, candidate, verdict_on(task, candidate, True))
                assert store.verdict(task, candidate, True) == verdict_on(task, candidate, True)

        threads = [threading.Thread(target=write, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store) == 200


def _write_from_a_process(path, part, barrier):
    barrier.wait()
    with VerdictStore(path) as store:
        for task, candidate in jobs_of(f"p{part}", 50):
            store.put_verdict(task, candidate, verdict_on(task, candidate, True))


def test_processes_make_and_share_one_file(path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_write_from_a_process, args=(path, part, barrier)) for part in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    with VerdictStore(path) as store:
        assert len(store) == 200


def test_a_killed_process_loses_no_verdict_that_it_gave(path, tmp_path):
    code = (
        "import sys; from tests.keck_stub import *\n"
        f"keck = StoredKeck(StubKeck(sleep_s=0.002), {str(path)!r}, key=StoreKey(version='v'))\n"
        "for i, _ in keck.judge(jobs_of('a', 2000)): print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seen = [int(process.stdout.readline()) for _ in range(100)]
    os.kill(process.pid, signal.SIGKILL)
    seen += [int(line) for line in process.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
    with StoredKeck(StubKeck(), path, key=StoreKey(version="v")) as keck:
        jobs = jobs_of("a", 2000)
        assert dict(keck.judge(jobs)) == {i: verdict_on(*job, True) for i, job in enumerate(jobs)}
        assert len(seen) <= keck.known <= len(seen) + 1


def test_lookups_are_quick(path):
    jobs = jobs_of("a", 2000)
    with StoredKeck(StubKeck(), path) as keck:
        list(keck.judge(jobs))
        started = time.perf_counter()
        list(keck.judge(jobs))
        assert time.perf_counter() - started < 5
        assert keck.asked == 2000


def test_the_version_names_package_and_code():
    import kernelzero

    assert keck_version().startswith(kernelzero.__version__ + "+")
    assert isinstance(verdict_on(Task("t"), Candidate("c"), True), Verdict)
