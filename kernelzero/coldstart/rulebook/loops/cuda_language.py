"""How CUDA C++ spells expressions, and the device functions that kernels share."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from kernelzero.coldstart.rulebook.loops.expr import (
    BOOL,
    FLOAT,
    INT,
    NEUTRAL,
    Buffer,
    Expr,
)
from kernelzero.coldstart.rulebook.loops.printer import Printer, bare, steady, summed
from kernelzero.coldstart.rulebook.operators import CannotWrite

SMALL = {"float16": ("at::Half", "__half2float", "__float2half"),
          "bfloat16": ("at::BFloat16", "__bfloat162float", "__float2bfloat16")}  # fmt: skip
"""16-bit dtype → torch's element type, conversions to and from float."""
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
          "ne": "!=", "and": "&&", "or": "||", "bitand": "&", "bitor": "|", "bitxor": "^"}  # fmt: skip
_LEVELS = {"mul": 6, "div": 6, "floordiv": 6, "mod": 6, "sigmoid": 6, "add": 5, "sub": 5, "sum": 5, "lt": 4, "le": 4,
           "gt": 4, "ge": 4, "eq": 3, "ne": 3, "bitand": 2.7, "bitxor": 2.6, "bitor": 2.5, "and": 2, "or": 1,
           "where": 0, "max": 0, "min": 0}  # fmt: skip
"""How tightly the operators bind that the operations are spelled with; all others are names and calls."""
_SAME_NAME = (
    "exp log sqrt rsqrt sin cos tan tanh erf erfc exp2 log2 log10 log1p expm1 floor ceil trunc pow fmod atan atan2 "
    "asin acos sinh cosh asinh acosh atanh lgamma cbrt hypot copysign"
)
CALLS = {op: f"{op}f" for op in _SAME_NAME.split()} | {"abs": "fabsf", "round": "rintf"}
_LIMITS = {"int": ("INT_MIN", "INT_MAX"), "int64_t": ("INT64_MIN", "INT64_MAX")}
_LARGEST_FLOAT = 3.4028235677973366e38
_LONG = 32
"""Places in memory that are longer get a name where there is a condition beside them."""
_WORDS = (
    "alignas auto bool break case catch char class const continue default delete do double else enum explicit extern "
    "false float for friend goto if inline int long mutable namespace new operator out private protected public "
    "register return short signed sizeof static struct switch template this throw true try typedef typename union "
    "unsigned using virtual void volatile while max min sign nan_max nan_min"
)
_LOCALS = "acc value carry running start lane m0 n0 k0 tm tn t mi ni a_tile b_tile blockIdx blockDim gridDim threadIdx"
RESERVED = frozenset([*_WORDS.split(), *_LOCALS.split(), *CALLS.values()])
"""Names that neither a buffer nor a loop's index may have."""


# --- how C++ spells expressions --------------------------------------------------------------------------------------


def literal(value: bool | int | float) -> str:
    """A constant, floating-point ones with as many digits as a float has."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value != value:
        return "NAN"
    if abs(value) >= _LARGEST_FLOAT:
        return "INFINITY" if value > 0 else "-INFINITY"
    short = (float(f"{value:.{digits}g}") for digits in range(1, 18))
    return f"{next(t for t in short if _rounded(t) == _rounded(value))!r}f"


def _rounded(value: float) -> float:
    return struct.unpack("f", struct.pack("f", max(-3.4028234663852886e38, min(3.4028234663852886e38, value))))[0]  # type: ignore[no-any-return]


def neutral(fold: str, ctype: str) -> str:
    """The neutral element of a fold."""
    if ctype == "float":
        return literal(NEUTRAL[fold])
    return {"sum": "0", "prod": "1", "max": _LIMITS[ctype][0], "min": _LIMITS[ctype][1]}[fold]


def folded(fold: str, ctype: str, a: str, b: str) -> str:
    """Two values in one."""
    if fold in ("sum", "prod"):
        return f"{a} {'+' if fold == 'sum' else '*'} {b}"
    if ctype == "float":
        return f"nan_{fold}({a}, {bare(b)})"
    return f"{fold}({a}, {bare(b)})"


def step(fold: str, ctype: str, name: str, text: str) -> str:
    """The statement that folds a value into a variable."""
    if fold in ("sum", "prod"):
        return f"{name} {'+' if fold == 'sum' else '*'}= {bare(text)};"
    return f"{name} = {folded(fold, ctype, name, text)};"


class Cuda:
    """How CUDA C++ spells expressions. Indices are never negative where they are divided."""

    def __init__(self, pointers: dict[Buffer, str], index: str, integer: str) -> None:
        self.pointers, self.index = pointers, index
        self.integer = integer
        """What a float is cut off to."""
        self.helpers: set[str] = set()
        self._wide = {name for buffer, name in pointers.items() if buffer.dtype == "int64"}
        """Names that are 64 bits wide."""

    def constant(self, value: bool | int | float) -> str:
        """A literal."""
        return literal(value)

    def spell(self, node: Expr, parts: list[str]) -> str:
        """One expression."""
        if node.op == "sum":
            return summed(node, parts)
        if node.op in _INFIX:
            return self._infix(node, parts)
        if node.op in ("floordiv", "mod") and node.kind == INT:
            divisor = parts[1] if len(parts) > 1 else node.args[1]
            return f"({parts[0]} {'/' if node.op == 'floordiv' else '%'} {divisor})"
        if node.op == "where":
            kept = [bare(p) if _LEVELS.get(c.op, 9) else p for c, p in zip(node.args, parts, strict=True)]
            return f"({kept[0]} ? {kept[1]} : {kept[2]})"
        if node.op == "cast":
            return f"({'float' if node.kind == FLOAT else self.integer}){parts[0]}"
        if node.op == "stage":
            return str(node.args[0])
        return self._call(node, parts)

    def _infix(self, node: Expr, parts: list[str]) -> str:
        level, sign = _LEVELS[node.op], _INFIX[node.op]
        for side in (1, 0) if node.op == "mul" else ():
            if node.args[side].op == "sigmoid" and parts[side].startswith("("):
                return f"({parts[1 - side]} / {parts[side].removeprefix('(1.0f / ')}"
        kept = []
        for side, (child, part) in enumerate(zip(node.args, parts, strict=True)):
            tight = _LEVELS.get(child.op, 9)
            left = side == 0 and tight == level and (level > 4 or child.op == node.op)
            kept.append(bare(part) if tight > level or left else part)
        if node.op in ("add", "sub") and node.args[1].op == "const" and kept[1].startswith("-"):
            return f"({kept[0]} {'-' if node.op == 'add' else '+'} {kept[1][1:]})"
        return f"({kept[0]} {sign} {kept[1]})"

    def _call(self, node: Expr, parts: list[str]) -> str:
        if node.op in ("neg", "not"):
            return f"(!{parts[0]})" if node.op == "not" else f"({_negated(parts[0])})"
        if node.op == "sigmoid":
            return f"(1.0f / (1.0f + expf({_negated(parts[0])})))"
        if node.op in ("max", "min"):
            return self._extreme(node, parts)
        if node.op == "abs" and node.kind == INT:
            return f"abs({bare(parts[0])})"
        if node.op == "sign":
            self.helpers.add("sign")
            return f"sign({bare(parts[0])})"
        if node.op not in CALLS or node.kind != FLOAT:
            raise CannotWrite(f"{node.op} has no name in CUDA C++")
        return f"{CALLS[node.op]}({', '.join(map(bare, parts))})"

    def _extreme(self, node: Expr, parts: list[str]) -> str:
        if node.kind == INT:
            wide = any(map(self._is_wide, parts))
            kept = [f"(int64_t){p}" if wide and p not in self._wide else bare(p) for p in parts]
            return f"{node.op}({', '.join(kept)})"
        for x, bound in (parts, parts[::-1]):
            known = node.args[parts.index(bound)].constant
            if x.isidentifier() and x != bound and known is not None and known == known:
                return f"({x} {'<' if node.op == 'max' else '>'} {bound} ? {bound} : {x})"
        self.helpers.add(f"nan_{node.op}")
        return f"nan_{node.op}({', '.join(map(bare, parts))})"

    def load(self, printer: Printer, node: Expr) -> str:
        """A read, or the other value where the mask does not hold."""
        buffer, index, mask, other = node.args
        if mask is None:
            return self.read(buffer, bare(printer._text(index)))
        condition = printer._text(mask)
        place = bare(printer._text(index))
        if len(place) > _LONG:
            place = printer.named(index)
        filler = {FLOAT: float, INT: int, BOOL: bool}[buffer.kind](other)
        shown = bare(condition) if _LEVELS.get(mask.op, 9) else condition
        return f"{shown} ? {self.read(buffer, place)} : {literal(filler)}"

    def whole(self, printer: Printer, node: Expr) -> str:
        """The text of what a statement is about; that has no name of its own there."""
        printer._count_uses(node)
        return self._whole(printer, node)

    def _whole(self, printer: Printer, node: Expr, uses: int = 0) -> str:
        count = len(printer.lines)
        text = bare(printer._text(node))
        named = len(printer.lines) > count and re.fullmatch(
            rf" *const \w+ {re.escape(text)} = (.*);", printer.lines[-1]
        )
        if not named or printer._uses[node] > uses:
            return text
        printer.lines.pop()
        printer._count -= 1
        del printer.names[-1][node]
        return named[1]

    def read(self, buffer: Buffer, place: str) -> str:
        """An element of a buffer."""
        text = f"{self.pointers[buffer]}[{place}]"
        return f"{SMALL[buffer.dtype][1]}({text})" if buffer.dtype in SMALL else text

    def fold(self, printer: Printer, node: Expr) -> str:
        """Loops over the indices, one accumulator; what is the same in every round comes before them."""
        kind, loops, body = node.args
        for inner in steady(body, {name for name, _ in loops}, set()):
            printer.named(inner)
        name = printer.fresh("acc")
        printer.line(f"float {name} = {neutral(kind, 'float')};")
        self._loops(printer, list(loops), kind, name, body)
        return name

    def _loops(self, printer: Printer, loops: list[tuple[str, int]], kind: str, name: str, body: Expr) -> None:
        if loops:
            (variable, extent), *rest = loops
            spelled = free_name(variable, RESERVED)
            printer.variables[variable] = spelled
            with printer.block(f"for ({self.index} {spelled} = 0; {spelled} < {extent}; ++{spelled}) {{", "}"):
                self._loops(printer, rest, kind, name, body)
            return
        self.fold_into(printer, kind, "float", name, self._whole(printer, body, uses=1))

    def fold_into(self, printer: Printer, fold: str, ctype: str, name: str, text: str) -> None:
        """One more value in a variable."""
        if ctype == "float" and fold in ("max", "min"):
            self.helpers.add(f"nan_{fold}")
        if ctype == "int64_t" and fold in ("max", "min") and text not in self._wide:
            text = f"(int64_t)({text})"
        printer.line(step(fold, ctype, name, text))

    def assign(self, name: str, kind: str, text: str) -> str:
        """A constant with a name."""
        ctype = {FLOAT: "float", BOOL: "bool"}.get(kind, self.index)
        if kind == INT and self._is_wide(text):
            ctype = "int64_t"
            self._wide.add(name)
        return f"const {ctype} {name} = {bare(text)};"

    def _is_wide(self, text: str) -> bool:
        return "(int64_t)" in text or not self._wide.isdisjoint(re.findall(r"\w+", text))


def _negated(text: str) -> str:
    return f"-({text})" if text.startswith("-") else f"-{text}"


def free_name(name: str, taken: Iterable[str]) -> str:
    """The name, with something behind it where it is taken."""
    while name in taken or re.fullmatch(r"(v|acc)\d+", name):
        name += "_"
    return name


def named_buffers(buffers: Iterable[Buffer], taken: Iterable[str]) -> dict[Buffer, str]:
    """A name for each buffer that C++ and the others leave free."""
    names: dict[Buffer, str] = {}
    for buffer in buffers:
        names[buffer] = free_name(buffer.name, {*taken, *names.values()})
    return names


# --- device functions that kernels share -----------------------------------------------------------------------------

_SIMPLE = {
    "sign": """
__device__ __forceinline__ float sign(float x) {
    return (float)((x > 0.0f) - (x < 0.0f));
}
""",
    "nan_max": """
// The larger one; NaN stays NaN, as in PyTorch.
__device__ __forceinline__ float nan_max(float a, float b) {
    return a > b || a != a ? a : b;
}
""",
    "nan_min": """
// The smaller one; NaN stays NaN, as in PyTorch.
__device__ __forceinline__ float nan_min(float a, float b) {
    return a < b || a != a ? a : b;
}
""",
}
_WARP = """
// The {word} over the lanes of a warp, for all of them.
__device__ __forceinline__ {ctype} warp_{fold}({ctype} value) {{
    for (int offset = 16; offset > 0; offset /= 2) {{
        {exchange}
    }}
    return value;
}}
"""
_BLOCK = """
// The {word} over the threads of a block, for all of them.
__device__ {ctype} block_{fold}({ctype} value) {{
    __shared__ {ctype} parts[32];
    const int lane = threadIdx.x % 32;
    value = warp_{fold}(value);
    if (lane == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_{fold}(lane < blockDim.x / 32 ? parts[lane] : {neutral});
    __syncthreads();  // parts is written again by the next call
    return value;
}}
"""
_SCAN = """
// The running {word} over the threads of a block, on top of what `carry` brings along and takes with it.
__device__ {ctype} block_scan_{fold}({ctype} value, {ctype}& carry) {{
    __shared__ {ctype} parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int offset = 1; offset < 32; offset *= 2) {{
        const {ctype} before = __shfl_up_sync(0xffffffff, value, offset);
        if (lane >= offset) {add_before}
    }}
    if (lane == 31) parts[warp] = value;
    __syncthreads();
    {ctype} before = carry;
    for (int w = 0; w < blockDim.x / 32; ++w) {{
        if (w == warp) before = carry;
        {add_part}
    }}
    __syncthreads();  // parts is written again by the next call
    return {with_before};
}}
"""


def needed_helpers(keys: Iterable[str]) -> list[str]:
    """Keys of helpers with those that they call, callees first."""
    found: dict[str, None] = {}
    for key in sorted(keys):
        name, _, ctype = key.partition(":")
        fold = name.rpartition("_")[2]
        if name.startswith(("warp_", "block_")) and ctype == "float" and fold in ("max", "min"):
            found[f"nan_{fold}"] = None
        if name == f"block_{fold}":
            found[f"warp_{fold}:{ctype}"] = None
        found[key] = None
    return sorted(found, key=lambda key: (":" in key, "block" in key, key))


def helper(key: str) -> str:
    """Text of a device function: "nan_max", or "block_sum:float" for those that come in several types."""
    name, _, ctype = key.partition(":")
    if not ctype:
        return _SIMPLE[name].strip()
    kind, _, fold = name.rpartition("_")
    return {"warp": _WARP, "block": _BLOCK, "block_scan": _SCAN}[kind].strip().format(
        fold=fold,
        ctype=ctype,
        neutral=neutral(fold, ctype),
        exchange=step(fold, ctype, "value", "__shfl_xor_sync(0xffffffff, value, offset)"),
        add_before=step(fold, ctype, "value", "before"),
        add_part=step(fold, ctype, "carry", "parts[w]"),
        with_before=folded(fold, ctype, "before", "value"),
        word={"sum": "sum", "prod": "product", "max": "maximum", "min": "minimum"}[fold],
    )  # fmt: skip
