"""Fine-tuning: what is read from corpora, what is held out, when it stops, and that it goes on after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kernelzero.coldstart.commands import app
from kernelzero.coldstart.nearness import Excluder
from kernelzero.coldstart.pairs import Example, example_of, load_examples, split
from kernelzero.coldstart.rates import Questions, judged, rate_of
from kernelzero.coldstart.rows import CorpusRow, write_parquet
from kernelzero.coldstart.train import TrainSettings, messages, train
from kernelzero.coldstart.watch import best_of, measurements_since_best
from kernelzero.config import LoraConfig, TrainingConfig
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.policy import open_sampler, prompt_style
from kernelzero.records import Candidate, Completion, Finish, GateReport, Role, Sampling, Status, Task, Verdict
from kernelzero.training.sft import SftSettings, sft_trainer
from tests.fakes import make_tiny_model

CPU = TrainingConfig(device="cpu", rows_per_device=4)
OPERATORS = ("relu", "exp", "tanh", "sin", "cos", "abs", "erf", "neg")


def module(number: int) -> str:
    name = OPERATORS[number % 8]
    other = OPERATORS[number // 8 % 8]
    return (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return torch.{name}(torch.{other}(x))\n\n"
        "def get_inputs():\n    return [torch.randn(4)]\n\ndef get_init_inputs():\n    return []\n"
    )


def kernel(number: int) -> str:
    return f"class ModelNew:\n    number = {number}\n"


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rows = [
        CorpusRow(n, "id", module(n), (f"torch.{OPERATORS[n % 8]}", f"torch.{OPERATORS[n // 8]}"), kernel=kernel(n))
        for n in range(12)
    ]
    write_parquet(rows, folder / "corpus-triton.parquet")
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


class StubKeck:
    """Finds every kernel and every module right; stops for good at its `last` question."""

    def __init__(self, last: int = 10**9) -> None:
        self.last, self.asked = last, 0

    def _count(self) -> None:
        self.asked += 1
        if self.asked >= self.last:
            raise InfrastructureError("Keck stopped")

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        self._count()
        for index, (_, candidate) in enumerate(jobs):
            status = Status.UNSUPPORTED if "number = 2" in candidate.source else Status.CORRECT
            yield index, Verdict(status, "a stub says so", "stub", candidate.backend, timed=False)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        self._count()
        for index, _ in enumerate(jobs):
            yield index, GateReport(True, "", "a stub says so")

    def close(self) -> None:
        pass


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_our_own_corpus(corpus: Path) -> None:
    loaded = load_examples(corpus)
    assert [e.kernel for e in loaded.examples] == [kernel(n) for n in range(12)]
    assert loaded.examples[1].apis == ("torch.exp", "torch.relu") and loaded.left_out == {}


def test_conversations_of_others_with_code_in_them(tmp_path: Path) -> None:
    asked = f"Optimise this:\n```python\n{module(9)}```\n"
    told = f"<think>hm</think>Fuse both.\n```python\n{kernel(9)}```"
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": asked}]
    rows = {
        "prompts.jsonl": {"prompts": asked, "responses": told},
        "chat.jsonl": {"prompt": chat, "completion": [{"role": "assistant", "content": told}]},
        "messages.jsonl": {"messages": [*chat, {"role": "assistant", "content": told}]},
    }
    for name, row in rows.items():
        [example] = load_examples(write(tmp_path / name, [row])).examples
        assert (example.module, example.kernel, example.reasoning) == (module(9), kernel(9), "Fuse both.")
        assert example.apis == ("torch.exp",)


def test_columns_can_be_named_also_inside_others(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"code": {"ref": module(3)}, "cu": kernel(3), "why": "so"}])
    columns = {"module": "code.ref", "kernel": "cu", "reasoning": "why"}
    assert load_examples(path, columns).examples[0].reasoning == "so"
    with pytest.raises(UsageError, match="say which hold module and kernel"):
        load_examples(path)
    with pytest.raises(UsageError, match="no column 'nope' for the kernel; it has code, cu, why"):
        load_examples(path, {"kernel": "nope"})
    with pytest.raises(UsageError, match="no part 'code'"):
        load_examples(path, {"code": "cu"})


def test_rows_without_a_pair_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [{"module": module(0), "kernel": kernel(0)}, {"module": "x = 1", "kernel": kernel(0)}]
    rows += [{"module": module(0), "kernel": "import triton\n"}, {"module": None, "kernel": None}]
    loaded = load_examples(write(tmp_path / "rows.jsonl", rows))
    assert len(loaded.examples) == 1 and sum(loaded.left_out.values()) == 3
    assert any("no class ModelNew" in reason for reason in loaded.left_out)
    with pytest.raises(UsageError, match="no pair of module and kernel"):
        load_examples(write(tmp_path / "none.jsonl", rows[1:]))


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", "{"), ("b.jsonl", "[1]\n"), ("c.parquet", "x"), ("d", None)])
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError):
        load_examples(tmp_path / name)


def test_what_is_held_out_occurs_in_no_training_row() -> None:
    examples = [Example(module(n % 5), kernel(n)) for n in range(20)]
    training, held_out = split(examples, 2, lambda e: e.module)
    assert len(held_out) == 2 and len(training) == 12
    assert not {e.module for e in training} & {e.module for e in held_out}


def test_a_foreign_module_gets_a_set_of_its_own_apis() -> None:
    made = example_of({"module": module(10), "kernel": kernel(1)})
    assert isinstance(made, Example) and 1 <= len(made.apis) <= 3


# --- rates and stopping ----------------------------------------------------------------------------------------------


def test_answers_without_code_are_wrong_and_what_cannot_be_judged_does_not_count() -> None:
    examples = [Example(module(n), kernel(n)) for n in range(4)]
    texts = [kernel(0), "no code", kernel(2), kernel(3)]
    answers = [Completion(text, 5, Finish.STOP) for text in texts]
    outcomes = judged(Questions(Role.CODER, examples, "compact"), answers, StubKeck())
    rate = rate_of(outcomes)
    assert (rate.right, rate.judged, round(rate.value, 3)) == (2, 3, 0.667)
    assert rate.outcomes == {"correct": 2, "no code": 1, "unsupported": 1} and rate.low < rate.value < rate.high


def rows(*rates: float | None) -> list[dict[str, Any]]:
    return [
        {"step": i, "loss": 3.0 - i / 10, **({} if r is None else {"rate": r})} for i, r in enumerate(rates)
    ]  # fmt: skip


def test_progress_is_a_higher_rate_and_no_rate_yet_is_no_stop() -> None:
    assert measurements_since_best(rows(0.0, 0.0, 0.0)) == 0
    assert measurements_since_best(rows(0.0, 0.2, 0.1, 0.2)) == 2
    assert measurements_since_best(rows(None, None)) == 0
    assert best_of(rows(0.1, 0.3, 0.3, 0.2)) == {"step": 2, "loss": 2.8, "rate": 0.3}
    assert best_of(rows(0.0, 0.0)) == {"step": 1, "loss": 2.9, "rate": 0.0}
    rising = [{"step": i, "loss": float(i)} for i in range(4)]
    assert measurements_since_best(rising) == 3 and best_of(rising) == rising[0]


# --- training --------------------------------------------------------------------------------------------------------


def settings(role: Role = Role.CODER, steps: int = 6, **changes: Any) -> TrainSettings:
    sft = SftSettings(steps=steps, batch=4, lr=1e-2, eval_every=2, **changes.pop("sft", {}))
    given = {"style": "compact", "held_out": 3, "max_tokens": 4, "training": CPU, **changes}
    return TrainSettings(role, sft, **given)


def fit(corpus: Path, tiny: str, out: Path, keck: Any = None, **options: Any) -> dict[str, Any]:
    keck = keck or StubKeck()
    return train(corpus, tiny, out, settings(**options), lambda: keck, say=lambda _: None)


def test_loss_is_on_the_completion_only_and_packing_changes_nothing(tiny: str, tmp_path: Path) -> None:
    import torch

    pairs = []
    for n in range(1, 9):
        asked, told = {"role": "user", "content": "say " * n}, {"role": "assistant", "content": "ab" * n}
        pairs.append({"prompt": [asked], "completion": [told]})
    losses, counted = [], []
    for packing in (False, True):
        sft = SftSettings(steps=1, batch=8, lr=1e-9, packing=packing, max_length=400, eval_every=1)
        trainer = sft_trainer(tiny, pairs, tmp_path / str(packing), sft, CPU, held_out=pairs)
        batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(trainer.train_dataset))])
        with torch.no_grad():
            losses.append(float(trainer.compute_loss(trainer.model.eval(), dict(batch))))
        counted.append(int((batch["labels"] != -100).sum()))
        if packing:
            assert len(trainer.train_dataset) < len(pairs)
    assert counted == [sum(2 * n + 2 for n in range(1, 9))] * 2, "the answer's bytes, its end and a line end"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_coder_is_trained_measured_and_saved_as_it_will_be_prompted(corpus: Path, tiny: str, tmp_path: Path) -> None:
    result = fit(corpus, tiny, tmp_path)
    assert [row["step"] for row in result["evals"]] == [0, 2, 4, 6]
    losses = [row["loss"] for row in result["evals"]]
    assert losses[-1] < losses[0] and result["best"]["loss"] == min(losses)
    assert (result["learnt_from"], result["held_out"], result["steps"]) == (9, 3, 6)
    assert all(row["judged"] == 3 and row["outcomes"] == {"no code": 3} for row in result["evals"])
    assert prompt_style(tmp_path / "model") == "compact"
    assert fit(corpus, tiny, tmp_path, keck=StubKeck(last=0)) == result, "nothing is left to do"
    with pytest.raises(UsageError, match=r"sft.steps is 8 here and 6 there"):
        fit(corpus, tiny, tmp_path, steps=8)


def test_a_killed_training_goes_on_at_its_last_checkpoint(corpus: Path, tiny: str, tmp_path: Path) -> None:
    import kernelzero.coldstart.watch as watching

    whole = fit(corpus, tiny, tmp_path / "whole")
    real, calls = watching.measure, []

    def dies_at_the_third(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise InfrastructureError("killed")
        return real(*arguments)

    watching.measure = dies_at_the_third  # type: ignore[assignment]
    try:
        with pytest.raises(InfrastructureError):
            fit(corpus, tiny, tmp_path / "torn")
    finally:
        watching.measure = real
    torn = fit(corpus, tiny, tmp_path / "torn")
    assert [row["step"] for row in torn["evals"]] == [0, 2, 4, 6]
    assert [row["loss"] for row in torn["evals"]] == pytest.approx([row["loss"] for row in whole["evals"]], rel=1e-4)


def test_it_stops_when_the_rate_does_not_rise(
    corpus: Path, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kernelzero.coldstart.watch as watching

    rates = iter([rate_of([(i < n, "x") for i in range(10)]) for n in (1, 6, 5, 6, 9)])
    monkeypatch.setattr(watching, "measure", lambda *_: next(rates))
    result = fit(corpus, tiny, tmp_path, steps=20, patience=2)
    assert result["stopped_early"] and result["steps"] == 6
    assert (result["best"]["step"], result["best"]["rate"]) == (6, 0.6), "of two equal rates the lower loss"


def test_a_proposer_with_adapters_becomes_a_whole_model(corpus: Path, tiny: str, tmp_path: Path) -> None:
    lora = TrainingConfig(device="cpu", rows_per_device=4, lora=LoraConfig(rank=4, alpha=8))
    result = fit(corpus, tiny, tmp_path, role=Role.PROPOSER, steps=2, training=lora)
    assert result["best"]["outcomes"] == {"no code": 3}
    sampler = open_sampler(str(tmp_path / "model"), device="cpu")
    asked = Questions(Role.PROPOSER, [Example("", "", "", ("torch.exp",))], "compact").prompts()
    [[answer]] = sampler.sample(asked, 1, Sampling(0.0, 1.0, 4))
    assert answer.tokens <= 4 and sampler.style == "compact"


def test_benchmark_tasks_are_left_out_and_too_much_can_be_held_out(corpus: Path, tiny: str, tmp_path: Path) -> None:
    excluder = Excluder([Task(module(0)), Task(module(1))])
    with pytest.raises(UsageError, match="no example left"):
        train(corpus, tiny, tmp_path, settings(held_out=10), StubKeck, excluder=excluder, say=lambda _: None)


def test_what_a_coder_learns_to_write() -> None:
    example = Example(module(1), kernel(1), "Fusion: both at once.", ("torch.exp",))
    full = messages(example, settings(style="full"))["completion"][0]["content"]
    assert full == f"Fusion: both at once.\n\n```python\n{kernel(1)}```\n"
    bare = messages(example, settings(style="full", reasoning=False))["completion"][0]["content"]
    assert bare == f"```python\n{kernel(1)}```\n"
    assert messages(example, settings())["completion"][0]["content"] == kernel(1)
    proposed = messages(example, settings(Role.PROPOSER, style="full"))
    assert "torch.exp" in proposed["prompt"][-1]["content"] and "class Model" in proposed["completion"][0]["content"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--column", "kernel"), "PART=COLUMN"),
        (("--stop-on", "luck"), "rate or loss"),
        (("--backend", "cuda"), "--judge cuda"),
        ((), "no such corpus"),
    ],
)
def test_what_cannot_be_trained_is_one_line(tmp_path: Path, tiny: str, arguments: tuple[str, ...], says: str) -> None:
    command = ["train", "--role", "coder", "--corpus", "nowhere", "--model", tiny, "--out", str(tmp_path / "out")]
    with pytest.raises(UsageError, match=says) as caught:
        app([*command, "--device", "cpu", *arguments], standalone_mode=False)
    assert "\n" not in str(caught.value)
