from __future__ import annotations

import itertools
import json

import pytest

from kernelzero.curriculum import pool_row, select_modules, set_solve_rates
from kernelzero.errors import UsageError
from kernelzero.judging import judge_answers, judge_kernels, judge_proposals
from kernelzero.records import ApiSet, Backend, Completion, Finish, Role, Status, Task
from kernelzero.runfolder import COMPLETE, RunFolder, read_rows
from tests.fakes import FakeKeck, FakeSampler, fake_services, tiny_config


def answer(text: str) -> Completion:
    return Completion(text, len(text), Finish.STOP)


def quiet(done: int, total: int) -> None:
    pass


def rows_at(*rates: float | None):
    return [
        {**pool_row(Task(f"m{i}", ("torch.a",)), []), "solve_rate": rate, "round": 1} for i, rate in enumerate(rates)
    ]


def test_the_frontier_comes_first():
    rows = rows_at(0.0, 0.5, 1.0, 0.6, None)
    assert {task.source for task in select_modules(rows, 2, "frontier", 0)} == {"m1", "m3"}
    assert len(select_modules(rows, 5, "frontier", 0)) == 5


def test_modules_that_teach_nothing_are_taken_only_where_there_are_no_others():
    chosen = [task.source for task in select_modules(rows_at(0.0, 0.5, 1.0, 0.2, None), 6, "frontier", 0)]
    assert sorted(chosen) == ["m1"] * 3 + ["m3"] * 3
    assert len(select_modules(rows_at(0.0, 1.0), 3, "frontier", 0)) == 3


def test_newer_modules_come_first_where_equal_and_the_newest_rate_counts():
    rows = [*rows_at(0.5, 0.5), {**rows_at(0.0)[0], "round": 2}]
    assert [task.source for task in select_modules(rows, 1, "frontier", 0)] == ["m1"]
    rows[1]["round"], rows[0]["round"] = 2, 1
    assert [task.source for task in select_modules(rows[:2], 1, "frontier", 3)] == ["m1"]


def test_a_small_pool_is_gone_through_again_evenly():
    for selection in ("frontier", "blind"):
        chosen = [task.source for task in select_modules(rows_at(0.1, 0.5, 0.9), 8, selection, 1)]
        assert len(chosen) == 8
        assert {chosen.count(source) for source in set(chosen)} <= {2, 3}
        assert set(chosen[:3]) == set(chosen[3:6])
    assert select_modules([], 3, "blind", 0) == []


def test_blind_drawing_ignores_the_rates_and_a_seed_is_a_draw():
    one, other = rows_at(0.5, 0.0, 1.0, 0.2), rows_at(1.0, 0.5, 0.0, 0.9)
    assert select_modules(one, 2, "blind", 7) == select_modules(other, 2, "blind", 7)
    draws = {tuple(t.source for t in select_modules(one, 2, "blind", seed)) for seed in range(20)}
    assert len(draws) > 1


def test_rates_of_api_sets_are_means_over_their_modules():
    assert set_solve_rates(rows_at(0.5, 1.0, None)) == {ApiSet(("torch.a",)).id: 0.75}


def test_verdicts_find_their_answers_and_no_code_is_the_coders_failure(tmp_path):
    task = Task("module")
    texts = ["runtime_error", "", "timeout", "infra_error", "incorrect"]
    attempts = judge_answers([(task, answer(text)) for text in texts], fake_services("x"), Backend.TRITON, timed=True)
    assert [a.verdict.status for a in attempts] == [
        Status.RUNTIME_ERROR,
        Status.COMPILE_ERROR,
        Status.TIMEOUT,
        Status.INFRA_ERROR,
        Status.INCORRECT,
    ]
    assert attempts[1].candidate is None
    assert attempts[1].verdict.correct is False


def test_a_job_that_keck_forgot_is_nobodys_failure():
    class Forgetful(FakeKeck):
        def judge(self, jobs, *, timed=True):
            return itertools.islice(super().judge(jobs, timed=timed), 1)

    attempts = judge_answers(
        [(Task("m"), answer("a")), (Task("m"), answer("b"))],
        fake_services("x", Forgetful()),
        Backend.TRITON,
        timed=True,
    )
    assert [a.verdict.correct is None for a in attempts] == [True, False]


def test_kernels_are_rewarded_by_task_wherever_they_stand(tmp_path):
    tasks = [Task("one"), Task("two")] * 3
    payloads = [json.dumps(task.to_json()) for task in tasks]
    texts = ["incorrect", "a", "incorrect", "unsupported", "incorrect", "timeout"]
    judged = judge_kernels(payloads, [answer(t) for t in texts], fake_services("x"), tiny_config(tmp_path), quiet)
    assert judged.rewards[::2] == [0.0, 0.0, 0.0]
    assert judged.rewards[3] is None
    assert judged.metrics["unrewarded"] == 1
    assert [row["reward"] for row in judged.rows["attempts.jsonl"]] == judged.rewards


def test_proposals_are_rewarded_from_outcomes(tmp_path):
    sets = [ApiSet(("torch.a", f"torch.b{i}")) for i in range(4)]
    payloads = [json.dumps(item.to_json()) for item in sets for _ in range(4)]
    texts = [f"module {i}" for i in range(14)] + ["", "infra_error"]
    judged = judge_proposals(
        payloads,
        [answer(t) for t in texts],
        fake_services("x"),
        tiny_config(tmp_path),
        FakeSampler(),
        seed=1,
        on_verdict=quiet,
    )
    rows = judged.rows["proposals.jsonl"]
    for row, reward in zip(rows, judged.rewards, strict=True):
        if row["report"]["valid"] is None:
            assert reward is None
        elif not row["report"]["valid"]:
            assert reward == -1.0
        else:
            assert 0.0 <= reward <= 1.0
    assert rows[14]["report"]["gate"] == "parse"
    assert judged.rewards[15] is None
    assert len(judged.rows["attempts.jsonl"]) == 3 * len(judged.rows["pool.jsonl"])


def test_one_module_proposed_twice_is_tried_once(tmp_path):
    payload = json.dumps(ApiSet(("torch.a",)).to_json())
    keck = FakeKeck()
    judged = judge_proposals(
        [payload] * 4, [answer("same 1")] * 4, fake_services("x", keck), tiny_config(tmp_path), FakeSampler(), 0, quiet
    )
    assert keck.gated == 1
    assert keck.judged in (0, 3)
    assert len(set(judged.rewards)) == 1


def checkpoint(folder: RunFolder, step: int, complete: bool) -> None:
    path = folder.checkpoint_path(Role.CODER, step)
    path.mkdir(parents=True)
    if complete:
        (path / COMPLETE).touch()


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    with made.locked():
        yield made


def stage(folder: RunFolder, step: int) -> None:
    folder.stage(Role.CODER, step, {"attempts.jsonl": [{"n": i} for i in range(3)], "steps.jsonl": [{"n": step}]})


def test_rows_of_a_step_without_its_checkpoint_are_dropped(folder):
    checkpoint(folder, 1, complete=True)
    checkpoint(folder, 2, complete=False)
    stage(folder, 1)
    stage(folder, 2)
    folder.recover()
    assert [row["key"] for row in folder.read_rows("steps.jsonl")] == ["coder-1-0"]
    assert len(folder.read_rows("attempts.jsonl")) == 3
    assert folder.steps_done(Role.CODER) == 1
    assert not folder.checkpoint_path(Role.CODER, 2).exists()
    assert not list((folder.path / "pending").glob("*"))


def test_a_half_appended_step_is_completed_without_a_row_twice(folder):
    checkpoint(folder, 1, complete=True)
    stage(folder, 1)
    whole = json.dumps({"key": "coder-1-0", "role": "coder", "step": 1, "n": 0})
    (folder.path / "attempts.jsonl").write_text(whole + "\n" + '{"key": "coder-1-1", "ro')
    folder.recover()
    assert [row["key"] for row in folder.read_rows("attempts.jsonl")] == ["coder-1-0", "coder-1-1", "coder-1-2"]
    assert [row["n"] for row in folder.read_rows("attempts.jsonl")] == [0, 1, 2]


def test_steps_between_two_checkpoints_become_durable_together(folder):
    for step in (1, 2):
        stage(folder, step)
    assert folder.read_rows("steps.jsonl") == []
    checkpoint(folder, 2, complete=False)
    folder.commit(Role.CODER, 2)
    assert [row["step"] for row in folder.read_rows("steps.jsonl")] == [1, 2]


def test_recovering_twice_changes_nothing(folder):
    checkpoint(folder, 1, complete=True)
    stage(folder, 1)
    folder.recover()
    before = (folder.path / "attempts.jsonl").read_bytes()
    folder.recover()
    assert (folder.path / "attempts.jsonl").read_bytes() == before


def test_odd_texts_survive_and_a_broken_line_is_named(folder, tmp_path):
    folder.append("attempts.jsonl", [{"key": "a", "text": "\u2028 \ud800 é\n"}])
    assert folder.read_rows("attempts.jsonl")[0]["text"] == "\u2028 \ud800 é\n"
    (tmp_path / "x.jsonl").write_text("not json\n")
    with pytest.raises(UsageError, match="no JSON"):
        read_rows(tmp_path / "x.jsonl")
