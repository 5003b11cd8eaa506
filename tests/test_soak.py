"""benchmarks/soak.py: a small soak on the CPU, and what it does when it is cut off."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelzero.keck import rules
from kernelzero.records import Backend, Status, Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import gpu_report  # noqa: E402
import soak  # noqa: E402


def test_a_small_soak_on_the_cpu(tmp_path):
    out = tmp_path / "soak.json"
    options = ["--device", "cpu", "-n", "24", "--share", "0.3", "--clean", "4", "--distinct", "6"]
    # A program of its own: it adopts orphans and asks which processes are left.
    command = [sys.executable, soak.__file__, *options, "--timeout-s", "4", "--workers", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["soak"]["judged"] == 24
    assert found["soak"]["hostile"] == 7
    assert found["misjudged"] == []
    assert found["idle"]["by_depth"] == {"1": 1, "2": 2, "3": 2}
    assert found["left_processes"] == []


def test_the_draw_is_that_of_the_seed_and_no_two_jobs_are_equal():
    options = soak.parsed(["-n", "400", "--seed", "3"])
    good = soak.good_jobs(options)
    jobs = soak.drawn(options, good)
    assert jobs == soak.drawn(options, good)
    assert len({(job.task, job.candidate) for job in jobs}) == 400
    assert sum(job.hostile for job in jobs) == 60
    # Every kind is there.
    kinds = {case.name for backend in Backend for case in soak.HOSTILE[backend]()}
    assert {job.name for job in jobs if job.hostile} == {f"hostile/{kind}" for kind in kinds}


@pytest.mark.parametrize("case", [c for b in Backend for c in soak.HOSTILE[b]()], ids=lambda case: case.name)
def test_hostile_candidates_are_not_stopped_by_their_text(case):
    assert case.expect <= {status.value for status in Status} - {"correct"}
    if "sys_exit" not in case.name:
        rules.check(case.candidate.source, case.candidate.backend)


class CutKeck:
    """Answers twice, then somebody interrupts."""

    def judge(self, jobs, *, timed=True):
        for index in range(2):
            yield index, Verdict(Status.INCORRECT, "judged by a fake", "fake", timed=timed)
        raise KeyboardInterrupt


def test_an_interrupt_leaves_what_was_judged_and_begins_nothing_new():
    options = soak.parsed(["--device", "cpu", "-n", "8", "--distinct", "2"])
    clock = gpu_report.Clock(60.0)
    part = soak.judge(CutKeck(), soak.drawn(options, soak.good_jobs(options)), "soak", clock)
    assert (part.to_json()["judged"], part.cut) == (2, "interrupted")
    assert clock.left_s == 0


def test_the_soak_is_shortened_to_the_time_there_is():
    options = soak.parsed(["--device", "cpu", "-n", "40", "--share", "0", "--distinct", "2"])
    jobs = soak.drawn(options, soak.good_jobs(options))
    one_a_second = soak.Part("clean", 1, (soak.Judged(jobs[0], None, 1.0),), 1.0, "", 0)
    assert soak.fitting(jobs, one_a_second, left_s=10.5, workers=2, timeout_s=9.0) == 10
    assert soak.fitting(jobs, one_a_second, left_s=100.0, workers=2, timeout_s=9.0) == 40


def test_a_part_ends_when_its_time_is_over():
    with gpu_report.within(0.05) as span:
        time.sleep(5)
    assert span.cut == "time"
    assert span.seconds < 1
