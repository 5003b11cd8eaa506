"""Kernels in CUDA C++, and the source that torch.utils.cpp_extension.load_inline takes.

One thread takes an element, a block or a warp a row, a block a tile of a product or the running folds of a row. Shapes
are literals; buffers are dense. Variant 0 and 1 differ in block sizes, tiles and loops, not in what they compute.
Not covered: rows so long that several blocks should share one, and tensor cores.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from kernelzero.coldstart.rulebook.loops.cuda_language import (
    RESERVED,
    SMALL,
    Cuda,
    free_name,
    helper,
    named_buffers,
    needed_helpers,
    neutral,
)
from kernelzero.coldstart.rulebook.loops.expr import (
    FLOAT,
    INT,
    Buffer,
    Expr,
    as_kind,
    bounded,
    const,
    flat,
    rewritten,
    unflat,
    walk,
)
from kernelzero.coldstart.rulebook.loops.printer import Printer, bare
from kernelzero.coldstart.rulebook.loops.value import (
    Elements,
    Index,
    Kernel,
    Product,
    Program,
    Rows,
    Scan,
    in_row,
    power_of_two,
    size,
)
from kernelzero.coldstart.rulebook.operators import CannotWrite

TYPES = {"float32": "float", "int64": "int64_t", "int32": "int", "bool": "bool", "float16": "__half",
          "bfloat16": "__nv_bfloat16"}  # fmt: skip
_TORCH_TYPES = {"float32": "kFloat32", "int64": "kInt64", "int32": "kInt32", "bool": "kBool", "float16": "kFloat16",
                "bfloat16": "kBFloat16"}  # fmt: skip
_LARGEST = 2**31 - 2**22
"""Largest count that 32-bit indices can walk in steps of a whole grid."""
_WIDTH = 110
_BLOCKS = 2112
"""Blocks of a grid-stride loop: 16 for each of 132 multiprocessors."""


@dataclass(frozen=True)
class Written:
    """A kernel's text and how it is launched."""

    name: str
    """Of the C++ function that launches it; the kernel is NAME_kernel."""
    text: str
    """The kernel, with a device function of its own where it has one."""
    grid: str
    threads: int
    buffers: tuple[str, ...]
    """Names of the buffers that it reads, in the order of the function's arguments; the output is returned."""
    helpers: tuple[str, ...]
    """Device functions that it calls, by key; see `helper`."""

    @property
    def launch(self) -> str:
        """The kernel with its launch configuration."""
        return f"{self.name}_kernel<<<{self.grid}, {self.threads}>>>"


# --- one kernel ------------------------------------------------------------------------------------------------------


def write(kernel: Kernel, name: str, variant: int) -> Written:
    """The kernel's text in one of two ways. Raises CannotWrite for operations, dtypes and sizes that it cannot have."""
    if not size(kernel.out.shape):
        raise CannotWrite("an empty tensor has no kernel")
    core = kernel.core
    if isinstance(core, Elements):
        return _elements(kernel, core, name, variant % 2)
    if isinstance(core, Rows):
        return _rows(kernel, core, name, variant % 2)
    if isinstance(core, Product):
        return _product(kernel, core, name, variant % 2)
    return _scan(kernel, core, name, variant % 2)


class _Draft:
    """A kernel while it is written."""

    def __init__(self, kernel: Kernel, name: str, roots: Sequence[Expr], count: int) -> None:
        self.out, self.name = kernel.out, name
        nodes = {node for root in roots for node in walk(root)}
        loaded = {node.args[0] for node in nodes if node.op == "load"}
        self.buffers = sorted(loaded, key=lambda buffer: buffer.name)
        for buffer in (*self.buffers, kernel.out):
            if buffer.dtype not in TYPES:
                raise CannotWrite(f"{buffer.dtype} is not in the rulebook")
        self.used = {node.args[0] for node in nodes if node.op == "var"}
        """Indices that something depends on."""
        self._taken = RESERVED | self.used | {n.args[0] for n in nodes if n.op == "stage"} | {"i", "j", "k", "m", "n"}
        pointers = named_buffers(self.buffers, self._taken)
        largest = max(count, *(size(buffer.shape) for buffer in (*self.buffers, kernel.out)))
        self.index = "int" if largest < _LARGEST else "int64_t"
        self.language = Cuda(pointers, self.index, "int64_t" if kernel.out.dtype == "int64" else self.index)
        self._stages = {node: node.args[0] for node in nodes if node.op == "stage" and node.args[0].isidentifier()}

    def printer(self, indent: int = 1) -> Printer:
        """A printer for one part of the text; names that it gives hold in that part."""
        printer = Printer(self.language, indent)
        for node, name in self._stages.items():
            printer.bind(node, name)
        return printer

    def helper(self, name: str, ctype: str) -> str:
        """The name of a device function, which the text then has."""
        self.language.helpers.add(f"{name}:{ctype}")
        return name

    def store(self, printer: Printer, place: Expr, value: Expr) -> None:
        """Writes an element of the output."""
        text = self.language.whole(printer, value)
        text = f"{SMALL[self.out.dtype][2]}({text})" if self.out.dtype in SMALL else text
        printer.line(f"out[{bare(printer.value(place))}] = {text};")

    def free(self, name: str) -> str:
        """A name that is not taken."""
        return free_name(name, self._taken | set(self.language.pointers.values()))

    def written(self, lines: Sequence[str], grid: str, threads: int, before: str = "") -> Written:
        """The kernel around its statements."""
        pointers = self.language.pointers
        parameters = [f"const {TYPES[b.dtype]}* __restrict__ {pointers[b]}" for b in self.buffers]
        parameters.append(f"{TYPES[self.out.dtype]}* __restrict__ out")
        head = _call(f"__global__ void {self.name}_kernel", parameters, " {", 0)
        text = "\n".join([head, *map(_fitted, lines), "}"])
        names = tuple(buffer.name for buffer in self.buffers)
        return Written(self.name, before + text, grid, threads, names, tuple(sorted(self.language.helpers)))


def _call(head: str, arguments: Sequence[str], tail: str, indent: int) -> str:
    """head(arguments)tail; the arguments have lines of their own where one is too short."""
    line = f"{' ' * indent}{head}({', '.join(arguments)}){tail}"
    if len(line) <= _WIDTH:
        return line
    kept = ", ".join(argument.replace(" ", "\0") for argument in arguments)
    return f"{' ' * indent}{head}(\n{_filled(kept, indent + 4, indent + 4)}){tail}".replace("\0", " ")


def _filled(text: str, first: int, rest: int) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fitted(line: str) -> str:
    """A statement on as many lines as it needs."""
    indent = len(line) - len(line.lstrip())
    return line if len(line) <= _WIDTH else _filled(line.strip(), indent, indent + 4)


def _stored(kernel: Kernel, index: Index, core: Expr) -> Expr:
    """What is stored, of the kind that the output has; C++ would round what it converts by itself."""
    return as_kind(kernel.stores(index, core), kernel.out.kind)


# --- elements --------------------------------------------------------------------------------------------------------


def _elements(kernel: Kernel, core: Elements, name: str, variant: int) -> Written:
    count = size(kernel.out.shape)
    i = bounded("i", count)
    index = unflat(i, kernel.out.shape)
    stored = _stored(kernel, index, core.at(index))
    draft = _Draft(kernel, name, [stored], count)
    if variant == 0 and _are_vectors(kernel, stored, count):
        return _vectors(draft, stored, count // 4)
    if count == 1:
        printer = draft.printer()
        draft.store(printer, i, stored)
        return draft.written(printer.lines, "1", 1)
    return _looped(draft, i, stored, count) if variant else _one_each(draft, i, stored, count)


def _thread_number(draft: _Draft) -> str:
    cast = "(int64_t)" if draft.index == "int64_t" else ""
    return f"{cast}blockIdx.x * blockDim.x + threadIdx.x"


def _one_each(draft: _Draft, i: Expr, stored: Expr, count: int) -> Written:
    printer = draft.printer()
    printer.line(f"const {draft.index} i = {_thread_number(draft)};")
    printer.line(f"if (i >= {count}) return;")
    draft.store(printer, i, stored)
    return draft.written(printer.lines, str(-(-count // 256)), 256)


def _looped(draft: _Draft, i: Expr, stored: Expr, count: int) -> Written:
    printer = draft.printer()
    start = f"{draft.index} i = {_thread_number(draft)}"
    with printer.block(f"for ({start}; i < {count}; i += gridDim.x * blockDim.x) {{", "}"):
        draft.store(printer, i, stored)
    return draft.written(printer.lines, str(min(_BLOCKS, -(-count // 128))), 128)


def _are_vectors(kernel: Kernel, stored: Expr, count: int) -> bool:
    """Whether four neighbours can be read, computed and written together."""
    loads = [node for node in walk(stored) if node.op == "load"]
    alone = rewritten(stored, lambda n: const(0.0) if n.op == "load" else None)
    return (
        bool(loads)
        and count % 4 == 0
        and kernel.out.dtype == "float32"
        and all(n.args[0].dtype == "float32" and n.args[1].op == "var" and n.args[2] is None for n in loads)
        and not any(n.op in ("var", "fold") for n in walk(alone))
    )


def _vectors(draft: _Draft, stored: Expr, count: int) -> Written:
    pointers = draft.language.pointers
    fours = {pointers[b]: draft.free(f"{pointers[b]}4") for b in draft.buffers}
    printer = draft.printer()
    printer.line(f"const {draft.index} i = {_thread_number(draft)};")
    printer.line(f"if (i >= {count}) return;")
    for pointer, four in fours.items():
        printer.line(f"const float4 {four} = reinterpret_cast<const float4*>({pointer})[i];")
    function = draft.free(f"{draft.name}_element")
    before = ""
    if stored.op == "load":
        value = next(iter(fours.values()))
    else:
        before = _element_function(draft, function, stored) + "\n\n"
        calls = [f"{function}({', '.join(f'{four}.{part}' for four in fours.values())})" for part in "xyzw"]
        value = "make_float4(\n        " + ",\n        ".join(calls) + ")"
    printer.lines += f"    reinterpret_cast<float4*>(out)[i] = {value};".splitlines()
    return draft.written(printer.lines, str(-(-count // 256)), 256, before)


def _element_function(draft: _Draft, function: str, stored: Expr) -> str:
    pointers = draft.language.pointers
    printer = draft.printer()
    for node in walk(stored):
        if node.op == "load":
            printer.bind(node, pointers[node.args[0]])
    text = bare(printer.value(stored))
    parameters = [f"float {pointers[b]}" for b in draft.buffers]
    head = _call(f"__device__ __forceinline__ float {function}", parameters, " {", 0)
    return "\n".join([head, *map(_fitted, [*printer.lines, f"    return {text};"]), "}"])


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Team:
    """The threads that share a row."""

    lines: tuple[str, ...]
    first: str
    """Number of a thread in its team."""
    stride: str
    """Threads of a team."""
    fold: str
    """"warp" or "block"."""
    grid: str
    threads: int


def _team(draft: _Draft, rows: int, length: int, variant: int) -> _Team:
    """A warp for short rows, several of them a block; a block for others."""
    if length > (64, 512)[variant]:
        threads = (128 if length < 512 else 256, 512 if length < 4096 else 1024)[variant]
        row = (f"const {draft.index} row = blockIdx.x;",) if "row" in draft.used else ()
        return _Team(row, "threadIdx.x", "blockDim.x", "block", str(rows), threads)
    if rows == 1:
        return _Team((), "threadIdx.x", "32", "warp", "1", 32)
    warps = min((8, 4)[variant], power_of_two(rows))
    lines = (
        f"const {draft.index} row = blockIdx.x * {warps} + threadIdx.x / 32;",
        "const int lane = threadIdx.x % 32;",
        f"if (row >= {rows}) return;",
    )
    return _Team(lines, "lane", "32", "warp", str(-(-rows // warps)), 32 * warps)


def _rows(kernel: Kernel, core: Rows, name: str, variant: int) -> Written:
    length = size([core.space[d] for d in core.inner])
    rows = size(core.space) // length
    row, j = bounded("row", rows), bounded("j", length)
    index = in_row(core.space, core.inner, row, j)
    last = in_row(core.space, core.inner, row, const(0)) if core.per_row else index
    out_index = core.out(last)
    place = flat(out_index, kernel.out.shape)
    stored = _stored(kernel, out_index, core.final(last))
    bodies = [as_kind(stage.at(index), FLOAT if stage.kind == FLOAT else INT) for stage in core.stages]
    draft = _Draft(kernel, name, [stored, place, *bodies], size(core.space))
    team = _team(draft, rows, length, variant)
    loop = f"for ({draft.index} j = {team.first}; j < {length}; j += {team.stride}) {{"
    lines = [f"    {line}" for line in team.lines]
    for stage, body in zip(core.stages, bodies, strict=True):
        lines += _stage(draft, team, loop, (stage.name, stage.fold, _ctype(body, kernel.out)), body)
    printer = draft.printer()
    with printer.block(f"if ({team.first} == 0) {{" if core.per_row else loop, "}"):
        draft.store(printer, place, stored)
    return draft.written([*lines, *printer.lines], team.grid, team.threads)


def _stage(draft: _Draft, team: _Team, loop: str, what: tuple[str, str, str], body: Expr) -> list[str]:
    name, fold, ctype = what
    printer = draft.printer()
    printer.line(f"{ctype} {name} = {neutral(fold, ctype)};")
    with printer.block(loop, "}"):
        draft.language.fold_into(printer, fold, ctype, name, draft.language.whole(printer, body))
    printer.line(f"{name} = {draft.helper(f'{team.fold}_{fold}', ctype)}({name});")
    return printer.lines


def _ctype(body: Expr, out: Buffer) -> str:
    """The type of a fold: sums of integers are as wide as what they are stored in."""
    if body.kind == FLOAT:
        return "float"
    read = {node.args[0].dtype for node in walk(body) if node.op == "load" and node.kind == INT}
    return "int64_t" if "int64" in read or (read and out.dtype == "int64") else "int"


# --- products --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tile:
    """What a block computes of a product: 16 × 16 threads, each `each` × `each` elements."""

    side: int
    depth: int

    @property
    def each(self) -> int:
        """Elements of a thread in each direction."""
        return self.side // 16


def _tile(rows: int, columns: int, variant: int) -> _Tile:
    if variant == 0:
        return _Tile(64, 16)
    return _Tile(16 if min(rows, columns) <= 16 else 32, 32)


def _product(kernel: Kernel, core: Product, name: str, variant: int) -> Written:
    counts = {"z": size(core.batch), "m": size(core.m), "n": size(core.n), "k": size(core.k)}
    shapes = {"z": core.batch, "m": core.m, "n": core.n, "k": core.k}
    z, m, n, k = (unflat(bounded(v, counts[v]), shapes[v]) for v in "zmnk")
    a, b = as_kind(core.a(z, m, k), FLOAT), as_kind(core.b(z, k, n), FLOAT)
    tile = _tile(counts["m"], counts["n"], variant)
    out_index = core.out(z, m, n)
    place = flat(out_index, kernel.out.shape)
    element = "acc[mi][ni]" if tile.each > 1 else "acc"
    stored = _stored(kernel, out_index, Expr("stage", (element,), FLOAT))
    draft = _Draft(kernel, name, [a, b, stored, place], 0)
    grid, lines = _tiles_of(draft, counts, tile)
    printer = draft.printer()
    lines += _head_of_product(tile)
    with printer.block(f"for (int k0 = 0; k0 < {counts['k']}; k0 += {tile.depth}) {{", "}"):
        _load_tile(draft, printer, "a", a, counts, tile)
        _load_tile(draft, printer, "b", b, counts, tile)
        _multiply(printer, tile)
    _store_tile(draft, printer, place, stored, counts, tile)
    return draft.written([*lines, *printer.lines], grid, 256)


def _tiles_of(draft: _Draft, counts: dict[str, int], tile: _Tile) -> tuple[str, list[str]]:
    """The grid, and where a block's tile starts. The longer side goes along x, which has no limit of 65535."""
    tiles = {v: -(-counts[v] // tile.side) for v in "mn"}
    x, y = ("n", "m") if tiles["n"] >= tiles["m"] else ("m", "n")
    if max(tiles[y], counts["z"]) > 65535:
        raise CannotWrite(f"a grid of {tiles[x]} × {tiles[y]} × {counts['z']} blocks is too large")
    axes = {x: "blockIdx.x", y: "blockIdx.y"}
    starts = [f"{v}0 = {axes[v]} * {tile.side}" for v in "mn"]
    batch = [f"    const {draft.index} z = blockIdx.z;"] if counts["z"] > 1 else []
    grid = f"dim3({tiles[x]}, {tiles[y]}{', ' + str(counts['z']) if counts['z'] > 1 else ''})"
    return grid, [*batch, f"    const {draft.index} {', '.join(starts)};"]


def _head_of_product(tile: _Tile) -> list[str]:
    width = tile.side + 1
    return [
        "    const int tm = threadIdx.x / 16, tn = threadIdx.x % 16;",
        "    // One column more than the tile has keeps neighbours in different banks.",
        f"    __shared__ float a_tile[{tile.depth}][{width}], b_tile[{tile.depth}][{width}];",
        f"    float acc[{tile.each}][{tile.each}] = {{}};" if tile.each > 1 else "    float acc = 0.0f;",
    ]


def _load_tile(draft: _Draft, printer: Printer, side: str, value: Expr, counts: dict[str, int], tile: _Tile) -> None:
    """Threads next to each other read what lies next to each other in memory."""
    other = "m" if side == "a" else "n"
    k_first = _run(value, "k") > _run(value, other) or (side == "a" and _run(value, "k") == _run(value, other))
    span = tile.depth if k_first else tile.side
    fast, slow = f"t % {span}", f"t / {span}"
    at = {"k": fast if k_first else slow, other: slow if k_first else fast}
    needed = {n.args[0] for n in walk(value) if n.op == "var"}
    limits = {v: counts[v] for v, whole in ((other, tile.side), ("k", tile.depth)) if counts[v] % whole}
    with printer.block(f"for (int t = threadIdx.x; t < {tile.side * tile.depth}; t += 256) {{", "}"):
        names = [f"{v} = {v}0 + {at[v]}" for v in (other, "k") if v in needed or v in limits]
        if names:
            printer.line(f"const {draft.index} {', '.join(names)};")
        target = f"{side}_tile[{at['k']}][{at[other]}]"
        _put(draft, printer, target, value, " && ".join(f"{v} < {limit}" for v, limit in limits.items()))


def _run(value: Expr, name: str) -> float:
    """How many elements next to each other in memory the neighbouring values of an index reach."""
    longest = 0.0
    for node in walk(value):
        if node.op != "load":
            continue
        index = node.args[1]
        for part, factor in index.args if index.op == "sum" else ((index, 1),):
            if part is None or factor != 1:
                continue
            if part.op == "var" and part.args[0] == name:
                longest = float("inf")
            if part.op == "mod" and part.args[0].op == "var" and part.args[0].args[0] == name:
                longest = max(longest, part.args[1])
    return longest


def _put(draft: _Draft, printer: Printer, target: str, value: Expr, guard: str) -> None:
    """Stores a value, or 0 where the guard does not hold: nothing is read there."""
    whole = draft.language.whole
    if not guard:
        printer.line(f"{target} = {whole(printer, value)};")
    elif value.op == "load" and value.args[2] is None and not any(n.op == "load" for n in walk(value.args[1])):
        text = draft.language.read(value.args[0], bare(printer.value(value.args[1])))
        printer.line(f"{target} = {guard} ? {text} : 0.0f;")
    else:
        printer.line("float value = 0.0f;")
        with printer.block(f"if ({guard}) {{", "}"):
            printer.line(f"value = {whole(printer, value)};")
        printer.line(f"{target} = value;")


def _multiply(printer: Printer, tile: _Tile) -> None:
    printer.line("__syncthreads();")
    printer.line("#pragma unroll")
    printer.line(f"for (int k = 0; k < {tile.depth}; ++k)")
    if tile.each == 1:
        printer.line("    acc += a_tile[k][tm] * b_tile[k][tn];")
    else:
        printer.line(f"    for (int mi = 0; mi < {tile.each}; ++mi)")
        printer.line(f"        for (int ni = 0; ni < {tile.each}; ++ni)")
        printer.line("            acc[mi][ni] += a_tile[k][tm + 16 * mi] * b_tile[k][tn + 16 * ni];")
    printer.line("__syncthreads();")


def _store_tile(
    draft: _Draft, printer: Printer, place: Expr, stored: Expr, counts: dict[str, int], tile: _Tile
) -> None:
    """The epilogue of each element. A thread's elements are 16 apart, so that a warp writes neighbours."""
    needed = {node.args[0] for root in (place, stored) for node in walk(root) if node.op == "var"}
    limits = {v: counts[v] for v in "mn" if counts[v] % tile.side}
    declared = [v for v in "mn" if v in needed or v in limits]
    outside = " || ".join(f"{v} >= {limit}" for v, limit in limits.items())
    if tile.each == 1:
        for v in declared:
            printer.line(f"const {draft.index} {v} = {v}0 + t{v};")
        if outside:
            printer.line(f"if ({outside}) return;")
        draft.store(printer, place, stored)
        return
    with (
        printer.block(f"for (int mi = 0; mi < {tile.each}; ++mi) {{", "}"),
        printer.block(f"for (int ni = 0; ni < {tile.each}; ++ni) {{", "}"),
    ):
        for v in declared:
            printer.line(f"const {draft.index} {v} = {v}0 + t{v} + 16 * {v}i;")
        if outside:
            printer.line(f"if ({outside}) continue;")
        draft.store(printer, place, stored)


# --- scans -----------------------------------------------------------------------------------------------------------


def _scan(kernel: Kernel, core: Scan, name: str, variant: int) -> Written:
    length = core.space[core.dim]
    rows = size(core.space) // length
    index = in_row(core.space, (core.dim,), bounded("row", rows), bounded("j", length))
    body = core.at(index)
    body = as_kind(body, FLOAT if body.kind == FLOAT else INT)
    ctype = _ctype(body, kernel.out)
    stored = _stored(kernel, index, Expr("stage", ("running",), body.kind))
    place = flat(index, kernel.out.shape)
    draft = _Draft(kernel, name, [body, stored, place], size(core.space))
    threads = min((256, 1024)[variant], max(32, power_of_two(length)))
    printer = draft.printer()
    if "row" in draft.used:
        printer.line(f"const {draft.index} row = blockIdx.x;")
    printer.line(f"{ctype} carry = {neutral(core.fold, ctype)};")
    with printer.block(f"for (int start = 0; start < {length}; start += {threads}) {{", "}"):
        printer.line(f"const {draft.index} j = start + threadIdx.x;")
        value = _scanned(draft, printer, body, core.fold, ctype, length if length % threads else None)
        scan = draft.helper(f"block_scan_{core.fold}", ctype)
        printer.line(f"const {ctype} running = {scan}({value}, carry);")
        if length % threads:
            with printer.block(f"if (j < {length}) {{", "}"):
                draft.store(printer, place, stored)
        else:
            draft.store(printer, place, stored)
    return draft.written(printer.lines, str(rows), threads)


def _scanned(draft: _Draft, printer: Printer, body: Expr, fold: str, ctype: str, length: int | None) -> str:
    """The text of a thread's own value: the neutral element behind the row's end."""
    if length is None:
        return draft.language.whole(printer, body)
    printer.line(f"{ctype} value = {neutral(fold, ctype)};")
    with printer.block(f"if (j < {length}) {{", "}"):
        printer.line(f"value = {draft.language.whole(printer, body)};")
    return "value"


# --- the whole source ------------------------------------------------------------------------------------------------


def device_text(kernels: Sequence[Written]) -> str:
    """The kernels with the device functions that they call."""
    helpers = needed_helpers({key for written in kernels for key in written.helpers})
    return "\n\n".join([*map(helper, helpers), *(written.text for written in kernels)])


def module_text(program: Program, kernels: Sequence[Written]) -> tuple[str, str, tuple[str, ...]]:
    """Declarations, source and function names for load_inline. `kernels` are those of the program, in its order."""
    stored = [*(k.out for k in program.kernels), *program.views]
    known = {b.name: b for b in (*program.inputs, *program.parameters, *stored)}
    heads, functions = [], []
    for kernel, written in zip(program.kernels, kernels, strict=True):
        buffers = [known[name] for name in written.buffers]
        names = list(named_buffers(buffers, RESERVED).values())
        heads.append(_call(f"torch::Tensor {written.name}", [f"torch::Tensor {name}" for name in names], "", 0))
        functions.append(_function(heads[-1], written, dict(zip(names, buffers, strict=True)), kernel.out))
    device = device_text(kernels)
    includes = ["#include <torch/extension.h>", "#include <cuda_runtime.h>"]
    includes += ["#include <cuda_fp16.h>"] if "__half" in device else []
    includes += ["#include <cuda_bf16.h>"] if "__nv_bfloat16" in device else []
    source = "\n\n".join(["\n".join(includes), device, *functions]) + "\n"
    return "\n".join(f"{head};" for head in heads), source, tuple(written.name for written in kernels)


def _function(head: str, written: Written, buffers: dict[str, Buffer], out: Buffer) -> str:
    """The C++ function that allocates the output and launches the kernel."""
    shape = ", ".join(map(str, out.shape))
    pointers = [_pointer(name, buffer, "const ") for name, buffer in buffers.items()]
    call = _call(written.launch, [*pointers, _pointer("out", out)], ";", 4)
    allocation = f"    auto out = torch::empty({{{shape}}}, {_options(buffers, out)});"
    return "\n".join([f"{head} {{", allocation, call, "    return out;", "}"])


def _options(buffers: dict[str, Buffer], out: Buffer) -> str:
    for name, buffer in buffers.items():
        if buffer.dtype == out.dtype:
            return f"{name}.options()"
    dtype = f"torch::{_TORCH_TYPES[out.dtype]}"
    first = next(iter(buffers), None)
    return f"{first}.options().dtype({dtype})" if first else f"torch::dtype({dtype}).device(torch::kCUDA)"


def _pointer(name: str, buffer: Buffer, const_: str = "") -> str:
    if buffer.dtype in SMALL:
        return f"reinterpret_cast<{const_}{TYPES[buffer.dtype]}*>({name}.data_ptr<{SMALL[buffer.dtype][0]}>())"
    return f"{name}.data_ptr<{TYPES[buffer.dtype]}>()"
