"""Frozen records that pass between the stages of KernelZero. No torch, no I/O.

Stages never import one another; they exchange these. Every record converts to and from plain JSON with
`to_json` and `from_json`, so a run folder can be read years later without this code.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Self


class Status(enum.StrEnum):
    """What Keck found out about a candidate (DESIGN: Keck)."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    INFRA_ERROR = "infra_error"

    @property
    def is_outcome(self) -> bool:
        """Whether the status says something about the candidate; only outcomes carry a reward."""
        return self not in (Status.UNSUPPORTED, Status.INFRA_ERROR)


class Backend(enum.StrEnum):
    """The language a kernel is written in."""

    TRITON = "triton"
    CUDA = "cuda"


class Basis(enum.StrEnum):
    """Where a time comes from; numbers of different bases are never mixed."""

    MEASURED = "measured"
    """Timed on a GPU."""
    MODELLED = "modelled"
    """Computed from counted bytes, operations and launches."""


class Finish(enum.StrEnum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"


class Role(enum.StrEnum):
    """Which of the two models."""

    PROPOSER = "proposer"
    CODER = "coder"


def content_id(*parts: str) -> str:
    """A 16-digit hexadecimal id of the given texts: equal texts, equal id, on every machine."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()[:16]


def _encode(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    return value


def _decode(annotation: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _decode(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        return tuple(_decode(arguments[0], item) for item in value)
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation.from_json(value)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(value)
    if annotation is float and value is not None:
        return float(value)
    return value


@functools.cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@dataclass(frozen=True)
class Record:
    """Base of all records: JSON in and out by field name."""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values."""
        return {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild the record; unknown keys are ignored so that newer files stay readable."""
        hints = _type_hints(typing.cast(Any, cls))
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{key: _decode(hints[key], value) for key, value in data.items() if key in known})


@dataclass(frozen=True)
class ApiSet(Record):
    """A set of PyTorch APIs that one proposed module has to use, all of them."""

    apis: tuple[str, ...]
    """Canonical names in alphabetical order, e.g. ("nn.Linear", "torch.relu")."""

    def __post_init__(self) -> None:
        if not self.apis:
            raise ValueError("an API set has at least one API")
        if list(self.apis) != sorted(set(self.apis)):
            object.__setattr__(self, "apis", tuple(sorted(set(self.apis))))

    @property
    def id(self) -> str:
        """Content id of the set."""
        return content_id("apiset", *self.apis)


@dataclass(frozen=True)
class Prompt(Record):
    """One chat prompt, role-tagged messages in order."""

    messages: tuple[dict[str, str], ...]
    """[{"role": "system" | "user" | "assistant", "content": text}, …]"""


@dataclass(frozen=True)
class Completion(Record):
    """What a model answered to one prompt."""

    text: str
    tokens: int
    """Number of generated tokens, the end-of-sequence token not counted."""
    finish: Finish


@dataclass(frozen=True)
class Sampling(Record):
    """How to draw completions."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int | None = None


@dataclass(frozen=True)
class Task(Record):
    """A PyTorch module to be turned into a kernel: source with `Model`, `get_inputs`, `get_init_inputs`."""

    source: str
    apis: tuple[str, ...] = ()
    """The API set it was proposed for; empty where there was none."""
    name: str = ""
    """A name for people, e.g. "level1/23_softmax"; empty for proposals."""

    @property
    def id(self) -> str:
        """Content id of the source. Groups are formed by it."""
        return content_id("task", self.source)


@dataclass(frozen=True)
class Candidate(Record):
    """A kernel that claims to compute what a task's module computes: source with `ModelNew`."""

    source: str
    backend: Backend = Backend.TRITON

    @property
    def id(self) -> str:
        """Content id of the source and the backend."""
        return content_id("candidate", self.backend.value, self.source)


@dataclass(frozen=True)
class Timing(Record):
    """Times of reference and candidate, of one basis, and their ratio."""

    basis: Basis
    reference_ms: float
    candidate_ms: float
    speedup: float
    """reference_ms / candidate_ms; greater than 1 is faster than the baseline."""
    speedup_low: float
    """Lower end of the 95 % interval; equal to `speedup` for a modelled time."""
    speedup_high: float
    baseline: str = "eager"
    """What `reference_ms` ran: "eager" or "torch.compile"."""

    def __post_init__(self) -> None:
        if not (self.reference_ms > 0 and self.candidate_ms > 0):
            raise ValueError("a time is greater than 0 ms")
        if not (0 < self.speedup_low <= self.speedup <= self.speedup_high):
            raise ValueError("a speedup lies inside its own interval")

    @property
    def is_faster(self) -> bool:
        """Whether the interval says that the candidate is faster, not only the point estimate."""
        return self.speedup_low > 1.0


@dataclass(frozen=True)
class Verdict(Record):
    """What Keck says about one candidate. Combinations that cannot be cannot be built."""

    status: Status
    reason: str
    """One line a person can act on; for a correct candidate, what was checked."""
    device: str
    """Where it was judged, e.g. "cpu (triton interpreter)" or "NVIDIA H200". Metrics never mix devices."""
    backend: Backend = Backend.TRITON
    timing: Timing | None = None
    """Only for correct candidates, and always for those where a time was asked for."""
    timed: bool = True
    """Whether a time was asked for."""
    parameters: str | None = None
    """How weights were matched: "by_name", "by_order", "same_seed" or "none" (there are none)."""
    criterion: str | None = None
    """"absolute" (atol = rtol = 1e-2), "scale-aware" or "exact"."""
    policy: str = "strict"
    """Name of the rules: "strict" is the paper's, no PyTorch compute and no vendor library inside `forward`;
    "hybrid" allows both beside kernels that matter."""
    profile: str = "paper"
    """Name of the tolerances: "paper" or "kernelbench"."""
    calls: int = 0
    """Number of calls whose outputs were compared."""
    kernels: tuple[str, ...] = ()
    """Names of the candidate's own kernels that ran, in order of first launch."""
    launches: int = 0
    """Kernel launches in one call of `forward`."""
    rung: str | None = None
    """How a CUDA extension was built: "mini" (Keck's own tensor header), "aten" (torch's tensor headers) or "full";
    "device" for device code alone."""
    own_share: float | None = None
    """On a GPU: which share of the kernels' time in one call was the candidate's own kernels'."""
    judged_s: float = 0.0
    """Seconds that judging took, start of the child to the last comparison."""
    phases: dict[str, float] = field(default_factory=dict)
    """Where these seconds went: "reference", "start", "load", "build", "first_call", "calls", "timing", and "wait" for
    the GPU, which is in none of the others."""

    def __post_init__(self) -> None:
        if not self.reason or "\n" in self.reason:
            raise ValueError("a verdict has a reason of one line")
        if (self.timing is not None) != (self.status is Status.CORRECT and self.timed):
            raise ValueError("a verdict has a time if and only if it is correct and a time was asked for")

    @property
    def correct(self) -> bool | None:
        """True or False for an outcome, None where the verdict says nothing about the candidate."""
        return self.status is Status.CORRECT if self.status.is_outcome else None

    @property
    def speedup(self) -> float | None:
        """The speedup, where there is one."""
        return self.timing.speedup if self.timing else None


@dataclass(frozen=True)
class GateReport(Record):
    """Whether a proposed module may become a task."""

    valid: bool | None
    """None: an infrastructure error, which says nothing about the proposal."""
    gate: str
    """Name of the gate that refused it, "" if none did."""
    reason: str
    """One line; for a valid module what was found."""
    launch_bound: bool = False
    """Whether kernel launches, not bytes or operations, would dominate its time."""
    work_ms: float = 0.0
    """Modelled time of one eager forward, launches included."""
    graph: tuple[dict[str, Any], ...] = ()
    """torch.fx nodes of a valid module: {"id", "op", "label", "inputs"}; empty where it could not be traced."""

    def __post_init__(self) -> None:
        if self.valid is True and self.gate:
            raise ValueError("a valid module was refused by no gate")


@dataclass(frozen=True)
class Proposal(Record):
    """A module that the Proposer wrote, or why none could be read from its answer."""

    api_set: ApiSet
    completion: Completion
    task: Task | None
    report: GateReport


@dataclass(frozen=True)
class Attempt(Record):
    """One answer of the Coder to one task, with its verdict."""

    task_id: str
    completion: Completion
    candidate: Candidate | None
    """None where no code could be extracted: a failure of the model, never of the infrastructure."""
    verdict: Verdict


@dataclass(frozen=True)
class Extraction(Record):
    """Code taken from a model's raw answer, or the reason why there is none."""

    code: str | None
    reason: str
    """"" where code was found."""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if (self.code is None) == (self.reason == ""):
            raise ValueError("an extraction has either code or a reason")
