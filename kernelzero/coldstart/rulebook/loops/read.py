"""From a module's source to a program: torch.fx gives the calls, the rules say what each computes.

The module is executed here, in this process: give it modules of our own composer or others that are trusted. It is
traced as it is constructed, in training mode, as Keck judges it.
"""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

from kernelzero.coldstart.rulebook.graph import load
from kernelzero.coldstart.rulebook.loops.expr import Buffer
from kernelzero.coldstart.rulebook.loops.rules import tables
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import Program, Value
from kernelzero.coldstart.rulebook.operators import CannotWrite


def read(source: str) -> tuple[Program, Any]:
    """The program of a trusted module, and the module.

    Raises:
        CannotWrite: a call, a type or control flow that has no rule.
    """
    import torch
    from torch.fx import Tracer

    namespace = load(source)
    state = torch.get_rng_state()
    try:
        model = namespace["Model"](*namespace["get_init_inputs"]())
        inputs = namespace["get_inputs"]()
    finally:
        torch.set_rng_state(state)
    try:
        graph = Tracer().trace(model)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotWrite(f"control flow or calls that cannot be traced: {first}") from None
    return _Reader(model, inputs).program(graph), model


class _Reader:
    def __init__(self, model: Any, inputs: list[Any]) -> None:
        self.model, self.examples = model, list(inputs)
        self.scheduler = Scheduler()
        self.values: dict[Any, Any] = {}
        self.parameters: dict[str, Value] = {}
        self.taken: Counter[str] = Counter()

    def program(self, graph: Any) -> Program:
        for node in graph.nodes:
            if node.op == "output":
                return self._finish(node)
            self.values[node] = getattr(self, f"_{node.op}")(node)
            self._settle(node)
        raise CannotWrite("a module without an output")

    def _settle(self, node: Any) -> None:
        """What several others use, and costs something, is computed once."""
        value = self.values[node]
        if isinstance(value, Value) and len(node.users) > 1:
            self.scheduler.twice(value)
            if self.scheduler.is_large(value):
                self.values[node] = self.scheduler.keep(value)

    def _finish(self, node: Any) -> Program:
        found = self._resolved(node.args[0])
        is_tuple = isinstance(found, tuple | list)
        outputs = list(found) if is_tuple else [found]
        if not all(isinstance(v, Value) for v in outputs):
            raise CannotWrite("an output that is no tensor")
        program = self.scheduler.finish(outputs, is_tuple)
        if not program.kernels:
            raise CannotWrite("a module that computes nothing")
        return program

    # --- nodes ---

    def _placeholder(self, node: Any) -> Any:
        import torch

        if not self.examples:
            if node.args:
                return node.args[0]
            raise CannotWrite(f"argument {node.target} of forward has no example")
        example = self.examples.pop(0)
        if not isinstance(example, torch.Tensor):
            return example
        return self.scheduler.leaf(_buffer(self._name(node.target), example))

    def _get_attr(self, node: Any) -> Any:
        value: Any = self.model
        for part in node.target.split("."):
            value = getattr(value, part)
        return self._parameter(node.target, value)

    def _parameter(self, path: str, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        if path not in self.parameters:
            buffer = _buffer(self._name(path.replace(".", "_")), value)
            self.parameters[path] = self.scheduler.leaf(buffer, _access(path))
        return self.parameters[path]

    def _call_function(self, node: Any) -> Any:
        name = getattr(node.target, "__name__", str(node.target))
        return self._apply(name, node)

    def _call_method(self, node: Any) -> Any:
        return self._apply(node.target, node)

    def _apply(self, name: str, node: Any) -> Any:
        args, kwargs = self._resolved(tuple(node.args)), self._resolved(dict(node.kwargs))
        if name == "getattr":
            return _attribute(args[0], args[1])
        if name in _PLAIN and args and isinstance(args[0], Value):
            return _PLAIN[name](args[0], *args[1:], **kwargs)
        if not _has_values((args, kwargs)):
            return (
                node.target(*args, **kwargs) if callable(node.target) else getattr(args[0], name)(*args[1:], **kwargs)
            )
        return self._call(tables()[0].get(name), name, args, kwargs)

    def _call_module(self, node: Any) -> Any:
        module = self.model.get_submodule(node.target)
        name = type(module).__name__
        rule = tables()[1].get(name)
        if rule is None:
            raise CannotWrite(f"nn.{name} is not in the rulebook")
        weights = {
            key: self._parameter(f"{node.target}.{key}", value)
            for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        }
        args, kwargs = self._resolved(tuple(node.args)), self._resolved(dict(node.kwargs))
        return self._call(rule, f"nn.{name}", (module, weights, *args), kwargs)

    def _call(self, rule: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if rule is None:
            raise CannotWrite(f"{name} is not in the rulebook")
        try:
            inspect.signature(rule).bind(self.scheduler, *args, **kwargs)
        except TypeError as error:
            raise CannotWrite(f"{name} with such arguments is not in the rulebook ({error})") from None
        return rule(self.scheduler, *args, **kwargs)

    def _resolved(self, value: Any) -> Any:
        from torch.fx.node import Node

        if isinstance(value, Node):
            return self.values[value]
        if isinstance(value, tuple | list):
            return type(value)(self._resolved(v) for v in value)
        if isinstance(value, slice):
            return slice(self._resolved(value.start), self._resolved(value.stop), self._resolved(value.step))
        if isinstance(value, dict):
            return {k: self._resolved(v) for k, v in value.items()}
        return value

    def _name(self, wanted: str) -> str:
        """A name for a buffer: the module's own, with a number where it is taken."""
        name = wanted.lstrip("_") or "x"
        self.taken[name] += 1
        return name if self.taken[name] == 1 else f"{name}_{self.taken[name]}"


def _buffer(name: str, value: Any) -> Buffer:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise CannotWrite(f"{name} of dtype {dtype}")
    return Buffer(name, tuple(value.shape), dtype)


_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "bool")


def _access(path: str) -> str:
    """Python for a parameter inside of `forward`: numbers in a path are indices of containers."""
    text = "self"
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def _has_values(value: Any) -> bool:
    if isinstance(value, Value):
        return True
    if isinstance(value, tuple | list):
        return any(map(_has_values, value))
    return isinstance(value, dict) and any(map(_has_values, value.values()))


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, Value):
        return getattr(value, name)
    if name == "shape":
        return value.shape
    if name in ("dtype", "device", "ndim"):
        import torch

        return {"dtype": getattr(torch, value.dtype), "device": "cuda", "ndim": len(value.shape)}[name]
    raise CannotWrite(f"Tensor.{name} is not in the rulebook")


def _size(value: Value, dim: int | None = None) -> Any:
    return value.shape if dim is None else value.shape[dim]


def _numel(value: Value) -> int:
    count = 1
    for extent in value.shape:
        count *= extent
    return count


_PLAIN = {"size": _size, "dim": lambda v: len(v.shape), "ndimension": lambda v: len(v.shape), "numel": _numel,
          "is_contiguous": lambda v: True, "len": lambda v: v.shape[0]}  # fmt: skip
