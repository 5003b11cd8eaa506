"""Replay a trace for many programs of a launch at once: every value gets a first dimension, one entry a program.

Most programs of a launch do the same operations on other data, and an operation of the interpreter costs its types and
shapes, not its elements. What a program sees is what it would see alone: values of one program never meet those of
another, and loads and stores are marked program by program, so races are found as before. Left to `trace.py`, program
by program: atomics, whose order tells, descriptors, combining functions of a kernel's own, and programs that take
different ways (a guard that does not hold for all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interp

from kernelzero.keck.words import words

MOST_ELEMENTS = 1 << 18
"""Of one value, all programs together."""
_ELEMENTWISE = {
    f"create_{name}"
    for name in words(
        "fadd fmul fdiv frem fsub fneg mul precise_divf approx_divf sdiv udiv srem urem add sub shl lshr ashr idiv "
        "umulhi minsi minui minimumf minnumf maxsi maxui maximumf maxnumf and xor or clampf select fma fabs cos exp "
        "exp2 iabs floor ceil log log2 precise_sqrt sqrt sin erf rsqrt si_to_fp ui_to_fp fp_to_si fp_to_ui fp_ext "
        "fp_trunc int_cast fp_to_fp bitcast int_to_ptr ptr_to_int addptr split "
        "icmpSLE icmpSLT icmpSGE icmpSGT icmpULE icmpULT icmpUGE icmpUGT icmpEQ icmpNE fcmpOLT fcmpOGT fcmpOLE "
        "fcmpOGE fcmpOEQ fcmpONE fcmpULT fcmpUGT fcmpULE fcmpUGE fcmpUEQ fcmpUNE"
    )
}
"""Operations that numpy's broadcasting does for all programs as it does for one."""


class Unfit(Exception):
    """Not for all programs at once."""


class GuardFailed(Exception):
    """Some program takes another way than the trace."""


Act = Callable[[int], Any]
"""Given the number of programs, the new value of a step's result."""


class Lanes:
    """A trace, prepared for many programs. Made while the trace holds the values of one.

    Raises:
        Unfit: it has steps that cannot be done for all at once.
    """

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._ids: Any = None
        self._steps: list[tuple[Act | None, Any, Any]] = []
        """(act, result, None), or (None, handle, value) for a guard."""
        self.largest = 1
        for (function, args, kwargs, result), name in zip(trace.steps, trace.names, strict=True):
            if function is None:
                self._steps.append((None, args, result))
                continue
            self._steps.append((self._act(name, function, args, kwargs, result), result, None))
            self.largest = max(self.largest, *(h.data.size for h in handles((args, kwargs, result))))

    def run(self, programs: Sequence[tuple[int, int, int]], arguments: dict[str, Any]) -> None:
        """Run all these programs.

        Args:
            programs: their indices in the grid.
            arguments: argument name → handle of every pointer argument.

        Raises:
            GuardFailed: before anything was stored.
        """
        count = len(programs)
        self._ids = np.array(programs, dtype=np.int32)
        for name, handle in arguments.items():
            self._trace.arguments[name].data = np.broadcast_to(handle.data, (count, 1))
        for act, target, value in self._steps:
            if act is None:
                _require(target.data, value, count)
            else:
                _assign(target, act(count))

    # --- what a step does -------------------------------------------------------------------------------------------

    def _act(self, name: str, function: Any, args: Any, kwargs: Any, result: Any) -> Act:
        if name in _ELEMENTWISE:
            self._require_ranks(handles((args[1:], kwargs)))
            return lambda count: function(*args, **kwargs)
        special = getattr(self, "_" + name.removeprefix("create_"), None)
        if special is None or kwargs:
            raise Unfit(name)
        act: Act = special(function, args, result)
        return act

    def _varies(self, handle: Any) -> bool:
        return id(handle) in self._trace.varying

    def _require_ranks(self, operands: list[Any]) -> None:
        """Values of programs have one rank, and what is the same in all of them no larger one."""
        ranks = {h.data.ndim for h in operands if self._varies(h)}
        if len(ranks) != 1 or any(h.data.ndim > max(ranks) for h in operands):
            raise Unfit("operands of different ranks")

    def _wide(self, handle: Any, count: int) -> Any:
        """The handle with an entry for each program."""
        data = handle.data
        if not self._varies(handle):
            data = np.broadcast_to(data, (count, *data.shape))
        return interp.TensorHandle(np.ascontiguousarray(data), handle.dtype)

    def _get_program_id(self, function: Any, args: Any, result: Any) -> Act:
        axis = args[1]
        return lambda count: self._ids[:, axis : axis + 1]

    def _get_num_programs(self, function: Any, args: Any, result: Any) -> Act:
        builder, axis = args
        return lambda count: np.full((count, 1), builder.grid_dim[axis], dtype=np.int32)

    def _splat(self, function: Any, args: Any, result: Any) -> Act:
        _, kind, arg = args
        shape, dtype = tuple(kind.shape), interp._get_np_dtype(arg.dtype)
        ones = (1,) * len(shape)

        def act(count: int) -> Any:
            data = arg.data.reshape(count, -1)[:, :1].reshape(count, *ones).astype(dtype)
            return np.broadcast_to(data, (count, *shape))

        return act

    def _unsplat(self, function: Any, args: Any, result: Any) -> Act:
        arg = args[1]
        return lambda count: arg.data.reshape(count, -1)[:, :1]

    def _broadcast(self, function: Any, args: Any, result: Any) -> Act:
        _, arg, shape = args
        return lambda count: np.broadcast_to(arg.data, (count, *shape))

    def _expand_dims(self, function: Any, args: Any, result: Any) -> Act:
        _, arg, axis = args
        if axis < 0:
            raise Unfit("a dimension counted from the end")
        return lambda count: np.expand_dims(arg.data, axis + 1)

    def _reshape(self, function: Any, args: Any, result: Any) -> Act:
        arg, shape = args[1], tuple(args[2])
        return lambda count: arg.data.reshape(count, *shape)

    def _trans(self, function: Any, args: Any, result: Any) -> Act:
        arg, order = args[1], tuple(args[2])
        return lambda count: np.transpose(arg.data, (0, *(axis + 1 for axis in order)))

    def _cat(self, function: Any, args: Any, result: Any) -> Act:
        _, a, b = args
        return lambda count: np.concatenate([self._wide(a, count).data, self._wide(b, count).data], 1)

    def _join(self, function: Any, args: Any, result: Any) -> Act:
        _, a, b = args
        return lambda count: np.stack([self._wide(a, count).data, self._wide(b, count).data], axis=-1)

    def _gather(self, function: Any, args: Any, result: Any) -> Act:
        _, source, index, axis = args
        return lambda count: np.take_along_axis(self._wide(source, count).data, self._wide(index, count).data, axis + 1)

    def _dot(self, function: Any, args: Any, result: Any) -> Act:
        builder, a, b, d, *rest = args
        return lambda count: function(builder, *(self._wide(h, count) for h in (a, b, d)), *rest)

    def _load(self, function: Any, args: Any, result: Any) -> Act:
        builder, pointers, *rest = args
        return lambda count: function(builder, self._wide(pointers, count), *rest)

    def _store(self, function: Any, args: Any, result: Any) -> Act:
        builder, pointers, value, *rest = args
        self._require_ranks([pointers, value])
        return lambda count: function(builder, *self._alike(pointers, value), *rest)

    def _masked_load(self, function: Any, args: Any, result: Any) -> Act:
        builder, pointers, mask, other, *rest = args
        given = [h for h in (pointers, mask, other) if h is not None]
        self._require_ranks(given)

        def act(count: int) -> Any:
            p, m, *o = self._alike(*given)
            return function(builder, p, m, o[0] if o else None, *rest)

        return act

    def _masked_store(self, function: Any, args: Any, result: Any) -> Act:
        builder, pointers, value, mask, *rest = args
        self._require_ranks([pointers, value, mask])
        return lambda count: function(builder, *self._alike(pointers, value, mask), *rest)

    def _alike(self, *given: Any) -> list[Any]:
        """Handles of one shape, an entry for each program."""
        shape = np.broadcast_shapes(*(h.data.shape for h in given))
        return [interp.TensorHandle(np.ascontiguousarray(np.broadcast_to(h.data, shape)), h.dtype) for h in given]

    def _reduce(self, function: Any, args: Any, result: Any) -> Act:
        ops, given = args
        how = _REDUCTIONS.get(id(ops.combine_fn))
        if how is None or not isinstance(ops, interp.ReduceOps):
            return self._scan(function, args, result)
        data = given[0].handle if isinstance(given, tuple) else given.handle
        if not self._varies(data):
            raise Unfit("a reduction of what is the same everywhere")
        axis, keep, rank = ops.axis, ops.keep_dims, data.data.ndim
        if axis is not None and axis < 0:
            raise Unfit("a dimension counted from the end")
        targets = handles(result)
        if len(targets) != len(how):
            raise Unfit("results of another number")

        def act(count: int) -> Any:
            _counted(data.data.size)
            values = data.data if axis is not None else data.data.reshape(count, -1)
            found = []
            for reduce, target in zip(how, targets, strict=True):
                value = np.asarray(reduce(values, axis=1 if axis is None else axis + 1))
                if keep:
                    value = value.reshape(count, *((1,) * rank)) if axis is None else np.expand_dims(value, axis + 1)
                value = value.reshape(count, 1) if value.ndim == 1 else value
                found.append(value.astype(interp._get_np_dtype(target.dtype)))
            return found

        return act

    def _scan(self, function: Any, args: Any, result: Any) -> Act:
        ops, given = args
        how = _SCANS.get(id(ops.combine_fn)) if isinstance(ops, interp.ScanOps) else None
        targets = handles(result)
        if how is None or len(given) != 1 or len(targets) != 1 or not self._varies(given[0].handle) or ops.axis < 0:
            raise Unfit("a combining function of its own")
        data, axis, reverse = given[0].handle, ops.axis + 1, ops.reverse

        def act(count: int) -> Any:
            _counted(data.data.size)
            values = np.flip(data.data, axis=axis) if reverse else data.data
            found = how(values, axis=axis).astype(interp._get_np_dtype(targets[0].dtype))
            return [np.ascontiguousarray(np.flip(found, axis=axis)) if reverse else found]

        return act


_REDUCTIONS: dict[int, tuple[Any, ...]] = {
    id(tl.standard._sum_combine): (np.sum,),
    id(tl.standard._elementwise_max): (np.nanmax,),
    id(tl.standard._elementwise_min): (np.nanmin,),
    id(tl.standard._argmax_combine_tie_break_left): (np.nanmax, np.nanargmax),
    id(tl.standard._argmax_combine_tie_break_fast): (np.nanmax, np.nanargmax),
    id(tl.standard._argmin_combine_tie_break_left): (np.nanmin, np.nanargmin),
    id(tl.standard._argmin_combine_tie_break_fast): (np.nanmin, np.nanargmin),
}
_SCANS: dict[int, Any] = {id(tl.standard._sum_combine): np.cumsum, id(tl.standard._prod_combine): np.cumprod}
_counted: Callable[[int], None] = lambda size: None  # noqa: E731


def count_with(counted: Callable[[int], None]) -> None:
    """Tell what reductions and scans cost, in elements; other operations count themselves."""
    global _counted
    _counted = counted


def handles(value: Any) -> list[Any]:
    """All tensor handles of a nested structure, in order."""
    if isinstance(value, interp.TensorHandle):
        return [value]
    if isinstance(value, tl.tensor):
        return [value.handle]
    if isinstance(value, tuple | list):
        return [handle for item in value for handle in handles(item)]
    if isinstance(value, dict):
        return [handle for item in value.values() for handle in handles(item)]
    return []


def _assign(result: Any, new: Any) -> None:
    """Arrays in order, or handles, for the handles of a step's result."""
    targets = handles(result)
    if not targets:
        return
    for old, value in zip(targets, new if isinstance(new, list | tuple) else [new], strict=True):
        old.data = value.data if isinstance(value, interp.TensorHandle) else value


def _require(data: Any, value: Any, count: int) -> None:
    data = np.asarray(data).reshape(count, -1)
    if data.shape[1] == 1 and not bool((data == value).all()):
        raise GuardFailed
