"""A model out of a run: a plain Hugging Face folder that transformers, vLLM and `kernelzero bench --model` load.

    OUT/model.safetensors, config.json, generation_config.json       whole weights; an adapter is merged into its base
    OUT/adapter_model.safetensors, adapter_config.json               or the adapter alone, with its base named
    OUT/tokenizer.json, …, kernelzero.json                           tokenizer with chat template; how it is prompted
    OUT/export.json                                                  where it is from

Not covered: checkpoints whose weights are sharded over processes (FSDP, ZeRO-3).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernelzero
from kernelzero.errors import UsageError
from kernelzero.policy.profile import PROFILE_FILE
from kernelzero.records import Role
from kernelzero.runfolder import COMPLETE, RunFolder, read_json

EXPORT_FILE, ADAPTER_FILE, GENERATION_FILE = "export.json", "adapter_config.json", "generation_config.json"
SAFE_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
BIN_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")


@dataclass(frozen=True)
class Source:
    """A model to export."""

    model: str
    """The folder with the weights or the adapter; a hub id where a run's role has no checkpoint yet."""
    start: str
    """The folder or hub id that the training started from, so an adapter's base; empty where nobody says."""
    start_name: str
    """The same as the configuration has it, e.g. "nano:coder"."""
    run: str
    step: int | None


def export_model(source: str | Path, role: Role, out: str | Path, *, merge: bool = True) -> Path:
    """Write a model folder, whole or not at all; the folder.

    Args:
        source: A run folder, of which the role's newest complete checkpoint is taken, or its start model where there is
            none; a checkpoint; or the output of `kernelzero coldstart train`.
        role: Whose model it is.
        out: A folder that is empty or not there yet.
        merge: Merge an adapter into its base, in float32, saved in the base's dtype. Else the adapter is written alone.

    Raises:
        UsageError: There is no such model, it is not complete, its base is missing, or `out` is in use.
    """
    out, found = Path(out), find_model(Path(source), role)
    folder = Path(found.model)
    adapter = (folder / ADAPTER_FILE).is_file()
    if not adapter and not merge:
        raise UsageError(f"{found.model} holds whole weights; there is no adapter to write alone")
    base = base_of(folder, found.start) if adapter else ""
    with whole_folder(out) as new:
        if not adapter:
            _write_weights(found, new)
        elif merge:
            _merge(folder, base, new)
        else:
            _write_adapter(folder, base, new)
        _write_tokenizer([found.model, base or found.start], new)
        _copy_first(PROFILE_FILE, [found.model, base or found.start], new)
        about = {
            "run": found.run, "role": role.value, "step": found.step, "base": found.start_name or base,
            "kind": "adapter" if adapter and not merge else "weights", "merged": adapter and merge,
            "kernelzero": kernelzero.__version__,
        }  # fmt: skip
        (new / EXPORT_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return out


def find_model(source: Path, role: Role) -> Source:
    """The model that a run folder, a checkpoint or a training's output holds for a role.

    Raises:
        UsageError: There is none, it is another role's, or it is not complete.
    """
    if not source.is_dir():
        raise UsageError(f"there is no folder {source}")
    config, training = run_config(source), _training(source)
    if config is not None:
        return _of_run(source, config, role)
    if training is None:
        return _of_checkpoint(source, role)
    _require_role(source, training["role"], role)
    if not (source / "model").is_dir():
        raise UsageError(f"the training in {source} is not finished; go on with it by `kernelzero coldstart train`")
    best = ((read_json(source / "result.json") or {}).get("best") or {}).get("step")
    return Source(str(source / "model"), training["model"], training["model"], source.resolve().name, best)


def _of_run(source: Path, config: dict[str, Any], role: Role) -> Source:
    checkpoint, start = RunFolder(source).last_checkpoint(role), start_model(config, role)
    if checkpoint is None and not start:
        raise UsageError(f"{source} has no {role.value}: the run trains the other role only")
    name, step = config["run"].get("name", ""), RunFolder(source).steps_done(role)
    return Source(str(checkpoint or start), start, config[role.value]["model"], name, step)


def _of_checkpoint(source: Path, role: Role) -> Source:
    if not matching(source, (*SAFE_WEIGHTS, *BIN_WEIGHTS, *ADAPTER_WEIGHTS)):
        raise UsageError(f"{source} is no run, no training and no checkpoint: it has neither weights nor an adapter")
    place = source.resolve()
    owner, number = place.parent.parent, place.name.removeprefix("checkpoint-")
    step = int(number) if number.isdigit() else None
    config, training = run_config(owner), _training(owner)
    if config is None and training is None:
        return Source(str(source), "", "", place.name, step)
    if step is not None and not (source / COMPLETE).exists():
        raise UsageError(f"{source} is not complete: its writing was interrupted; take an older one")
    if config is not None:
        _require_role(source, place.parent.name, role)
        start, name = start_model(config, role), config[role.value].get("model", "")
        return Source(str(source), start, name, config["run"].get("name", ""), step)
    assert training is not None
    _require_role(source, training["role"], role)
    return Source(str(source), training["model"], training["model"], owner.name, step)


def _require_role(source: Path, has: str, asked: Role) -> None:
    if has != asked.value:
        raise UsageError(f"{source} holds a {has}, not a {asked.value}")


def run_config(folder: Path) -> dict[str, Any] | None:
    """The configuration of a run folder; None where the folder is none (a model has a config.json too)."""
    config = read_json(folder / "config.json")
    is_run = isinstance(config, dict) and all(isinstance(config.get(key), dict) for key in ("run", "coder", "proposer"))
    return config if is_run else None


def _training(folder: Path) -> dict[str, Any] | None:
    """What the output of `kernelzero coldstart train` was asked for; None for other folders."""
    asked = read_json(folder / "train.json")
    return asked if isinstance(asked, dict) and {"role", "model"} <= asked.keys() else None


def start_model(config: dict[str, Any], role: Role) -> str:
    """The folder or hub id that a role of a run starts from; empty where the role has no model."""
    from kernelzero.services import resolve_model

    name = config[role.value].get("model", "")
    return resolve_model(name) if name else ""


def base_of(adapter: Path, start: str = "") -> str:
    """The folder or hub id of an adapter's base: the start model, or what the adapter itself names.

    Raises:
        UsageError: It is not to be found.
    """
    from kernelzero.training.models import check_model

    named = (read_json(adapter / ADAPTER_FILE) or {}).get("base_model_name_or_path") or ""
    candidates = [name for name in (start, named) if name]
    base = next((name for name in candidates if Path(name).is_dir()), candidates[0] if candidates else "")
    try:
        check_model(base)
    except UsageError as error:
        raise UsageError(f"the base model of the adapter {adapter} is missing: {error}") from error
    return base


def load_adapter(adapter: str | Path, start: str = "", dtype: str = "float32") -> tuple[Any, Any]:
    """Model and tokenizer of an adapter's folder, merged in memory in float32, then cast.

    Fit for `TransformersSampler((model, tokenizer), style=prompt_style(adapter))`.

    Raises:
        UsageError: The base is missing, or the adapter is another model's.
    """
    import torch

    from kernelzero.training.models import load_tokenizer

    folder = Path(adapter)
    base = base_of(folder, start)
    model, _ = _merged(folder, base)
    return model.to(getattr(torch, dtype)).eval(), load_tokenizer(str(folder) if matching(folder, TOKENIZER) else base)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A new folder to write into; it becomes `target` at the end, or vanishes with an error.

    Raises:
        UsageError: `target` is there already and not an empty folder.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already and not an empty folder; choose another")
    place = target.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{place.name}.{os.getpid()}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        yield new
        os.replace(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of a folder that match one of the patterns, by name."""
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


@contextlib.contextmanager
def saved_tokenizer(model: str) -> Iterator[list[Path]]:
    """The files that training writes for the tokenizer of a model; they are gone at the end.

    Raises:
        UsageError: There is no tokenizer.
    """
    from kernelzero.training.models import load_tokenizer

    with tempfile.TemporaryDirectory() as scratch:
        load_tokenizer(model).save_pretrained(scratch)
        yield sorted(Path(scratch).iterdir())


# --- writing ---------------------------------------------------------------------------------------------------------


def _write_weights(found: Source, new: Path) -> None:
    """Whole weights as they are; other formats than safetensors, and hub ids, by way of transformers."""
    folder = Path(found.model)
    weights = matching(folder, SAFE_WEIGHTS)
    if weights:
        for path in [*weights, *matching(folder, ("config.json", GENERATION_FILE))]:
            shutil.copyfile(path, new / path.name)
        if not (new / GENERATION_FILE).is_file():
            _copy_first(GENERATION_FILE, [found.start], new)
        for path in matching(new, ("config.json", GENERATION_FILE)):
            if read_json(path).get("use_cache") is False:  # what gradient checkpointing leaves; decoding would crawl
                _write_with(path, {"use_cache": True}, path)
        return
    _load(found.model, "auto").save_pretrained(new)


def _merge(adapter: Path, base: str, new: Path) -> None:
    model, dtype = _merged(adapter, base)
    model.to(dtype).save_pretrained(new)


def _merged(adapter: Path, base: str) -> tuple[Any, Any]:
    """The merged model in float32, and the dtype of its base."""
    import peft

    model = _load(base, "auto")
    dtype = model.dtype
    try:
        whole: Any = peft.PeftModel.from_pretrained(model.float(), str(adapter)).merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"the adapter {adapter} does not fit its base {base}: {_first_line(error)}") from error
    return whole, dtype


def _write_adapter(adapter: Path, base: str, new: Path) -> None:
    """No config.json beside it: with one, transformers would look for whole weights here."""
    for path in matching(adapter, ADAPTER_WEIGHTS):
        shutil.copyfile(path, new / path.name)
    point_at_base(adapter / ADAPTER_FILE, base, new / ADAPTER_FILE)
    _copy_first(GENERATION_FILE, [str(adapter), base], new)


def point_at_base(adapter_config: Path, base: str, to: Path) -> None:
    """Write an adapter's configuration with this base named."""
    _write_with(adapter_config, {"base_model_name_or_path": base}, to)


def _write_with(file: Path, changes: dict[str, Any], to: Path) -> None:
    """Write a JSON file with changes; without any it stays the same, to its last byte."""
    end = "\n" if file.read_bytes().endswith(b"\n") else ""
    to.write_text(json.dumps({**read_json(file), **changes}, indent=2) + end, encoding="utf-8")


def _write_tokenizer(models: list[str], new: Path) -> None:
    """The files of the first model that has some, else what training would write for it."""
    for model in filter(None, models):
        files = matching(Path(model), TOKENIZER) if Path(model).is_dir() else []
        for path in files:
            shutil.copyfile(path, new / path.name)
        if files:
            return
    with saved_tokenizer(next(model for model in reversed(models) if model)) as saved:
        for path in saved:
            shutil.copyfile(path, new / path.name)


def _copy_first(name: str, models: Iterable[str], new: Path) -> None:
    found = next((Path(model) / name for model in models if model and (Path(model) / name).is_file()), None)
    if found is not None:
        shutil.copyfile(found, new / name)


def _load(model: str, dtype: str) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UsageError(f"no model can be loaded from {model}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
