from __future__ import annotations

import json
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kernelzero.config import TrainingConfig
from kernelzero.errors import UsageError
from kernelzero.training.sft import SftSettings, read_pairs, train_sft
from tests.fakes import make_tiny_model

CPU = TrainingConfig(device="cpu", rows_per_device=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_model_learns_its_pairs_and_is_saved_with_its_tokenizer(tiny, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    losses = []

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs, **_):
            losses.extend([logs["loss"]] if "loss" in logs else [])

    data = write(tmp_path / "pairs.jsonl", [{"prompt": "say", "completion": "ab"}] * 8)
    settings = SftSettings(steps=80, batch=8, lr=1e-2)
    out = train_sft(tiny, data, tmp_path / "out", settings, CPU, [Losses()])
    assert losses[-1] < losses[0]
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "say"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(said, skip_special_tokens=True) == "ab"


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"prompt": "a"}\n', "row 1"), ("nonsense\n", "not JSONL"), ("", "no pairs"), ("[1]\n", "row 1")],
)
def test_bad_pairs_are_refused(tmp_path, content, says):
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        read_pairs(path)


def test_a_missing_file_and_only_long_pairs(tiny, tmp_path):
    with pytest.raises(UsageError, match="no file of pairs"):
        read_pairs(tmp_path / "none.jsonl")
    data = write(tmp_path / "pairs.jsonl", [{"prompt": "say", "completion": "x" * 50}])
    with pytest.raises(UsageError, match="longer than 20 tokens"):
        train_sft(tiny, data, tmp_path / "out", SftSettings(steps=1, max_length=20), CPU)
