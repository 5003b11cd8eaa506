"""Triton kernels on a CPU: every launch is compiled by Triton's real front end, then run by its interpreter, watched.

What is checked beyond the numbers: the kernel is Triton that a GPU build would accept (the front end turns it into
TTIR for the target), every access lies inside a tensor that was passed, no program reads what another program of the
same launch writes, and nothing runs that the interpreter gets wrong (bf16 arithmetic, libdevice, inline assembly).
What is not: registers, shared memory, numerical modes of tensor cores, races inside one program.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import inspect
import itertools
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interp
import triton.runtime.jit as jit
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend

from kernelzero.keck import cost, lanes, produced, trace
from kernelzero.keck.ledger import ACTIVE, CompileFault, KernelFault

TARGET = GPUTarget("cuda", 90, 32)
"""The GPU that kernels are compiled for by the front end (Hopper)."""

_TRANSCENDENTAL = (np.exp, np.exp2, np.log, np.log2, np.sin, np.cos, np.sqrt, np.divide, np.fmod)
_MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass
class _Region:
    """One storage that a launch may touch."""

    start: int
    end: int
    loaded: dict[int, np.ndarray] = field(default_factory=dict)
    """Item size in bytes → program that loaded each element last, −1 for none."""
    stored: dict[int, np.ndarray] = field(default_factory=dict)

    def _marks(self, table: dict[int, np.ndarray], itemsize: int) -> np.ndarray:
        if itemsize not in table:
            table[itemsize] = np.full((self.end - self.start) // itemsize, -1, dtype=np.int32)
        return table[itemsize]

    def load(self, index: np.ndarray, itemsize: int, program: Any, check: bool) -> bool:
        """Mark a load; True when it reads what another program stored."""
        self._marks(self.loaded, itemsize)[index] = program
        if not check or itemsize not in self.stored:
            return False
        writer = self.stored[itemsize][index]
        return bool(((writer != -1) & (writer != program)).any())

    def store(self, index: np.ndarray, itemsize: int, program: Any, check: bool) -> bool:
        """Mark a store; True when it overwrites what another program loaded."""
        self._marks(self.stored, itemsize)[index] = program
        if not check or itemsize not in self.loaded:
            return False
        reader = self.loaded[itemsize][index]
        return bool(((reader != -1) & (reader != program)).any())

    def moved_bytes(self) -> int:
        """Bytes loaded or stored, each once for loads and once for stores."""
        return sum(
            int((marks != -1).sum()) * size for table in (self.loaded, self.stored) for size, marks in table.items()
        )


@dataclass
class _Launch:
    """One launch in progress."""

    kernel: str
    regions: list[_Region]
    program: int = 0
    lanes: np.ndarray | None = None
    """Numbers of the programs that run at once, one for each entry of the first dimension; None: one program runs."""
    vector_ops: float = 0.0
    matrix_ops: float = 0.0
    atomics: bool = False

    def region_of(self, low: int, high: int, what: str) -> _Region:
        for region in self.regions:
            if region.start <= low and high <= region.end:
                return region
        raise ACTIVE.fault(f"kernel {self.kernel} {what} outside of the tensors it was given")

    def access(self, pointers: Any, mask: Any, is_store: bool) -> None:
        """Check and count one masked load or store."""
        itemsize = interp._get_np_dtype(pointers.get_element_ty()).itemsize
        shape = np.broadcast(pointers.data, mask.data).shape
        chosen = np.broadcast_to(mask.data, shape)
        addresses = np.broadcast_to(pointers.data, shape)[chosen]
        if addresses.size == 0:
            return
        if self.lanes is None:
            return self._access(addresses, self.program, itemsize, is_store)
        programs = np.broadcast_to(self.lanes.reshape(-1, *(1,) * (len(shape) - 1)), shape)[chosen]
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        if any(region.start <= low and high <= region.end for region in self.regions):
            return self._access(addresses, programs, itemsize, is_store)
        for program in self.lanes:  # their tensors may be different ones
            mine = programs == program
            if mine.any():
                self._access(addresses[mine], int(program), itemsize, is_store)

    def _access(self, addresses: Any, program: Any, itemsize: int, is_store: bool) -> None:
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        region = self.region_of(low, high, "stores" if is_store else "loads")
        index = ((addresses - np.uint64(region.start)) // np.uint64(itemsize)).astype(np.int64)
        act = region.store if is_store else region.load
        if act(index, itemsize, program, check=not self.atomics):
            raise ACTIVE.fault(f"race in kernel {self.kernel}: two programs of one launch read and write one element")


_launch: _Launch | None = None


class KeckKernel(jit.JITFunction):
    """What `@triton.jit` makes in a child: compiled by the front end, run by the interpreter, recorded."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        _check_names(self.fn.__code__)
        _made[id(self)] = (self, _facts(self))

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """Launch over `grid`; arguments as Triton takes them."""
        if warmup:
            return
        _require_intact(self)
        # From here on no code of the candidate runs but its grid: `_bind` lets only plain values through.
        bound, options = _bind(self, args, kwargs)
        grid = _normalise_grid(grid, bound, self.fn.__name__)
        with torch._C.DisableTorchFunction():
            key = _check_front_end(self, bound, options)
        if not ACTIVE.blank:
            _interpret(self, bound, grid, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call from inside another kernel."""
        return _call_device_function(self, *args, **kwargs)


_made: dict[int, Any] = {}
"""Id of every kernel → itself and what it consisted of when it was made."""


def _facts(kernel: KeckKernel) -> tuple[Any, ...]:
    return kernel.fn, kernel.fn.__code__, kernel.fn.__defaults__, kernel.src


def _require_intact(kernel: Any) -> None:
    """What is interpreted has to be what the front end saw."""
    made = _made.get(id(kernel))
    if type(kernel) is not KeckKernel or made is None:
        raise ACTIVE.violate("a kernel is an object of the candidate's own class")
    if not all(a is b for a, b in zip(made[1], _facts(kernel), strict=True)):
        raise ACTIVE.violate("a kernel was changed after it was made")


def _check_names(code: types.CodeType) -> None:
    """The front end skips branches that it finds constant; a name there must not lead out of Triton either."""
    for name in code.co_names:
        if name in ("handle", "runtime", "interpreter", "interpreter_semantic") or name.startswith("__"):
            raise ACTIVE.violate(f"kernel {code.co_name} uses .{name}, which is no Triton")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _check_names(constant)


def _call_device_function(function: jit.JITFunction, *args: Any, **kwargs: Any) -> Any:
    if _launch is None:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
    return _rewritten(function)(*args, **kwargs)


_rewritten_cache: dict[Any, Any] = {}


def _rewritten(function: jit.JITFunction) -> Any:
    ours = id(function) in _KNOWN
    if not ours:
        _require_intact(function)
    if function.fn not in _rewritten_cache:
        raw = interp.InterpretedFunction(function.fn).rewrite()
        if ours:
            names = {name: _interpreted(value) for name, value in raw.__globals__.items()}
        else:
            used = _used_names(raw.__code__)
            names = {name: _interpreted_global(name, raw.__globals__[name]) for name in used & raw.__globals__.keys()}
            names["__builtins__"] = _KERNEL_BUILTINS
            for default in raw.__defaults__ or ():
                plain_value(default)
        own = types.FunctionType(raw.__code__, names, raw.__name__, raw.__defaults__, raw.__closure__)
        own.__kwdefaults__ = raw.__kwdefaults__
        _rewritten_cache[function.fn] = own
    return _rewritten_cache[function.fn]


def _used_names(code: types.CodeType) -> set[str]:
    """Names that the code takes from its module; co_names alone has attributes too."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_used_names(c) for c in inner))


_KERNEL_BUILTINS = {
    name: getattr(builtins, name)
    for name in ("range", "len", "min", "max", "int", "float", "bool", "abs", "isinstance", "tuple", "list", "str")
} | {"print": lambda *_, **__: None, "AssertionError": AssertionError}
"""What Python's own names mean inside a kernel. Printing is silent: whoever catches the text has the data."""
_KNOWN: dict[int, Any] = {}
"""Id → object, for everything that Triton's language consists of."""


def _learn_language() -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("triton.language"):
            _KNOWN.update((id(value), value) for value in vars(module).values())


def _interpreted_global(name: str, value: Any) -> Any:
    """What a name of the candidate's kernel means to the interpreter; only Triton and plain values mean anything."""
    if inspect.ismodule(value):
        return _interpreted(value) if value.__name__.partition(".")[0] == "triton" else _NumbersOf(value)
    if id(value) in _KNOWN or type(value) is KeckKernel:
        return _interpreted(value)
    if type(value) is getattr(jit, "ConstexprFunction", None):
        return lambda *a, **k: value(*(_not_a_block(x) for x in a), **{n: _not_a_block(x) for n, x in k.items()})
    return plain_value(value)


def _not_a_block(value: Any) -> Any:
    if isinstance(value, tl.core.base_value) and not isinstance(value, tl.constexpr):
        raise ACTIVE.violate("a constexpr function is given the values of a kernel")
    return value


def _interpreted(value: Any) -> Any:
    """Builtins that were imported by name get the interpreter's semantic; device libraries are not there."""
    module = getattr(value, "__name__" if inspect.ismodule(value) else "__module__", None) or ""
    if module.startswith("triton.language.extra"):
        return _DeviceOnly(module)
    if inspect.isfunction(value) and tl.core.is_builtin(value):
        return lambda *a, **k: value(
            *a, **{n: v for n, v in k.items() if n != "_semantic"}, _semantic=interp.interpreter_semantic
        )
    return value


class _NumbersOf:
    """A module inside a kernel: numbers such as `math.pi`, no functions."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return plain_value(getattr(self._module, name))


_PLAIN = (bool, int, float, str, type(None), torch.dtype, tl.dtype, tl.pointer_type, tl.block_type)


def plain_value(value: Any) -> Any:
    """The value, if nothing of the candidate's own can run when Triton looks at it.

    Raises:
        Unsupported: for any other value.
    """
    kind = type(value)
    if kind in _PLAIN or kind is KeckKernel or id(value) in _KNOWN or value is interp.interpreter_semantic:
        return value
    if kind is tl.constexpr:
        return tl.constexpr(plain_value(value.value))
    if kind in (tuple, list):
        return kind(plain_value(item) for item in value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise ACTIVE.cannot(f"a kernel is given a value of type {kind.__name__}, which cannot be followed here")


def _plain_argument(value: Any) -> Any:
    """Like `plain_value`, for an argument of a launch: tensors and descriptors of tensors too."""
    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return value
    if kind in (tuple, list):
        return kind(_plain_argument(item) for item in value)
    if kind in _descriptor_types() and type(value.base) in (torch.Tensor, torch.nn.Parameter):
        return value
    return plain_value(value)


@functools.cache
def _descriptor_types() -> tuple[type, ...]:
    found: list[type] = [jit.TensorWrapper]
    with contextlib.suppress(ImportError):
        from triton.tools.tensor_descriptor import TensorDescriptor

        found.append(TensorDescriptor)
    return tuple(found)


class _DeviceOnly:
    """Stands for libdevice and its like, in whatever spelling: only a GPU has them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return self if name.islower() and name in ("cuda", "hip", "libdevice") else self()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ACTIVE.cannot("Triton's interpreter has no libdevice functions or other device code")


def _bind(kernel: KeckKernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments by name, and the compile options among the keyword arguments."""
    names = set(inspect.signature(kernel.fn).parameters)
    options = {key: value for key, value in kwargs.items() if key not in names}
    unknown = set(options) - _option_names()
    if unknown:
        raise KeyError(f"kernel {kernel.fn.__name__} has no argument {sorted(unknown)[0]!r}")
    bound = inspect.signature(kernel.fn).bind(*args, **{k: v for k, v in kwargs.items() if k in names})
    bound.apply_defaults()
    return {name: _plain_argument(value) for name, value in bound.arguments.items()}, options


def _option_names() -> set[str]:
    options = make_backend(TARGET).parse_options({})
    return set(options.__dict__) | {"grid", "warmup", "stream", "device", "device_type"}


def _normalise_grid(grid: Any, bound: dict[str, Any], name: str) -> tuple[int, int, int]:
    grid = grid(bound) if callable(grid) else grid
    grid = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(grid) <= 3:
        raise ValueError(f"the grid of kernel {name} has {len(grid)} dimensions")
    grid = tuple(int(size) for size in grid) + (1,) * (3 - len(grid))
    if any(size < 0 or size > limit for size, limit in zip(grid, _MAX_GRID, strict=True)):
        raise ACTIVE.fault(f"the grid {grid} of kernel {name} is larger than a GPU takes")
    return grid  # type: ignore[return-value]


# --- the front end ---------------------------------------------------------------------------------------------------

_checked: set[Any] = set()


def _check_front_end(kernel: KeckKernel, bound: dict[str, Any], options: dict[str, Any]) -> Any:
    """Compile the kernel to TTIR for `TARGET` as a GPU build would, once per signature; gives a key for it."""
    signature, constants = _signature(kernel, bound)
    key = (kernel, tuple(signature.items()), tuple((k, repr(v)) for k, v in constants.items()))
    if key in _checked:
        return key
    _unpatch()
    try:
        compile_to_ttir(kernel, signature, constants, options)
    except Exception as error:
        raise ACTIVE.compile_fault(f"kernel {kernel.fn.__name__}: {front_end_message(error)}") from None
    _checked.add(key)
    return key


def compile_to_ttir(kernel: Any, signature: dict[str, str], constants: dict[Any, Any], options: dict[str, Any]) -> Any:
    """Triton's own front end on one kernel: Python AST to TTIR.

    Args:
        signature: argument name → type, e.g. "*fp32", "i32", "constexpr".
        constants: (argument index,) → value of each constexpr argument.
        options: compile options such as num_warps.
    """
    backend = make_backend(TARGET)
    source = ASTSource(kernel, signature, constants, {})
    parsed = backend.parse_options({**options, **source.parse_options()})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    generators = backend.get_codegen_implementation(parsed)
    return source.make_ir(TARGET, parsed, generators, backend.get_module_map(), context)


def _signature(kernel: KeckKernel, bound: dict[str, Any]) -> tuple[dict[str, str], dict[Any, Any]]:
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    for index, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or value is None or isinstance(value, tl.dtype | jit.JITFunction | tl.constexpr):
            signature[parameter.name] = "constexpr"
            constants[(index,)] = value.value if isinstance(value, tl.constexpr) else value
        else:
            signature[parameter.name] = jit.mangle_type(value)
    return signature, constants


def front_end_message(error: BaseException) -> str:
    """The innermost cause in one line: Triton wraps errors of nested functions in one another."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error) or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip() and set(line.strip()) != {"^"}]
    line = getattr(getattr(error, "node", None), "lineno", None)
    where = f"line {line} of the kernel: " if line else ""
    return where + (lines[-1] if lines else type(error).__name__)[:300]


# --- the interpreter -------------------------------------------------------------------------------------------------


def _interpret(kernel: KeckKernel, bound: dict[str, Any], grid: tuple[int, int, int], key: Any) -> None:
    global _launch
    name = kernel.fn.__name__
    if name not in ACTIVE.kernels:
        ACTIVE.kernels.append(name)
    with torch._C.DisableTorchFunction():
        launch = _Launch(name, _regions(bound.values()))
        constexprs = {p.name for p in kernel.params if p.is_constexpr}
        _patch()
        arguments = {k: v if k in constexprs else interp._implicit_cvt(v) for k, v in bound.items()}
        function = _rewritten(kernel)
    _launch = launch
    try:
        _run_grid(key, function, arguments, grid, launch)
    except (KernelFault, CompileFault):
        raise
    except interp.InterpreterError as error:
        raise error.__cause__ or error from None
    finally:
        _launch = None
    ACTIVE.kernel_launches += 1
    moved = sum(region.moved_bytes() for region in launch.regions)
    ACTIVE.meter.add(name, moved, launch.vector_ops, launch.matrix_ops, grid[0] * grid[1] * grid[2])
    _note_produced(launch)


def _run_grid(key: Any, function: Any, arguments: dict[str, Any], grid: tuple[int, int, int], launch: _Launch) -> None:
    builder = interp.interpreter_builder
    handles = trace.handles_of(arguments)
    numbers = tuple(
        (k, repr(v.handle.data))
        for k, v in arguments.items()
        if handles and isinstance(v, tl.tensor) and k not in handles
    )
    key = (key, numbers)
    builder.set_grid_dim(*grid)
    waiting = _order(function, grid)
    while programs := list(itertools.islice(waiting, max(1, trace.RECORDER.at_once(key)) if handles else 1)):
        if len(programs) > 1 and _ran_at_once(key, programs, handles, launch):
            continue
        for x, y, z in programs:
            builder.set_grid_idx(x, y, z)
            trace.RECORDER.run(key, function, arguments, handles)
            launch.program += 1
    _atomic_launches[function] += launch.atomics


def _ran_at_once(key: Any, programs: list[tuple[int, int, int]], handles: Any, launch: _Launch) -> bool:
    launch.lanes = np.arange(launch.program, launch.program + len(programs), dtype=np.int32)
    try:
        done = trace.RECORDER.run_at_once(key, programs, handles)
    finally:
        launch.lanes = None
    launch.program += len(programs) if done else 0
    return done


_atomic_launches: Counter[Any] = Counter()


def _order(function: Any, grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """The order in which programs run. Races are not looked for where atomics are used: there the order alternates."""
    x, y, z = grid
    if _atomic_launches[function] % 2:
        return itertools.product(range(x - 1, -1, -1), range(y - 1, -1, -1), range(z - 1, -1, -1))
    return itertools.product(range(x), range(y), range(z))


def _regions(values: Any) -> list[_Region]:
    regions: dict[int, _Region] = {}
    for value in values:
        if isinstance(value, tuple | list):
            for region in _regions(value):
                regions.setdefault(region.start, region)
            continue
        value = getattr(value, "base", value) if type(value).__module__.startswith("triton.") else value
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            start = storage.data_ptr()
            regions.setdefault(start, _Region(start, start + storage.nbytes()))
    return list(regions.values())


def _note_produced(launch: _Launch) -> None:
    for region in launch.regions:
        if any((marks != -1).any() for marks in region.stored.values()):
            produced.mark_range(region.start, region.end)


# --- hooks into the interpreter, installed once before any child is forked -------------------------------------------


_swaps: list[tuple[Any, str, Any, Any]] = []
_patched = False
_MISSING = object()


def _patch() -> None:
    """Give `triton.language` its interpreted meaning. Cheap: the list of changes is made once."""
    global _patched
    if not _patched:
        for owner, name, _, new in _swaps:
            setattr(owner, name, new)
        _patched = True


def _unpatch() -> None:
    global _patched
    if _patched:
        for owner, name, old, _ in reversed(_swaps):
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        _patched = False


def _record_swaps() -> None:
    namespace = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    scope = interp._patch_lang(namespace)
    # numpy >= 2.4 refuses to turn an array of one element into an index, which older interpreters rely on.
    # Where Python looks at a value, a trace needs to know.
    scope.set_attr(tl.tensor, "__index__", lambda self: int(trace.RECORDER.looked_at(self.handle)))
    scope.set_attr(tl.tensor, "__bool__", lambda self: bool(trace.RECORDER.looked_at(self.handle)))
    scope.set_attr(tl.tensor, "T", property(lambda self: tl.trans(self)))
    scope.set_attr(tl, "static_print", _KERNEL_BUILTINS["print"])
    scope.set_attr(tl, "extra", _DeviceOnly("triton.language.extra"))
    seen: set[tuple[int, str]] = set()
    for owner, name, old in scope._changes:
        if (id(owner), name) not in seen:
            seen.add((id(owner), name))
            _swaps.append((owner, name, _MISSING if old is getattr(interp, "_MISSING", None) else old, None))
    _swaps[:] = [(owner, name, old, owner.__dict__.get(name, _MISSING)) for owner, name, old, _ in _swaps]
    scope.restore()


def install() -> None:
    """Replace `triton.jit` and watch the interpreter's builder. Called once, in the process that children fork from."""
    _record_swaps()
    _descriptor_types()
    _learn_language()
    jit.JITFunction.__call__ = _call_device_function
    triton.jit = jit.jit = _keck_jit
    interp.InterpreterBuilder.create_print = lambda *_, **__: None
    _compare_as_int1()
    _watch_memory()
    _watch_arithmetic()
    _watch_unfaithful()
    interp._get_np_dtype = _numpy_dtype
    trace.install()
    lanes.count_with(_count)
    np.seterr(all="ignore")


_original_np_dtype = interp._get_np_dtype
_np_dtypes: dict[str, Any] = {}


def _numpy_dtype(dtype: Any) -> Any:
    """numpy's dtype for one of Triton's; the interpreter's own function builds a table at every call."""
    if isinstance(dtype, tl.block_type):
        dtype = dtype.element_ty
    if isinstance(dtype, tl.pointer_type):
        return _UINT64
    if dtype.name not in _np_dtypes:
        _np_dtypes[dtype.name] = _original_np_dtype(dtype)
    return _np_dtypes[dtype.name]


_UINT64 = np.dtype(np.uint64)


def _keck_jit(fn: Any = None, **options: Any) -> Any:
    """Stand-in for `triton.jit`."""
    if fn is None:
        return lambda function: KeckKernel(function, **options)
    return KeckKernel(fn, **options)


def _wrap(owner: type, name: str, before: Any) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def _compare_as_int1() -> None:
    """The interpreter's comparisons keep the type of what they compare; a scalar's become numbers when it is spread."""
    for name in [n for n in dir(interp.InterpreterBuilder) if n.startswith(("create_icmp", "create_fcmp"))]:
        original = getattr(interp.InterpreterBuilder, name)

        def compared(self: Any, *args: Any, _original: Any = original) -> Any:
            return interp.TensorHandle(_original(self, *args).data, tl.int1)

        setattr(interp.InterpreterBuilder, name, compared)


def _watch_memory() -> None:
    builder = interp.InterpreterBuilder

    def on_load(_: Any, pointers: Any, mask: Any, *rest: Any, **kw: Any) -> None:
        if _launch is not None:
            _launch.access(pointers, mask, is_store=False)

    def on_store(_: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **kw: Any) -> None:
        if _launch is not None:
            _launch.access(pointers, mask, is_store=True)

    def on_rmw(_: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **kw: Any) -> None:
        if _launch is not None:
            _launch.atomics = True
            _launch.access(pointers, mask, is_store=True)
            _launch.vector_ops += value.data.size

    def on_cas(_: Any, pointers: Any, *rest: Any, **kw: Any) -> None:
        if _launch is not None:
            _launch.atomics = True
            everywhere = interp.TensorHandle(np.ones_like(pointers.data, dtype=bool), tl.int1)
            _launch.access(pointers, everywhere, is_store=True)

    _wrap(builder, "create_masked_load", on_load)
    _wrap(builder, "create_masked_store", on_store)
    _wrap(builder, "create_atomic_rmw", on_rmw)
    _wrap(builder, "create_atomic_cas", on_cas)


def _count(size: int, weight: int = 1) -> None:
    if _launch is not None:
        _launch.vector_ops += size * weight


def _watch_arithmetic() -> None:
    builder = interp.InterpreterBuilder

    def on_binary(_: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        if lhs.dtype.scalar.is_floating():
            _refuse_bf16(lhs.dtype, operation)
            _count(max(lhs.data.size, rhs.data.size), _weight(operation))

    def on_unary(_: Any, argument: Any, operation: Any) -> None:
        _refuse_bf16(argument.dtype, operation)
        _count(argument.data.size, _weight(operation))

    def on_erf(_: Any, argument: Any) -> None:
        _refuse_bf16(argument.dtype, None)
        _count(argument.data.size, cost.TRANSCENDENTAL_OPS)

    def on_dot(_: Any, a: Any, b: Any, *rest: Any, **kw: Any) -> None:
        for operand in (a, b):
            if operand.dtype.scalar == tl.bfloat16 or operand.dtype.scalar.is_fp8():
                raise ACTIVE.cannot(f"Triton's interpreter computes tl.dot on {operand.dtype.scalar} wrongly")
        if _launch is not None:
            _launch.matrix_ops += 2.0 * a.data.size * b.data.shape[-1]

    def on_reduce(_: Any, arguments: Any) -> None:
        first = arguments[0] if isinstance(arguments, tuple) else arguments
        _count(first.handle.data.size)

    _wrap(builder, "binary_op", on_binary)
    _wrap(builder, "unary_op", on_unary)
    _wrap(builder, "create_erf", on_erf)
    _wrap(builder, "create_rsqrt", on_erf)
    _wrap(builder, "create_dot", on_dot)
    _wrap(interp.ReduceOps, "apply_impl", on_reduce)
    _wrap(interp.ScanOps, "apply_impl", on_reduce)


def _weight(operation: Any) -> int:
    return cost.TRANSCENDENTAL_OPS if operation in _TRANSCENDENTAL else 1


def _refuse_bf16(dtype: Any, operation: Any) -> None:
    # bf16 lives as raw 16-bit integers in the interpreter, so arithmetic on it is arithmetic on bit patterns.
    if dtype.scalar == tl.bfloat16:
        raise ACTIVE.cannot("Triton's interpreter does bfloat16 arithmetic on bit patterns; cast to float32 first")


def _watch_unfaithful() -> None:
    builder = interp.InterpreterBuilder

    def refuse(what: str) -> Any:
        def act(*_: Any, **__: Any) -> None:
            raise ACTIVE.cannot(f"Triton's interpreter has no {what}")

        return act

    _wrap(builder, "create_extern_elementwise", refuse("libdevice functions"))
    _wrap(builder, "create_inline_asm", refuse("inline assembly"))
    _wrap(builder, "create_dot_scaled", refuse("faithful scaled dot products"))

    def on_cast(_: Any, source: Any, target: Any, *rest: Any, **kw: Any) -> None:
        wide, narrow = source.dtype.scalar, target.scalar
        if wide.is_floating() and narrow.is_floating() and wide.primitive_bitwidth >= 32 > narrow.primitive_bitwidth:
            ACTIVE.narrowed(f"kernel casts {wide} to {narrow}")

    _wrap(builder, "create_fp_trunc", on_cast)
    _wrap(builder, "create_fp_to_fp", on_cast)
