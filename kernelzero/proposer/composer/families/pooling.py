"""Pooling, padding, resizing and what moves pixels about."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import F, Op, facts, form, require
from kernelzero.proposer.composer.sizes import fixed, numel


def _pool(d: Draft, op: Op, x: Value) -> Value:
    kind, name = op.given
    kernel = d.pick(2, 2, 3)
    stride = d.pick(kernel, kernel, 1, 2)
    padding = d.pick(0, 0, 1) if kind != "lp" else 0
    words = [f"kernel_size={kernel}" if d.chance(0.3) else str(kernel)]
    words += [f"stride={stride}"] if stride != kernel else []
    words += [f"padding={padding}"] if padding else []
    if kind == "avg" and padding and d.chance(0.4):
        words.append("count_include_pad=False")
    spatial = tuple((s + 2 * padding - kernel) // stride + 1 for s in x.shape[2:])
    require(all(s.least() >= kernel for s in x.shape[2:]), "a window larger than the image")
    d.spend(numel((*x.shape[:2], *spatial)), kernel ** len(spatial))
    order = f"{d.pick('1', '2')}, " if kind == "lp" else ""
    if kind == "lp":
        x = d.call(d.pick("torch.abs({x})", "F.softplus({x})"), {"x": x}, x.shape, facts="nonneg")
        words = [str(kernel), *words[1:]]
    arguments = f"{order}{', '.join(words)}"
    text = f"{op.api}({arguments})" if op.api.startswith("nn.") else f"{name}({{x}}, {arguments})"
    result = facts(op, x)
    return d.call(text, {"x": x}, (*x.shape[:2], *spatial), api=op.api, facts=result)


def _adaptive(d: Draft, op: Op, x: Value) -> Value:
    _, name = op.given
    wanted = d.pick(1, 1, 2, 3, 4)
    fit = all(s.least() > wanted for s in x.shape[2:])
    require(fit, "an image that is too small to be pooled")
    window = numel(tuple(s // wanted for s in x.shape[2:]))
    d.spend(numel(x.shape[:2]) * wanted ** (x.rank - 2), window)
    size = str(wanted) if x.rank == 3 or d.chance(0.6) else f"({', '.join([str(wanted)] * (x.rank - 2))})"
    text = f"{op.api}({size})" if op.api.startswith("nn.") else f"{name}({{x}}, {size})"
    return d.call(text, {"x": x}, (*x.shape[:2], *(fixed(wanted) for _ in x.shape[2:])), api=op.api, facts=facts(op, x))


def _padded(d: Draft, op: Op, x: Value) -> Value:
    """Layers of padding, and F.pad in its four modes."""
    kind = op.given
    spatial = x.rank - 2 if kind or d.chance(0.5) else 1
    mode = kind or d.pick("constant", "constant", "value", *(("reflect", "replicate") if x.rank in (3, 4) else ()))
    if mode in ("reflect", "replicate", "circular"):
        spatial = x.rank - 2
        require(spatial > 0 and all(s.least() > 2 for s in x.shape[2:]), "an image that is too small to be reflected")
    even = d.chance(0.5)
    amounts = [d.pick(1, 2)] * (2 * spatial) if even else [d.pick(0, 1, 2) for _ in range(2 * spatial)]
    require(any(amounts), "nothing to be padded")
    shape = list(x.shape)
    for k in range(spatial):
        shape[-1 - k] = shape[-1 - k] + amounts[2 * k] + amounts[2 * k + 1]
    given = f"({', '.join(map(str, amounts))})"
    if kind:
        value = ", 0.5" if mode == "value" else ""
        short = str(amounts[0]) if even and d.chance(0.6) else given
        return d.call(f"{op.api}({short}{value})", {"x": x}, tuple(shape), api=op.api, facts=facts(op, x))
    tail = {"constant": "", "value": ", value=0.5"}.get(mode, f', mode="{mode}"')
    return d.call(f"F.pad({{x}}, {given}{tail})", {"x": x}, tuple(shape), api=op.api, facts=facts(op, x))


def _upsampled(d: Draft, op: Op, x: Value) -> Value:
    mode = op.given or (d.pick("nearest", "bilinear", "corners") if x.rank == 4 else "nearest")
    tail = {"nearest": d.pick("", ', mode="nearest"'), "bilinear": ', mode="bilinear"', "layer": "",
            "corners": ', mode="bilinear", align_corners=True'}[mode]  # fmt: skip
    head = "{x}, " if "{x}" in op.forms[0] else ""
    text = op.forms[0].replace("{arguments}", f"{head}scale_factor=2{tail}")
    shape = (*x.shape[:2], *(s * 2 for s in x.shape[2:]))
    return d.call(text.replace("({x}, {x}, ", "({x}, "), {"x": x}, shape, api=op.api)


def _shuffled(d: Draft, op: Op, x: Value) -> Value:
    b, c, h, w = x.shape
    if op.given == "channels":
        fit = [g for g in (2, 3, 4) if c.divides_by(g) and c.least() > g]
        require(bool(fit), "channels that cannot be shuffled")
        return d.call(form(d, op), {"x": x}, x.shape, api=op.api, facts=facts(op, x), r=d.rng.choice(fit))
    if op.given == "up":
        require(c.divides_by(4), "channels that cannot become pixels")
        shape = (b, c // 4, h * 2, w * 2)
    else:
        require(h.divides_by(2) and w.divides_by(2), "pixels that cannot become channels")
        shape = (b, c * 4, h // 2, w // 2)
    return d.call(form(d, op), {"x": x}, shape, api=op.api, facts=facts(op, x), r=2)


def _unfold(d: Draft, op: Op, x: Value) -> Value:
    kernel, stride, padding = d.pick(2, 3), d.pick(1, 2), d.pick(0, 1)
    b, c, h, w = x.shape
    places = [(s + 2 * padding - kernel) // stride + 1 for s in (h, w)]
    require(all(s.least() >= 1 for s in places), "a window larger than the image")
    shape = (b, c * (kernel * kernel), places[0] * places[1])
    extra = (f", stride={stride}" if stride > 1 else "") + (f", padding={padding}" if padding else "")
    text = op.forms[0].replace("{arguments}", f"kernel_size={kernel}{extra}")
    return d.call(text, {"x": x}, shape, api=op.api, facts=facts(op, x))


def _pools() -> list[Op]:
    found = []
    for kind, layer in (("max", "MaxPool"), ("avg", "AvgPool"), ("lp", "LPPool")):
        for k in (1, 2) if kind == "lp" else (1, 2, 3):
            exact = "exact" if kind == "max" else ""
            found.append(Op(f"nn.{layer}{k}d", _pool, (), (k + 2,), gives=exact, given=(kind, "")))
            name = f"{kind}_pool{k}d"
            found.append(Op(F + name, _pool, (), (k + 2,), gives=exact, given=(kind, f"F.{name}")))
    for kind, layer in (("max", "Max"), ("avg", "Avg")):
        for k in (1, 2, 3):
            exact = "exact" if kind == "max" else ""
            found.append(Op(f"nn.Adaptive{layer}Pool{k}d", _adaptive, (), (k + 2,), gives=exact, given=(kind, "")))
            name = f"adaptive_{kind}_pool{k}d"
            found.append(Op(F + name, _adaptive, (), (k + 2,), gives=exact, given=(kind, f"F.{name}")))
    return found


_LAYERS = {"Zero": "constant", "Constant": "value", "Reflection": "reflect", "Replication": "replicate",
           "Circular": "circular"}  # fmt: skip

OPS: list[Op] = [
    *_pools(),
    Op("torch.avg_pool1d", _pool, (), (3,), given=("avg", "torch.avg_pool1d")),
    Op("torch.max_pool2d", _pool, (), (4,), gives="exact", given=("max", "torch.max_pool2d")),
    *(Op(f"nn.{name}Pad{k}d", _padded, (), (k + 2,), gives="exact", given=mode)
      for name, mode in _LAYERS.items() for k in (1, 2, 3)),
    Op(F + "pad", _padded, (), (2, 3, 4), gives="exact", given=""),
    Op("nn.Upsample", _upsampled, ("nn.Upsample({arguments})",), (3, 4), given=""),
    Op("nn.UpsamplingNearest2d", _upsampled, ("nn.UpsamplingNearest2d({arguments})",), (4,), given="layer"),
    Op("nn.UpsamplingBilinear2d", _upsampled, ("nn.UpsamplingBilinear2d({arguments})",), (4,), given="layer"),
    Op(F + "interpolate", _upsampled, ("F.interpolate({x}, {arguments})",), (3, 4), given=""),
    Op(F + "upsample", _upsampled, ("F.upsample({x}, {arguments})",), (3, 4), given=""),
    Op(F + "upsample_nearest", _upsampled, ("F.upsample_nearest({x}, {arguments})",), (4,), given="layer"),
    Op(F + "upsample_bilinear", _upsampled, ("F.upsample_bilinear({x}, {arguments})",), (4,), given="layer"),
    Op("nn.PixelShuffle", _shuffled, ("nn.PixelShuffle({r})",), (4,), gives="exact", given="up"),
    Op(F + "pixel_shuffle", _shuffled, ("F.pixel_shuffle({x}, {r})",), (4,), gives="exact", given="up"),
    Op("nn.PixelUnshuffle", _shuffled, ("nn.PixelUnshuffle({r})",), (4,), gives="exact", given="down"),
    Op(F + "pixel_unshuffle", _shuffled, ("F.pixel_unshuffle({x}, {r})",), (4,), gives="exact", given="down"),
    Op("nn.ChannelShuffle", _shuffled, ("nn.ChannelShuffle({r})",), (4,), gives="exact", given="channels"),
    Op("nn.Unfold", _unfold, ("nn.Unfold({arguments})",), (4,), gives="exact"),
    Op(F + "unfold", _unfold, ("F.unfold({x}, {arguments})",), (4,), gives="exact"),
]  # fmt: skip
