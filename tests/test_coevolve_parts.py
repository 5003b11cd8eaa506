from __future__ import annotations

import json

import pytest

from kernelzero.apis.sampler import reweight
from kernelzero.curriculum import pool_row, select_modules, set_solve_rates, with_training_outcomes
from kernelzero.errors import UsageError
from kernelzero.judging import judge_kernels, judge_proposals
from kernelzero.records import ApiSet, Completion, Finish, Role, Task
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


def proposed(name: str, outcomes, number: int, step: int = 1, apis=("torch.a",)):
    return {**pool_row(Task(name, apis), outcomes), "role": "proposer", "round": number, "step": step}


def tried(name: str, statuses: str, number: int, step: int, role: str = "coder"):
    """Attempts as rows: c correct, i incorrect, n nothing known."""
    status = {"c": "correct", "i": "incorrect", "n": "infra_error"}
    at = {"role": role, "round": number, "step": step, "task_id": Task(name).id}
    return [{**at, "verdict": {"status": status[letter]}} for letter in statuses]


def test_training_gives_a_module_a_newer_rate_and_keeps_the_older_ones():
    pool = [proposed("m", [False, False], 1), proposed("other", [True, False], 1)]
    attempts = tried("m", "ccic", 1, 1) + tried("m", "cccc", 1, 6) + tried("not in the pool", "c", 1, 2)
    m, other = with_training_outcomes(pool, attempts)
    assert (m["outcomes"], m["solve_rate"], m["frontier_reward"], m["seen"]) == ([True] * 4, 1.0, 0.0, 3)
    assert m["earlier"] == [[False, False], [True, True, False, True]]
    assert other == {**pool[1], "seen": 1, "earlier": []}
    assert pool[0]["solve_rate"] == 0.0


def test_a_later_proposal_is_newer_than_training_although_its_step_is_lower():
    pool = [proposed("m", [False], 1, step=3), proposed("m", [True, False], 2, step=4)]
    attempts = tried("m", "cc", 1, 40)
    (row,) = with_training_outcomes(pool, attempts)
    assert (row["outcomes"], row["round"], row["seen"]) == ([True, False], 2, 3)
    assert row["earlier"] == [[False], [True, True]]
    (row,) = with_training_outcomes(pool, attempts + tried("m", "ii", 2, 41))
    assert (row["outcomes"], row["earlier"][-1]) == ([False, False], [True, False])


def test_steps_of_different_roles_are_not_compared():
    (row,) = with_training_outcomes([proposed("m", [False], 1, step=20)], tried("m", "cc", 1, 1))
    assert (row["outcomes"], row["earlier"]) == ([True, True], [[False]])


def test_of_modules_given_twice_the_later_row_is_the_newer():
    row_of = {name: {**pool_row(Task("m"), known), "round": 0} for name, known in (("a", [True]), ("b", [False]))}
    (row,) = with_training_outcomes([row_of["a"], row_of["b"]], [])
    assert (row["outcomes"], row["earlier"], row["seen"]) == ([False], [[True]], 2)


def test_attempts_of_the_proposers_phase_and_those_without_an_outcome_change_nothing():
    pool = [proposed("m", [True, False], 1)]
    attempts = tried("m", "iiii", 1, 1, role="proposer") + tried("m", "nnn", 1, 2)
    assert with_training_outcomes(pool, attempts) == [{**pool[0], "seen": 1, "earlier": []}]
    (row,) = with_training_outcomes(pool, tried("m", "cni", 1, 2))
    assert (row["outcomes"], row["solve_rate"]) == ([True, None, False], 0.5)
    (row,) = with_training_outcomes([proposed("m", [None], 1)], [])
    assert (row["solve_rate"], row["seen"]) == (None, 0)


def test_the_order_of_attempts_does_not_matter_and_the_same_rows_give_the_same_draw():
    pool = [proposed(f"m{i}", [i % 2 == 0, True], 1 + i % 2) for i in range(12)]
    attempts = [row for i in range(12) for row in tried(f"m{i}", "ci" * (i % 3) + "c", 1 + i % 2, 1 + i)]
    rows = with_training_outcomes(pool, attempts)
    assert [r["solve_rate"] for r in with_training_outcomes(pool, attempts[::-1])] == [r["solve_rate"] for r in rows]
    again = with_training_outcomes(json.loads(json.dumps(pool)), json.loads(json.dumps(attempts)))
    assert select_modules(again, 8, "frontier", 3) == select_modules(rows, 8, "frontier", 3)


def test_modules_are_selected_by_their_newest_rate_over_all_rounds():
    pool = [proposed("learnt", [True, False], 1), proposed("hard", [False] * 2, 1), proposed("new", [True] * 2, 2)]
    before = {task.source for task in select_modules(pool, 3, "frontier", 0)}
    attempts = tried("learnt", "cccc", 1, 1) + tried("hard", "ciic", 1, 2)
    after = {task.source for task in select_modules(with_training_outcomes(pool, attempts), 3, "frontier", 0)}
    assert (before, after) == ({"learnt"}, {"hard"})


def test_sets_that_the_coder_learnt_come_less_and_those_that_it_fails_more():
    sets = [ApiSet(("torch.a",)), ApiSet(("torch.b",)), ApiSet(("torch.c",))]
    pool = [proposed("a", [False], 1), proposed("b", [True], 1, apis=("torch.b",))]
    attempts = tried("a", "cc", 1, 1) + tried("b", "ii", 1, 1)
    before = reweight(sets, set_solve_rates(pool))
    after = reweight(sets, set_solve_rates(with_training_outcomes(pool, attempts)))
    assert after[sets[0].id] < before[sets[0].id]
    assert after[sets[1].id] > before[sets[1].id]
    assert after[sets[2].id] == before[sets[2].id]


def test_a_module_proposed_again_counts_once_in_its_set_and_in_each_of_its_sets():
    rows = [proposed("m", [False], 1), proposed("m", [True], 2), proposed("n", [True, False], 2)]
    assert set_solve_rates(rows) == {ApiSet(("torch.a",)).id: 0.75}
    two = [proposed("m", [False], 1), proposed("m", [True], 1, 2, ("torch.b",))]
    for given_rows in (with_training_outcomes(two, tried("m", "ci", 1, 1)), with_training_outcomes(two, [])):
        assert set(set_solve_rates(given_rows)) == {ApiSet(("torch.a",)).id, ApiSet(("torch.b",)).id}
        assert len({row["solve_rate"] for row in given_rows}) == 1


def test_rows_that_a_run_writes_are_read(tmp_path):
    tasks = [Task("one", ("torch.a",)), Task("two", ("torch.b",))]
    payloads = [json.dumps(task.to_json()) for task in tasks for _ in range(4)]
    texts = ["incorrect", "infra_error", "incorrect", "timeout", "x", "y", "z", "incorrect"]
    judged = judge_kernels(payloads, [answer(t) for t in texts], fake_services("x"), tiny_config(tmp_path), quiet)
    rows = [{"role": "coder", "round": 1, "step": 1, **row} for row in judged.rows["attempts.jsonl"]]
    pool = [{"round": 1, **pool_row(task, [True])} for task in tasks]
    one, two = with_training_outcomes(pool, json.loads(json.dumps(rows)))
    assert one["outcomes"] == [False, None, False, False]
    known = [reward > 0 for reward in judged.rewards[4:]]
    assert two["outcomes"] == known


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
