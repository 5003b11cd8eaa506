from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import kernelzero
from kernelzero.coevolve import coevolve
from kernelzero.errors import UsageError
from kernelzero.export import export_model, load_adapter
from kernelzero.policy import nano_path, prompt_style
from kernelzero.policy.hf import TransformersSampler
from kernelzero.records import Prompt, Role, Sampling
from tests.fakes import fake_services, make_tiny_model, tiny_config

peft = pytest.importorskip("peft")
pytest.importorskip("trl")
IDS = torch.arange(40).reshape(2, 20)
PROMPTS = [Prompt(({"role": "user", "content": "write a kernel"},))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    (folder / "kernelzero.json").write_text('{"prompt": "compact"}')
    return folder


def run(folder, model, training):
    """One round of one step a role."""
    role = {"model": str(model), "steps": 1}
    config = tiny_config(folder, rounds={"count": 1}, training=training, proposer=role, coder=role)
    coevolve(config, services=fake_services(str(model)))
    return folder


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "adapters"
    return run(folder, tiny, {"lora": {"rank": 4, "alpha": 8}})


def begun_run(folder, coder, **models):
    """A run folder in which no step was taken."""
    config = tiny_config(folder, proposer={"model": "other"}, coder={"model": str(coder)}).to_json()
    for role, model in models.items():
        config[role]["model"] = model
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


def plain(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def about(folder):
    return json.loads((folder / "export.json").read_text())


def nothing_beside(folder):
    return not [path for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}")]


def greedy(sampler):
    return sampler.sample(PROMPTS, 1, Sampling(temperature=0, max_tokens=8))


def strengthened(checkpoint, folder):
    """A copy of an adapter whose weights change the answers: those of one step are as good as none."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, folder)
    torch.manual_seed(1)
    path = folder / "adapter_model.safetensors"
    save_file({name: torch.randn_like(w) * 0.3 for name, w in load_file(path).items()}, path)
    return folder


def test_a_merged_adapter_answers_as_the_checkpoint(adapters, tiny, tmp_path):
    checkpoint = strengthened(adapters / "coder" / "checkpoint-1", tmp_path / "checkpoint")
    out = export_model(checkpoint, Role.CODER, tmp_path / "out")
    base = plain(tiny)
    before = logits(base)
    adapted = logits(peft.PeftModel.from_pretrained(base, checkpoint))
    assert (adapted - before).abs().max() > 0.1
    torch.testing.assert_close(logits(plain(out)), adapted, rtol=1e-4, atol=1e-5)
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "kernelzero.json"} <= names
    assert not {"adapter_config.json", "optimizer.pt", "complete", "README.md"} & names
    assert greedy(TransformersSampler(out, "cpu")) == greedy(
        TransformersSampler(load_adapter(checkpoint), style=prompt_style(checkpoint))
    )


def test_the_newest_checkpoint_of_a_run_with_all_that_belongs_to_it(adapters, tiny, tmp_path):
    out = export_model(adapters, Role.CODER, tmp_path / "out")
    assert about(out) == {
        "run": "tiny", "role": "coder", "step": 1, "base": str(tiny), "kind": "weights", "merged": True,
        "kernelzero": kernelzero.__version__,
    }  # fmt: skip
    assert TransformersSampler(out, "cpu").style == "compact"
    assert AutoTokenizer.from_pretrained(out).chat_template == AutoTokenizer.from_pretrained(tiny).chat_template
    ends = json.loads((out / "generation_config.json").read_text())["eos_token_id"]
    assert ends == json.loads((tiny / "generation_config.json").read_text())["eos_token_id"]
    assert nothing_beside(out)


def test_an_adapter_alone_names_its_base(adapters, tiny, tmp_path):
    checkpoint = strengthened(adapters / "proposer" / "checkpoint-1", tmp_path / "checkpoint")
    out = export_model(checkpoint, Role.PROPOSER, tmp_path / "out", merge=False)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == str(tiny)
    assert not list(out.glob("model*")) and not (out / "config.json").exists()
    assert (about(out)["kind"], about(out)["merged"]) == ("adapter", False)
    expected = logits(peft.PeftModel.from_pretrained(plain(tiny), checkpoint))
    # by peft, by transformers, by our own sampler's loader
    torch.testing.assert_close(logits(peft.AutoPeftModelForCausalLM.from_pretrained(out)), expected)
    torch.testing.assert_close(logits(plain(out)), expected)
    model, tokenizer = load_adapter(out)
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    assert len(greedy(TransformersSampler((model, tokenizer)))[0][0].text) >= 0


def test_the_base_s_dtype_is_kept_and_the_sum_is_taken_in_float32(adapters, tiny, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(tiny, half)
    AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16).save_pretrained(half)
    checkpoint = strengthened(adapters / "coder" / "checkpoint-1", tmp_path / "checkpoint")
    path = checkpoint / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": str(half)}))
    out = export_model(checkpoint, Role.CODER, tmp_path / "out")
    found = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert found.dtype == torch.bfloat16
    exact = peft.PeftModel.from_pretrained(plain(half), checkpoint).merge_and_unload().to(torch.bfloat16)
    for (name, weight), (_, expected) in zip(found.named_parameters(), exact.named_parameters(), strict=True):
        assert torch.equal(weight, expected), name


def test_whole_weights_are_copied(tiny, tmp_path):
    folder = run(tmp_path / "run", tiny, {"gradient_checkpointing": True})
    checkpoint = folder / "coder" / "checkpoint-1"
    for name, source in {"a": folder, "b": checkpoint}.items():
        out = export_model(source, Role.CODER, tmp_path / name)
        assert (out / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
        assert about(out)["step"] == 1 and not about(out)["merged"]
        assert torch.equal(logits(plain(out)), logits(plain(checkpoint)))
        assert plain(out).config.use_cache
    assert plain(out).generation_config.use_cache
    with pytest.raises(UsageError, match="no adapter to write alone"):
        export_model(folder, Role.CODER, tmp_path / "c", merge=False)
    with pytest.raises(UsageError, match="holds a coder, not a proposer"):
        export_model(checkpoint, Role.PROPOSER, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_without_a_checkpoint_it_is_the_start_model(tmp_path):
    folder = begun_run(tmp_path / "run", "nano:coder")
    out = export_model(folder, Role.CODER, tmp_path / "out")
    assert (about(out)["step"], about(out)["base"]) == (0, "nano:coder")
    nano = nano_path("coder")
    config = json.loads((nano / "config.json").read_text())
    assert json.loads((out / "config.json").read_text()) == {**config, "use_cache": True}
    for name in ("model.safetensors", "generation_config.json", "kernelzero.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (nano / name).read_bytes()
    assert greedy(TransformersSampler(out, "cpu")) == greedy(TransformersSampler(nano, "cpu"))


def test_the_output_of_a_fine_tuning(tiny, tmp_path):
    training = tmp_path / "sft"
    training.mkdir()
    (training / "train.json").write_text(json.dumps({"model": "start", "role": "coder"}))
    with pytest.raises(UsageError, match="is not finished"):
        export_model(training, Role.CODER, tmp_path / "out")
    shutil.copytree(tiny, training / "model")
    (training / "result.json").write_text(json.dumps({"best": {"step": 30}}))
    assert about(export_model(training, Role.CODER, tmp_path / "out")) | {"kernelzero": ""} == {
        "run": "sft", "role": "coder", "step": 30, "base": "start", "kind": "weights", "merged": False,
        "kernelzero": "",
    }  # fmt: skip
    with pytest.raises(UsageError, match="holds a coder, not a proposer"):
        export_model(training, Role.PROPOSER, tmp_path / "other")


def test_bad_input_is_one_line_and_leaves_nothing(adapters, tiny, tmp_path):
    def refused(match, source, role=Role.CODER, out=tmp_path / "out"):
        with pytest.raises(UsageError, match=match) as caught:
            export_model(source, role, out)
        assert "\n" not in str(caught.value)
        assert nothing_beside(out)

    refused("there is no folder", tmp_path / "none")
    refused("neither weights nor an adapter", Path(__file__).parent)
    refused("has no proposer", begun_run(tmp_path / "coder-only", tiny, proposer=""), Role.PROPOSER)
    refused("no model can be loaded from /gone", begun_run(tmp_path / "gone", "/gone"))
    copy = tmp_path / "copy"
    shutil.copytree(adapters, copy)
    (copy / "coder" / "checkpoint-1" / "complete").unlink()
    refused("is not complete", copy / "coder" / "checkpoint-1")
    config = json.loads((copy / "config.json").read_text())
    config["proposer"]["model"] = "/gone"
    (copy / "config.json").write_text(json.dumps(config))
    path = copy / "proposer" / "checkpoint-1" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": "/gone/too"}))
    refused("the base model of the adapter .* is missing", copy, Role.PROPOSER)
    config["proposer"]["model"] = str(nano_path("coder"))
    (copy / "config.json").write_text(json.dumps(config))
    refused("does not fit its base", copy, Role.PROPOSER)
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    refused("not an empty folder", adapters, out=tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine"]
