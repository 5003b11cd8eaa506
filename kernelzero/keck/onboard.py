"""A task is taken on once: its reference is run on inputs that the judge chose, and the answers stay with the judge.

Besides what `get_inputs` gives under several seeds there are inputs that it does not give: a hundred times larger,
with other signs, shifted, sorted, with ties. A few well-chosen inputs catch most of what random ones miss. Weights that
are constant after construction (biases of zero, scales of one) are moved a little, or a kernel could leave them out
unseen.
A task whose answer can be had without looking (zeros, the mean, the input, the answer to other inputs) is judged by
a scale-aware criterion, or refused as degenerate. Rule on modes: modules are judged as constructed, in training mode
as KernelBench does, so BatchNorm uses batch statistics; an output that depends on the generator (dropout) is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelzero.keck import wire
from kernelzero.keck.compare import ABSOLUTE, KERNELBENCH, SCALED, Criterion, difference, scale_of
from kernelzero.keck.floor import needed_bytes
from kernelzero.keck.limits import Limits
from kernelzero.keck.values import map_tensors, tensors
from kernelzero.keck.zygote import GRACE_S, ChildHandle, Zygote

SEEDS = 8
"""Distinct draws of `get_inputs`, where memory allows."""


def input_seed(secret: int, source: str, index: int) -> int:
    """The generator's seed for one draw. Who does not know `secret` cannot prepare answers to the inputs."""
    digest = hashlib.sha256(f"{secret}:{index}:{source}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "little")


STRESS_FACTORS = (100.0, 10.0)
_QUICK_MS = 0.005
"""Modelled milliseconds, launches aside, above which a CPU takes too long for all the inputs beyond the usual."""
_COMPILE_S = 120.0
"""Seconds that torch.compile may take with one reference."""
_STRESSES = 8
"""Cases beyond the draws, at most."""
INIT_SEED = 20_260_329
"""Seed before a model is built, the same for reference and candidate."""
FORWARD_SEED = 7


class TaskRefused(Exception):
    """The reference cannot serve as a task."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason
        """kind: "runs", "time", "finite", "deterministic" or "degenerate"."""


@dataclass
class Case:
    """One input with its answer."""

    tree: Any
    buffers: list[Any]
    expected: Any
    criterion: Criterion
    mutated: list[int]
    aliases: list[int]
    label: str
    wide: Any = None
    """The answer in 32 bits, where the reference has 16: what lies between the two is the reference's own rounding."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(len(b) for b in self.buffers) + _nbytes(self.expected) + _nbytes(self.wide)


@dataclass
class Reference:
    """A task that was taken on."""

    init: Any
    state: dict[str, torch.Tensor]
    cases: list[Case]
    criterion: Criterion
    work_ms: float
    launch_ms: float
    launches: int
    full_precision: bool
    weights_moved: bool
    random: list[str]
    """Operators that draw from the generator inside `forward`."""
    null: str = ""
    """The answer without computing that passes for all draws; only inputs that `get_inputs` does not give refute it."""
    call_s: float = 0.0
    """Seconds of one call, with everything around it."""
    needed_bytes: int = 0
    """On a GPU: bytes that a call has to move (floor.py)."""
    seconds: float = 0.0
    child: ChildHandle | None = None
    """A child that still has it loaded, where one was to be kept: on a GPU it is timed beside candidates."""

    def load_payload(self) -> tuple[Any, list[Any]]:
        """What a candidate is given to build its model: constructor arguments and weights."""
        return wire.encode({"init": self.init, "state": self.state})


Share = Callable[[], contextlib.AbstractContextManager[None]]
"""Gives the context in which a child computes: on a GPU, beside others and never while one is timed."""


def take_on(
    source: str,
    zygote: Zygote,
    limits: Limits,
    *,
    secret: int = 0,
    move_weights: bool = True,
    keep_child: bool = False,
    share: Share = contextlib.nullcontext,
    profile: str = "paper",
    cache_bytes: int = 0,
) -> Reference:
    """Run a reference in a child of its own and collect its answers.

    Args:
        secret: what the seeds of the inputs are derived from.
        move_weights: whether constant weights are changed.
        keep_child: leave the child alive and hand it over.
        share: context in which it computes.
        profile: tolerances, one of terms.PROFILES. KernelBench's go with its inputs: none but what `get_inputs` gives,
            and no task is degenerate.
        cache_bytes: size of the GPU's L2 cache; 0 where times are not measured.

    Raises:
        TaskRefused: when it does not run, is not finite or deterministic, or is degenerate.
    """
    started = time.monotonic()
    child = zygote.spawn(limits.memory_bytes, limits.cpu_s)
    try:
        ask = Asker(child, started + limits.timeout_s, share)
        reference = _collect(ask, source, limits, secret, move_weights, profile, cache_bytes)
        if keep_child:
            ask({"op": "rest"})
            reference.child = child
    finally:
        if not (keep_child and sys.exc_info()[0] is None):
            child.end()
    reference.seconds = time.monotonic() - started
    return reference


def revive(
    source: str,
    zygote: Zygote,
    limits: Limits,
    reference: Reference,
    *,
    compiled: bool = False,
    share: Share = contextlib.nullcontext,
) -> ChildHandle:
    """A new child with a reference that was taken on before: loaded, with its weights, `compiled` by torch.compile.

    Raises:
        TaskRefused: it does not run this time.
    """
    cpu_s = limits.cpu_s + (int(_COMPILE_S) if compiled else 0)
    child = zygote.spawn(limits.memory_bytes, cpu_s)
    ask = Asker(child, time.monotonic() + limits.timeout_s + (_COMPILE_S if compiled else 0.0), share)
    try:
        ask({"op": "load", "entry": "Model", "source": source, "seed": INIT_SEED})
        tree, buffers = wire.encode(reference.state)
        ask({"op": "set_state", "tree": tree}, buffers)
        if compiled:
            ask({"op": "compile", "tree": reference.cases[0].tree}, reference.cases[0].buffers)
    except TaskRefused:
        child.end()
        raise
    return child


_COMPUTES = frozenset(("inputs", "call", "call_wide", "matters", "compile"))


class Asker:
    """Puts questions to a reference child; whatever it cannot answer refuses the task."""

    def __init__(self, child: ChildHandle, deadline: float, share: Share = contextlib.nullcontext) -> None:
        self.child, self.deadline, self.share = child, deadline, share
        self._has_turn = False
        self.call_s = math.inf
        """Seconds of the shortest call so far."""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """The GPU beside others, for questions and for comparing their answers. May be nested."""
        if self._has_turn:
            yield
            return
        began = time.monotonic()
        with self.share():
            self.deadline += time.monotonic() - began  # waiting for others is not its time
            self._has_turn = True
            try:
                yield
            finally:
                self._has_turn = False

    def __call__(self, message: dict[str, Any], buffers: list[Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
        """The answer to one message; TaskRefused where there is none."""
        try:
            # Loading takes long and hardly computes, so nobody has to wait for its end.
            with self.turn() if message["op"] in _COMPUTES else contextlib.nullcontext():
                started = time.monotonic()
                reply, out = self.child.ask(message, buffers, deadline=self.deadline)
            if message["op"] == "call":
                self.call_s = min(self.call_s, time.monotonic() - started)
        except wire.DeadlinePassed:
            raise TaskRefused("time", f"the reference did not finish in time ({message['op']})") from None
        except wire.PeerGone:
            self.child.end(GRACE_S)
            raise TaskRefused("runs", f"the reference died: {self.child.how_it_ended()}") from None
        except wire.WireError as error:
            raise TaskRefused("runs", f"the reference cannot be used: {error}") from None
        if not reply["ok"]:
            raise TaskRefused("runs", f"the reference fails: {reply['reason']}")
        return reply, out


def rehearse() -> None:
    """Take on and compare small values: on a GPU a kernel's first use loads it, and the first task would wait."""
    for dtype in (torch.float32, torch.float16, torch.int64):
        draws = [(8 * torch.rand(4, 8)).to(dtype) for _ in range(3)]
        encoded = [wire.encode([draw]) for draw in draws]
        cases = [
            Case(tree, buffers, wire.decode(tree, wire.copies(buffers))[0], ABSOLUTE, [], [], "draw")
            for tree, buffers in encoded
        ]
        choose_or_none(cases)
        first, other = (case.expected for case in cases[:2])
        for change in (lambda t: t * 100.0, lambda t: _other_signs(t, 1), _ascending, lambda t: torch.round(t * 2) / 2):
            _change(first, change)
        _partly(first, other, 1)
        for criterion in (ABSOLUTE, SCALED):
            difference(first, other, criterion, wide=first.float() if first.dtype is torch.float16 else None)
        _moved({"weight": torch.ones_like(first)})


def _collect(
    ask: Asker, source: str, limits: Limits, secret: int, move_weights: bool, profile: str, cache_bytes: int
) -> Reference:
    reply, buffers = ask({"op": "load", "entry": "Model", "source": source, "seed": INIT_SEED})
    built = wire.decode(reply["tree"], buffers)
    state, moved = _moved(built["state"]) if move_weights else (built["state"], False)
    if moved:
        ask({"op": "set_state", "tree": (encoded := wire.encode(state))[0]}, encoded[1])
    seeds = [input_seed(secret, source, index) for index in range(SEEDS)]
    with ask.turn():
        first, facts = _draw(ask, 0, seeds[0])
        _require_finite(first)
        _require_deterministic(ask, first)
    count = max(3, min(SEEDS, (limits.case_mib << 20) // max(first.nbytes, 1)))
    cases = [first, *(_draw(ask, i, seeds[i])[0] for i in range(1, count))]
    with ask.turn():
        criterion, null = choose_criterion(cases) if profile == "paper" else (KERNELBENCH, "")
    cases = [dataclasses.replace(case, criterion=criterion) for case in cases]
    quick = facts["work_ms"] - facts["launch_ms"] <= _QUICK_MS
    if wire.on_gpu():
        quick = (count + _STRESSES) * first.nbytes <= 2 * limits.case_mib << 20
    stress = list(_stress_cases(ask, cases, seeds[0], quick)) if profile == "paper" else []
    near = list(_nearly_the_same(ask, cases, seeds[0])) if profile == "paper" else []
    with ask.turn():
        if null and _constant_beyond(cases, stress):
            raise TaskRefused("degenerate", f"the task is degenerate: {null} passes as an answer")
    values = [wire.decode(first.tree, wire.copies(first.buffers)), first.expected, list(state.values())]
    return Reference(
        init=built["init"],
        state=state,
        cases=[cases[0], *near, *cases[1:], *stress],
        criterion=criterion,
        work_ms=facts["work_ms"],
        launch_ms=facts["launch_ms"],
        launches=facts["launches"],
        full_precision=all(t.dtype.itemsize >= 4 for t in tensors(values) if t.dtype.is_floating_point),
        weights_moved=moved,
        random=facts["random"],
        null=null,
        call_s=ask.call_s,
        needed_bytes=needed_bytes(ask, first, seeds[0], cache_bytes) if cache_bytes else 0,
    )


def _draw(ask: Asker, index: int, seed: int) -> tuple[Case, dict[str, Any]]:
    reply, buffers = ask({"op": "inputs", "seed": seed})
    return answer(ask, reply["tree"], buffers, ABSOLUTE, f"draw {index}")


def answer(
    ask: Asker, tree: Any, buffers: list[Any], criterion: Criterion, label: str, seed: int = FORWARD_SEED
) -> tuple[Case, dict[str, Any]]:
    """What the reference gives for these inputs, as a case, and what was observed of the call."""
    facts, out = ask({"op": "call", "tree": tree, "seed": seed}, buffers)
    expected = wire.decode(facts["tree"], out)
    wide = _wide_answer(ask, tree, buffers, seed) if _is_narrow(expected) else None
    return Case(tree, buffers, expected, criterion, facts["mutated"], facts["aliases"], label, wide), facts


def _is_narrow(expected: Any) -> bool:
    return any(t.dtype.is_floating_point and t.dtype.itemsize < 4 for t in tensors(expected))


def _wide_answer(ask: Asker, tree: Any, buffers: list[Any], seed: int) -> Any:
    reply, out = ask({"op": "call_wide", "tree": tree, "seed": seed}, buffers)
    return None if reply["tree"] is None else wire.decode(reply["tree"], out)


def _nbytes(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors(value))


def _moved(state: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], bool]:
    """Constant float weights with noise: zeros become small, others change by up to a quarter and keep their sign."""
    generator = torch.Generator().manual_seed(INIT_SEED)
    moved, any_moved = {}, False
    for name, value in state.items():
        moved[name] = value
        if value.dtype.is_floating_point and value.numel() and bool((value == value.flatten()[0]).all()):
            noise = torch.rand(value.shape, generator=generator, dtype=torch.float32)
            constant = float(value.flatten()[0])
            changed = 0.2 * (noise - 0.5) if constant == 0 else constant * (0.75 + 0.5 * noise)
            moved[name], any_moved = changed.to(value.device, value.dtype), True
    return moved, any_moved


def _require_finite(case: Case) -> None:
    # Honest infinities and NaN exist (a masked softmax), but an output that is nothing else says nothing.
    outputs = [t for t in tensors(case.expected) if t.numel()]
    if not outputs:
        raise TaskRefused("runs", "the reference returns no tensor")
    floats = [t for t in outputs if t.dtype.is_floating_point]
    if floats and not any(bool(torch.isfinite(t).any()) for t in floats):
        raise TaskRefused("finite", "no value of the reference's output is finite")


def _require_deterministic(ask: Asker, case: Case) -> None:
    again, _ = answer(ask, case.tree, case.buffers, ABSOLUTE, "", seed=FORWARD_SEED + 1)
    for a, b in zip(tensors(again.expected), tensors(case.expected), strict=False):
        if a.shape != b.shape or not torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)):
            reason = "the reference gives two answers to one input (dropout or another random operator left on?)"
            raise TaskRefused("deterministic", reason)


def _stress_cases(ask: Asker, cases: list[Case], seed: int, quick: bool) -> Iterator[Case]:
    for factor in STRESS_FACTORS:
        case = _stress(ask, cases[0], lambda t, f=factor: t * f, SCALED, f"inputs times {factor:g}")
        if case:
            yield case
            break
    usual = cases[1].criterion
    changes = [
        (lambda t: _other_signs(t, seed), usual, "inputs with other signs"),
        (lambda t: t - 10.0, SCALED, "inputs minus 10"),
    ]
    if quick:
        changes += [
            (lambda t: t - 100.0, SCALED, "inputs minus 100"),  # a running maximum that starts at a number
            (lambda t: t * 1e-3, SCALED, "inputs times 0.001"),  # an epsilon that was left out
            (_ascending, usual, "inputs in ascending order"),  # whoever forgets the last element misses the largest
        ]
    if quick and all(t.dtype.is_floating_point for t in tensors(cases[1].expected)):
        # Ties; which index wins one is nobody's promise.
        changes.append((lambda t: torch.round(t * 2) / 2, usual, "inputs rounded to halves"))
    for change, criterion, label in changes:
        case = _stress(ask, cases[1], change, criterion, label)
        if case:
            yield case


def _nearly_the_same(ask: Asker, cases: list[Case], seed: int) -> Iterator[Case]:
    """The first draw with an eighth of each tensor from another one, asked right after it.

    Whoever recognises inputs by some of their values, and answers with an old result, is wrong here.
    """
    with ask.turn():
        base, other = (wire.decode(case.tree, wire.copies(case.buffers)) for case in cases[:2])
        tree, buffers = wire.encode([_partly(a, b, seed) for a, b in zip(base, other, strict=True)])
        try:
            case, _ = answer(ask, tree, buffers, cases[0].criterion, "inputs redrawn in part")
        except TaskRefused as refusal:
            if _is_the_inputs_fault(refusal, ask):
                return
            raise
        telling = _is_telling(case, cases[0])
    if telling:
        yield case


def _partly(value: Any, other: Any, seed: int) -> Any:
    """Integers stay: mixed with others they may break what holds among them (an order, a permutation)."""
    if not (isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.shape == other.shape):
        return value
    part = max(1, value.numel() // 8)
    start = seed % max(1, value.numel() - part)
    mixed = value.flatten().clone()
    mixed[start : start + part] = other.flatten()[start : start + part]
    return _change(value, lambda t: mixed.view(t.shape))


def _ascending(value: torch.Tensor) -> torch.Tensor:
    return value.flatten().sort().values.view(value.shape)


def _other_signs(value: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator(value.device).manual_seed(seed)
    signs = torch.randint(0, 2, value.shape, generator=generator, device=value.device, dtype=torch.int8) * 2 - 1
    return value * signs.to(value.dtype)


def _stress(ask: Asker, case: Case, change: Any, criterion: Criterion, label: str) -> Case | None:
    """The case with changed floating-point inputs; None where the reference itself has no finite answer there."""
    with ask.turn():
        return _stressed(ask, case, change, criterion, label)


def _stressed(ask: Asker, case: Case, change: Any, criterion: Criterion, label: str) -> Case | None:
    inputs = wire.decode(case.tree, wire.copies(case.buffers))
    if not any(t.dtype.is_floating_point for t in tensors(inputs)):
        return None
    changed = [_change(item, change) for item in inputs]
    tree, buffers = wire.encode(changed)
    try:
        stressed, _ = answer(ask, tree, buffers, criterion, label)
    except TaskRefused as refusal:
        if _is_the_inputs_fault(refusal, ask):
            return None
        raise
    return stressed if _is_telling(stressed, case) and choose_or_none([stressed]) is not None else None


def _is_the_inputs_fault(refusal: TaskRefused, ask: Asker) -> bool:
    """Whether the reference merely does not take such inputs. Want of memory is not their fault."""
    return refusal.kind == "runs" and not ask.child.ended and "out of memory" not in refusal.reason


def _is_telling(stressed: Case, case: Case) -> bool:
    """Finite, and not so much smaller than usual that it is the rounding error of a cancellation."""
    for value, usual in zip(tensors(stressed.expected), tensors(case.expected), strict=False):
        small = value.dtype.is_floating_point and scale_of(value) < 1e-2 * scale_of(usual)
        if small or not bool(torch.isfinite(value).all()):
            return False
    return True


def _change(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
        result = (
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            if _dense(value)
            else None
        )
        return result.copy_(change(value)) if result is not None else change(value)
    if isinstance(value, list | tuple):
        return type(value)(_change(item, change) for item in value)
    return value


def _dense(value: torch.Tensor) -> bool:
    return (
        value.numel() > 0
        and 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) == value.numel()
    )


# --- answers that know nothing ---------------------------------------------------------------------------------------


def choose_criterion(cases: list[Case]) -> tuple[Criterion, str]:
    """The weakest criterion that no null candidate passes, and "".

    Where one passes even the scale-aware criterion, that criterion and the null candidate's name: a loss over millions
    of values is nearly the same number for all draws.
    """
    found = choose_or_none(cases)
    if found is not None:
        return found, ""
    return SCALED, next(n for n, answers in null_candidates(cases).items() if _passes(answers, cases, SCALED))


def _constant_beyond(cases: list[Case], stress: list[Case]) -> bool:
    """Whether zeros or the answer to a draw pass for the inputs that no draw gives, too."""
    zeros = [map_tensors(case.expected, torch.zeros_like) for case in stress]
    replay = [cases[0].expected] * len(stress)
    return any(_passes(answers, stress, SCALED) for answers in (zeros, replay))


def choose_or_none(cases: list[Case]) -> Criterion | None:
    """Like `choose_criterion`, None where there is none."""
    for criterion in (ABSOLUTE, SCALED):
        if not any(_passes(answers, cases, criterion) for answers in null_candidates(cases).values()):
            return criterion
    return None


def null_candidates(cases: list[Case]) -> dict[str, list[Any]]:
    """Answers made without computing: name → one answer per case."""
    nulls: dict[str, list[Any]] = {"zeros": [map_tensors(c.expected, torch.zeros_like) for c in cases]}
    single = all(t.numel() <= 1 for t in tensors(cases[0].expected))
    if not single:
        nulls["the mean"] = [map_tensors(c.expected, _constant_mean) for c in cases]
    if len(cases) > 1:
        nulls["the answer to other inputs"] = [cases[i - 1].expected for i in range(len(cases))]
    first = [next(iter(tensors(wire.decode(c.tree, wire.copies(c.buffers)))), None) for c in cases]
    if all(isinstance(c.expected, torch.Tensor) for c in cases) and first[0] is not None:
        nulls["the input"] = first
    return nulls


def _constant_mean(value: torch.Tensor) -> torch.Tensor:
    if not value.dtype.is_floating_point:
        return value.flatten()[0].expand(value.shape) if value.numel() else value
    finite = value[torch.isfinite(value)]
    return torch.full_like(value, float(finite.double().mean()) if finite.numel() else 0.0)


def _passes(answers: list[Any], cases: list[Case], criterion: Criterion) -> bool:
    return all(difference(a, c.expected, criterion) is None for a, c in zip(answers, cases, strict=True))
