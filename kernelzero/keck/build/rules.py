"""What a request may say, decided on its text before a compiler sees it: includes, flags, inline assembly.

Only what the text decides for certain. What the code calls is decided by what was linked (provenance.py). Not covered:
machine code that is put together as data and jumped into, and headers of the system, which may all be included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelzero.keck.build import provenance
from kernelzero.keck.build.spec import BuildSpec
from kernelzero.keck.rules import RuleBroken
from kernelzero.keck.words import words
from kernelzero.records import Status

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    |(?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")|(?P<char>'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)|(?P<word>[A-Za-z_]\w*)|(?P<other>::|->|\S)""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A token of C++ and the line, counted from 1, that it starts on."""

    kind: str
    text: str
    line: int


def lex(text: str) -> list[Token]:
    """Tokens without comments. Lines that end in a backslash count as themselves."""
    found, line, at = [], 1, 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        kind = match.lastgroup if match.lastgroup != "mark" else "raw"
        if kind != "comment":
            found.append(Token(str(kind), match.group(0), line))
    return found


def named_operators(text: str) -> Iterator[str]:
    """Names that are called as at::NAME( or torch::NAME(."""
    tokens = lex(text)
    for index in range(len(tokens) - 3):
        owner, colons, name, bracket = (token.text for token in tokens[index : index + 4])
        if owner in ("at", "torch") and colons == "::" and bracket == "(":
            yield name


# --- sources ---------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r'(?:<([^<>\n]+)>|"([^"\n]+)")')
_GAP = r"(?:[ \t]|/\*.*?\*/)*"
_DIRECTIVE = re.compile(rf"(?:^|\*/){_GAP}(?:#|%:){_GAP}(\w+)([^\n]*)", re.MULTILINE | re.DOTALL)
"""On the text with its comments: what only looks like one (a quote in a skipped block) must not hide a directive."""
_DIRECTIVES = words("include define undef if ifdef ifndef elif else endif pragma error warning line")
_PROBES = re.compile(r"\b(?:__has_include(?:_next)?|__has_embed|_Pragma\s*\(\s*\"\s*GCC\s+dependency)\b")
_ASM = re.compile(r"\b(?:asm|__asm|__asm__)\b")
_ASM_DENIED = re.compile(r"\.(?:incbin|section|pushsection|symver)\b|\b(?:syscall|sysenter|int\s+\$?0x80)\b")
_VENDORS = ("cublas", "cudnn", "cusparse", "cusolver", "cufft", "curand.h", "cutlass/", "cute/", "npp", "nccl")


def check(spec: BuildSpec) -> None:
    """Raise RuleBroken for the first thing that a request may not say."""
    for file in spec.files:
        if not re.fullmatch(r"[A-Za-z0-9_][\w.+-]{0,80}", file.name):
            raise RuleBroken(f"a source file has the name {file.name[:80]!r}")
    for text in spec.sources:
        for reason in source_reasons(text):
            raise RuleBroken(reason)
        if re.search(r"\bTORCH_LIBRARY\w*\s*\(", text):
            raise RuleBroken("operators may not be registered with TORCH_LIBRARY; bind functions")
        for name in named_operators(text):
            if provenance.computes(name):
                raise RuleBroken(f"PyTorch computes in C++: {name}")
    for function in spec.functions or ():
        if spec.device_only and re.search(r"[<>]", function):
            reason = (
                f"the kernel {function[:80]} is an instance of a template: only plain __global__ functions are built"
            )
            raise RuleBroken(reason, status=Status.UNSUPPORTED)
        if not re.fullmatch(r"[A-Za-z_][\w:]{0,200}", function):
            raise RuleBroken(f"functions: {function[:80]!r} is no name of a function")
    _check_flags(spec)


def source_reasons(text: str) -> Iterator[str]:
    """Why a source may not be compiled."""
    if re.search(r"\?\?[=/'()!<>-]", text) or "\0" in text:
        yield "the source has trigraphs or zero bytes"
    plain = re.sub(r"\\[ \t]*\n", "", text.replace("\r", ""))
    for match in _DIRECTIVE.finditer(plain):
        yield from _directive_reasons(match.group(1), re.sub(r"/\*.*?\*/", " ", match.group(2)).strip())
    for match in _PROBES.finditer(plain):
        yield f"{match.group(0)} looks at files"
    if _ASM.search(plain):
        for match in _ASM_DENIED.finditer(re.sub(r'"\s*"', "", plain)):
            yield f"inline assembly reaches outside of its kernel: {match.group(0)}"


def _directive_reasons(name: str, rest: str) -> Iterator[str]:
    if name not in _DIRECTIVES:
        yield f"#{name} is not allowed"
    elif name == "include":
        match = _HEADER.match(rest)
        if match is None:
            yield "#include of a name that is not written out"
        else:
            yield from _include_reasons(match.group(1) or match.group(2))
    elif name == "pragma" and rest.split()[:2] == ["GCC", "dependency"]:
        yield "#pragma GCC dependency looks at files"


def _include_reasons(path: str) -> Iterator[str]:
    if path.startswith(("/", "~")) or "\\" in path or ".." in path.split("/"):
        yield f"#include of {path[:80]}, which is outside of the headers of CUDA, torch and C++"
    elif path.lower().startswith(_VENDORS):
        yield f"a vendor library is used: {path[:80]}"


# --- flags -----------------------------------------------------------------------------------------------------------

_NAME = r"[A-Za-z_]\w*"
_VALUE = r"[\w.+*/()<>:-]{0,80}"
_FLAG = re.compile(
    rf"""-O[0-3s]?|-Ofast|-std=(?:c|gnu)\+\+(?:17|20)|-D{_NAME}(?:={_VALUE})?|-U{_NAME}|-g|-w|-W[\w=+-]*|-v
    |-m(?:arch=native|tune=native|avx2?|avx512f|fma|64|sse4\.2)|-f(?:fast-math|openmp|PIC|pic|unroll-loops|permissive
    |(?:no-)?strict-aliasing|inline-functions|no-math-errno|unsafe-math-optimizations)""",
    re.VERBOSE,
)
_CUDA_FLAG = re.compile(
    rf"""-O[0-3]|-std=(?:c|gnu)\+\+(?:17|20)|--std[= ]c\+\+(?:17|20)|-D{_NAME}(?:={_VALUE})?|-U{_NAME}|-lineinfo
    |--generate-line-info|-g|-w|-G|-?-use_fast_math|--ftz=(?:true|false)|-ftz=(?:true|false)
    |-?-prec-(?:div|sqrt)=(?:true|false)|-?-fmad=(?:true|false)|-?-maxrregcount[= ]\d+
    |-?-expt-(?:relaxed-constexpr|extended-lambda)|-?-extended-lambda|-?-default-stream[= ](?:legacy|per-thread)
    |-?-extra-device-vectorization|-?-restrict|-?-disable-warnings|-?-threads[= ]?\d+|-t[= ]?\d+|-?-verbose|-v
    |-?-resource-usage|-?-source-in-ptx|-?-diag-suppress[= ][\d,]+|-?-ptxas-options=(?P<ptxas>.+)|-Xptxas[= ]?(?P<x>.+)
    |-?-(?:Xcompiler|compiler-options)[= ]?(?P<host>.+)|-Xcudafe[= ]?--diag_suppress=[\w,]+|-Wno-[\w-]+""",
    re.VERBOSE,
)
_PTXAS = re.compile(
    r"-O[0-4]|-v|--verbose|-dlcm=c[agsv]|--?(?:maxrregcount|def-load-cache|allow-expensive-optimizations)(?:[= ]\w+)?"
    r"|--?warn-(?:spills|on-spills|lmem-usage)"
)
_PAIRS = words(
    "-Xptxas -Xcompiler --ptxas-options --compiler-options -Xcudafe -maxrregcount --maxrregcount --std -std -D -U "
    "-default-stream --default-stream -diag-suppress --diag-suppress -gencode --generate-code -arch "
    "--gpu-architecture -code -t --threads"
)
_ARCHITECTURE = re.compile(r"-?-(?:arch|gencode|gpu-architecture|generate-code|code|gpu-code)[= ].*")
_LINK = re.compile(
    r"-l(?:cudart|m|c|stdc\+\+|gcc_s|torch|torch_cpu|torch_cuda|c10|c10_cuda|torch_python)|-L.*|-Wl,-O1|-s"
)


_OLDER_STANDARD = re.compile(r"-?-std[= ]c\+\+(?:11|14)")
"""Good for device code alone; torch's headers would not compile."""


def _check_flags(spec: BuildSpec) -> None:
    where = "options" if spec.device_only else "extra_cuda_cflags"
    for flag in joined(spec.cuda_flags):
        known = _ARCHITECTURE.fullmatch(flag) or (spec.device_only and _OLDER_STANDARD.fullmatch(flag))
        if not (known or _cuda_flag_allowed(flag)):
            raise RuleBroken(f"{where}: {flag[:80]} is not allowed")
    for flag in joined(spec.cpp_flags):
        if not _FLAG.fullmatch(flag):
            raise RuleBroken(f"extra_cflags: {flag[:80]} is not allowed")
    for flag in joined(spec.link_flags):
        if not _LINK.fullmatch(flag):
            raise RuleBroken(f"extra_ldflags: {flag[:80]} is not allowed; kernels are the candidate's own")
    for path in spec.include_paths:
        if path.strip("./"):
            where = "folders of headers" if spec.device_only else "extra_include_paths"
            raise RuleBroken(f"{where}: {path[:80]}: only CUDA's, torch's and own headers are there")


def _cuda_flag_allowed(flag: str) -> bool:
    match = _CUDA_FLAG.fullmatch(flag)
    if match is None:
        return False
    ptxas = match.group("ptxas") or match.group("x") or ""
    host = (match.group("host") or "").strip("\"'")
    return all(_PTXAS.fullmatch(f) for f in _parts(ptxas)) and all(_FLAG.fullmatch(f) for f in _parts(host))


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+(?=-)", text.strip("\"'")) if part]


def joined(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Flags one by one, those with a separate value as one text, e.g. "-Xptxas -v"."""
    found: list[str] = []
    for part in (part for flag in flags for part in flag.split()):
        if found and found[-1] in _PAIRS:
            found[-1] += " " + part
        else:
            found.append(part)
    return tuple(found)


def kept_cuda_flags(flags: tuple[str, ...]) -> list[str]:
    """What of the candidate's flags is handed to nvcc: all but the architecture, verbosity, debugging and threads."""
    drop = re.compile(r"-v|--verbose|-G|-g|-?-threads.*|-t[= ]?\d+|-?-resource-usage")
    kept = [f for f in joined(flags) if not _ARCHITECTURE.fullmatch(f) and not drop.fullmatch(f)]
    return [part for flag in kept for part in (flag.split(" ", 1) if flag.split(" ")[0] in _PAIRS else [flag])]


def asks_for_variant(flags: tuple[str, ...], arch: str) -> bool:
    """Whether the flags name the architecture's own variant, e.g. sm_90a where `arch` is sm_90."""
    number = arch.removeprefix("sm_")
    return any(re.search(rf"(?:sm|compute)_{number}a\b", flag) for flag in flags)
