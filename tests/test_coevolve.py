from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kernelzero.coevolve import coevolve, given_pool
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.records import Role, Task
from kernelzero.runfolder import FILES, RunFolder, read_rows
from tests.fakes import FakeKeck, FakeSampler, fake_services, make_tiny_model, tiny_config

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    (folder / "kernelzero.json").write_text('{"prompt": "compact"}')
    return str(folder)


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A run that went through undisturbed, with its events."""
    folder, events = tmp_path_factory.mktemp("runs") / "whole", []
    scores = {}

    def benchmark(path, label, run_folder):
        scores[label] = path
        return {"label": label}

    coevolve(tiny_config(folder), services=fake_services(tiny, benchmark=benchmark), on_event=events.append)
    return folder, events, scores


def test_a_run_takes_its_steps_and_keeps_every_row(finished):
    folder, _, _ = finished
    steps = read_rows(folder / "steps.jsonl")
    assert [(row["role"], row["round"], row["step"]) for row in steps] == [
        ("proposer", 1, 1),
        ("proposer", 1, 2),
        ("coder", 1, 1),
        ("coder", 1, 2),
        ("proposer", 2, 3),
        ("proposer", 2, 4),
        ("coder", 2, 3),
        ("coder", 2, 4),
    ]
    assert len(read_rows(folder / "proposals.jsonl")) == 4 * 2 * 2
    coder = [row for row in read_rows(folder / "attempts.jsonl") if row["role"] == "coder"]
    assert len(coder) == 4 * 2 * 3
    assert all(row["reward"] is not None for row in coder)
    pool = read_rows(folder / "pool.jsonl")
    proposer = [row for row in read_rows(folder / "attempts.jsonl") if row["role"] == "proposer"]
    assert len(proposer) == 3 * len(pool)
    assert all(len(row["outcomes"]) == 3 for row in pool)


def test_a_step_s_row_says_what_it_took(finished):
    folder, _, _ = finished
    row = read_rows(folder / "steps.jsonl")[0]
    for key in ("validity", "solve_rate", "frontier", "reward", "kl", "loss", "tokens", "mixed_groups"):
        assert key in row
    assert set(row["seconds"]) == {"generate", "judge", "train"}
    assert all(value >= 0 for value in row["seconds"].values())


def test_only_the_last_two_checkpoints_stay_and_the_benchmark_sees_first_and_last(finished, tiny):
    folder, _, scores = finished
    run = RunFolder(folder)
    assert (run.last_checkpoint(Role.CODER) / "kernelzero.json").read_text() == '{"prompt": "compact"}'
    assert [step for step, _ in run.checkpoints(Role.CODER)] == [3, 4]
    assert scores == {"before": tiny, "after": str(folder / "coder" / "checkpoint-4")}
    assert run.read_json("done.json")["steps"] == {"proposer": 4, "coder": 4}


def test_events_carry_progress(finished):
    _, events, _ = finished
    steps = [event for event in events if event.kind == "step"]
    assert [event.step for event in steps] == [1, 2] * 4
    assert steps[-1].eta_s == 0
    assert steps[0].eta_s > 0
    assert events[-1].kind == "done"


def test_a_finished_run_does_nothing_and_says_so(finished, tiny):
    folder, _, _ = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}
    events = []
    coevolve(tiny_config(folder), services=fake_services(tiny), on_event=events.append)
    assert "nothing to do" in events[0].message
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "lock"}


def test_a_folder_of_another_configuration_is_refused(finished, tiny):
    folder, _, _ = finished
    with pytest.raises(UsageError, match=r"coder\.lr is 0\.5 here and 0\.001 there"):
        coevolve(tiny_config(folder, coder={"lr": 0.5}), services=fake_services(tiny))


def test_the_frozen_coder_is_its_newest_checkpoint(tiny, tmp_path):
    opened = []

    def open_sampler(path):
        opened.append(FakeSampler(path))
        return opened[-1]

    folder = tmp_path / "run"
    config = tiny_config(folder, proposer={"steps": 1}, coder={"steps": 1})
    coevolve(config, services=fake_services(tiny, open_sampler=open_sampler))
    assert [sampler.name for sampler in opened] == [tiny, str(folder / "coder" / "checkpoint-1")]
    assert all(sampler.closed for sampler in opened)


class DeadKeck(FakeKeck):
    """Never answers."""

    def judge(self, jobs, *, timed=True):
        raise InfrastructureError("the judge is down")

    gate = judge


def test_a_dead_judge_rewards_nothing_and_ends_the_run(tiny, tmp_path):
    config = tiny_config(tmp_path / "run", proposer={"steps": 5})
    with pytest.raises(InfrastructureError, match="in a row"):
        coevolve(config, services=fake_services(tiny, DeadKeck()))
    steps = read_rows(tmp_path / "run" / "steps.jsonl")
    assert [row["loss"] for row in steps] == [0.0, 0.0]
    assert [row["unrewarded"] for row in steps] == [4, 4]


def test_a_run_of_the_coder_alone_on_given_modules(tiny, tmp_path):
    pool = tmp_path / "pool.jsonl"
    rows = [{"task": Task(f"module {i}").to_json(), "outcomes": [True, False]} for i in range(3)]
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config(
        tmp_path / "run",
        proposer={"steps": 0},
        rounds={"count": 1},
        curriculum={"pool": str(pool), "selection": "blind"},
    )
    coevolve(config, services=fake_services(tiny))
    assert {row["role"] for row in read_rows(tmp_path / "run" / "steps.jsonl")} == {"coder"}
    assert len(read_rows(tmp_path / "run" / "pool.jsonl")) == 3


def test_a_pool_that_is_missing_or_no_pool(tmp_path):
    with pytest.raises(UsageError, match="no file of modules"):
        given_pool(str(tmp_path / "none.jsonl"))
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="row 1"):
        given_pool(str(tmp_path / "bad.jsonl"))


def test_nothing_valid_is_one_clear_line(tiny, tmp_path):
    class Strict(FakeKeck):
        def gate(self, jobs):
            from kernelzero.records import GateReport

            return ((i, GateReport(False, "run", "no")) for i in range(len(jobs)))

    with pytest.raises(UsageError, match="no valid module was proposed"):
        coevolve(tiny_config(tmp_path / "run"), services=fake_services(tiny, Strict()))


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), RuntimeError("[enforce fail at inline_container.cc:672] . pos 64 vs 0")],
)
def test_a_full_disk_is_one_clear_line(error, tiny, tmp_path, monkeypatch):
    def full(*args):
        raise error

    monkeypatch.setattr(RunFolder, "stage", full)
    with pytest.raises(UsageError, match="disk is full"):
        coevolve(tiny_config(tmp_path / "run"), services=fake_services(tiny))


def test_an_interrupted_run_keeps_what_is_done(tiny, tmp_path):
    def interrupt(event):
        if event.kind == "step" and event.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coevolve(tiny_config(tmp_path / "run"), services=fake_services(tiny), on_event=interrupt)
    assert [row["step"] for row in read_rows(tmp_path / "run" / "steps.jsonl")] == [1]


def test_two_processes_do_not_share_a_folder(tiny, tmp_path):
    config = tiny_config(tmp_path / "run")
    with RunFolder(config.folder).locked(), pytest.raises(UsageError, match="another process"):
        coevolve(config, services=fake_services(tiny))


def run_once(folder: str, model: str) -> None:
    """One life of a run, in a process of its own."""
    import torch

    torch.set_num_threads(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    coevolve(tiny_config(Path(folder)), services=fake_services(model))


def test_killed_at_five_moments_a_run_ends_as_if_it_never_was(finished, tiny, tmp_path):
    whole, _, _ = finished
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trl.trainer.grpo_trainer", "kernelzero.training.grpo", "tests.test_coevolve"])
    step_s = max(row["step_s"] for row in read_rows(whole / "steps.jsonl"))
    rng = random.Random()
    folder = tmp_path / "run"
    for steps in (0, 1, 2, 4, 5):  # of 8, so that there is work left at every kill
        process = context.Process(target=run_once, args=(str(folder), tiny))
        process.start()
        while not (folder / "lock").exists() or len(read_rows(folder / "steps.jsonl")) < steps:
            time.sleep(0.01)
            assert process.is_alive()
        time.sleep(rng.uniform(0, 2 * step_s))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
    last = context.Process(target=run_once, args=(str(folder), tiny))
    last.start()
    last.join()
    assert last.exitcode == 0
    for name in FILES:
        rows, expected = read_rows(folder / name), read_rows(whole / name)
        assert max(Counter(row["key"] for row in rows).values()) == 1
        assert [row["key"] for row in rows] == [row["key"] for row in expected]
    same = ("completion", "reward", "task_id", "key")
    assert [[row.get(k) for k in same] for row in read_rows(folder / "attempts.jsonl")] == [
        [row.get(k) for k in same] for row in read_rows(whole / "attempts.jsonl")
    ]
    assert not list((folder / "pending").glob("*"))
