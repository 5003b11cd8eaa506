from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kernelzero.config import LoraConfig, TrainingConfig
from kernelzero.credit import group_advantages
from kernelzero.errors import UsageError
from kernelzero.records import Finish, Prompt, Role
from tests.fakes import make_tiny_model

pytest.importorskip("trl")
from kernelzero.training.grpo import (
    GrpoSettings,
    PromptRow,
    build_trainer,
    free,
    rows_per_pass,
    run_trainer,
)

SETTINGS = GrpoSettings(
    prompts_per_step=2,
    group=4,
    total_steps=2,
    lr=1e-3,
    kl=0.1,
    temperature=1.0,
    max_tokens=6,
    seed=0,
    # Random tokens hardly ever end by themselves.
    training=TrainingConfig(device="cpu", rows_per_device=4, mask_truncated=False),
)
MASKED = TrainingConfig(device="cpu", rows_per_device=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def prompts(n: int) -> list[PromptRow]:
    return [PromptRow(Prompt(({"role": "user", "content": f"task {i}"},)), f"t{i}", f"p{i}") for i in range(n)]


def record(trainer):
    """Keep what each generation batch gave the loss."""
    seen = []
    original = trainer._generate_and_score_completions

    def wrapped(inputs):
        output = original(inputs)
        seen.append({**output, "trl_rewards": list(trainer._logs["rewards"][trainer.reward_func_names[0]])})
        return output

    trainer._generate_and_score_completions = wrapped
    return seen


def losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_rollouts_come_in_whole_groups_and_the_optimizer_moves(tiny, tmp_path):
    calls = []

    def reward(rollouts, step):
        calls.append((step, list(rollouts)))
        return [float(i % 2) for i in range(len(rollouts))]

    trainer = build_trainer(Role.CODER, tiny, prompts(4), reward, SETTINGS, tmp_path)
    before = trainer.model.get_input_embeddings().weight.detach().clone()
    assert run_trainer(trainer, None) == 2
    assert [step for step, _ in calls] == [1, 2]
    assert [r.group_id for r in calls[0][1]] == ["t0"] * 4 + ["t1"] * 4
    assert [r.payload for r in calls[1][1]] == ["p2"] * 4 + ["p3"] * 4
    assert all(r.completion.tokens <= 6 for _, rows in calls for r in rows)
    assert not before.equal(trainer.model.get_input_embeddings().weight)
    assert trainer.model.dtype == before.dtype
    assert trainer.args.use_bias_correction_kl is False
    assert trainer.beta == 0.1
    assert {row["learning_rate"] for row in trainer.state.log_history if "loss" in row} == {1e-3}
    free(trainer)
    assert trainer.model is None


def test_advantages_are_those_of_credit_and_the_unrewarded_are_left_out(tiny, tmp_path):
    given = [1.0, None, 0.0, 0.0, 0.1 + 0.2, 0.3, 0.3, 0.3]
    trainer = build_trainer(Role.CODER, tiny, prompts(2), lambda *_: given, replace(total_steps=1), tmp_path)
    seen = record(trainer)
    run_trainer(trainer, None)
    output = seen[0]
    expected = group_advantages(given, ["a"] * 4 + ["b"] * 4)
    assert output["advantages"].tolist() == pytest.approx([a or 0.0 for a in expected], abs=1e-6)
    assert output["advantages"][4:].tolist() == [0.0] * 4
    assert output["tool_mask"].sum(1).bool().tolist() == [r is not None for r in given]
    counted = (output["completion_mask"] * output["tool_mask"]).sum()
    assert output["num_items_in_batch"] == counted


def test_trl_s_own_advantages_agree_where_rewards_differ(tiny, tmp_path, monkeypatch):
    given = [1.0, None, 0.0, 0.0, 1.1, 0.0, 1.0, 1.05]
    trainer = build_trainer(Role.CODER, tiny, prompts(2), lambda *_: given, replace(total_steps=1), tmp_path)
    seen = record(trainer)
    run_trainer(trainer, None)
    assert list(trainer._logs["advantages"]) == pytest.approx(seen[0]["advantages"].tolist(), abs=1e-5)


def test_no_reward_at_all_is_a_finite_zero_loss(tiny, tmp_path):
    trainer = build_trainer(Role.CODER, tiny, prompts(4), lambda rows, _: [None] * len(rows), SETTINGS, tmp_path)
    run_trainer(trainer, None)
    assert losses(trainer) == [0.0, 0.0]


def test_all_truncated_is_a_finite_zero_loss(tiny, tmp_path):
    settings = replace(total_steps=1, max_tokens=2, training=MASKED)
    finishes = []

    def reward(rollouts, _):
        finishes.extend(r.completion.finish for r in rollouts)
        return [float(i % 2) for i in range(len(rollouts))]

    trainer = build_trainer(Role.CODER, tiny, prompts(2), reward, settings, tmp_path)
    force(trainer, [[5, 6]] * 8)
    run_trainer(trainer, None)
    assert set(finishes) == {Finish.LENGTH}
    assert losses(trainer) == [0.0]


def test_one_truncated_completion_is_not_counted_and_every_end_is_an_end(tiny, tmp_path):
    finishes = []

    def reward(rollouts, _):
        finishes.extend((r.completion.finish, r.completion.tokens) for r in rollouts)
        return [1.0, 0.0, 0.0, 0.0] * 2

    settings = replace(total_steps=1, training=MASKED)
    trainer = build_trainer(Role.CODER, tiny, prompts(2), reward, settings, tmp_path)
    first, second = trainer.eos_token_ids
    force(trainer, [[5, 6, 7, 8, 9, 10], [5, first], [5, 6, second], [first]] * 2)
    seen = record(trainer)
    run_trainer(trainer, None)
    assert finishes[:4] == [(Finish.LENGTH, 6), (Finish.STOP, 1), (Finish.STOP, 2), (Finish.STOP, 0)]
    assert seen[0]["num_items_in_batch"] == 2 * (2 + 3 + 1)
    assert seen[0]["completion_mask"].sum(1).tolist() == [0, 2, 3, 1] * 2
    assert all(abs(loss) < 100 for loss in losses(trainer))


def test_resuming_keeps_adam_the_anchor_and_the_order(tiny, tmp_path):
    def reward(rollouts, _):
        return [float(len(r.completion.text) % 2) for r in rollouts]

    straight = build_trainer(Role.CODER, tiny, prompts(8), reward, replace(total_steps=4), tmp_path / "a")
    run_trainer(straight, None)
    first = build_trainer(Role.CODER, tiny, prompts(4), reward, replace(total_steps=2), tmp_path / "b")
    run_trainer(first, None)
    order = []

    def watching(rollouts, step):
        order.append((step, rollouts[0].group_id))
        return reward(rollouts, step)

    second = build_trainer(Role.CODER, tiny, prompts(8), watching, replace(total_steps=4), tmp_path / "b")
    anchor = second.ref_model.get_input_embeddings().weight.detach().clone()
    run_trainer(second, tmp_path / "b" / "checkpoint-2")
    assert order == [(3, "t4"), (4, "t6")]
    assert second.ref_model.get_input_embeddings().weight.equal(anchor)
    for one, other in zip(straight.model.parameters(), second.model.parameters(), strict=True):
        assert one.equal(other)


def test_low_rank_adapters_train(tiny, tmp_path):
    training = TrainingConfig(device="cpu", rows_per_device=8, lora=LoraConfig(rank=2, alpha=4))
    trainer = build_trainer(
        Role.CODER, tiny, prompts(2), lambda r, _: [1.0, 0.0] * 4, replace(total_steps=1, training=training), tmp_path
    )
    run_trainer(trainer, None)
    assert trainer.ref_model is None
    assert (tmp_path / "checkpoint-1" / "adapter_config.json").is_file()


def test_our_decoder_draws_what_trl_s_would(tmp_path):
    one_end = str(make_tiny_model(tmp_path / "tiny", second_eos="<|im_end|>"))
    seen = []

    def reward(rollouts, _):
        seen.extend(rollouts)
        return [float(i % 2) for i in range(len(rollouts))]

    settings = replace(total_steps=2, max_tokens=300)
    trainer = build_trainer(Role.CODER, one_end, prompts(4), reward, settings, tmp_path)
    assert trainer._can_decode()
    inputs = record(trainer)
    run_trainer(trainer, None)
    assert len({r.completion.text for r in seen}) > 8
    assert {r.completion.finish for r in seen} == {Finish.STOP, Finish.LENGTH}
    lengths = [r.completion.tokens + (r.completion.finish is Finish.STOP) for r in seen]
    assert [int(n) for output in inputs for n in output["completion_mask"].sum(1)] == lengths
    assert max(lengths) == 300


def test_too_few_prompts_are_refused(tiny, tmp_path):
    with pytest.raises(UsageError, match="need 4 prompts, got 3"):
        build_trainer(Role.CODER, tiny, prompts(3), lambda r, _: [0.0] * len(r), SETTINGS, tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tiny, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(UsageError, match="no model can be loaded"):
        build_trainer(Role.CODER, str(bare), prompts(4), lambda r, _: [0.0] * len(r), SETTINGS, tmp_path)
    (bare / "config.json").write_text((Path(tiny) / "config.json").read_text())
    with pytest.raises(UsageError, match="has no weights"):
        build_trainer(Role.CODER, str(bare), prompts(4), lambda r, _: [0.0] * len(r), SETTINGS, tmp_path)
    shutil.copy(Path(tiny) / "model.safetensors", bare)
    with pytest.raises(UsageError, match="tokenizer"):
        build_trainer(Role.CODER, str(bare), prompts(4), lambda r, _: [0.0] * len(r), SETTINGS, tmp_path)


@pytest.mark.parametrize(("processes", "expected"), [(1, (4, 2)), (2, (4, 1))])
def test_batches_keep_groups_whole_in_every_process(processes, expected):
    assert rows_per_pass(SETTINGS, processes) == expected


def test_a_group_split_between_processes_is_refused():
    with pytest.raises(UsageError, match="whole groups"):
        rows_per_pass(SETTINGS, 4)


def replace(**changes):
    return dataclasses.replace(SETTINGS, **changes)


def force(trainer, completion_ids):
    """Make generation give these tokens."""
    trainer._generate_single_turn = lambda *a, **k: ([list(ids) for ids in completion_ids], None)


def one_end_model(tmp_path):
    return str(make_tiny_model(tmp_path / "tiny", second_eos="<|im_end|>"))


def test_completions_are_told_of_while_others_are_drawn(tmp_path):
    told, final = {}, []

    def reward(rollouts, step):
        final.append((step, list(rollouts)))
        return [float(i % 2) for i in range(len(rollouts))]

    trainer = build_trainer(
        Role.CODER,
        one_end_model(tmp_path),
        prompts(4),
        reward,
        replace(max_tokens=200),
        tmp_path,
        on_drawn=lambda place, rollout, step: told.setdefault((step, place), (len(final), rollout)),
    )
    run_trainer(trainer, None)
    assert {(step, i): rollout for step, rollouts in final for i, rollout in enumerate(rollouts)} == {
        key: rollout for key, (_, rollout) in told.items()
    }
    assert all(before == step - 1 for (step, _), (before, _) in told.items()), "told before the reward is asked for"


def test_the_sampler_holds_the_trainer_s_weights_and_a_stale_one_is_seen(tmp_path):
    model = one_end_model(tmp_path)

    def gaps(disturb, training=SETTINGS.training):
        settings = replace(total_steps=2, max_tokens=40, temperature=0.8, training=training)
        trainer = build_trainer(
            Role.CODER, model, prompts(4), lambda r, _: [1.0, 0.0] * 4, settings, tmp_path / "run", on_drawn=None
        )
        original = trainer._generate_single_turn

        def drawn(*args, **kwargs):
            rows, logps = original(*args, **kwargs)
            return rows, [[value + disturb for value in row] for row in logps]

        trainer._generate_single_turn = drawn
        run_trainer(trainer, None)
        return [row["rollout_gap"] for row in trainer.state.log_history if "rollout_gap" in row]

    honest = gaps(0.0)
    assert len(honest) == 2
    assert max(honest) < 1e-6
    assert max(gaps(0.0, SETTINGS.training.model_copy(update={"lora": LoraConfig(rank=2, alpha=4)}))) < 1e-6
    assert min(gaps(0.3)) > 0.03


def test_the_gap_is_the_kl_between_two_distributions():
    from kernelzero.training.rollout_gap import rollout_gap

    torch.manual_seed(0)
    drawing, training = torch.log_softmax(torch.randn(2, 5), -1)
    tokens = torch.multinomial(drawing.exp(), 200_000, replacement=True)
    gap = rollout_gap(drawing[tokens][None], training[tokens][None], torch.ones(1, len(tokens)))
    assert float(gap) == pytest.approx(float((drawing.exp() * (drawing - training)).sum()), rel=0.05)
    unknown = torch.tensor([[float("nan"), -1.0]])
    assert float(rollout_gap(unknown, torch.tensor([[-3.0, -1.0]]), torch.ones(1, 2))) == 0.0
    assert rollout_gap(unknown, unknown, torch.zeros(1, 2)).isnan()


TWO_PROCESSES = """
import json, os, sys
from kernelzero.config import TrainingConfig
from kernelzero.records import Prompt, Role
from kernelzero.training.grpo import GrpoSettings, PromptRow, build_trainer, run_trainer
from kernelzero.training.processes import is_main, on_main
model, out = sys.argv[1:]
prompts = [PromptRow(Prompt(({"role": "user", "content": f"task {i}"},)), f"t{i}", f"p{i}") for i in range(8)]
settings = GrpoSettings(4, 2, 2, 1e-3, 0.1, 1.0, 30, 0, TrainingConfig(device="cpu", rows_per_device=2,
                        mask_truncated=False))
calls, told = [], []
def reward(rollouts, step):
    assert is_main()
    calls.append([step, [r.group_id for r in rollouts], [r.completion.text for r in rollouts]])
    return [float(len(r.completion.text) % 3) for r in rollouts]
def broken(rollouts, step):
    raise RuntimeError("the judge is broken")
trainer = build_trainer(Role.CODER, model, prompts, reward, settings, out + "/run",
                        on_drawn=lambda place, rollout, step: told.append([step, place, rollout.completion.text]))
run_trainer(trainer, None)
weights = sum(float(p.detach().double().sum()) for p in trainer.model.parameters())
seen = {"calls": calls, "told": told, "weights": weights, "from main": on_main(lambda: os.environ["RANK"])}
try:
    run_trainer(build_trainer(Role.CODER, model, prompts, broken, settings, out + "/broken"), None)
except RuntimeError as error:
    seen["error"] = str(error)
with open(f"{out}/{os.environ['RANK']}.json", "w") as file:
    json.dump(seen, file)
"""


def test_two_processes_share_the_rollouts_and_the_main_one_alone_rewards(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    done = subprocess.run(
        [*command, one_end_model(tmp_path), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    main, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert other["calls"] == other["told"] == []
    assert [call[1] for call in main["calls"]] == [
        ["t0", "t0", "t1", "t1", "t2", "t2", "t3", "t3"],
        ["t4", "t4", "t5", "t5", "t6", "t6", "t7", "t7"],
    ]
    texts = {call[0]: call[2] for call in main["calls"]}
    assert {(step, place) for step, place, _ in main["told"]} == {(s, p) for s in (1, 2) for p in range(4)}
    assert all(texts[step][place] == text for step, place, text in main["told"])
    assert main["weights"] == other["weights"], "both processes hold the same weights after the steps"
    assert main["from main"] == other["from main"] == "0"
    assert main["error"] == other["error"] == "the judge is broken"
