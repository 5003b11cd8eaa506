"""Examination of a module that wants to be a task: the gates that need it to run.

Finite, deterministic, without random numbers, leaves its inputs alone, depends on every input, every API of its set
changes the output, bounded in time and memory, no null candidate passes, the output is more than rounding errors. What
changes the output is asked of the weights as constructed too where the task's weights were moved. Whether it calls its
APIs at all is a question about text and is asked elsewhere (proposer/gates.py). A hostile module can lie here and
become a bad task; it gains no kernel a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelzero.keck import wire
from kernelzero.keck.compare import ABSOLUTE, ATOL, scale_of
from kernelzero.keck.limits import Limits
from kernelzero.keck.onboard import (
    FORWARD_SEED,
    INIT_SEED,
    Asker,
    Case,
    Reference,
    TaskRefused,
    answer,
    choose_criterion,
    tensors,
)
from kernelzero.keck.zygote import Zygote

_DRAWS = 3


def examine(
    source: str, apis: list[list[str]], zygote: Zygote, limits: Limits, reference_of: Callable[[str], Reference]
) -> dict[str, Any]:
    """Run all gates.

    Args:
        apis: dotted names that must each change the output, in alternative spellings, e.g. [["torch.nn.ReLU"]].

    Returns:
        "ok", "gate" (the one that refused: "runs", "time", "finite", "deterministic", "mutates",
        "degenerate", "inputs", "apis"), "reason", "work_ms", "launch_bound", and for a valid module "graph": its
        torch.fx graph as nodes, or None where it cannot be traced.
    """
    try:
        reference = reference_of(source)
        _require_telling(reference.null)
        _require_all_finite(reference)
        _require_well_behaved(reference)
        graph = _require_all_matters(source, reference, apis, zygote, limits)
    except TaskRefused as refusal:
        return {"ok": False, "gate": refusal.kind, "reason": refusal.reason, "work_ms": 0.0, "launch_bound": False}
    bound = reference.launch_ms > 0.5 * reference.work_ms
    reason = f"runs in {reference.work_ms:.4f} modelled ms, {reference.launches} launches"
    report = {"ok": True, "gate": "", "reason": reason, "work_ms": reference.work_ms, "launch_bound": bound}
    return {**report, "graph": graph}


def _require_telling(null: str) -> None:
    """A task for training is refused where what `get_inputs` gives can be answered without computing."""
    if null:
        raise TaskRefused("degenerate", f"the task is degenerate: {null} passes as an answer")


def _require_all_finite(reference: Reference) -> None:
    for case in reference.cases:
        for value in tensors(case.expected):
            if value.dtype.is_floating_point and not bool(torch.isfinite(value).all()):
                raise TaskRefused("finite", f"the output has NaN or infinite values ({case.label})")


def _require_well_behaved(reference: Reference) -> None:
    if reference.random:
        # Reseeding inside forward makes its noise look constant.
        raise TaskRefused("deterministic", f"forward draws random numbers ({reference.random[0]})")
    if any(case.mutated for case in reference.cases):
        raise TaskRefused("mutates", "forward changes its inputs")


def _require_all_matters(
    source: str, reference: Reference, apis: list[list[str]], zygote: Zygote, limits: Limits
) -> list[dict[str, Any]] | None:
    """The gates about what changes the output, with the weights as constructed and with those of the task.

    Returns:
        The module's graph, which the same child draws.
    """
    child = zygote.spawn(limits.memory_bytes, limits.cpu_s)
    try:
        ask = Asker(child, time.monotonic() + limits.timeout_s)
        reply, buffers = ask({"op": "load", "entry": "Model", "source": source, "seed": INIT_SEED}, [])
        # Not the near-copy of the first one, which has an eighth of each input redrawn: an input may matter elsewhere.
        cases = [case for case in reference.cases if case.label.startswith("draw")][:_DRAWS]
        if reference.weights_moved:
            state = wire.decode(reply["tree"], buffers)["state"]
            constructed = [answer(ask, c.tree, c.buffers, ABSOLUTE, c.label)[0] for c in cases]
            _require_telling(choose_criterion(constructed)[1])
            _require_effects(ask, source, constructed, state, apis)
            tree, out = wire.encode(reference.state)
            ask({"op": "set_state", "tree": tree}, out)
        _require_effects(ask, source, cases, reference.state, apis)
        return ask({"op": "graph"})[0]["graph"]
    finally:
        child.end()


def _require_effects(
    ask: Asker, source: str, cases: list[Case], state: dict[str, torch.Tensor], apis: list[list[str]]
) -> None:
    """Change one input at a time, all inputs a little, and one API at a time."""
    base = cases[0]
    for index, changed in _one_input_changed(cases):
        if _equal(_given(ask, changed), base.expected):
            raise TaskRefused("inputs", f"the output does not depend on input {index}")
    if _mostly_different(_given(ask, [_nudged(v) for v in _inputs(base)]), base.expected):
        raise TaskRefused("degenerate", "the task is degenerate: its output is made of rounding errors")
    for spellings in apis:
        tree, buffers = wire.encode({"inputs": _inputs(base), "state": state})
        message = {"op": "perturbed", "apis": spellings, "tree": tree, "source": source}
        facts, out = ask({**message, "seed": FORWARD_SEED, "init_seed": INIT_SEED}, buffers)
        if facts.get("tree") is not None and _equal(wire.decode(facts["tree"], out), base.expected):
            raise TaskRefused("apis", f"{spellings[0]} has no effect on the output")


def _inputs(case: Case) -> list[Any]:
    return wire.decode(case.tree, wire.copies(case.buffers))


def _given(ask: Asker, inputs: list[Any]) -> Any:
    tree, buffers = wire.encode(inputs)
    return answer(ask, tree, buffers, ABSOLUTE, "")[0].expected


def _one_input_changed(cases: list[Case]) -> Iterator[tuple[int, list[Any]]]:
    first, second = _inputs(cases[0]), _inputs(cases[1])
    for index, value in enumerate(first):
        if isinstance(value, torch.Tensor) and value.numel() and not torch.equal(value, second[index]):
            yield index, [second[i] if i == index else item for i, item in enumerate(first)]


def _nudged(value: Any) -> Any:
    """Values changed by a few units in the last place; narrow types stay, there a unit is a real change."""
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float64):
        return value
    generator = torch.Generator().manual_seed(INIT_SEED)
    noise = torch.rand(value.shape, generator=generator, dtype=value.dtype) - 0.5
    return value * (1 + 8 * torch.finfo(value.dtype).eps * noise)


def _mostly_different(a: Any, b: Any) -> bool:
    """Whether more than half of some output's values differ by more than a hundredth of its scale."""
    for x, y in zip(tensors(a), tensors(b), strict=False):
        comparable = y.dtype.is_floating_point and x.shape == y.shape and y.numel() > 0
        if comparable and float(((x - y).abs() > ATOL * scale_of(y)).double().mean()) > 0.5:
            return True
    return False


def _equal(a: Any, b: Any) -> bool:
    left, right = tensors(a), tensors(b)
    return len(left) == len(right) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(left, right, strict=True)
    )
