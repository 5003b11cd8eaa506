"""Convolutions and transposed ones in one to three dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import F, Op, require
from kernelzero.proposer.composer.sizes import Size, numel


@dataclass(frozen=True)
class _Window:
    kernel: tuple[int, ...]
    stride: int
    padding: int
    dilation: int
    groups: int
    extra: int = 0
    """Output padding of a transposed one."""
    same: bool = False


_OUT = (Size(4, 16), Size(6, 48), Size(8, 64), Size(12, 96), Size(5, 35))


def _window(d: Draft, x: Value, transposed: bool) -> _Window:
    spatial = x.rank - 2
    kernel = (d.pick(1, 2, 3, 3, 3),) * spatial
    if spatial > 1 and d.chance(0.2):
        kernel = tuple(d.pick(1, 2, 3) for _ in range(spatial))
    stride = d.pick(1, 1, 2) if not transposed else d.pick(1, 2, 2)
    dilation = d.pick(1, 1, 1, 2) if max(kernel) > 1 else 1
    groups = d.rng.choice([1, 1, 1, *(g for g in (2, 3, 4) if x.shape[1].divides_by(g))])
    padding = d.pick(0, 0, 1) if not transposed else d.pick(0, min(1, min(kernel) - 1))
    extra = d.pick(0, stride - 1) if transposed else 0
    same = not transposed and stride == 1 and d.chance(0.15)
    return _Window(kernel, stride, padding, dilation, groups, extra, same)


def _extents(x: Value, w: _Window, transposed: bool) -> tuple[Size, ...]:
    found = []
    for size, k in zip(x.shape[2:], w.kernel, strict=True):
        reach = w.dilation * (k - 1)
        if w.same:
            found.append(size)
        elif transposed:
            found.append((size - 1) * w.stride - 2 * w.padding + reach + w.extra + 1)
        else:
            found.append((size + 2 * w.padding - reach - 1) // w.stride + 1)
    return tuple(found)


def _options(w: _Window, layer: bool, named: bool) -> str:
    """The arguments after the channels or the weight, those that are not the default."""
    size = str(w.kernel[0]) if len(set(w.kernel)) == 1 else str(w.kernel)
    words = [f"kernel_size={size}" if named else size] if layer else []
    words += [f"stride={w.stride}"] if w.stride > 1 else []
    words += ['padding="same"'] if w.same else [f"padding={w.padding}"] if w.padding else []
    words += [f"output_padding={w.extra}"] if w.extra else []
    words += [f"dilation={w.dilation}"] if w.dilation > 1 else []
    words += [f"groups={w.groups}"] if w.groups > 1 else []
    return "".join(f", {word}" for word in words)


def _convolution(d: Draft, op: Op, x: Value) -> Value:
    transposed, name = op.given
    w = _window(d, x, transposed)
    fit = [s for s in _OUT if s.divides_by(w.groups)]
    out = d.rng.choice(fit) if w.groups == 1 or d.chance(0.5) else x.shape[1]
    shape = (x.shape[0], out, *_extents(x, w, transposed))
    require(all(s.least() >= 1 for s in shape), "a window larger than the image")
    d.spend(numel(shape), math.prod(w.kernel) * (x.shape[1].small // w.groups))
    if op.api.startswith("nn."):
        bias = ", bias=False" if d.chance(0.25) else ""
        text = f"{op.api}({{in_channels}}, {{out_channels}}{_options(w, True, d.chance(0.5))}{bias})"
        return d.call(text, {"x": x}, shape, api=op.api, in_channels=x.shape[1], out_channels=out)
    return _functional(d, op, name, x, w, out, shape)


def _functional(d: Draft, op: Op, name: str, x: Value, w: _Window, out: Size, shape: Any) -> Value:
    channels = (x.shape[1], out // w.groups) if op.given[0] else (out, x.shape[1] // w.groups)
    operands = {"x": x, "w": d.weight((*channels, *(Size(k, k) for k in w.kernel)), "weight", 0.3)}
    bias = ""
    if d.chance(0.4):
        operands["b"], bias = d.parameter((out,), "bias"), ", {b}"
    return d.call(f"{name}({{x}}, {{w}}{bias}{_options(w, False, False)})", operands, shape, api=op.api)


OPS: list[Op] = [
    *(Op(f"nn.Conv{k}d", _convolution, (), (k + 2,), given=(False, "")) for k in (1, 2, 3)),
    *(Op(f"nn.ConvTranspose{k}d", _convolution, (), (k + 2,), given=(True, "")) for k in (1, 2, 3)),
    *(Op(f"{F}conv{k}d", _convolution, (), (k + 2,), given=(False, f"F.conv{k}d")) for k in (1, 2, 3)),
    *(Op(f"{F}conv_transpose{k}d", _convolution, (), (k + 2,), given=(True, f"F.conv_transpose{k}d"))
      for k in (1, 2, 3)),
    *(Op(f"torch.conv{k}d", _convolution, (), (k + 2,), given=(False, f"torch.conv{k}d")) for k in (1, 2, 3)),
    *(Op(f"torch.conv_transpose{k}d", _convolution, (), (k + 2,), given=(True, f"torch.conv_transpose{k}d"))
      for k in (1, 2)),
]  # fmt: skip
