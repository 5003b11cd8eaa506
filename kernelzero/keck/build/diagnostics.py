"""Reads compilers' messages: the first error in one line, and whether more of torch's headers could change it.

A candidate that fails with the thin header is tried again with torch's, which takes ten to sixty seconds. Most failures
are plain mistakes that no header cures; those are told apart here, by what the message says and where it points.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelzero.keck.build.rules import Token, lex
from kernelzero.keck.words import words

_PATTERNS = (
    re.compile(r"^(?P<file>[^\s(:]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<message>.*)$"),
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<message>.*)$"),
    re.compile(r"^ptxas (?P<file>[^,]+), line (?P<line>\d+); (?:error|fatal)\s*: (?P<message>.*)$"),
    re.compile(r"^(?P<file>ptxas|nvlink|nvcc|cc1plus|g\+\+)\s?:? (?:error|fatal|fatal error)\s*: (?P<message>.*)$"),
    re.compile(
        r"^(?:\S*ld(?:\.gold)?: )?(?P<file>[^\s:]+):.*?(?P<message>(?:multiple definition|undefined reference).*)"
    ),
)
_MEMORY = re.compile(r"out of memory|virtual memory exhausted|bad_alloc|Cannot allocate memory|memory exhausted", re.I)


@dataclass(frozen=True)
class Diagnostic:
    """One error of a compiler."""

    file: str
    line: int
    """0 where there is none."""
    message: str

    @property
    def reason(self) -> str:
        """The error in one line."""
        place = f"{Path(self.file).name}:{self.line}: " if self.line else f"{Path(self.file).name}: "
        return " ".join((place + self.message).split())[:400]


def first_error(output: str, memory_mib: int) -> Diagnostic:
    """The first error in a compiler's output."""
    errors = list(_errors(output))
    if _MEMORY.search(output) and (not errors or _MEMORY.search(errors[0].message)):
        return Diagnostic("compiler", 0, f"it ran out of its memory limit of {memory_mib} MiB")
    if errors:
        return errors[0]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() or "signal" in line]
    return Diagnostic("compiler", 0, (named or lines or ["it failed without a message"])[0])


def _errors(output: str) -> Iterator[Diagnostic]:
    for line in output.splitlines():
        for pattern in _PATTERNS:
            match = pattern.match(line)
            if match:
                found = match.groupdict()
                yield Diagnostic(found["file"], int(found.get("line") or 0), found["message"].strip())
                break


# --- could torch's headers cure it? ----------------------------------------------------------------------------------

_UNDEFINED = re.compile(
    r'identifier "(?P<a>\w+)" is undefined|(?P<name>\w+) was not declared'
    r"|[‘'](?P<b>\w+)[’'] (?:was not declared|has not been declared|does not name)"
)
_NO_MEMBER = re.compile(
    r'(?:namespace|class|enum) "(?P<owner>[\w:<>, ]+)" has no member "(?P<a>\w+)"'
    r"|‘(?P<b>[\w]+)’ is not a member of ‘(?P<owner_b>[\w:<>, ]+)’"
    r"|‘(?:class|struct) (?P<owner_c>[\w:<>, ]+)’ has no member named ‘(?P<c>\w+)’"
    r"|'(?P<d>\w+)' is not a member of '(?P<owner_d>[\w:<>, ]+)'"
    r"|'(?:class|struct) (?P<owner_e>[\w:<>, ]+)' has no member named '(?P<e>\w+)'"
)
_MISSING = re.compile(
    r"incomplete|cannot open source file|No such file|not a type name|not a template|does not name a|"
    r"not a class or namespace|explicit type is missing|undefined (?:template|class)"
)
_MACRO = re.compile(
    r"[A-Z][A-Z0-9_]*|gpu[A-Z]\w*|(?:py|pybind11|torch|at|c10|caffe2|std)|half\w*|__nv\w+|__half\w*|cu[A-Z]\w*"
)
"""Names that torch's headers, or those of CUDA that they include, put into the global namespace."""
_TENSORS = words("at::Tensor c10::Tensor torch::Tensor at::TensorBase")


def missing_member(error: Diagnostic) -> tuple[str, str] | None:
    """(owner, name) where the error says that a class or namespace lacks a name."""
    match = _NO_MEMBER.search(error.message)
    if match is None:
        return None
    found = {key: value for key, value in match.groupdict().items() if value}
    owner = next(value for key, value in found.items() if key.startswith("owner"))
    return owner, next(value for key, value in found.items() if not key.startswith("owner"))


def missing_method(error: Diagnostic) -> str | None:
    """Name of a method that the thin Tensor, or namespace at or torch, does not have."""
    member = missing_member(error)
    if member and (member[0] in _TENSORS or member[0] in ("at", "torch", "c10")):
        return member[1]
    return None


class Curable:
    """Whether a heavier header could make an error go away. Answers yes in doubt."""

    def __init__(
        self, sources: Sequence[str], torch_includes: Path, libc: frozenset[str], known: frozenset[str] = frozenset()
    ) -> None:
        """`known`: names that the thin headers have, but only after an #include that the candidate may lack."""
        self._sources = sources
        self._known = known
        self._includes = torch_includes
        self._libc = libc

    def after_mini(self, error: Diagnostic) -> bool:
        """After the thin header: anything that names of torch or of the C++ library could cause."""
        if error.file in ("ptxas", "nvlink", "compiler") or error.file.endswith(".ptx"):
            return False
        if re.search(r"redefinition|instantiation depth|excessive recursion", error.message):
            return False
        if any(self._in_device_body(text, error) for text in self._sources):
            return self._device_curable(error)
        return self._names_curable(error, in_doubt=True)

    def after_aten(self, error: Diagnostic) -> bool:
        """After torch's core headers: only names that they lack."""
        return self.after_mini(error) and self._names_curable(error, in_doubt=bool(_MISSING.search(error.message)))

    def _names_curable(self, error: Diagnostic, in_doubt: bool) -> bool:
        undefined = _UNDEFINED.search(error.message)
        if undefined:
            return self._global_curable(next(n for n in undefined.groups() if n))
        member = missing_member(error)
        if member:
            return member[0].startswith("std") or self._occurs_in_torch(member[1])
        return in_doubt

    def _global_curable(self, name: str) -> bool:
        """Torch puts next to nothing into the global namespace but macros; the C library is included by it."""
        if any(re.search(r"using\s+namespace", text) for text in self._sources):
            return self._occurs_in_torch(name)
        return name in self._libc or (bool(_MACRO.fullmatch(name)) and self._occurs_in_torch(name))

    def _device_curable(self, error: Diagnostic) -> bool:
        undefined = _UNDEFINED.search(error.message)
        if undefined:
            name = next(n for n in undefined.groups() if n)
            return bool(_MACRO.fullmatch(name)) and self._occurs_in_torch(name)
        if missing_member(error):
            return self._names_curable(error, in_doubt=True)
        # What 16-bit types and torch's own names mean in device code is known for certain only with its headers.
        return any(re.search(r"\b(?:at|c10|torch)::|[Hh]alf|[Bb][Ff]loat16", text) for text in self._sources)

    def _in_device_body(self, text: str, error: Diagnostic) -> bool:
        if Path(error.file).name != "cuda_sources" and not error.file.endswith((".cu", ".cuh")):
            return False
        return any(first <= error.line <= last for first, last in device_bodies(lex(text)))

    def _occurs_in_torch(self, name: str) -> bool:
        if name in self._known:
            return False
        command = ["grep", "-rqwF", "--include=*.h", "--include=*.cuh", "-e", name, str(self._includes)]
        return subprocess.run(command, capture_output=True).returncode == 0


def device_bodies(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    """First and last lines of the bodies of __global__ and __device__ functions."""
    index = 0
    while index < len(tokens):
        if tokens[index].text in ("__global__", "__device__"):
            end = _body_end(tokens, index)
            if end is not None:
                yield tokens[index].line, tokens[end].line
                index = end
        index += 1


def _body_end(tokens: list[Token], start: int) -> int | None:
    """Index of the brace that closes the body of the function declared at `start`; None for a mere declaration."""
    depth = 0
    for index in range(start, len(tokens)):
        text = tokens[index].text
        if text == ";" and depth == 0:
            return None
        depth += {"{": 1, "}": -1}.get(text, 0)
        if text == "}" and depth <= 0:
            return index
    return len(tokens) - 1
