"""What a candidate asks to be built: one frozen record made from the arguments of `load_inline` or `load`, or of a
function that compiles device code alone (bare.py).

Runs in the candidate's process, so nothing here is trusted: the builder checks the record again (rules.py).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.records import Record, content_id

MAX_SOURCE_BYTES = 2 << 20
_INLINE = (
    "name", "cpp_sources", "cuda_sources", "sycl_sources", "functions", "extra_cflags", "extra_cuda_cflags",
    "extra_sycl_cflags", "extra_ldflags", "extra_include_paths", "build_directory", "verbose", "with_cuda",
    "with_sycl", "is_python_module", "with_pytorch_error_handling", "keep_intermediates", "use_pch",
    "no_implicit_headers",
)  # fmt: skip
_LOAD = (
    "name", "sources", "extra_cflags", "extra_cuda_cflags", "extra_sycl_cflags", "extra_ldflags",
    "extra_include_paths", "build_directory", "verbose", "with_cuda", "with_sycl", "is_python_module",
    "is_standalone", "keep_intermediates",
)  # fmt: skip
_HEADERS = (".h", ".hpp", ".cuh", ".hxx", ".inl")


class Refused(ValueError):
    """A request that cannot be built; the message is one line."""


@dataclass(frozen=True)
class SourceFile(Record):
    """One file: a translation unit, or a header that lies beside them."""

    name: str
    """A bare file name; its suffix tells the language."""
    text: str


@dataclass(frozen=True)
class BuildSpec(Record):
    """A request to build an extension."""

    name: str
    """Only for messages; plays no part in the key."""
    cpp_sources: tuple[str, ...] = ()
    """Joined to one C++ file, as load_inline does."""
    cuda_sources: tuple[str, ...] = ()
    """Joined to one CUDA file."""
    functions: tuple[str, ...] | None = None
    """Functions to bind; None: the sources have a PYBIND11_MODULE."""
    files: tuple[SourceFile, ...] = ()
    """Sources and headers of `load`, which are compiled one by one."""
    cuda_flags: tuple[str, ...] = ()
    cpp_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    implicit_headers: bool = True
    """Whether load_inline's own includes come before the sources."""
    device_only: bool = False
    """Device code without a host side, as NVRTC takes it: `cuda_sources` become a cubin, `functions` names kernels
    that have to be in it."""

    @property
    def sources(self) -> tuple[str, ...]:
        """All texts, headers included."""
        return (*self.cpp_sources, *self.cuda_sources, *(f.text for f in self.files))

    @property
    def id(self) -> str:
        """Content id of everything but the name."""
        return content_id("extension", json.dumps(self.to_json() | {"name": ""}, sort_keys=True))


def parse_request(kind: str, args: Sequence[Any], kwargs: dict[str, Any]) -> BuildSpec:
    """The request that a call of `load_inline` or `load` (`kind`) makes.

    Raises:
        Refused: with one line, for arguments that cannot be built here.
        TypeError: for arguments that torch's own function would not take either.
    """
    names = _INLINE if kind == "load_inline" else _LOAD
    given = _bind(kind, names, args, kwargs)
    _refuse_kinds(given)
    parts = _inline(given) if kind == "load_inline" else BuildSpec("", files=_files(given["sources"]))
    spec = dataclasses.replace(
        parts,
        name=_text("name", given["name"]),
        cuda_flags=_texts("extra_cuda_cflags", given.get("extra_cuda_cflags")),
        cpp_flags=_texts("extra_cflags", given.get("extra_cflags")),
        link_flags=_texts("extra_ldflags", given.get("extra_ldflags")),
        include_paths=_texts("extra_include_paths", given.get("extra_include_paths")),
    )
    if sum(len(text) for text in spec.sources) > MAX_SOURCE_BYTES:
        raise Refused(f"the sources are larger than {MAX_SOURCE_BYTES} bytes")
    return spec


def device_request(
    source: Any, kernels: Sequence[Any], options: Any = (), include_paths: Any = (), name: str = "kernel"
) -> BuildSpec:
    """The request that a source for NVRTC makes.

    Args:
        source: text of the device code.
        kernels: names of __global__ functions that have to be in it.
        options: the compiler's, as NVRTC takes them.
        include_paths: folders with headers.
        name: only for messages.

    Raises:
        Refused: with one line, for arguments that cannot be built here.
        TypeError: for arguments of other types.
    """
    text = _text("the source of a kernel", source)
    if len(text) > MAX_SOURCE_BYTES:
        raise Refused(f"the sources are larger than {MAX_SOURCE_BYTES} bytes")
    return BuildSpec(
        name,
        cuda_sources=(text,),
        functions=tuple(_text("the name of a kernel", kernel) for kernel in kernels),
        cuda_flags=_texts("options", options),
        include_paths=_texts("folders of headers", include_paths),
        device_only=True,
    )


def kernel_symbol(kernels: Iterable[tuple[str, str]], wanted: str) -> str:
    """The compiler's name of the kernel that a person calls `wanted`; `kernels` are (symbol, readable name).

    Raises:
        LookupError: with one line, where there is none, or more than one.
    """
    pairs = list(kernels)
    found = [symbol for symbol, readable in pairs if wanted in (symbol, _plain_name(readable))]
    if len(found) == 1:
        return found[0]
    others = ", ".join(_plain_name(readable) for _, readable in pairs) or "none"
    problem = "several kernels are" if found else "no kernel is"
    raise LookupError(f"{problem} named {wanted!r}; the source has: {others}")


def _plain_name(readable: str) -> str:
    """The name without arguments; instances of templates keep theirs, and a result type before them."""
    return readable.partition("(")[0].removeprefix("::")


def _bind(kind: str, names: tuple[str, ...], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    given = dict(zip(names, args, strict=False)) | kwargs
    unknown = sorted(set(kwargs) - set(names))
    if unknown or len(args) > len(names):
        raise TypeError(f"{kind}() got an unexpected argument {unknown[0] if unknown else args[len(names)]!r}")
    missing = [name for name in names[:2] if name not in given]
    if missing:
        raise TypeError(f"{kind}() is missing the argument {missing[0]!r}")
    return given


def _refuse_kinds(given: dict[str, Any]) -> None:
    if _are_names(given.get("sycl_sources")) and not given.get("functions"):
        # Before SYCL came, the names of the functions stood in its place.
        given["functions"] = given.pop("sycl_sources")
    if given.get("sycl_sources") or given.get("with_sycl"):
        raise Refused("SYCL sources are not built")
    if given.get("is_standalone") or not given.get("is_python_module", True):
        raise Refused("only extensions that are Python modules are built")


def _inline(given: dict[str, Any]) -> BuildSpec:
    functions = given.get("functions")
    if functions is not None and not isinstance(functions, str | list | tuple | dict):
        raise TypeError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
    return BuildSpec(
        "",
        cpp_sources=_texts("cpp_sources", given["cpp_sources"]),
        cuda_sources=_texts("cuda_sources", given.get("cuda_sources")),
        functions=None if functions is None else _texts("functions", functions),
        implicit_headers=not given.get("no_implicit_headers", False),
    )


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{what} has to be text, got {type(value).__name__}")
    return os.fspath(value)


def _texts(what: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    items: Iterable[Any] = [value] if isinstance(value, str | os.PathLike) else value
    return tuple(_text(what, item) for item in items)


def _files(sources: Any) -> tuple[SourceFile, ...]:
    """The named sources and the headers that lie beside them."""
    paths = [Path(text) for text in _texts("sources", sources)]
    beside = {h for p in paths for h in p.parent.iterdir() if h.suffix in _HEADERS and h.is_file()}
    found = [*paths, *sorted(beside)]
    if len({p.name for p in found}) != len(found):
        raise Refused("two source files have one name")
    return tuple(SourceFile(p.name, p.read_text(encoding="utf-8")) for p in found)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(str(name).isidentifier() for name in value)
