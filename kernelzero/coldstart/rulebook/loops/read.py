"""From a module's source to a program: the calls that its `forward` makes, and what the rules say each computes.

The module runs once, in training mode, as Keck judges it, on tensors without values: shapes are real, so Python's own
control flow on them is followed, and whoever asks for a value is refused. It is executed in this process: give it
modules of our own composer or others that are trusted.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from kernelzero.coldstart.rulebook.graph import load
from kernelzero.coldstart.rulebook.loops.expr import Buffer
from kernelzero.coldstart.rulebook.loops.rules import table
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Program, Value
from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.keck.values import tensors

_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "bool")
_ON_THE_WAY = ("float64",)
"""Dtypes that a value may have on the way to another: kernels compute in 32 bits."""


def read(source: str) -> tuple[Program, Any]:
    """The program of a trusted module, and the module.

    Raises:
        CannotWrite: a call, a type or control flow that has no rule.
    """
    import torch

    namespace = load(source)
    state = torch.get_rng_state()
    try:
        model = namespace["Model"](*namespace["get_init_inputs"]())
        inputs = namespace["get_inputs"]()
    finally:
        torch.set_rng_state(state)
    reader = _Reader(model, inputs)
    return reader.program(), model


class _Reader:
    """Runs `forward` and keeps a value for each tensor that comes by."""

    def __init__(self, model: Any, inputs: list[Any]) -> None:
        import copy

        self.scheduler = Scheduler()
        self.model = copy.deepcopy(model).to("meta")
        self.inputs = [_without_values(value) for value in inputs]
        self.taken: Counter[str] = Counter()
        self.known: dict[int, Value] = {}
        """id of a tensor → its value."""
        self.kept: list[Any] = []
        """Tensors, so that no id is given twice."""
        self.uses: Counter[int] = Counter()
        self.paths = {
            id(tensor): path for path, tensor in (*self.model.named_parameters(), *self.model.named_buffers())
        }

    def program(self) -> Program:
        import torch

        names = list(inspect.signature(self.model.forward).parameters)
        for name, value in zip(names, self.inputs, strict=False):
            if isinstance(value, torch.Tensor):
                self._know(value, self.scheduler.leaf(self._buffer(name, value)))
        self._count_uses()
        output = self._run(self._call)
        found = self._values(output)
        is_tuple = isinstance(found, tuple | list)
        outputs = list(found) if is_tuple else [found]
        if not all(isinstance(v, Value) for v in outputs):
            raise CannotWrite("an output that is no tensor")
        program = self.scheduler.finish(outputs, is_tuple)
        if not program.kernels:
            raise CannotWrite("a module that computes nothing")
        return program

    def _run(self, see: Any) -> Any:
        import torch
        from torch.overrides import TorchFunctionMode

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return see(func, args, kwargs or {})

        with torch.no_grad(), torch.device("meta"), Watch():
            try:
                return self.model(*self.inputs)
            except CannotWrite:
                raise
            except Exception as error:
                first = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise CannotWrite(f"a forward that cannot be followed without values: {first[:200]}") from None

    def _count_uses(self) -> None:
        """How often each result is used: results come in the same order in every run."""
        numbers: dict[int, int] = {}
        kept = []

        def see(func: Any, args: Any, kwargs: Any) -> Any:
            out = _called(func, args, kwargs)
            for tensor in tensors((args, kwargs)):
                if id(tensor) in numbers and _computes(func):
                    self.uses[numbers[id(tensor)]] += 1
            for tensor in tensors(out):
                numbers.setdefault(id(tensor), len(numbers))
                kept.append(tensor)
            return out

        output = self._run(see)
        for tensor in tensors(output):
            if id(tensor) in numbers:
                self.uses[numbers[id(tensor)]] += 1
        self._numbers: dict[int, int] = {}

    # --- one call ---

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = _name_of(func)
        out = _called(func, args, kwargs)
        if not _computes(func) or not tensors(out):
            return out
        rule = table().get(name)
        if rule is None:
            raise CannotWrite(f"{name} is not in the rulebook")
        given, named = self._values(tuple(args)), self._values(dict(kwargs))
        named = {key: value for key, value in named.items() if key not in ("device", "layout", "pin_memory")}
        try:
            inspect.signature(rule).bind(self.scheduler, *given, **named)
        except TypeError as error:
            raise CannotWrite(f"{name} with such arguments is not in the rulebook ({error})") from None
        value = rule(self.scheduler, *given, **named)
        self._pair(out, value, name)
        return out

    def _pair(self, out: Any, value: Any, name: str) -> None:
        import torch

        if isinstance(out, torch.Tensor):
            if value is self.known.get(id(out)):
                return  # the same tensor, as .contiguous() gives it
            if not isinstance(value, Value) or tuple(out.shape) != value.shape:
                raise CannotWrite(f"{name} in this form is not in the rulebook")
            if any(out is given for given in self.inputs):
                raise CannotWrite(f"{name}, which changes an input,")
            value = self._dtyped(value, out)
            self._know(out, value)
            self._settle(out, value)
        elif isinstance(out, tuple | list) and isinstance(value, tuple | list) and len(out) == len(value):
            for one, its in zip(out, value, strict=True):
                self._pair(one, its, name)
        else:
            raise CannotWrite(f"{name} in this form is not in the rulebook")

    def _dtyped(self, value: Value, out: Any) -> Value:
        from kernelzero.coldstart.rulebook.loops.rules_layout import cast

        dtype = str(out.dtype).removeprefix("torch.")
        if dtype not in _DTYPES + _ON_THE_WAY:
            raise CannotWrite(f"values of dtype {dtype}")
        return cast(self.scheduler, value, dtype)

    def _settle(self, tensor: Any, value: Value) -> None:
        """What several others use, and costs something, is computed once."""
        number = self._numbers.setdefault(id(tensor), len(self._numbers))
        if self.uses[number] > 1:
            self.scheduler.twice(value)
            if self.scheduler.is_large(value):
                self.known[id(tensor)] = self.scheduler.keep(value)

    # --- tensors and values ---

    def _know(self, tensor: Any, value: Value) -> None:
        self.known[id(tensor)] = value
        self.kept.append(tensor)

    def _values(self, given: Any) -> Any:
        import torch

        if isinstance(given, torch.Tensor):
            if id(given) not in self.known:
                self._know(given, self._parameter(given))
            return self.known[id(given)]
        if isinstance(given, torch.Size):
            return tuple(given)
        if isinstance(given, tuple) and hasattr(given, "_fields"):
            return tuple(self._values(v) for v in given)
        if isinstance(given, tuple | list):
            return type(given)(self._values(v) for v in given)
        if isinstance(given, dict):
            return {k: self._values(v) for k, v in given.items()}
        return given

    def _parameter(self, tensor: Any) -> Value:
        path = self.paths.get(id(tensor))
        if path is None:
            raise CannotWrite("a tensor that comes from nowhere")
        return self.scheduler.leaf(self._buffer(path.replace(".", "_"), tensor), _access(path))

    def _buffer(self, wanted: str, value: Any) -> Buffer:
        """A buffer with the module's own name for it, and a number where that is taken."""
        name = wanted.lstrip("_") or "x"
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise CannotWrite(f"{name} of dtype {dtype}")
        self.taken[name] += 1
        unique = name if self.taken[name] == 1 else f"{name}_{self.taken[name]}"
        return Buffer(unique, tuple(value.shape), dtype)


def _without_values(value: Any) -> Any:
    import torch

    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """The call itself; who asks for a value is refused."""
    if _name_of(func) in _READS:
        raise CannotWrite("control flow or numbers that depend on values")
    return _STAND_INS.get(_name_of(func), func)(*args, **kwargs)


def _one_hot(tensor: Any, num_classes: int = -1) -> Any:
    import torch

    if num_classes < 0:
        raise CannotWrite("numbers that depend on values (one_hot without num_classes)")
    return torch.empty((*tensor.shape, num_classes), dtype=torch.int64)


def _gaussian_nll_loss(input: Any, target: Any, var: Any, *_: Any, reduction: str = "mean", **__: Any) -> Any:
    return input + target if reduction == "none" else input.sum()


_STAND_INS = {"one_hot": _one_hot, "gaussian_nll_loss": _gaussian_nll_loss}
"""Shapes of what PyTorch gives only after a look at the values."""

_READS = frozenset(("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "nonzero"))
_QUIET = frozenset(("__get__", "__set__", "size", "dim", "numel", "is_contiguous", "stride", "__len__", "ndimension",
                    "is_floating_point", "element_size", "data_ptr", "storage_offset", "requires_grad_", "get_device",
                    "is_complex", "is_tensor", "__hash__", "set_", "is_grad_enabled"))  # fmt: skip


def _computes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return _name_of(func) in ("T", "mT", "data")
    return name not in _QUIET


_SPELLED = {
    "__add__": "add", "__radd__": "add", "__iadd__": "add", "__sub__": "sub", "__rsub__": "rsub",
    "__isub__": "sub", "__mul__": "mul", "__rmul__": "mul", "__imul__": "mul", "__truediv__": "div",
    "__itruediv__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__div__": "div", "__pow__": "pow",
    "__rpow__": "rpow", "__neg__": "neg", "__matmul__": "matmul", "__rmatmul__": "rmatmul", "__lt__": "lt",
    "__le__": "le", "__gt__": "gt", "__ge__": "ge", "__eq__": "eq", "__ne__": "ne", "__and__": "bitwise_and",
    "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__rand__": "bitwise_and", "__ror__": "bitwise_or",
    "__rxor__": "bitwise_xor", "__iand__": "bitwise_and", "__ior__": "bitwise_or", "__invert__": "bitwise_not",
    "__getitem__": "getitem", "__floordiv__": "floor_divide",
    "__mod__": "remainder", "__abs__": "abs", "data": "detach",
}  # fmt: skip


_TWO_ORDERS = frozenset(("batch_norm", "instance_norm"))
"""Functions of torch and of F that have one name, and their arguments in two orders."""


def _name_of(func: Any) -> str:
    """The name that a rule is registered under."""
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        name = str(getattr(getattr(func, "__self__", None), "__name__", name))
    if name in _TWO_ORDERS and getattr(func, "__module__", None) != "torch.nn.functional":
        return f"torch.{name}"
    return _SPELLED.get(name, name)


def _access(path: str) -> str:
    """Python for a parameter inside of `forward`: numbers in a path are indices of containers."""
    text = "self"
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text
