"""Examination of a module that wants to be a task: the gates that need it to run.

Finite, deterministic, depends on every input, every API of its set changes the output, bounded in time and memory,
no null candidate passes. Whether it calls its APIs at all is a question about text and is asked elsewhere
(proposer/gates.py). A hostile module can lie here and become a bad task; it gains no kernel a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from kernelzero.keck import wire
from kernelzero.keck.limits import Limits
from kernelzero.keck.onboard import FORWARD_SEED, INIT_SEED, Asker, Reference, TaskRefused, tensors
from kernelzero.keck.zygote import Zygote


def examine(
    source: str, apis: list[list[str]], zygote: Zygote, limits: Limits, reference_of: Callable[[str], Reference]
) -> dict[str, Any]:
    """Run all gates.

    Args:
        apis: dotted names that must each change the output, in alternative spellings, e.g. [["torch.nn.ReLU"]].

    Returns:
        "ok", "gate" (the one that refused: "runs", "time", "finite", "deterministic", "degenerate", "inputs",
        "apis"), "reason", "work_ms", "launch_bound".
    """
    try:
        reference = reference_of(source)
        _require_all_finite(reference)
        _require_inputs_matter(source, reference, apis, zygote, limits)
    except TaskRefused as refusal:
        return {"ok": False, "gate": refusal.kind, "reason": refusal.reason, "work_ms": 0.0, "launch_bound": False}
    bound = reference.launch_ms > 0.5 * reference.work_ms
    reason = f"runs in {reference.work_ms:.4f} modelled ms, {reference.launches} launches"
    return {"ok": True, "gate": "", "reason": reason, "work_ms": reference.work_ms, "launch_bound": bound}


def _require_all_finite(reference: Reference) -> None:
    for case in reference.cases:
        for value in tensors(case.expected):
            if value.dtype.is_floating_point and not bool(torch.isfinite(value).all()):
                raise TaskRefused("finite", f"the output has NaN or infinite values ({case.label})")


def _require_inputs_matter(
    source: str, reference: Reference, apis: list[list[str]], zygote: Zygote, limits: Limits
) -> None:
    """Change one input at a time, then one API at a time; the output has to change with each."""
    child = zygote.spawn(limits.memory_bytes, limits.cpu_s)
    deadline = time.monotonic() + limits.timeout_s
    try:
        ask = Asker(child, deadline)
        state = wire.encode(reference.state)
        ask({"op": "load", "entry": "Model", "source": source, "seed": INIT_SEED}, [])
        ask({"op": "set_state", "tree": state[0]}, state[1])
        base = reference.cases[0]
        for index, changed in _one_input_changed(reference):
            tree, buffers = wire.encode(changed)
            facts, out = ask({"op": "call", "tree": tree, "seed": FORWARD_SEED}, buffers)
            if _equal(wire.decode(facts["tree"], out), base.expected):
                raise TaskRefused("inputs", f"the output does not depend on input {index}")
        for spellings in apis:
            inputs = wire.decode(base.tree, [bytearray(b) for b in base.buffers])
            tree, buffers = wire.encode({"inputs": inputs, "state": reference.state})
            message = {"op": "perturbed", "apis": spellings, "tree": tree, "source": source}
            facts, out = ask({**message, "seed": FORWARD_SEED, "init_seed": INIT_SEED}, buffers)
            if facts.get("tree") is not None and _equal(wire.decode(facts["tree"], out), base.expected):
                raise TaskRefused("apis", f"{spellings[0]} has no effect on the output")
    finally:
        child.end()


def _one_input_changed(reference: Reference) -> Any:
    first, second = (wire.decode(c.tree, [bytearray(b) for b in c.buffers]) for c in reference.cases[:2])
    for index, value in enumerate(first):
        if isinstance(value, torch.Tensor) and value.numel() and not torch.equal(value, second[index]):
            yield index, [second[i] if i == index else item for i, item in enumerate(first)]


def _equal(a: Any, b: Any) -> bool:
    left, right = tensors(a), tensors(b)
    return len(left) == len(right) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(left, right, strict=True)
    )
