"""A complete `ModelNew` source: the kernel of a plan, its launch, and the module around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelzero.coldstart.rulebook.operators import CannotWrite
from kernelzero.coldstart.rulebook.plan import Kind, Plan, fits, is_product, loops
from kernelzero.coldstart.rulebook.write import Kernel, Layout, Space

_HEAD = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
_WIDTHS = ("K", "N", "P")


@dataclass
class Text:
    """What a template gives: the kernel, its parameters and the lines of `forward` up to the launch."""

    kernel: Kernel
    opening: list[str]
    """First lines of the kernel."""
    sizes: list[str] = field(default_factory=list)
    """Integer parameters, passed by the same name."""
    constants: dict[str, str] = field(default_factory=dict)
    """Compile-time parameters → the expression passed."""
    setup: list[str] = field(default_factory=list)
    """Lines of `forward` that compute sizes."""
    grid: str = ""


def elementwise(plan: Plan, size: int) -> Text:
    """One program a block of elements, whatever the shape."""
    layout = Layout("", "", (Space("i", "n", "mask"),), "axis=0", other="")
    text = Text(Kernel(plan, layout), ["i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "mask = i < n"])
    _write_all(text.kernel)
    text.sizes, text.constants = ["n"], {"BLOCK": str(size)}
    text.setup = [f"n = {plan.base.access}.numel()"]
    text.grid = f"(triton.cdiv(n, {size}),)"
    return text


def one_row(plan: Plan) -> Text:
    """One program a row; the row lies in one block."""
    layout = Layout("row", "", (Space("cols", "n_cols", "mask"),), "axis=0")
    opening = ["row = tl.program_id(0)", "cols = tl.arange(0, BLOCK)", "mask = cols < n_cols"]
    text = Text(Kernel(plan, layout), opening)
    _write_all(text.kernel)
    text.sizes, text.constants = ["n_cols"], {"BLOCK": "triton.next_power_of_2(n_cols)"}
    text.setup, text.grid = _rows_and_columns(plan, "n_rows", "n_cols"), "(n_rows,)"
    return text


def several_rows(plan: Plan, rows: int) -> Text:
    """One program several rows, as a tile of two dimensions."""
    layout = Layout("rows", "rows < n_rows", (Space("cols", "n_cols", "mask"),), "axis=1, keep_dims=True")
    opening = [
        "rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",
        "cols = tl.arange(0, BLOCK)[None, :]",
        "mask = cols < n_cols",
    ]
    text = Text(Kernel(plan, layout), opening)
    _write_all(text.kernel)
    text.sizes = ["n_rows", "n_cols"]
    text.constants = {"ROWS": str(rows), "BLOCK": "triton.next_power_of_2(n_cols)"}
    text.setup = _rows_and_columns(plan, "n_rows", "n_cols")
    text.grid = f"(triton.cdiv(n_rows, {rows}),)"
    return text


def whole_rows(plan: Plan, rows: int) -> Text:
    """Matrix products with whole rows of every space in one tile."""
    count = len(plan.products) + 1
    for i in range(count - 1):
        if not fits(plan.width(i), plan.width(i + 1)):
            raise CannotWrite(f"a product of {plan.width(i)} by {plan.width(i + 1)} with operators along its rows")
    opening = [f"m = tl.program_id(0) * {rows} + tl.arange(0, {rows})[:, None]"]
    opening += [f"{w.lower()} = tl.arange(0, BLOCK_{w})" for w in _WIDTHS[:count]]
    text = Text(Kernel(plan, _product_layout(count)), opening)
    _write_all(text.kernel)
    text.sizes = ["M", *_WIDTHS[:count]]
    text.constants = {f"BLOCK_{w}": f"max(16, triton.next_power_of_2({w}))" for w in _WIDTHS[:count]}
    text.setup = _product_sizes(plan)
    text.grid = f"(triton.cdiv(M, {rows}),)"
    return text


def blocked(plan: Plan, size: int) -> Text:
    """One matrix product whose inner dimension is walked in blocks; the outer one too, unless rows must be whole."""
    whole = plan.looks_along(1)
    if whole and not fits(plan.width(1), size):
        raise CannotWrite(f"operators along rows of {plan.width(1)} after a product")
    outer = "tl.arange(0, BLOCK_N)" if whole else "tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)"
    opening = ["m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]", f"n = {outer}"]
    opening.append(f"acc = tl.zeros((BLOCK, {'BLOCK_N' if whole else 'BLOCK'}), tl.float32)")
    text = Text(Kernel(plan, _product_layout(2)), opening)
    _write_loop(text.kernel)
    text.sizes, text.constants = ["M", "N"], {"K": "K", "BLOCK": str(size)}
    if whole:
        text.constants["BLOCK_N"] = "max(16, triton.next_power_of_2(N))"
    text.setup = _product_sizes(plan)
    text.grid = f"(triton.cdiv(M, {size}),{'' if whole else f' triton.cdiv(N, {size})'})"
    return text


def _product_layout(spaces: int) -> Layout:
    widths = tuple(Space(w.lower(), w, f"{w.lower()} < {w}") for w in _WIDTHS[:spaces])
    return Layout("m", "m < M", widths, "axis=1, keep_dims=True")


def _write_all(kernel: Kernel) -> None:
    for position, node in enumerate(kernel.plan.order):
        (kernel.product if is_product(node) else kernel.write)(position)
    kernel.store()


def _write_loop(kernel: Kernel) -> None:
    order = kernel.plan.order
    split = order.index(kernel.plan.products[0])
    before = [i for i, n in enumerate(order) if kernel.plan.space[id(n)] == 0]
    kernel.line("for start in range(0, K, BLOCK):")
    kernel.indent += 1
    kernel.put("k", "start + tl.arange(0, BLOCK)")
    for position in before:
        kernel.write(position)
    x = kernel.product_operand(order[split])
    weight = kernel.load_weight(order[split])
    kernel.line(f'acc += tl.dot({x}, {weight}, input_precision="ieee")')
    kernel.indent -= 1
    kernel.loop_done(order[split])
    for position in range(len(before), len(order)):
        if position != split:
            kernel.write(position)
    kernel.store()


def _rows_and_columns(plan: Plan, rows: str, columns: str) -> list[str]:
    x = plan.base.access
    if len(plan.base.shape) == 2:
        return [f"{rows}, {columns} = {x}.shape"]
    return [f"{columns} = {x}.shape[-1]", f"{rows} = {x}.numel() // {columns}"]


def _product_sizes(plan: Plan) -> list[str]:
    lines = _rows_and_columns(plan, "M", "K")
    for width, product in zip(_WIDTHS[1:], plan.products, strict=False):
        lines.append(f"{width} = {product.operands['w'].access}.shape[{0 if product.op == 'linear' else 1}]")
    return lines


def _allocation(plan: Plan) -> str:
    output, x = plan.graph.output, plan.base.access
    device = f"device={x}.device"
    kind, space = plan.kind[id(output)], plan.space[id(output)]
    if kind is Kind.TILE and space == 0:
        return f"torch.empty_like({x})"
    lead = f"{x}.shape[0]" if len(plan.base.shape) == 2 else f"*{x}.shape[:-1]"
    if len(plan.base.shape) == 2:
        lead = "M" if plan.products else "n_rows"
    tail = ["1"] if kind is Kind.SCALAR else [_WIDTHS[space]]
    shape = [lead, *(tail if len(output.shape) == len(plan.base.shape) else [])]
    if output.dtype != "float32":
        device = f"dtype=torch.{output.dtype}, {device}"
    return f"torch.empty({', '.join(shape)}, {device})"


def choose(plan: Plan, variant: int) -> Text:
    """The template of a variant; see `VARIANTS` in the package."""
    if plan.template == "elementwise":
        return elementwise(plan, (1024, 256)[variant])
    if plan.template == "row":
        return one_row(plan) if variant == 0 else several_rows(plan, 4)
    looped = loops(plan)
    whole = all(fits(plan.width(i), plan.width(i + 1)) for i in range(len(plan.products)))
    if looped.loop and (variant == 0 or not whole):
        return blocked(looped, 32 if variant == 0 else 64)
    return whole_rows(plan, 32 if variant == 1 and not looped.loop else 16)


def render(text: Text) -> str:
    """The whole file."""
    kernel, plan = text.kernel, text.kernel.plan
    constants = [f"{name}: tl.constexpr" for name in text.constants]
    parameters = ", ".join([*kernel.pointers, "out_ptr", *text.sizes, *constants])
    body = "\n".join(["    " + line for line in text.opening] + kernel.lines)
    init = [line.replace("super(Model,", "super(ModelNew,") for line in plan.graph.init]
    module = "\n".join([*init, "", *_forward(text)] if init else _forward(text))
    return (
        f"{_HEAD}\n\n@triton.jit\ndef fused_kernel({parameters}):\n{body}\n\n\nclass ModelNew(nn.Module):\n{module}\n"
    )


def _forward(text: Text) -> list[str]:
    kernel, plan = text.kernel, text.kernel.plan
    constants = [f"{name}={value}" for name, value in text.constants.items()]
    arguments = ", ".join([*kernel.pointers.values(), "out", *text.sizes, *constants])
    inputs = plan.graph.inputs
    lines = [f"{n.access} = {n.access}.contiguous()" for n in inputs if not n.contiguous]
    lines += [*text.setup, f"out = {_allocation(plan)}", f"fused_kernel[{text.grid}]({arguments})", "return out"]
    head = f"    def forward({', '.join(['self', *(n.access for n in inputs)])}):"
    return [head, *("        " + line for line in lines)]
