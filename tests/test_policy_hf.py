"""The transformers sampler on a tiny random model, against plain, unbatched decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from kernelzero.errors import UsageError
from kernelzero.policy import open_sampler
from kernelzero.policy.decode import Draw, GrowingLayer, decode, empty_cache, nucleus
from kernelzero.policy.hf import TransformersSampler, render
from kernelzero.records import Completion, Finish, Prompt, Sampling

END, IM_END = 0, 1
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: one token a byte, behind two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": END, "<im_end>": IM_END} | {c: i for i, c in enumerate(alphabet, 2)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.add_special_tokens({"additional_special_tokens": ["<im_end>"]})
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "initializer_range": 0.3,
    }
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=258, max_position_embeddings=256, **sizes, **heads))
    model.generation_config.eos_token_id = [END, IM_END]
    return model.eval()


@pytest.fixture(scope="module")
def folder(model: Any, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prompt(text: str) -> Prompt:
    return Prompt(({"role": "user", "content": text},))


PROMPTS = [prompt(text) for text in ["a", "a much longer prompt than the first", "naïve 🙂", "x" * 60, "b"]]
GREEDY = Sampling(temperature=0, max_tokens=30)


def plain_greedy(model: Any, tokenizer: Any, text: Prompt, max_tokens: int) -> tuple[list[int], bool]:
    """One prompt, no cache, no padding."""
    ids = tokenizer(render(tokenizer, text), add_special_tokens=False)["input_ids"]
    start = len(ids)
    with torch.no_grad():
        for _ in range(max_tokens):
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if token in (END, IM_END):
                return ids[start:], True
            ids = [*ids, token]
    return ids[start:], False


def test_greedy_equals_plain_decoding(model: Any, tokenizer: Any) -> None:
    groups = TransformersSampler((model, tokenizer), batch_size=64).sample(PROMPTS, 2, GREEDY)
    for text, group in zip(PROMPTS, groups, strict=True):
        ids, stopped = plain_greedy(model, tokenizer, text, 30)
        assert group[0] == group[1]
        assert group[0].text == tokenizer.decode(ids, skip_special_tokens=True)
        assert (group[0].tokens, group[0].finish) == (len(ids), Finish.STOP if stopped else Finish.LENGTH)
    for batch_size in (1, 3):
        assert TransformersSampler((model, tokenizer), batch_size=batch_size).sample(PROMPTS, 2, GREEDY) == groups


class Scripted:
    """Makes the model say one letter again and again and end with a fixed probability, by either end token."""

    def __init__(self, model: Any, end_probability: float) -> None:
        self.handle = model.lm_head.register_forward_hook(self.bias)
        self.end = torch.tensor(end_probability).logit()

    def bias(self, module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(logits, -1e9)
        out[..., 40], out[..., END], out[..., IM_END] = 0.0, self.end - 0.7, self.end - 0.7
        return out


def test_both_end_tokens_end_and_lengths_are_geometric(model: Any, tokenizer: Any) -> None:
    scripted = Scripted(model, 0.1)
    try:
        sampler = TransformersSampler((model, tokenizer), batch_size=256)
        groups = sampler.sample(PROMPTS, 200, Sampling(max_tokens=200, seed=1))
    finally:
        scripted.handle.remove()
    completions = [c for group in groups for c in group]
    assert {c.finish for c in completions} == {Finish.STOP}
    assert all(len(c.text) == c.tokens and len(set(c.text)) <= 1 for c in completions)
    assert sum(c.tokens for c in completions) / len(completions) == pytest.approx(9, abs=1.2)


def test_seed_decides(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler((model, tokenizer))
    one, again, other = (sampler.sample(PROMPTS, 3, Sampling(max_tokens=20, seed=s)) for s in (1, 1, 2))
    assert one == again != other
    unseeded = [sampler.sample(PROMPTS, 3, Sampling(max_tokens=20)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]
    assert len({c.text for c in one[0]}) == 3


def test_samples_follow_the_models_distribution(model: Any, tokenizer: Any) -> None:
    ids = torch.tensor([tokenizer(render(tokenizer, PROMPTS[1]), add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        expected = torch.softmax(model(ids).logits[0, -1] / 0.7, -1)
    sampler = TransformersSampler((model, tokenizer), batch_size=2000)
    sampling = Sampling(temperature=0.7, max_tokens=1, seed=3)
    drawn = [c.text for c in sampler.sample([PROMPTS[1]], 2000, sampling)[0]]
    shares: dict[str, float] = {}
    for token, probability in enumerate(expected.tolist()):
        text = tokenizer.decode([token], skip_special_tokens=True)
        shares[text] = shares.get(text, 0) + probability
    for text in sorted(shares, key=shares.__getitem__)[-4:]:
        assert drawn.count(text) / len(drawn) == pytest.approx(shares[text], abs=0.05)


def test_a_small_nucleus_is_greedy(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler((model, tokenizer))
    greedy = sampler.sample(PROMPTS, 1, GREEDY)
    assert sampler.sample(PROMPTS, 1, Sampling(top_p=1e-6, max_tokens=30, seed=1)) == greedy


def test_nucleus_keeps_the_token_that_crosses() -> None:
    kept = nucleus(torch.tensor([[0.1, 0.5, 0.15, 0.25]]), 0.6)
    assert kept.tolist() == [[0.0, 0.5, 0.0, 0.25]]


def test_progress_ends_at_the_total_and_never_falls(model: Any, tokenizer: Any) -> None:
    seen: list[tuple[int, int]] = []
    sampler = TransformersSampler((model, tokenizer), batch_size=4)
    sampler.sample(PROMPTS, 3, Sampling(max_tokens=5, seed=0), lambda *at: seen.append(at))
    assert seen[-1] == (15, 15)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_more_samples_than_a_batch_has_rows(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler((model, tokenizer), batch_size=4)
    assert [len(g) for g in sampler.sample(PROMPTS, 10, Sampling(max_tokens=2, seed=0))] == [10] * 5
    assert sampler.sample([], 3, GREEDY) == []
    assert sampler.sample(PROMPTS[:2], 0, GREEDY) == [[], []]


def test_the_context_is_an_end(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler((model, tokenizer))
    full, nearly = sampler.sample([prompt("x" * 300), prompt("x" * 245)], 1, Sampling(max_tokens=40, seed=0))
    assert (full[0].text, full[0].finish) == ("", Finish.LENGTH)
    assert nearly[0].tokens <= 256 - 251


def test_training_mode_and_weights_are_left_alone(model: Any, tokenizer: Any) -> None:
    sampler = TransformersSampler((model, tokenizer))
    expected = sampler.sample(PROMPTS, 1, GREEDY)
    model.train()
    model.gradient_checkpointing_enable()
    assert sampler.sample(PROMPTS, 1, GREEDY) == expected
    assert model.training
    model.gradient_checkpointing_disable()
    model.eval()
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_other_architectures_and_static_caches(model: Any, tokenizer: Any) -> None:
    other = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_embd=32, n_layer=2, n_head=2, n_positions=128)).eval()
    for any_model in (model, other):
        fast, static = (TransformersSampler((any_model, tokenizer), static_cache=s) for s in (False, True))
        assert fast.sample(PROMPTS, 2, GREEDY) == static.sample(PROMPTS, 2, GREEDY)


def test_the_growing_cache_is_used_and_grows(model: Any) -> None:
    layer = empty_cache(model).layers[0]
    assert type(layer) is GrowingLayer
    states = torch.randn(2, 2, 200, 8)
    for i in range(200):
        keys, values = layer.update(states[:, :, i : i + 1], -states[:, :, i : i + 1])
    assert torch.equal(keys, states) and torch.equal(values, -states)
    layer.batch_select_indices(torch.tensor([1, 1, 0]))
    assert layer.keys is not None and torch.equal(layer.keys, states[[1, 1, 0]])
    assert layer.get_seq_length() == 200


def test_from_a_folder(folder: Path, model: Any, tokenizer: Any) -> None:
    (folder / "kernelzero.json").write_text(json.dumps({"prompt": "compact", "role": "coder"}))
    sampler = open_sampler(str(folder), device="cpu")
    assert (sampler.name, sampler.style) == (str(folder), "compact")
    expected = TransformersSampler((model, tokenizer)).sample(PROMPTS, 1, GREEDY)
    assert sampler.sample(PROMPTS, 1, GREEDY) == expected
    sampler.close()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_incomplete_folders(folder: Path, tmp_path: Path, missing: str, message: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(UsageError, match=message):
        open_sampler(str(tmp_path))


def test_broken_and_missing_models(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    for source in (str(tmp_path), "/no/such/folder", "./no-folder", str(tmp_path / "config.json")):
        with pytest.raises(UsageError) as caught:
            open_sampler(source)
        assert "\n" not in str(caught.value) and source in str(caught.value)


def test_every_completion_is_told_once_as_soon_as_it_is_there(model: Any, tokenizer: Any) -> None:
    scripted = Scripted(model, 0.1)
    order: list[tuple[int, int]] = []
    told: dict[tuple[int, int], Completion] = {}

    def drawn(prompt_number: int, number: int, completion: Completion) -> None:
        order.append((completion.tokens, prompt_number))
        told[prompt_number, number] = completion

    try:
        sampler = TransformersSampler((model, tokenizer), batch_size=1000)
        groups = sampler.sample(PROMPTS, 20, Sampling(max_tokens=50, seed=1), drawn=drawn)
    finally:
        scripted.handle.remove()
    assert told == {(p, i): c for p, group in enumerate(groups) for i, c in enumerate(group)}
    assert len(order) == 20 * len(PROMPTS)
    assert [tokens for tokens, _ in order] == sorted(tokens for tokens, _ in order), "the shortest are told first"


def test_batches_smaller_than_a_group_keep_the_numbers(model: Any, tokenizer: Any) -> None:
    told: dict[tuple[int, int], Completion] = {}
    sampler = TransformersSampler((model, tokenizer), batch_size=4)
    groups = sampler.sample(
        PROMPTS[:2], 10, Sampling(max_tokens=4, seed=0), drawn=lambda p, i, c: told.__setitem__((p, i), c)
    )
    assert told == {(p, i): c for p, group in enumerate(groups) for i, c in enumerate(group)}


def test_log_probabilities_are_those_of_the_model(model: Any, tokenizer: Any) -> None:
    encoded = [tokenizer(render(tokenizer, p), add_special_tokens=False)["input_ids"] for p in PROMPTS[:2]]
    draw = Draw(0.7, 1.0, torch.Generator().manual_seed(4))
    rows = decode(model, encoded, 3, max_tokens=12, end_ids=[END, IM_END], pad_id=END, draw=draw)
    for number, row in enumerate(rows):
        # Without the end token: two of them end, and the row does not say which it was.
        ids = torch.tensor([[*encoded[number // 3], *row.ids]])
        with torch.no_grad():
            logps = torch.log_softmax(model(ids).logits[0] / 0.7, -1)
        expected = [float(logps[len(encoded[number // 3]) - 1 + i, token]) for i, token in enumerate(row.ids)]
        assert len(row.logps) == len(row.ids) + row.ended
        assert row.logps[: len(row.ids)] == pytest.approx(expected, abs=1e-4)
