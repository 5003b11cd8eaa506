"""Text rules on candidates: only what is cheap and certain, on the syntax tree, never on comments or strings.

Two purposes. The candidate must be what was asked for: a class `ModelNew` and, for Triton, a `@triton.jit` kernel. And
its host code must stay within what kernels need, so that the watchers inside its process (guard.py) cannot be taken
down from Python: no way to frames, the garbage collector, other modules' insides, executed strings or patched globals.
Whether PyTorch computes is not decided here but by what runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kernelzero.keck.words import words
from kernelzero.records import Backend, Status

_IMPORTS = words(
    "torch triton math typing typing_extensions functools itertools collections dataclasses enum abc warnings "
    "contextlib copy numbers string operator os sys logging re numpy packaging __future__ types time random "
    "einops cupy pathlib struct textwrap json bisect heapq decimal fractions statistics hashlib pprint cmath "
    "argparse"
)
_NARROW = {
    "os": {"environ", "path", "getenv", "cpu_count"},
    "sys": {"version_info", "platform", "maxsize", "float_info", "version", "stderr"},
    "types": {"SimpleNamespace"},
    "time": {"time", "perf_counter", "perf_counter_ns", "monotonic"},
    "copy": {"copy", "deepcopy"},
    "cupy": words("RawKernel RawModule asarray from_dlpack ndarray cuda int32 int64 uint32 float32 float64 bool_"),
}
_PRIVATE = {"torch.cuda._compile_kernel"}
"""Private names that host code may use all the same."""
_FORBIDDEN_MODULES = (
    "torch.utils._python_dispatch", "torch.overrides", "torch.library", "torch.fx", "torch.jit",
    "torch.multiprocessing", "torch.distributed", "torch.hub", "torch.package", "torch.serialization",
    "torch.compiler", "torch.export", "torch.func", "torch.storage", "torch.utils.data",
    "triton.runtime.interpreter", "triton.knobs", "triton.backends", "triton.compiler", "numpy.ctypeslib",
    "numpy.lib", "numpy.f2py",
)  # fmt: skip
_ATTRIBUTES = words(
    "sys builtins gc inspect ctypes importlib subprocess threading multiprocessing socket pickle _thread "
    "ctypeslib memmap fromfile tofile loadtxt savetxt savez hub package _getframe f_back f_locals f_globals "
    "f_builtins gi_frame cr_frame ag_frame tb_frame tb_next interpreter knobs _C _dynamo _inductor compile "
    "_python_dispatch fork system popen kill overrides storage untyped_storage set_default_dtype "
    "set_default_device set_num_threads set_default_tensor_type set_float32_matmul_precision "
    "use_deterministic_algorithms register_forward_hook register_forward_pre_hook register_module_forward_hook "
    "register_full_backward_hook attrgetter methodcaller Formatter os io posix mmap shutil tempfile weakref "
    "marshal resource fcntl linecache JITFunction to_dlpack apply_ map_ map2_"
)
_CALLS = words("torch.load torch.save numpy.load numpy.save torch.compile torch.set_grad_enabled")
_DEFINABLE = words(
    "__init__ __post_init__ __call__ __len__ __iter__ __next__ __getitem__ __setitem__ __contains__ __repr__ "
    "__str__ __hash__ __eq__ __lt__ __enter__ __exit__ __new__ __setattr__ __getattr__ __all__ __version__ "
    "__slots__ __author__ __name__ __main__ __constants__ __doc__ __add__ __mul__ __iadd__ __bool__ __int__ "
    "__index__ __class_getitem__ __init_subclass__ __copy__ __deepcopy__ __missing__ __license__ __title__"
)
"""Special names that host code may define; others hook into torch or numpy."""
_DUNDERS = words("__init__ __name__ __class__ __version__ __doc__ __post_init__ __call__ __len__ __file__")
_NAMES = words(
    "exec eval compile __import__ globals locals vars open input breakpoint memoryview delattr __builtins__ "
    "__loader__ __spec__ help exit quit"
)


class RuleBroken(Exception):
    """The text alone decides."""

    def __init__(self, reason: str, line: int | None = None, status: Status = Status.REJECTED) -> None:
        self.reason = f"line {line}: {reason}" if line else reason
        self.status = status
        super().__init__(self.reason)


def check(source: str, backend: Backend) -> None:
    """Raise RuleBroken for the first rule that the text breaks, in order of its lines."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        message = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise RuleBroken(f"the code does not parse: {message}", line, Status.COMPILE_ERROR) from None
    _require_model(tree)
    if backend is Backend.TRITON:
        _require_kernel(tree)
    modules = _imported(tree)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        for reason in _broken(node, modules):
            raise RuleBroken(reason, getattr(node, "lineno", None))
        if isinstance(node, ast.Name) and node.id in ("getattr", "setattr") and id(node) not in called:
            raise RuleBroken(f"{node.id} may only be called", node.lineno)
    _check_supers(tree)
    _check_fallbacks(tree)


def _require_model(tree: ast.Module) -> None:
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ModelNew"]
    if not classes:
        raise RuleBroken("there is no class ModelNew")
    if any(isinstance(base, ast.Name) and base.id == "Model" for base in classes[-1].bases):
        raise RuleBroken("ModelNew is derived from the reference", classes[-1].lineno)


def _require_kernel(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(_last_name(d) == "jit" for d in node.decorator_list):
            return
    raise RuleBroken("there is no @triton.jit kernel")


def _last_name(node: ast.expr) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _imported(tree: ast.Module) -> dict[str, str]:
    """Names that are bound to modules, classes or functions of other packages: name → dotted origin."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    # One level of re-naming (`t = torch.cuda`) is followed as often as it occurs.
    for _ in range(3):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                origin = _origin(node.value, found)
                for target in node.targets:
                    if origin and isinstance(target, ast.Name):
                        found.setdefault(target.id, origin)
    return found


def _origin(node: ast.expr, modules: dict[str, str]) -> str | None:
    """Dotted origin of a name or attribute chain that starts at an import, e.g. "torch.cuda.Event"."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in modules:
        return None
    return ".".join([modules[node.id], *reversed(parts)])


def _broken(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _import_reasons(alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield from _import_reasons(f"{node.module or ''}.{alias.name}", node.level)
    elif isinstance(node, ast.Attribute):
        yield from _attribute_reasons(node, modules)
    elif isinstance(node, ast.Name):
        yield from _name_reasons(node, modules)
    elif isinstance(node, ast.Call):
        yield from _call_reasons(node, modules)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_special(node.name):
        yield f"{node.name} may not be defined"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_special(node.value):
        yield f"the name {node.value} may not be used, not even in a string"
    elif isinstance(node, ast.ClassDef):
        yield from _class_reasons(node, modules)


def _import_reasons(dotted: str, level: int = 0) -> Iterator[str]:
    parts = dotted.split(".")
    if level or parts[0] not in _IMPORTS:
        yield f"import of {dotted.strip('.')}: a kernel does not need it"
    elif _is_private(parts):
        yield f"import of {dotted}, which is private"
    elif _is_forbidden(dotted) or any(part in _ATTRIBUTES for part in parts[1:]):
        yield f"import of {dotted} is not allowed"


def _attribute_reasons(node: ast.Attribute, modules: dict[str, str]) -> Iterator[str]:
    name, origin = node.attr, _origin(node, modules)
    if name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
        yield f"access to {name} is not allowed"
    elif name in _ATTRIBUTES and not _is_self(node.value):
        yield f"access to .{name} is not allowed"
    elif origin is not None:
        yield from _origin_reasons(origin)
    if isinstance(node.ctx, ast.Store | ast.Del) and origin is not None:
        yield f"global state may not be changed: {origin}"


def _origin_reasons(origin: str) -> Iterator[str]:
    parts = origin.split(".")
    if _is_private(parts):
        yield f"use of {origin}, which is private"
    elif origin in _CALLS or _is_forbidden(origin):
        yield f"use of {origin} is not allowed"


def _is_private(parts: list[str]) -> bool:
    """Whether a dotted name has a private part; what is allowed all the same may have no further part."""
    private = any(part.startswith("_") and not part.startswith("__") for part in parts[1:])
    return private and ".".join(parts) not in _PRIVATE


def _is_forbidden(dotted: str) -> bool:
    """Whether a module is denied, or a part of one of which only some parts are allowed."""
    parts = dotted.split(".")
    if parts[0] in _NARROW and len(parts) > 1 and parts[1] not in _NARROW[parts[0]]:
        return True
    return dotted in _FORBIDDEN_MODULES or dotted.startswith(tuple(m + "." for m in _FORBIDDEN_MODULES))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name.isidentifier() and name not in _DEFINABLE


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _name_reasons(node: ast.Name, modules: dict[str, str]) -> Iterator[str]:
    if isinstance(node.ctx, ast.Load) and node.id in _NAMES:
        yield f"use of {node.id} is not allowed"
    if isinstance(node.ctx, ast.Store) and _is_special(node.id):
        yield f"{node.id} may not be defined"


def _call_reasons(node: ast.Call, modules: dict[str, str]) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name == "type" and len(node.args) != 1:
        yield "types may not be made at run time"
    elif name == "setattr" and not (node.args and _is_self(node.args[0])):
        yield "setattr on anything but self is not allowed"
    elif name == "getattr" and not _harmless_getattr(node, modules):
        yield "getattr with a name that is not written out is not allowed"


def _harmless_getattr(node: ast.Call, modules: dict[str, str]) -> bool:
    """A name that is written out and allowed, the candidate's own attributes, or the harmless ones of Triton."""
    if len(node.args) < 2:
        return False
    wanted = node.args[1]
    if isinstance(wanted, ast.Constant) and isinstance(wanted.value, str):
        name = wanted.value
        return name not in _ATTRIBUTES and not (name.startswith("_") and name not in ("_version",))
    return _is_self(node.args[0]) or _origin(node.args[0], modules) in ("triton.language", "triton.language.math")


def _class_reasons(node: ast.ClassDef, modules: dict[str, str]) -> Iterator[str]:
    for base in node.bases:
        origin = _origin(base, modules) or ""
        if origin in ("torch.Tensor", "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            yield "tensor subclasses are not allowed"
    if any(keyword.arg == "metaclass" for keyword in node.keywords):
        yield "metaclasses are not allowed"


def _check_supers(tree: ast.Module) -> None:
    """super(C, self) leads past what stands between C and its base, so C has to be a class of this file."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and node.args:
            first = node.args[0]
            if not (isinstance(first, ast.Name) and first.id in own):
                raise RuleBroken("super of anything but a class of this file is not allowed", node.lineno)


def _check_fallbacks(tree: ast.Module) -> None:
    """An exception that is handled inside a function of host code hides a kernel that failed."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name == "__init__":
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Try) and any(not _only_raises(h) for h in node.handlers):
                raise RuleBroken("an except clause hides failures of the kernel (a fallback)", node.lineno)
            if isinstance(node, ast.With) and any(_last_name(i.context_expr) == "suppress" for i in node.items):
                raise RuleBroken("contextlib.suppress hides failures of the kernel (a fallback)", node.lineno)


def _only_raises(handler: ast.ExceptHandler) -> bool:
    return bool(handler.body) and isinstance(handler.body[-1], ast.Raise)
