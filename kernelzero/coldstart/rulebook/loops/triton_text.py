"""Kernels in Triton: one program takes a block of elements, a row, or a tile of a product."""

from __future__ import annotations

from dataclasses import dataclass

from kernelzero.coldstart.rulebook.loops.expr import (
    FLOAT,
    NEUTRAL,
    Buffer,
    Expr,
    bounded,
    conjuncts,
    flat,
    unflat,
    walk,
)
from kernelzero.coldstart.rulebook.loops.printer import Printer, bare, steady, summed
from kernelzero.coldstart.rulebook.loops.value import (
    Elements,
    Kernel,
    Product,
    Rows,
    Scan,
    in_row,
    power_of_two,
    size,
)

MAX_BLOCK = 8192
"""Longest row that one program holds at once."""
_TENSORS = ("i", "j", "m", "n", "k", "row", "z")
"""Indices that are no variables of loops."""
_LONG_MASK = 48
"""Masks with more letters get a name of their own."""
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
          "ne": "!=", "and": "&", "or": "|", "bitand": "&", "bitor": "|", "bitxor": "^"}  # fmt: skip
_CALLS = {"max": "tl.maximum", "min": "tl.minimum", "exp": "tl.exp", "log": "tl.log", "sqrt": "tl.sqrt",
          "rsqrt": "tl.rsqrt", "sin": "tl.sin", "cos": "tl.cos", "erf": "tl.erf", "abs": "tl.abs",
          "floor": "tl.floor", "ceil": "tl.ceil", "exp2": "tl.exp2", "log2": "tl.log2", "sigmoid": "tl.sigmoid",
          "atan": "_atan", "atan2": "_atan2", "copysign": "_copysign",
          }  # fmt: skip
_COMPOSED = {"tanh": "(2.0 * tl.sigmoid(2.0 * ({0})) - 1.0)", "log1p": "tl.log(1.0 + ({0}))",
             "expm1": "(tl.exp({0}) - 1.0)"}  # fmt: skip
"""Functions that Triton's core language has not."""
_STEPS = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})"}
_FOLDS = {"sum": "tl.sum", "max": "tl.max", "min": "tl.min"}


@dataclass(frozen=True)
class Written:
    """A kernel's text and how it is launched."""

    name: str
    text: str
    grid: str
    arguments: tuple[str, ...]
    """After the buffers: "n", "BLOCK=1024", …"""
    buffers: tuple[str, ...]
    """Names of the buffers that it is given, the output last."""


class Triton:
    """How Triton spells expressions."""

    def __init__(self, mask: str, lanes: tuple[str, ...] = ("i", "j", "m", "n", "k")) -> None:
        self.mask, self.lanes = mask, lanes
        """Which lanes there are, and the indices that differ from lane to lane."""

    def constant(self, value: bool | int | float) -> str:
        """A literal."""
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f'float("{value}")'
        return repr(value)

    def spell(self, node: Expr, parts: list[str]) -> str:
        """One expression."""
        if node.op == "sum":
            return summed(node, parts)
        if node.op in _INFIX:
            return f"({parts[0]} {_INFIX[node.op]} {parts[1]})"
        if node.op in ("floordiv", "mod"):
            return f"({parts[0]} {'//' if node.op == 'floordiv' else '%'} {node.args[1]})"
        if node.op == "where":
            return f"tl.where({', '.join(map(bare, parts))})"
        if node.op == "cast":
            return self._cast(node, parts[0])
        if node.op in ("neg", "not"):
            return f"(-{parts[0]})" if node.op == "neg" else f"(~{parts[0]})"
        if node.op == "stage":
            return node.args[0]
        if node.op in _COMPOSED:
            return _COMPOSED[node.op].format(bare(parts[0]))
        if node.op in _CALLS:
            return f"{_CALLS[node.op]}({', '.join(map(bare, parts))})"
        raise KeyError(node.op)

    def _cast(self, node: Expr, text: str) -> str:
        inner = node.args[0]
        dtype = "tl.float32" if node.kind == FLOAT else "tl.int32"
        if all(n.op == "sum" or (n.op == "var" and n.args[0] not in _TENSORS) for n in walk(inner)):
            return f"tl.full([BLOCK], {bare(text)}, {dtype})"  # a loop's variable has no type of its own
        if inner.op != "var" and inner.kind == node.kind:
            return text
        return f"{text if text.isidentifier() else f'({bare(text)})'}.to({dtype})"

    def load(self, printer: Printer, node: Expr) -> str:
        """A read; lanes that are not there or must not read get the other value."""
        buffer, index, mask, other = node.args
        parts = conjuncts(mask) if mask is not None else []
        spread = self._varies(index)
        moving = [part for part in parts if self._varies(part)]
        steady = [part for part in parts if part not in moving]
        if spread or not moving:
            return self._read(printer, buffer, index, self._mask(printer, spread, moving, steady), other)
        # All lanes read one place: what differs between them chooses after it.
        inside = " & ".join(map(printer._text, moving))
        text = self._read(printer, buffer, index, self._mask(printer, False, [], steady), other)
        return f"tl.where({inside}, {text}, {self._filler(buffer, other, as_bool=True)})"

    def _read(self, printer: Printer, buffer: Buffer, index: Expr, mask: str, other: float) -> str:
        inside = f"{buffer.name}_ptr + {bare(printer._text(index))}"
        if len(mask) > _LONG_MASK:
            name = printer.fresh("valid")
            printer.line(f"{name} = {mask}")
            mask = name
        if mask:
            inside += f", mask={mask}, other={self._filler(buffer, other)}"
        text = f"tl.load({inside})"
        if buffer.kind == FLOAT and buffer.dtype != "float32":
            return text + ".to(tl.float32)"
        return f"({text} != 0)" if buffer.dtype == "bool" else text

    def _filler(self, buffer: Buffer, other: float, as_bool: bool = False) -> str:
        if buffer.kind == FLOAT:
            return self.constant(float(other))
        return repr(bool(other) if as_bool and buffer.dtype == "bool" else int(other))

    def _varies(self, node: Expr) -> bool:
        """Whether it differs from lane to lane."""
        return any(n.op == "var" and n.args[0] in self.lanes for n in walk(node))

    def _mask(self, printer: Printer, spread: bool, moving: list[Expr], steady: list[Expr]) -> str:
        """The mask of a read, "" for none. Conditions are those that differ from lane to lane and the others."""
        lanes = [self.mask] if spread and self.mask else []
        lanes += [printer._text(part) for part in moving]
        same = [printer._text(part) for part in steady]
        if not lanes or not same:
            return " & ".join(lanes or same)
        # Chosen by, not joined with &: Triton's interpreter makes numbers of a condition that it spreads over lanes.
        return f"tl.where({' & '.join(same)}, {' & '.join(lanes)}, False)"

    def fold(self, printer: Printer, node: Expr) -> str:
        """Loops over the indices, one accumulator."""
        kind, loops, body = node.args
        for inner in steady(body, {name for name, _ in loops}, set()):
            printer.named(inner)  # what is the same in every round comes before them
        name = printer.fresh("acc")
        # Of the lanes' shape from the start: a loop may not change the type of what it carries.
        printer.line(f"{name} = tl.full([BLOCK], {self.constant(NEUTRAL[kind])}, tl.float32)")
        self._loops(printer, list(loops), kind, name, body)
        return name

    def _loops(self, printer: Printer, loops: list[tuple[str, int]], kind: str, name: str, body: Expr) -> None:
        if loops:
            (variable, extent), *rest = loops
            with printer.block(f"for {variable} in range({extent}):"):
                self._loops(printer, rest, kind, name, body)
            return
        text = printer._text(body)
        step = {"sum": f"{name} + {text}", "prod": f"{name} * {text}"}.get(kind)
        printer.line(f"{name} = {step or f'{_CALLS[kind]}({name}, {text})'}")

    def assign(self, name: str, kind: str, text: str) -> str:
        """A statement."""
        return f"{name} = {bare(text)}"


def write(kernel: Kernel, name: str, variant: int) -> Written:
    """The kernel's text in one of several ways."""
    core = kernel.core
    if isinstance(core, Elements):
        return _elements(kernel, core, name, variant)
    if isinstance(core, Rows):
        return _rows(kernel, core, name, variant)
    if isinstance(core, Product):
        return _product(kernel, core, name, variant)
    return _scan(kernel, core, name)


def _elements(kernel: Kernel, core: Elements, name: str, variant: int) -> Written:
    block, count = (1024, 256)[variant % 2], size(kernel.out.shape)
    index = unflat(bounded("i", count), kernel.out.shape)
    stored = kernel.stores(index, core.at(index))
    if any(n.op == "fold" for n in walk(stored)):
        block = (256, 128)[variant % 2]
    printer = Printer(Triton("mask"))
    printer.line("i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)")
    printer.line("mask = i < n")
    printer.line(f"tl.store(out_ptr + i, {bare(printer.value(stored))}, mask=mask)")
    grid = f"(triton.cdiv({count}, {block}),)"
    return _written(name, printer, stored, ["n", "BLOCK: tl.constexpr"], grid, (str(count), f"BLOCK={block}"))


def _written(
    name: str, printer: Printer, reads: Expr | list[Expr], extra: list[str], grid: str, arguments: tuple[str, ...]
) -> Written:
    roots = reads if isinstance(reads, list) else [reads]
    buffers = sorted({n.args[0].name for root in roots for n in walk(root) if n.op == "load"})
    head = ", ".join([*(f"{b}_ptr" for b in buffers), "out_ptr", *extra])
    text = "\n".join(["@triton.jit", f"def {name}({head}):", *printer.lines, ""])
    return Written(name, text, grid, arguments, (*buffers, "out"))


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(kernel: Kernel, core: Rows, name: str, variant: int) -> Written:
    length = size([core.space[d] for d in core.inner])
    whole = power_of_two(length)
    block = whole if whole <= MAX_BLOCK and not (variant % 2 and length > 1024) else 1024
    index = in_row(core.space, core.inner, bounded("row", size(core.space) // length), bounded("j", length))
    out_index = core.out(index)
    stored = kernel.stores(out_index, core.final(index))
    place = flat(out_index, kernel.out.shape)
    bodies = [stage.at(index) for stage in core.stages]
    masked = block != length or _needs_mask(stored, bodies)
    printer = Printer(Triton("mask" if masked else ""))
    printer.line("row = tl.program_id(0)")
    if block >= length:
        _lanes(printer, length, block, "tl.arange(0, BLOCK)", masked)
        for stage, body in zip(core.stages, bodies, strict=True):
            _one_pass(printer, stage.name, stage.fold, body, stage.kind, not masked)
        _store_row(printer, core, stored, place)
    else:
        _many_passes(printer, core, bodies, length, stored, place)
    if not core.per_row and block < length:
        with printer.block(f"for start in range(0, {length}, BLOCK):"):
            _lanes(printer, length, block, "start + tl.arange(0, BLOCK)")
            _store_row(printer, core, stored, place)
    rows = size(core.space) // length
    arguments = (f"BLOCK={block}", f"num_warps={max(1, min(16, block // 256)) if block >= 512 else 1}")
    return _written(name, printer, [stored, *bodies], ["BLOCK: tl.constexpr"], f"({rows},)", arguments)


def _needs_mask(stored: Expr, bodies: list[Expr]) -> bool:
    """Whether lanes differ by more than their place: reads under conditions, or folds of what is the same in all."""
    reads = any(n.op == "load" and n.args[2] is not None for e in (stored, *bodies) for n in walk(e))
    return reads or not all(any(n.op == "var" and n.args[0] == "j" for n in walk(body)) for body in bodies)


def _lanes(printer: Printer, length: int, block: int, text: str, masked: bool = False) -> None:
    printer.line(f"j = {text}")
    if length % block or masked:
        printer.line(f"mask = j < {length}")
    else:
        printer.line("mask = j >= 0") if block < length else None


def _guarded(fold: str, kind: str, text: str, full: bool) -> str:
    if full:
        return text
    neutral = NEUTRAL[fold]
    literal = Triton("").constant(neutral) if kind == FLOAT else {"min": "2147483647", "max": "-1"}.get(fold, "0")
    return f"tl.where(mask, {text}, {literal})"


def _one_pass(printer: Printer, name: str, fold: str, body: Expr, kind: str, full: bool) -> None:
    guarded = _guarded(fold, kind, printer.value(body), full)
    if fold == "prod":
        printer.line(f"{name} = tl.reduce({guarded}, 0, _multiply)")
    else:
        printer.line(f"{name} = {_FOLDS[fold]}({guarded}, axis=0)")


def _many_passes(printer: Printer, core: Rows, bodies: list[Expr], length: int, stored: Expr, place: Expr) -> None:
    for stage, body in zip(core.stages, bodies, strict=True):
        neutral = Triton("").constant(NEUTRAL[stage.fold]) if stage.kind == FLOAT else "2147483647"
        dtype = "tl.float32" if stage.kind == FLOAT else "tl.int32"
        printer.line(f"{stage.name}_acc = tl.full([BLOCK], {neutral}, {dtype})")
        with printer.block(f"for start in range(0, {length}, BLOCK):"):
            printer.line("j = start + tl.arange(0, BLOCK)")
            printer.line(f"mask = j < {length}")
            guarded = _guarded(stage.fold, stage.kind, printer.value(body), False)
            printer.line(f"{stage.name}_acc = {_STEPS[stage.fold].format(stage.name + '_acc', guarded)}")
        end = f"tl.reduce({stage.name}_acc, 0, _multiply)" if stage.fold == "prod" else ""
        printer.line(f"{stage.name} = {end or f'{_FOLDS[stage.fold]}({stage.name}_acc, axis=0)'}")
    if core.per_row:
        _store_row(printer, core, stored, place)


def _store_row(printer: Printer, core: Rows, stored: Expr, place: Expr) -> None:
    value = printer.value(stored)
    where = printer.value(place)
    mask = "" if core.per_row or not printer.language.mask else ", mask=mask"  # type: ignore[attr-defined]
    printer.line(f"tl.store(out_ptr + {bare(where)}, {bare(value)}{mask})")


# --- products --------------------------------------------------------------------------------------------------------


def _product(kernel: Kernel, core: Product, name: str, variant: int) -> Written:
    batches, rows, columns, depth = (size(s) for s in (core.batch, core.m, core.n, core.k))
    tile = 64 if variant % 2 == 0 else 32
    bm, bn = (min(tile, max(16, power_of_two(c))) for c in (rows, columns))
    bk = min(32, max(16, power_of_two(depth)))
    z, m, n, k = (
        unflat(bounded(name, count), shape)
        for name, count, shape in (
            ("z", batches, core.batch),
            ("m", rows, core.m),
            ("n", columns, core.n),
            ("k", depth, core.k),
        )
    )
    a, b = core.a(z, m, k), core.b(z, k, n)
    out_index = core.out(z, m, n)
    stored = kernel.stores(out_index, Expr("stage", ("acc",), FLOAT))
    place = flat(out_index, kernel.out.shape)
    printer = Printer(Triton(""))
    if batches > 1:
        printer.line("z = tl.program_id(1)")
    printer.line(f"tiles = {-(-columns // bn)}")
    printer.line("m = tl.program_id(0) // tiles * BM + tl.arange(0, BM)")
    printer.line("n = tl.program_id(0) % tiles * BN + tl.arange(0, BN)")
    printer.line("acc = tl.zeros((BM, BN), dtype=tl.float32)")
    with printer.block(f"for start in range(0, {depth}, BK):"):
        printer.line("k = start + tl.arange(0, BK)")
        for target, value, mask, names in (
            ("a", a, f"(m[:, None] < {rows}) & (k[None, :] < {depth})", {"m": "m[:, None]", "k": "k[None, :]"}),
            ("b", b, f"(k[:, None] < {depth}) & (n[None, :] < {columns})", {"k": "k[:, None]", "n": "n[None, :]"}),
        ):
            printer.names.append({})
            printer.variables = names
            printer.line(f"{target}_mask = {mask}")
            printer.language = Triton(f"{target}_mask")
            if value.op == "load":
                printer._count_uses(value)
                printer.line(f"{target} = {printer.language.load(printer, value)}")
            else:
                printer.line(f"{target} = tl.where({target}_mask, {printer.value(value)}, 0.0)")
            printer.names.pop()
        printer.line('acc = tl.dot(a, b, acc, input_precision="tf32x3")')
    printer.variables = {"m": "m[:, None]", "n": "n[None, :]"}
    printer.line(f"mask = (m[:, None] < {rows}) & (n[None, :] < {columns})")
    printer.language = Triton("mask")
    text = printer.value(stored)
    printer.line(f"tl.store(out_ptr + {bare(printer.value(place))}, {bare(text)}, mask=mask)")
    tiles = -(-rows // bm) * -(-columns // bn)
    grid = f"({tiles}, {batches})" if batches > 1 else f"({tiles},)"
    extra = ["BM: tl.constexpr", "BN: tl.constexpr", "BK: tl.constexpr"]
    return _written(name, printer, [a, b, stored], extra, grid, (f"BM={bm}", f"BN={bn}", f"BK={bk}"))


# --- scans -----------------------------------------------------------------------------------------------------------


def _scan(kernel: Kernel, core: Scan, name: str) -> Written:
    length = core.space[core.dim]
    block = power_of_two(length)
    index = in_row(core.space, (core.dim,), bounded("row", size(core.space) // length), bounded("j", length))
    body = core.at(index)
    stored = kernel.stores(index, Expr("stage", ("running",), FLOAT))
    printer = Printer(Triton("mask"))
    printer.line("row = tl.program_id(0)")
    printer.line("j = tl.arange(0, BLOCK)")
    printer.line(f"mask = j < {length}")
    guarded = _guarded(core.fold, FLOAT, printer.value(body), block == length and not _needs_mask(body, [body]))
    call = {"sum": f"tl.cumsum({guarded}, axis=0)", "prod": f"tl.cumprod({guarded}, axis=0)"}
    scan = call.get(core.fold) or f"tl.associative_scan({guarded}, 0, _{core.fold})"
    printer.line(f"running = {scan}")
    value = printer.value(stored)
    printer.line(f"tl.store(out_ptr + {printer.value(flat(index, kernel.out.shape))}, {value}, mask=mask)")
    grid = f"({size(core.space) // length},)"
    arguments = (f"BLOCK={block}", f"num_warps={max(1, min(8, block // 256))}")
    return _written(name, printer, [body, stored], ["BLOCK: tl.constexpr"], grid, arguments)


HELPERS = {
    "_atan": """@triton.jit
def _atan(x):
    # A polynomial where |x| <= 1; atan(x) + atan(1 / x) is a right angle.
    size = tl.abs(x)
    t = tl.where(size > 1.0, 1.0 / tl.maximum(size, 1.0), size)
    s = t * t
    p = 0.0994275745 + s * (-0.0599046919 + s * (0.0245571074 - s * 0.00478045053))
    p = t * (0.999999911 + s * (-0.333320935 + s * (0.19971375 + s * (-0.140294192 + s * p))))
    angle = tl.where(size > 1.0, 1.5707963267948966 - p, p)
    return tl.where(x < 0.0, -angle, angle)
""",
    "_copysign": """@triton.jit
def _copysign(x, y):
    # The first bit of a float is its sign, of zeros too.
    return tl.where(y.to(tl.int32, bitcast=True) < 0, -tl.abs(x), tl.abs(x))
""",
    "_atan2": """@triton.jit
def _atan2(y, x):
    # The angle in the first quadrant, then in that of the point (x, y); zeros have signs too.
    at_zero = (x == 0.0) & (y == 0.0)
    angle = _atan(tl.abs(y) / tl.where(at_zero, 1.0, tl.abs(x)))
    angle = tl.where(_copysign(1.0, x) < 0.0, 3.141592653589793 - angle, angle)
    return _copysign(angle, y)
""",
    "_multiply": "@triton.jit\ndef _multiply(a, b):\n    return a * b\n",
    "_max": "@triton.jit\ndef _max(a, b):\n    return tl.maximum(a, b)\n",
    "_min": "@triton.jit\ndef _min(a, b):\n    return tl.minimum(a, b)\n",
}
"""Device functions, by the name that kernels call them by."""
