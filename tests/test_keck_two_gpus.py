"""Keck on several GPUs at once: by name, and as Ray actors of which one dies. Run with `make test-gpu`."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

import pytest

from kernelzero.keck import open_keck
from kernelzero.keck.serve.cluster import RayKeck
from kernelzero.records import Basis, Candidate, Status, Task
from tests.test_keck_gpu import GOOD, HEAD, REFERENCE, WRONG

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]

ROOT = Path(__file__).resolve().parent.parent
DUE = {"good": Status.CORRECT, "wrong": Status.INCORRECT}
ELSEWHERE = (
    HEAD.replace("FACTOR", "2.0")
    + """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        assert torch.cuda.device_count() == 1, torch.cuda.device_count()
        return launch(x)
"""
)


def jobs(name, count):
    sources = {"good": GOOD, "wrong": WRONG}
    kinds = ["good" if i % 2 else "wrong" for i in range(count)]
    return [(Task(REFERENCE), Candidate(f"{sources[kind]}\n# {name} {i}\n")) for i, kind in enumerate(kinds)], kinds


def test_two_at_once_by_name():
    """Each judges on its own GPU, whose memory is in use then, and both times are right beside each other."""
    found, in_use = {}, {}

    def run(number):
        asked, kinds = jobs(f"gpu {number}", 8)
        with open_keck(f"cuda:{number}", 3) as keck:
            found[number] = kinds, dict(keck.judge(asked))
            free, total = torch.cuda.mem_get_info(number)
            in_use[number] = (total - free) >> 20

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (kinds, verdicts) in found.items():
        for index, kind in enumerate(kinds):
            assert verdicts[index].status is DUE[kind], (number, verdicts[index].reason)
        times = [v.timing for v in verdicts.values() if v.timing]
        assert all(t.basis is Basis.MEASURED and 1.2 < t.speedup < 4 for t in times), times
    assert all(mib > 500 for mib in in_use.values()), in_use


def test_a_candidate_sees_one_gpu():
    with open_keck("cuda:1", 1) as keck:
        [(_, verdict)] = keck.judge([(Task(REFERENCE), Candidate(ELSEWHERE))])
    assert verdict.status is Status.CORRECT, verdict.reason


class Mortal:
    """A Keck on this actor's GPU; its process ends, once, when it meets the candidate that says so."""

    def __init__(self, folder, workers):
        self._folder, self._keck = folder, open_keck("cuda", workers)

    def judge(self, asked, *, timed=True):
        (self._folder / os.environ["CUDA_VISIBLE_DEVICES"]).touch()
        for index, verdict in self._keck.judge(asked, timed=timed):
            if any("# dies 5" in c.source for _, c in asked) and not (self._folder / "died").exists():
                (self._folder / "died").touch()
                os._exit(1)
            yield index, verdict

    def close(self):
        self._keck.close()


def test_actors_on_two_gpus_and_one_is_lost(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    ray.init(num_cpus=8, num_gpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        asked, kinds = jobs("dies", 48)
        with RayKeck(functools.partial(Mortal, tmp_path, 3), gpus=1, chunk=6) as keck:
            assert keck.workers == 2
            answers = list(keck.judge(asked))
    finally:
        ray.shutdown()
    assert sorted(index for index, _ in answers) == list(range(len(asked)))
    assert {p.name for p in tmp_path.iterdir()} >= {"0", "1", "died"}
    for index, verdict in answers:
        assert verdict.status is DUE[kinds[index]], verdict.reason
