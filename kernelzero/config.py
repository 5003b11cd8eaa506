"""Typed configuration of a run: TOML in, a resolved copy out.

Defaults are the paper's (Ke et al., arXiv 2609.33074); numbers that it leaves open are marked "ours". A key exists
only where two runs differ by it. Not covered: whether the models and files named here exist; that is found out
where they are opened.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelzero.errors import UsageError
from kernelzero.records import Backend, Role


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunConfig(_Section):
    """What the run is called and where it lives."""

    name: str = Field(default="run", pattern=r"^[\w.-]+$")
    seed: int = Field(default=0, ge=0)
    folder: str = ""
    """Empty: `runs/<name>`."""


class _RoleConfig(_Section):
    """What both roles have in common."""

    model: str = ""
    """A folder, a hub id, or "nano:proposer" / "nano:coder"."""
    steps: int = Field(default=20, ge=0)
    """Training steps of one round."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate, constant; ours."""
    kl: float = Field(default=1e-2, ge=0)
    """Weight of the KL term against the role's start model; ours (R-Zero's)."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the rollouts trained on, and of the frozen Coder's samples; ours."""
    max_tokens: int = Field(default=2048, ge=1)
    """Longest completion; ours."""


class ProposerConfig(_RoleConfig):
    """The Proposer and its training (FO-GRPO)."""

    api_sets_per_step: int = Field(default=20, ge=1)
    """20 steps of 20 are the paper's 400 distinct sets."""
    group: int = Field(default=4, ge=2)
    """Modules proposed for each API set."""
    coder_samples: int = Field(default=5, ge=1)
    """Samples of the frozen Coder for each valid module."""


class CoderConfig(_RoleConfig):
    """The Coder and its training (CA-GRPO)."""

    modules_per_step: int = Field(default=61, ge=1)
    """20 steps of 61 are 1,220 of the paper's 1,224 validated modules."""
    group: int = Field(default=5, ge=2)
    """Kernels written for each module."""
    alpha: float = Field(default=0.5, allow_inf_nan=False)
    """Mean correctness of a group from which on speed is rewarded."""
    beta: float = Field(default=0.1, allow_inf_nan=False)
    """Weight of speed against correctness."""
    backend: Backend = Backend.TRITON


class RoundsConfig(_Section):
    """How often the two roles take turns."""

    count: int = Field(default=4, ge=1)


class CurriculumConfig(_Section):
    """What the Coder trains on."""

    selection: Literal["frontier", "blind"] = "frontier"
    """"frontier": modules that the Coder solves about half of the time come first; "blind": drawn evenly."""
    api_sets: int = Field(default=4000, ge=1)
    """Size of the pool of API sets."""
    apis: Literal["all", "composer"] = "all"
    """"composer": only what the rule-based composer, and so the nano Proposer, knows."""
    diversity: float = Field(default=0.0, ge=0, le=1)
    """What a proposal pays if all others of its step have its skeleton (`credit.repetition_penalties`); ours."""
    pool: str = ""
    """A JSONL file of modules made beforehand, with solve rates; empty: the Proposer's own."""


class SamplingConfig(_Section):
    """What draws rollouts and the frozen Coder's samples; all ours."""

    engine: Literal["transformers", "static", "vllm"] = "transformers"
    """"static": transformers with a static cache, which it compiles on a GPU; "vllm": needs the extra."""
    server: str = Field(default="", pattern=r"^(https?://.+)?$")
    """A `vllm serve` on other GPUs draws the rollouts (docs/cluster.md); the frozen Coder stays here."""
    gpu_memory: float = Field(default=0.3, gt=0, lt=1)
    """Share of the card that each vLLM here may take."""


class KeckConfig(_Section):
    """How kernels are judged; all ours."""

    workers: int = Field(default=2, ge=1)
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    """"cpu", "cuda" or "cuda:N"."""
    timeout_s: float = Field(default=20.0, gt=0)
    """Of one candidate."""
    url: str = Field(default="", pattern=r"^(https?://.+)?$")
    """Of a `kernelzero serve` elsewhere; the other settings are its own then. The token: KERNELZERO_KECK_TOKEN."""


class BenchConfig(_Section):
    """The benchmark before the first round and after the last."""

    tasks: str = "builtin"
    """Name of a task set, or a folder of tasks; empty: no benchmark."""
    n: int = Field(default=10, ge=1)
    """Samples a task."""
    temperature: float = Field(default=0.6, ge=0)
    """Ours."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Ours."""


class LoraConfig(_Section):
    """Low-rank adapters instead of all weights; ours."""

    rank: int = Field(default=32, ge=1)
    alpha: int = Field(default=64, gt=0)


class TrainingConfig(_Section):
    """How the trainer uses the machine; all ours."""

    device: Literal["auto", "cpu"] = "auto"
    precision: Literal["float32", "mixed", "bfloat16"] = "float32"
    """"mixed": weights in float32, arithmetic in bfloat16. With bfloat16 weights small updates are rounded away."""
    rows_per_device: int = Field(default=8, ge=1)
    """Most rows in one forward and backward pass; accumulation makes up the rest of the batch."""
    gradient_checkpointing: bool = False
    mask_truncated: bool = True
    """Leave the tokens of truncated completions out of the loss; their rewards still count in the group's mean."""
    save_every: int = Field(default=1, ge=1)
    """Steps between checkpoints, which is what a crash can lose."""
    report_to: tuple[str, ...] = ()
    """Trackers of the trainer, e.g. ["tensorboard"]."""
    lora: LoraConfig | None = None
    """Absent: all weights are trained."""


class Config(_Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    proposer: ProposerConfig = ProposerConfig()
    coder: CoderConfig = CoderConfig()
    rounds: RoundsConfig = RoundsConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    sampling: SamplingConfig = SamplingConfig()
    keck: KeckConfig = KeckConfig()
    bench: BenchConfig = BenchConfig()
    training: TrainingConfig = TrainingConfig()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run.folder or f"runs/{self.run.name}")

    def role(self, role: Role) -> ProposerConfig | CoderConfig:
        """The section of one role."""
        return self.proposer if role is Role.PROPOSER else self.coder

    def to_json(self) -> dict[str, Any]:
        """The resolved configuration as plain JSON values."""
        return self.model_dump(mode="json")


def load_config(path: str | Path) -> Config:
    """Read a TOML file.

    Raises:
        UsageError: The file is missing, is not TOML, or has an unknown key or an impossible value.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"cannot read the configuration {path}: {reason}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    return parse_config(data, source=str(path))


def parse_config(data: dict[str, Any], source: str = "configuration") -> Config:
    """Build a configuration from nested dictionaries.

    Raises:
        UsageError: Names the source and the key.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"{source}: {_first_fault(error)}") from error
    _check_together(config, source)
    return config


def first_difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """The first key whose value differs between two resolved configurations, "key: this is X, that is Y"."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            found = first_difference(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
            if found:
                return found
        return None
    if ours == theirs:
        return None
    return f"{path} is {json.dumps(ours)} here and {json.dumps(theirs)} there"


def _first_fault(error: ValidationError) -> str:
    fault = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"unknown key {key}{_suggestion(fault['loc'])}"
    return f"{key}: {fault['msg'].lower()}, got {fault['input']!r}".replace("\n", " ")


def _suggestion(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        annotation = section.model_fields[str(part)].annotation
        section = annotation if isinstance(annotation, type) else LoraConfig
    close = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _check_together(config: Config, source: str) -> None:
    for role in Role:
        section = config.role(role)
        if section.steps and not section.model:
            raise UsageError(f"{source}: {role.value}.model is missing")
    if not config.coder.model:
        raise UsageError(f"{source}: coder.model is missing; the Proposer's reward needs a Coder too")
    if config.sampling.server and config.sampling.engine != "vllm":
        raise UsageError(f'{source}: sampling.server is a vLLM, so sampling.engine has to be "vllm"')
    if config.proposer.steps == 0 and config.coder.steps and not config.curriculum.pool:
        raise UsageError(f"{source}: proposer.steps is 0, so curriculum.pool has to name a file of modules")
