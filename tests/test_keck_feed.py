"""Jobs that come while others are judged."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from kernelzero.keck import Limits, LocalKeck
from kernelzero.keck.feed import Feed
from kernelzero.records import Candidate, Status, Task
from tests.test_keck import KERNEL, LINEAR, RELU, WRONG


def test_a_feed_gives_everything_once_and_then_its_end():
    with Feed([1]) as feed:
        assert feed.take() == ([1], False)
        assert feed.take() == ([], False)
        feed.put(2, 3)
        feed.end()
        assert feed.take() == ([2, 3], True)
        with pytest.raises(ValueError, match="ended"):
            feed.put(4)


def test_waiting_for_a_feed_ends_with_a_job_or_the_end():
    with Feed() as feed:
        threading.Timer(0.1, feed.put, (1,)).start()
        assert feed.take(wait=True) == ([1], False)
        threading.Timer(0.1, feed.end).start()
        assert feed.take(wait=True) == ([], True)


def test_many_threads_put_and_nothing_is_lost():
    with Feed() as feed:
        threads = [
            threading.Thread(target=lambda k=k: [feed.put((k, i)) for i in range(500)], daemon=True) for k in range(4)
        ]
        for thread in threads:
            thread.start()
        found: list[tuple[int, int]] = []
        while len(found) < 2000:
            found += feed.take(wait=True)[0]
        assert sorted(found) == [(k, i) for k in range(4) for i in range(500)]


@pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
def test_keck_judges_what_comes_later_while_it_judges():
    jobs = [(Task(RELU), Candidate(source)) for source in (KERNEL, WRONG, KERNEL)]
    late = (Task(LINEAR), Candidate("no code"))
    with LocalKeck(2, limits=Limits(timeout_s=20.0), seed=3) as keck, Feed(jobs[:2]) as feed:
        verdicts, times = {}, {}
        for index, verdict in keck.judge(feed):
            verdicts[index], times[index] = verdict, time.monotonic()
            if len(verdicts) == 2:
                # Everything so far is answered, and the feed is still open.
                feed.put(jobs[2], late)
                feed.end()
        assert [verdicts[i].status for i in range(4)] == [
            Status.CORRECT, Status.INCORRECT, Status.CORRECT, verdicts[3].status
        ]  # fmt: skip
        assert verdicts[3].status not in (Status.CORRECT, Status.INFRA_ERROR)
        assert verdicts[2] == verdicts[0], "an equal job is not judged twice"
        again = dict(keck.judge(jobs))
        assert [again[i].status for i in range(3)] == [verdicts[i].status for i in range(3)]


@pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
def test_an_empty_feed_is_no_verdict():
    with LocalKeck(1, limits=Limits(timeout_s=20.0)) as keck, Feed() as feed:
        threading.Timer(0.2, feed.end).start()
        assert list(keck.judge(feed)) == []
