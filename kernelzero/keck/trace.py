"""Run a kernel's program once through Triton's interpreter, then replay its numpy operations for the other programs.

The interpreter spends nine tenths of its time on types and shapes that are the same in every program of a launch and
in every launch of the same signature. A trace keeps the builder's operations with their operands; replaying it sets
new argument values and a new program index and runs the operations again, for many programs at once where that can be
(lanes.py). Where Python looked at a value (a branch, a
loop bound) the trace has a guard: if the value differs, the program is interpreted in full. A trace in which a guard
comes after a store cannot be taken back half-way, so it is never replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interp

from kernelzero.keck import lanes

_STORES = ("store", "atomic", "scatter", "print", "assert")
_VARYING = (*_STORES, "program", "load")
MAX_TRACES = 8
"""Traces kept per signature, one for each way that control flow went."""
MAX_STEPS = 20_000


class _GuardFailed(Exception):
    """The program takes another way than the trace."""


@dataclass
class Trace:
    """Operations of one program."""

    arguments: dict[str, Any]
    """Argument name → its handle, whose data is replaced before a replay."""
    steps: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    """(function, positional operands, keyword operands, result); a guard is (None, handle, None, value)."""
    names: list[str] = field(default_factory=list)
    """What the builder calls the operation of each step; "" for a guard."""
    lanes: Any = None
    """The trace for many programs at once, False where there is none."""
    replayable: bool = True
    stored: bool = False
    varying: set[int] = field(default_factory=set)
    """Ids of handles that differ between programs or launches; what depends on none of them is not run again."""
    constants: list[Any] = field(default_factory=list)
    """Keeps the results of steps that are left out alive, so that ids stay unique."""

    def __post_init__(self) -> None:
        self.varying = {id(handle) for handle in self.arguments.values()}

    def guard(self, handle: Any, value: Any) -> None:
        """Python looked at a handle and saw this value."""
        if id(handle) not in self.varying:
            return
        self.replayable &= not self.stored
        self.steps.append((None, handle, None, value))
        self.names.append("")

    def add(self, name: str, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """The builder performed an operation."""
        self.stored |= any(word in name for word in _STORES)
        self.replayable &= len(self.steps) < MAX_STEPS
        if any(word in name for word in _VARYING) or self._depends((args[1:], kwargs)):
            self._mark(result)
            self.steps.append((function, args, kwargs, result))
            self.names.append(name)
        else:
            self.constants.append((args, kwargs, result))

    def _depends(self, value: Any) -> bool:
        if isinstance(value, interp.TensorHandle):
            return id(value) in self.varying
        if isinstance(value, tl.tensor):
            return id(value.handle) in self.varying
        if isinstance(value, tuple | list):
            return any(self._depends(item) for item in value)
        if isinstance(value, dict):
            return any(self._depends(item) for item in value.values())
        return type(value).__name__.endswith("Handle") and self._depends(vars(value))

    def _mark(self, result: Any) -> None:
        if isinstance(result, interp.TensorHandle):
            self.varying.add(id(result))
        elif isinstance(result, tl.tensor):
            self.varying.add(id(result.handle))
        elif isinstance(result, tuple | list):
            for item in result:
                self._mark(item)
        elif type(result).__name__.endswith("Handle"):
            for item in vars(result).values():
                self._mark(item)

    def replay(self) -> None:
        """Run all operations again on what the argument handles hold now.

        Raises:
            _GuardFailed: before anything was stored.
        """
        for function, args, kwargs, result in self.steps:
            if function is None:
                if _value(args) != result:
                    raise _GuardFailed
            else:
                _assign(result, function(*args, **kwargs))


def _assign(old: Any, new: Any) -> None:
    if isinstance(old, interp.TensorHandle):
        old.data = new.data
    elif isinstance(old, tuple | list):
        for a, b in zip(old, new, strict=True):
            _assign(a, b)
    elif isinstance(old, tl.tensor):
        old.handle.data = new.handle.data
    elif old is not None and hasattr(old, "__dict__"):
        old.__dict__.update(new.__dict__)


def _value(handle: Any) -> Any:
    data = np.asarray(handle.data)
    return data.reshape(-1)[0].item() if data.size == 1 else True


class Recorder:
    """Runs programs, tracing the first of each kind."""

    def __init__(self) -> None:
        self.current: Trace | None = None
        self.depth = 0
        self._traces: dict[Any, list[Trace]] = {}

    def run(self, key: Any, function: Any, arguments: dict[str, Any], handles: dict[str, Any] | None) -> None:
        """One program.

        Args:
            key: what makes two launches alike (kernel, signature, constants and numbers).
            function: the interpreted kernel.
            arguments: its arguments, converted.
            handles: argument name → handle of every pointer argument; None where tracing cannot be done.
        """
        if handles is None:
            function(**arguments)
            return
        traces = self._traces.setdefault(key, [])
        if traces and self._replayed(traces, handles):
            return
        if len(traces) >= MAX_TRACES:
            function(**arguments)
            return
        self.current = Trace({name: interp.TensorHandle(h.data, h.dtype) for name, h in handles.items()})
        own = _with_handles(arguments, self.current.arguments)
        try:
            function(**own)
            if self.current.replayable:
                traces.insert(0, self.current)
        finally:
            self.current, self.depth = None, 0

    def at_once(self, key: Any) -> int:
        """How many programs of this kind can be run at once; 0 where there is nothing to go by."""
        traces = self._traces.get(key)
        if not traces:
            return 0
        trace = traces[0]
        if trace.lanes is None:
            try:
                trace.lanes = lanes.Lanes(trace)
            except lanes.Unfit:
                trace.lanes = False
        return max(2, lanes.MOST_ELEMENTS // trace.lanes.largest) if trace.lanes else 0

    def run_at_once(self, key: Any, programs: list[tuple[int, int, int]], handles: dict[str, Any]) -> bool:
        """Whether all these programs were run; if not, nothing was stored."""
        trace = self._traces[key][0]
        try:
            trace.lanes.run(programs, handles)
        except lanes.GuardFailed:
            trace.lanes = False
            return False
        return True

    def _replayed(self, traces: list[Trace], handles: dict[str, Any]) -> bool:
        for position, trace in enumerate(traces):
            for name, handle in handles.items():
                trace.arguments[name].data = handle.data
            try:
                trace.replay()
            except _GuardFailed:
                continue
            if position:
                traces.insert(0, traces.pop(position))
            return True
        return False

    # --- hooks ---

    def operation(self, name: str, original: Any) -> Any:
        """Wrap a method of the interpreter so that its outermost calls are recorded."""

        def recorded(*args: Any, **kwargs: Any) -> Any:
            trace = self.current
            if trace is None or self.depth:
                return original(*args, **kwargs)
            self.depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self.depth -= 1
            trace.add(name, original, args, kwargs, result)
            return result

        return recorded

    def looked_at(self, handle: Any) -> Any:
        """The value of a handle that Python needs now, guarded."""
        value = _value(handle)
        if self.current is not None and self.depth == 0:
            self.current.guard(handle, value)
        return value


def _with_handles(arguments: dict[str, Any], handles: dict[str, Any]) -> dict[str, Any]:
    return {name: tl.tensor(handles[name], a.type) if name in handles else a for name, a in arguments.items()}


def handles_of(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Handles of the pointer arguments, None where an argument is of a kind that a trace cannot replace.

    Numbers are not among them: they belong to the key, so that what depends on them alone is computed once.
    """
    found = {}
    for name, value in arguments.items():
        if isinstance(value, tl.tensor):
            if value.type.is_ptr():
                found[name] = value.handle
        elif isinstance(value, tuple) or type(value).__name__.endswith(("Descriptor", "descriptor")):
            return None
    return found


RECORDER = Recorder()


def install() -> None:
    """Record the builder's operations, reductions and scans. The interpreter's other hooks must be there already."""
    builder = interp.InterpreterBuilder
    for name in [n for n in dir(builder) if n.startswith("create_")]:
        setattr(builder, name, RECORDER.operation(name, getattr(builder, name)))
    for owner in (interp.ReduceOps, interp.ScanOps):
        owner.apply_impl = RECORDER.operation("reduce", owner.apply_impl)
