"""The vLLM sampler on a fake engine that decodes a tiny model, against the transformers sampler; on a GPU on vLLM."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.policy import Sampler, open_sampler
from kernelzero.policy.hf import TransformersSampler, render
from kernelzero.policy.vllm import VllmSampler, _seed
from kernelzero.records import Completion, Finish, Sampling
from tests import fake_vllm
from tests.fake_vllm import Vllm
from tests.test_policy_hf import END, GREEDY, IM_END, PROMPTS, folder, model, prompt, tokenizer

__all__ = ["folder", "model", "tokenizer"]

GPU = torch.cuda.is_available()
REAL = GPU and importlib.util.find_spec("vllm") is not None


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    for name in ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_NO_USAGE_STATS", "VLLM_LOGGING_LEVEL"):
        # Set first, so that what the sampler sets is taken back.
        monkeypatch.setenv(name, "unset")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (30 << 30, 40 << 30))
    return Vllm(monkeypatch)


def ends_often(model: Any, folder: Path, to: Path) -> Path:
    """A copy whose last layer has been bent until it ends now and then, by either end token."""
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (to / file.name).write_bytes(file.read_bytes())
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    weights["lm_head.weight"][[END, IM_END]] *= 1.3
    from safetensors.torch import save_file

    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture
def ending(model: Any, folder: Path, tmp_path: Path) -> Path:
    target = tmp_path / "ending"
    target.mkdir()
    return ends_often(model, folder, target)


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


MANY = [*PROMPTS, *(prompt(chr(i)) for i in range(97, 109))]


def test_greedy_equals_the_transformers_sampler(vllm: Vllm, ending: Path) -> None:
    sampler = VllmSampler(ending)
    assert isinstance(sampler, Sampler) and (sampler.name, sampler.style) == (str(ending), "full")
    groups = sampler.sample(MANY, 2, GREEDY)
    assert groups == open_sampler(str(ending), device="cpu").sample(MANY, 2, GREEDY)
    assert {c.finish for c in flat(groups)} == {Finish.STOP, Finish.LENGTH}
    written = [request.written for request in vllm.engines[0].requests]
    assert {ids[-1] for ids in written} >= {END, IM_END}
    # The end token is no part of the answer, neither of its text nor of its count.
    assert sum(c.tokens for c in flat(groups)) == sum(len(ids) - (ids[-1] in (END, IM_END)) for ids in written)


def test_how_the_engine_is_started(vllm: Vllm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    VllmSampler(folder, "cuda", batch_size=7, gpu_memory_utilization=0.35)
    args = vllm.engines[0].args
    assert (args.dtype, args.gpu_memory_utilization, args.max_num_seqs) == ("bfloat16", 0.35, 7)
    assert (args.model, args.tokenizer) == (str(folder), str(folder))
    assert args.enable_prefix_caching and args.enable_sleep_mode and not args.enable_lora
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_prompts_are_read_as_by_transformers(vllm: Vllm, folder: Path, tokenizer: Any) -> None:
    VllmSampler(folder).sample(PROMPTS, 1, GREEDY)
    texts = [render(tokenizer, text) for text in PROMPTS]
    read = [request.prompt for request in vllm.engines[0].requests]
    assert read == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_a_whole_context(vllm: Vllm, folder: Path) -> None:
    texts = [prompt("a"), prompt("x" * 300), prompt("x" * 240), prompt("y" * 248)]
    long = Sampling(temperature=0, max_tokens=1000)
    told: list[tuple[int, int]] = []
    groups = VllmSampler(folder).sample(texts, 2, long, drawn=lambda p, i, c: told.append((p, i)))
    plain = open_sampler(str(folder), device="cpu")
    assert groups == [plain.sample([text], 2, long)[0] for text in texts]
    assert groups[1] == [Completion("", 0, Finish.LENGTH)] * 2
    assert sorted(told) == [(p, i) for p in range(4) for i in range(2)]


def test_seeds(vllm: Vllm, folder: Path) -> None:
    sampler = VllmSampler(folder)
    how = Sampling(max_tokens=12, seed=3)
    first = sampler.sample(PROMPTS, 4, how)
    assert sampler.sample(PROMPTS, 4, how) == first
    # What else is drawn beside a sample does not change it.
    assert sampler.sample(PROMPTS[:2], 3, how) == [group[:3] for group in first[:2]]
    assert len({c.text for c in flat(first)}) == 20
    assert sampler.sample(PROMPTS, 4, dataclasses.replace(how, seed=4)) != first
    assert sampler.sample(PROMPTS, 4, dataclasses.replace(how, seed=None)) != first
    assert all(request.how.seed is None for request in vllm.engines[0].requests[-20:])
    seeds = [_seed(seed, p, i) for seed in range(5) for p in range(20) for i in range(20)]
    assert len(set(seeds)) == 2000 and all(s is not None and 0 <= s < 1 << 63 for s in seeds)


def test_temperature_is_respected(vllm: Vllm, folder: Path) -> None:
    sampler = VllmSampler(folder)
    cold = sampler.sample(PROMPTS, 1, Sampling(temperature=1e-4, max_tokens=20, seed=1))
    assert cold == sampler.sample(PROMPTS, 1, Sampling(temperature=0, max_tokens=20))
    sampler.sample(PROMPTS[:1], 1, Sampling(temperature=0.6, top_p=0.95, max_tokens=2))
    how = vllm.engines[0].requests[-1].how
    assert (how.temperature, how.top_p, how.max_tokens) == (0.6, 0.95, 2)


def test_each_completion_comes_when_it_ends(vllm: Vllm, ending: Path) -> None:
    sampler, how = VllmSampler(ending), Sampling(max_tokens=30, seed=1)
    found: list[tuple[int, Completion]] = []
    steps = []
    for number, completion in sampler.sample_stream(MANY, 4, how):
        found.append((number, completion))
        steps.append(vllm.engines[0].steps)
        # A token a step: it came at the step that drew its last token.
        assert steps[-1] == completion.tokens + (completion.finish is Finish.STOP)
    assert len(found) == 4 * len(MANY) and len(set(steps)) > 5
    groups = sampler.sample(MANY, 4, how)
    for number, group in enumerate(groups):
        assert sorted((c for p, c in found if p == number), key=repr) == sorted(group, key=repr)


def test_progress_and_drawn(vllm: Vllm, ending: Path) -> None:
    told: dict[tuple[int, int], Completion] = {}
    progress: list[tuple[int, int]] = []
    sampler = VllmSampler(ending, batch_size=5)
    groups = sampler.sample(
        PROMPTS,
        3,
        Sampling(max_tokens=20, seed=1),
        lambda done, total: progress.append((done, total)),
        lambda number, sample, completion: told.update({(number, sample): completion}),
    )
    assert progress == [(i, 15) for i in range(1, 16)]
    assert told == {(p, i): c for p, group in enumerate(groups) for i, c in enumerate(group)}
    assert sampler.sample([], 3, GREEDY) == [] and sampler.sample(PROMPTS[:2], 0, GREEDY) == [[], []]


def test_a_stream_that_is_left(vllm: Vllm, folder: Path) -> None:
    sampler = VllmSampler(folder)
    texts = [*PROMPTS, prompt("x" * 300)]
    stream = sampler.sample_stream(texts, 2, Sampling(max_tokens=25, seed=1))
    next(stream)
    for call in (sampler.sleep, lambda: sampler.sample(PROMPTS, 1, GREEDY)):
        with pytest.raises(RuntimeError, match="still drawing"):
            call()
    stream.close()
    assert len(vllm.engines[0].aborted) == 10
    plain = open_sampler(str(folder), device="cpu")
    assert sampler.sample(PROMPTS, 1, GREEDY) == plain.sample(PROMPTS, 1, GREEDY)
    with pytest.raises(ZeroDivisionError):
        sampler.sample(PROMPTS, 2, GREEDY, drawn=lambda p, i, c: 1 // 0)
    sampler.sleep()


def test_sleep_wake_and_close(vllm: Vllm, folder: Path) -> None:
    sampler = VllmSampler(folder)
    engine = vllm.engines[0]
    sampler.wake()
    sampler.sleep()
    sampler.sleep()
    assert engine.asleep
    sampler.wake()
    assert not engine.asleep
    sampler.sleep()
    assert len(flat(sampler.sample(PROMPTS, 1, GREEDY))) == 5
    assert not engine.asleep
    sampler.close()
    assert engine.engine_core.dead
    sampler.close()


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """A rank-12 adapter of the tiny model that changes what it says."""
    import peft
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    kind = peft.LoraConfig(r=12, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), kind)
    adapted.peft_config["default"].base_model_name_or_path = str(folder)
    adapted.save_pretrained(tmp_path / "adapter")
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for file in [*folder.glob("*token*"), *folder.glob("chat_template*")]:
        (tmp_path / "merged" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "adapter"


def test_an_adapter(vllm: Vllm, adapter: Path, folder: Path) -> None:
    groups = open_sampler(str(adapter), engine="vllm").sample(PROMPTS, 1, GREEDY)
    engine = vllm.engines[0]
    assert (engine.args.model, engine.args.tokenizer) == (str(folder), str(folder))
    assert (engine.args.enable_lora, engine.args.max_lora_rank) == (True, 16)
    assert all(request.lora for request in engine.requests)
    assert groups == open_sampler(str(adapter.parent / "merged"), device="cpu").sample(PROMPTS, 1, GREEDY)
    assert groups != open_sampler(str(folder), device="cpu").sample(PROMPTS, 1, GREEDY)


def test_an_adapter_with_a_tokenizer_and_a_profile_of_its_own(vllm: Vllm, adapter: Path, folder: Path) -> None:
    for file in folder.glob("*token*"):
        (adapter / file.name).write_bytes(file.read_bytes())
    (adapter / "kernelzero.json").write_text('{"prompt": "compact", "role": "coder"}')
    assert VllmSampler(adapter).style == "compact"
    assert (vllm.engines[0].args.model, vllm.engines[0].args.tokenizer) == (str(folder), str(adapter))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"use_dora": false', '"use_dora": true', r"cannot apply adapter .*\(use_dora\): merge it"),
        ('"bias": "none"', '"bias": "all"', r"\(bias\)"),
        ('"rank_pattern": {}', '"rank_pattern": {"q_proj": 4}', r"\(rank_pattern\)"),
        ('"r": 12', '"r": 600', r"\(rank 600\)"),
        ('"r": 12', '"s": 12', "does not name a base model and a rank"),
    ],
)
def test_adapters_that_vllm_cannot_apply(vllm: Vllm, adapter: Path, old: str, new: str, message: str) -> None:
    file = adapter / "adapter_config.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=message):
        VllmSampler(adapter)
    assert not vllm.engines


def test_an_adapter_without_weights_or_base(vllm: Vllm, adapter: Path, folder: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(
        UsageError, match=r"cannot apply adapter .*: Call to add_lora method failed: Loading lora failed$"
    ):
        VllmSampler(adapter)
    assert vllm.engines[0].engine_core.dead
    file = adapter / "adapter_config.json"
    file.write_text(file.read_text().replace(str(folder), "/no/such/base"))
    with pytest.raises(UsageError, match="no such model folder: /no/such/base"):
        VllmSampler(adapter)


def test_too_little_memory(vllm: Vllm, folder: Path) -> None:
    vllm.fits = 100
    sampler = VllmSampler(folder)
    with pytest.raises(UsageError, match="take up to 112 tokens, and vLLM has room for 100: raise gpu_memory"):
        sampler.sample(PROMPTS[:1], 1, Sampling(max_tokens=105))
    assert flat(sampler.sample(PROMPTS[:1], 1, Sampling(temperature=0, max_tokens=90)))[0].tokens == 90
    vllm.fails = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    with pytest.raises(
        UsageError, match=r"too little GPU memory for .*0\.9 asks for 36\.0 GiB and 30\.0 are free: lower"
    ):
        VllmSampler(folder)
    with pytest.raises(UsageError, match="its own lines above say why; if memory ran out, raise"):
        VllmSampler(folder, gpu_memory_utilization=0.2)
    for share in (0.0, 1.1):
        with pytest.raises(UsageError, match=r"gpu_memory_utilization is .* up to 1"):
            VllmSampler(folder, gpu_memory_utilization=share)


def test_models_that_are_missing_or_unknown(vllm: Vllm, folder: Path, tmp_path: Path) -> None:
    for source in ("/no/such/folder", "./no-folder", str(tmp_path)):
        with pytest.raises(UsageError) as caught:
            VllmSampler(source)
        assert "\n" not in str(caught.value) and source in str(caught.value)
    vllm.fails = ValueError("Model architectures ['Odd'] are not supported for now.\nSupported: many")
    with pytest.raises(
        UsageError, match=r"cannot load model .*: Model architectures \['Odd'\] are not supported for now.$"
    ):
        VllmSampler(folder)


def test_an_engine_that_dies(vllm: Vllm, folder: Path) -> None:
    vllm.dies_at = 3
    sampler = VllmSampler(folder)
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="vLLM's engine died"):
            sampler.sample(PROMPTS, 1, GREEDY)
    assert vllm.engines[0].aborted == []
    sampler.close()
    vllm.dies_at, vllm.reason = 1 << 30, "abort"
    with pytest.raises(InfrastructureError, match=r"gave up a request \(abort\)"):
        VllmSampler(folder).sample(PROMPTS, 1, GREEDY)


def test_without_vllm_or_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^vLLM is not installed: pip install kernelzero\[vllm\]$"):
        open_sampler(str(folder), engine="vllm")
    assert isinstance(open_sampler(str(folder), engine="auto", device="cpu"), TransformersSampler)
    monkeypatch.undo()
    Vllm(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="needs a CUDA GPU"):
        open_sampler(str(folder), engine="vllm")
    assert isinstance(open_sampler(str(folder), engine="auto"), TransformersSampler)


def test_which_engine_runs_a_model(vllm: Vllm, folder: Path) -> None:
    assert isinstance(open_sampler(str(folder), engine="auto"), VllmSampler)
    assert isinstance(open_sampler(str(folder), engine="auto", device="cpu"), TransformersSampler)
    assert isinstance(open_sampler("nano:coder", engine="auto", device="cpu"), TransformersSampler)
    assert isinstance(open_sampler(str(folder), device="cpu"), TransformersSampler)
    nano = open_sampler("nano:coder", engine="vllm", gpu_memory_utilization=0.1)
    assert isinstance(nano, VllmSampler) and (nano.name, nano.style) == ("nano:coder", "compact")
    assert vllm.engines[-1].args.gpu_memory_utilization == 0.1
    with pytest.raises(UsageError, match="cannot run on device cpu"):
        open_sampler(str(folder), engine="vllm", device="cpu")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_fake_takes_what_vllm_takes() -> None:
    import vllm
    from vllm.sampling_params import RequestOutputKind

    for fake, real in ((fake_vllm.EngineArgs, vllm.EngineArgs), (fake_vllm.SamplingParams, vllm.SamplingParams)):
        assert set(inspect.signature(fake).parameters) <= set(inspect.signature(real).parameters)
    for name in ("from_engine_args", "add_lora", "add_request", "step", "abort_request", "sleep", "wake_up"):
        fake, real = (inspect.signature(getattr(e, name)) for e in (fake_vllm.LLMEngine, vllm.LLMEngine))
        assert set(fake.parameters) <= set(real.parameters), name
    assert RequestOutputKind.FINAL_ONLY


@pytest.mark.gpu
@pytest.mark.skipif(not REAL, reason="needs a GPU and vLLM")
def test_on_the_real_vllm() -> None:
    free = torch.cuda.mem_get_info()[0]
    sampler = VllmSampler(nano_folder(), gpu_memory_utilization=0.2)
    how = Sampling(max_tokens=64, seed=1)
    texts = [prompt("import torch"), prompt("x = 1\n" * 3000), prompt("class Model")]
    groups = sampler.sample(texts, 3, how)
    assert groups[1] == [Completion("", 0, Finish.LENGTH)] * 3
    assert len({c.text for c in groups[0]}) > 1
    taken = free - torch.cuda.mem_get_info()[0]
    sampler.sleep()
    assert free - torch.cuda.mem_get_info()[0] < taken / 2
    assert len(list(sampler.sample_stream(texts, 3, how))) == 9
    sampler.close()
    assert free - torch.cuda.mem_get_info()[0] < taken / 10


def nano_folder() -> Path:
    from kernelzero.policy import nano_path

    return nano_path("coder")
