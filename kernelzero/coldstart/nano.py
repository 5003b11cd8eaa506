"""The embedded nano models, from nothing: corpus, tokenizer, two small Qwen2 models, fine-tuning, evaluation, card.

They exist so that the whole loop runs on a laptop without a download. They know the composer's APIs and the rulebook's
style and nothing else; what they say about large models is that the machinery works.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelzero.coldstart.corpus import Pair, pairs_for, verified
from kernelzero.coldstart.pool import sample_and_judge
from kernelzero.keck import Keck
from kernelzero.proposer import gates
from kernelzero.records import ApiSet, Role, Sampling, Task

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class NanoSettings:
    """Size and training of one nano model; all numbers ours."""

    role: str
    steps: int
    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    intermediate: int = 704
    batch: int = 96
    lr: float = 1e-3
    seed: int = 0


CODER = NanoSettings(role="coder", steps=900, hidden=128, layers=4, intermediate=352, batch=64, lr=2e-3)
PROPOSER = NanoSettings(role="proposer", steps=3000, layers=4)


def make_tokenizer(texts: Sequence[str], vocabulary: int, folder: Path) -> Any:
    """A Qwen2 tokenizer of its own, with the corpus's commonest lines as single tokens.

    It has to be Qwen2's class with Qwen2's pre-tokenization: AutoTokenizer gives every folder with a Qwen2 model that
    class, whatever else was saved there. Whole lines are added tokens, which are matched before pre-tokenization.
    """
    from tokenizers import AddedToken
    from transformers import Qwen2Tokenizer

    special: dict[str, Any] = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "unk_token": None}
    empty = Qwen2Tokenizer(vocab={"<|pad|>": 0, "<|end|>": 1}, merges=[], **special)
    tokenizer = empty.train_new_from_iterator(texts, vocabulary, new_special_tokens=["<|user|>", "<|assistant|>"])
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in common_lines(texts)])
    tokenizer.padding_side = "left"
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def common_lines(texts: Sequence[str], share: float = 0.005, most: int = 400) -> list[str]:
    """Lines, line ends included, that occur in at least `share` of the texts, the commonest first.

    Lines with numbers of two digits or more are left out: sizes are to be copied, not recalled.
    """
    counts = Counter(line for text in texts for line in set(text.splitlines(keepends=True)))
    least = max(2, share * len(texts))
    telling = [line for line, n in counts.items() if n >= least and len(line) > 6 and not re.search(r"\d\d", line)]
    return sorted(telling, key=lambda line: (-counts[line], line))[:most]


def make_model(settings: NanoSettings, tokenizer: Any, folder: Path) -> int:
    """A freshly initialised Qwen2 model in `folder`; gives its number of parameters."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads // 2,
        intermediate_size=settings.intermediate,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, max_length=2048
    )
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def train(rows: Sequence[Pair], settings: NanoSettings, work: Path, keep_at: Sequence[int] = ()) -> dict[str, Any]:
    """Tokenizer, model and fine-tuning of one role.

    Args:
        rows: the training part of a corpus.
        work: folder for everything; the model ends up in work/model, checkpoints of `keep_at` steps in work/at-N.

    Returns:
        Facts for the model card.
    """
    from kernelzero.config import TrainingConfig
    from kernelzero.training.sft import SftSettings, train_sft

    role = Role(settings.role)
    pairs = pairs_for(rows, role)
    work.mkdir(parents=True, exist_ok=True)
    data = work / "pairs.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    texts = [pair[part][0]["content"] for pair in pairs[:6000] for part in ("prompt", "completion")]
    tokenizer = make_tokenizer(texts, settings.vocabulary, work / "start")
    parameters = make_model(settings, tokenizer, work / "start")
    sft = SftSettings(
        steps=settings.steps, batch=settings.batch, lr=settings.lr, schedule="constant_with_warmup", warmup_steps=30,
        max_length=1500, seed=settings.seed,
    )  # fmt: skip
    started = time.monotonic()
    training = TrainingConfig(rows_per_device=settings.batch, precision="mixed" if _has_gpu() else "float32")
    train_sft(str(work / "start"), data, work / "model", sft, training, callbacks=[_keeper(work, keep_at)])
    lengths = [len(tokenizer(p["completion"][0]["content"])["input_ids"]) for p in pairs[:500]]
    return {
        "role": settings.role,
        "pairs": len(pairs),
        "parameters": parameters,
        "completion_tokens": round(sum(lengths) / len(lengths), 1),
        "train_seconds": round(time.monotonic() - started, 1),
        "settings": asdict(settings),
    }


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _keeper(work: Path, steps: Sequence[int]) -> Any:
    from transformers import TrainerCallback

    class Keeper(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step in steps:
                model.save_pretrained(work / f"at-{state.global_step}")

    return Keeper()


def split(rows: Sequence[Pair], held_out: int, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Training rows and `held_out` rows whose modules occur in no training row, shapes and numbers aside."""
    from kernelzero.normalise import normalised

    pairs = verified(rows)
    random.Random(seed).shuffle(pairs)
    test: list[Pair] = []
    forms: set[str] = set()
    for row in pairs:
        form = normalised(row.module)
        if len(test) < held_out and form not in forms:
            test.append(row)
            forms.add(form)
    return [row for row in pairs if normalised(row.module) not in forms], test


def solve_rate(sampler: Any, tasks: Sequence[Task], keck: Keck, n: int = 1, seed: int = 0) -> dict[str, Any]:
    """Share of samples at temperature 1 that Keck finds correct, and how it spreads over tasks."""
    sampling = Sampling(temperature=1.0, max_tokens=800, seed=seed)
    answers, judged = sample_and_judge(sampler, tasks, keck, n, sampling)
    solved = [0] * len(tasks)
    statuses: dict[str, int] = {"no code": len(tasks) * n - len(judged)}
    for index, _, verdict in judged:
        statuses[verdict.status] = statuses.get(verdict.status, 0) + 1
        solved[index] += verdict.correct is True
    rate = sum(solved) / max(len(tasks) * n, 1)
    spread = [sum(1 for s in solved if s == k) for k in range(n + 1)]
    return {"solve_rate": rate, "half_width_95": 1.96 * math.sqrt(rate * (1 - rate) / max(len(tasks) * n, 1)),
            "tasks": len(tasks), "n": n, "spread": spread, "statuses": statuses,
            "tokens": sum(c.tokens for a in answers for c in a) / max(len(tasks) * n, 1)}  # fmt: skip


def validity(
    sampler: Any, sets: Sequence[ApiSet], keck: Keck, n: int = 1, seed: int = 0
) -> tuple[dict[str, Any], list[Task]]:
    """Share of proposed modules that pass the gates, and the valid ones."""
    from kernelzero.proposer.parse import parse_module
    from kernelzero.proposer.prompt import proposer_prompt

    prompts = [proposer_prompt(s, "compact") for s in sets]
    answers = sampler.sample(prompts, n, Sampling(temperature=1.0, max_tokens=500, seed=seed))
    jobs = []
    for api_set, completions in zip(sets, answers, strict=True):
        codes = [parse_module(c.text, c.finish).code for c in completions]
        jobs += [(api_set, code) for code in codes if code is not None]
    refusals: dict[str, int] = {"no code": len(sets) * n - len(jobs)}
    tasks = []
    for index, report in gates.check(keck, jobs):
        refusals[report.gate or "valid"] = refusals.get(report.gate or "valid", 0) + 1
        if report.valid:
            tasks.append(Task(jobs[index][1], jobs[index][0].apis))
    return {"validity": len(tasks) / (len(sets) * n), "sets": len(sets), "n": n, "outcomes": refusals}, tasks


def save_embedded(source: Path, tokenizer_folder: Path, target: Path, card: dict[str, Any]) -> None:
    """Write a model in half the bytes (bfloat16 would lose small updates; float16 keeps 11 bits) with its card."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target.mkdir(parents=True, exist_ok=True)
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16).save_pretrained(target)
    AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(target)
    (target / "kernelzero.json").write_text(
        json.dumps({"prompt": "compact", "role": card["role"], "apis": card["apis"]}) + "\n"
    )
    (target / "card.json").write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")


CODER_CHECKPOINTS = (400, 500, 600, 700, 800, 900)
TARGET_SOLVE_RATE = 0.5
"""The embedded Coder is the checkpoint nearest to this on its own Proposer's modules: room to learn, both ways."""


def build(
    work: Path, draws: int, *, workers: int | None = None, install: bool = True, seed: int = 0, say: Say = print
) -> dict[str, Any]:
    """The whole build; every part that is already in `work` is not made again.

    Returns:
        The cards of both models.
    """
    import os

    from kernelzero.bench import builtin_tasks
    from kernelzero.coldstart.corpus import build_corpus, yield_of
    from kernelzero.keck import open_keck

    workers = workers or len(os.sched_getaffinity(0))
    started = time.monotonic()
    with open_keck(workers=workers) as keck:
        rows = build_corpus(
            work / "corpus.jsonl", draws, keck, benchmark=builtin_tasks(), seed=seed, workers=workers,
            progress=lambda done, total: say(f"corpus: {done}/{total} draws, {time.monotonic() - started:.0f} s"),
        )  # fmt: skip
        facts = {
            "corpus": {"draws": len(rows), "outcomes": yield_of(rows), "seconds": round(time.monotonic() - started)}
        }
        say(f"corpus: {facts['corpus']}")
        training, held_out = split(rows, 512, seed)
        cards = {}
        for settings in (PROPOSER, CODER):
            cards[settings.role] = _trained(training, settings, work / settings.role, say) | facts
        chosen = _choose(work, held_out, cards, keck, say)
    (work / "cards.json").write_text(json.dumps(cards, indent=1))
    (work / "held_out.jsonl").write_text("".join(json.dumps(row.to_json()) + "\n" for row in held_out))
    for role, source in chosen.items():
        target = _embedded_folder(role) if install else work / "embedded" / role
        save_embedded(source, work / role / "start", target, cards[role])
        say(f"{role}: {target}")
    return cards


def _embedded_folder(role: str) -> Path:
    return Path(__file__).resolve().parent.parent / "nano" / role


def _trained(rows: Sequence[Pair], settings: NanoSettings, work: Path, say: Say) -> dict[str, Any]:
    done = work / "trained.json"
    if done.exists():
        return json.loads(done.read_text())
    say(f"{settings.role}: training {settings.steps} steps of {settings.batch} pairs")
    facts = train(rows, settings, work, CODER_CHECKPOINTS if settings.role == "coder" else ())
    done.write_text(json.dumps(facts))
    say(f"{settings.role}: {facts}")
    return facts


def _choose(work: Path, held_out: Sequence[Pair], cards: dict[str, Any], keck: Keck, say: Say) -> dict[str, Path]:
    """Measure the Proposer and every kept Coder; the Coder nearest to the target is the one to embed."""
    from kernelzero.policy.hf import TransformersSampler

    apis = sorted({api for row in held_out for api in row.apis})
    proposer = _open(TransformersSampler, work / "proposer" / "model", work / "proposer" / "start")
    measured, own_modules = validity(proposer, [ApiSet(row.apis) for row in held_out], keck, n=1)
    proposer.close()
    cards["proposer"] |= {"measured": measured, "apis": apis}
    say(f"proposer: {measured}")
    distinct = list({task.id: task for task in own_modules}.values())[:256]
    tried: list[dict[str, Any]] = []
    for folder in sorted((work / "coder").glob("at-*"), key=lambda p: int(p.name[3:])):
        sampler = _open(TransformersSampler, folder, work / "coder" / "start")
        own = solve_rate(sampler, distinct, keck, n=1)
        kernels = solve_rate(sampler, [Task(row.module) for row in held_out[:256]], keck, n=1)
        sampler.close()
        tried.append({"step": int(folder.name[3:]), "own_proposer": own, "held_out": kernels})
        say(
            f"coder at {folder.name}: own Proposer {own['solve_rate']:.3f}, "
            f"held out {kernels['solve_rate']:.3f} {own['statuses']}"
        )
    best = min(tried, key=lambda row: abs(row["own_proposer"]["solve_rate"] - TARGET_SOLVE_RATE))
    cards["coder"] |= {"measured": best, "all_checkpoints": tried, "apis": apis}
    return {"proposer": work / "proposer" / "model", "coder": work / "coder" / f"at-{best['step']}"}


def _open(sampler: Any, model: Path, tokenizer: Path) -> Any:
    from transformers import AutoTokenizer

    if not (model / "tokenizer.json").exists():
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(model)
    (model / "kernelzero.json").write_text(json.dumps({"prompt": "compact"}))
    return sampler(str(model))
