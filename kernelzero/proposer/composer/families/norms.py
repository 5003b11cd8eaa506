"""Normalisations, the softmax family, gates of halves."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import F, Op, a_dim, form, replaced, require, spelled, without
from kernelzero.proposer.composer.sizes import Shape, numel


def _along(d: Draft, op: Op, x: Value) -> Value:
    dim = a_dim(d, x, 3)
    d.spend(numel(without(x.shape, (dim,))), 1, 1)
    return d.call(form(d, op), {"x": x}, x.shape, api=op.api, facts=op.gives, dim=spelled(d, dim, x.rank))


def _softmax2d(d: Draft, op: Op, x: Value) -> Value:
    require(x.shape[1].least() >= 3, "too few channels")
    d.spend(numel(without(x.shape, (1,))), 1, 1)
    return d.call("nn.Softmax2d()", {"x": x}, x.shape, api=op.api, facts=op.gives)


def _trailing(d: Draft, x: Value) -> Shape:
    """The dimensions that a layer norm looks along."""
    several = x.rank > 2 and d.chance(0.25)
    shape = x.shape[-2:] if several else x.shape[-1:]
    d.spend(numel(x.shape[: x.rank - len(shape)]), 1, 1)
    require(numel(shape).least() >= 3, "too few elements to normalise")
    return shape


def _layer_norm(d: Draft, op: Op, x: Value) -> Value:
    shape = _trailing(d, x)
    text = form(d, op)
    operands = {"x": x}
    if "{w}" in text:
        operands["w"] = d.parameter(shape, d.pick("weight", "gamma"))
    if "{b}" in text:
        operands["b"] = d.parameter(shape, d.pick("bias", "beta"))
    if len(shape) == 1:
        text = text.replace("({shape})", "{shape}" if text.startswith("nn.") else "({shape},)")
    if d.chance(0.3) and "{w}" not in text and not text.startswith("nn."):
        text = text.replace("({shape},)", "{x}.shape[-1:]").replace("({shape})", "{x}.shape[-2:]")
    shown = shape[0] if len(shape) == 1 else shape
    return d.call(text.replace("{shape}", "{normalized_shape}"), operands, x.shape, api=op.api, facts="bounded",
                  normalized_shape=shown)  # fmt: skip


def _groups(d: Draft, x: Value) -> int:
    channels = x.shape[1]
    fit = [g for g in (2, 3, 4) if channels.divides_by(g)]
    inner = numel(x.shape[2:]).least() if x.rank > 2 else 1
    fit = [g for g in fit if channels.least() // g * inner >= 3]
    require(bool(fit), "channels that have no groups")
    return int(d.rng.choice(fit))


def _group_norm(d: Draft, op: Op, x: Value) -> Value:
    text = form(d, op)
    operands = {"x": x}
    if "{w}" in text:
        operands |= {"w": d.parameter(x.shape[1:2], "weight"), "b": d.parameter(x.shape[1:2], "bias", 0.5)}
    return d.call(text, operands, x.shape, api=op.api, facts="bounded", groups=_groups(d, x), num_channels=x.shape[1])


def _instance_norm(d: Draft, op: Op, x: Value) -> Value:
    require(numel(x.shape[2:]).least() >= 3, "too few elements to normalise")
    d.spend(numel(x.shape[:2]), 1, 1)
    return d.call(form(d, op), {"x": x}, x.shape, api=op.api, facts="bounded", num_features=x.shape[1])


def _batch_norm(d: Draft, op: Op, x: Value) -> Value:
    """By the batch's own statistics, or functionally by given ones."""
    count = numel((x.shape[0], *x.shape[2:]))
    d.spend(x.shape[1], 1, 1)
    text = form(d, op)
    operands = {"x": x}
    if text.startswith("nn.") or "None, None" in text:
        require(count.least() >= 4, "too few elements to normalise")
    if "{mean}" in text:
        operands["mean"] = d.parameter(x.shape[1:2], "running_mean", 0.5, kind="buffer")
        operands["var"] = d.parameter(x.shape[1:2], "running_var", 1.0, kind="buffer", fill="torch.rand({shape}) + 0.5")
    if "{w}" in text:
        operands |= {"w": d.parameter(x.shape[1:2], "weight"), "b": d.parameter(x.shape[1:2], "bias", 0.5)}
    return d.call(text, operands, x.shape, api=op.api, num_features=x.shape[1])


def _local_response(d: Draft, op: Op, x: Value) -> Value:
    require(x.shape[1].least() >= 3, "too few channels")
    x = d.call("{x} * 10.0", {"x": x}, x.shape)
    return d.call(form(d, op), {"x": x}, x.shape, api=op.api)


def _glu(d: Draft, op: Op, x: Value) -> Value:
    fit = [k for k in range(1, x.rank) if x.shape[k].divides_by(2) and x.shape[k].small > 2]
    require(bool(fit), "no dimension that can be halved")
    dim = d.rng.choice(fit)
    return d.call(form(d, op), {"x": x}, replaced(x.shape, dim, x.shape[dim] // 2), api=op.api,
                  dim=spelled(d, dim, x.rank))  # fmt: skip


_SOFT = "nonneg bounded"
_BATCH = (
    "F.batch_norm({x}, {mean}, {var}, training=False)",
    "F.batch_norm({x}, {mean}, {var}, {w}, {b}, training=False)",
    "F.batch_norm({x}, None, None, training=True)",
)
_TORCH_BATCH = (
    "torch.batch_norm({x}, {w}, {b}, {mean}, {var}, False, 0.1, 1e-5, False)",
    "torch.batch_norm({x}, None, None, {mean}, {var}, False, 0.1, 1e-5, False)",
)

OPS: list[Op] = [
    *(Op(api, _along, forms, gives=_SOFT) for api, forms in (
        ("torch.softmax", ("torch.softmax({x}, dim={dim})",)),
        ("torch.special.softmax", ("torch.special.softmax({x}, dim={dim})",)),
        (F + "softmax", ("F.softmax({x}, dim={dim})",)),
        (F + "softmin", ("F.softmin({x}, dim={dim})",)),
        ("nn.Softmax", ("nn.Softmax(dim={dim})",)),
        ("nn.Softmin", ("nn.Softmin(dim={dim})",)),
    )),
    Op("nn.Softmax2d", _softmax2d, ranks=(4,), gives=_SOFT),
    Op("torch.log_softmax", _along, ("torch.log_softmax({x}, dim={dim})",)),
    Op(F + "log_softmax", _along, ("F.log_softmax({x}, dim={dim})",)),
    Op("nn.LogSoftmax", _along, ("nn.LogSoftmax(dim={dim})",)),
    Op(F + "normalize", _along, ("F.normalize({x}, dim={dim})", "F.normalize({x}, p=1.0, dim={dim})"), gives="bounded"),
    Op("nn.LayerNorm", _layer_norm, ("nn.LayerNorm(({shape}))", "nn.LayerNorm(({shape}), eps=1e-6)")),
    Op(F + "layer_norm", _layer_norm, ("F.layer_norm({x}, ({shape}))", "F.layer_norm({x}, ({shape}), {w}, {b})",
                                       "F.layer_norm({x}, ({shape}), weight={w})")),
    Op("torch.layer_norm", _layer_norm, ("torch.layer_norm({x}, ({shape}))",
                                         "torch.layer_norm({x}, ({shape}), {w}, {b})")),
    Op("nn.RMSNorm", _layer_norm, ("nn.RMSNorm(({shape}))", "nn.RMSNorm(({shape}), eps=1e-5)")),
    Op(F + "rms_norm", _layer_norm, ("F.rms_norm({x}, ({shape}))", "F.rms_norm({x}, ({shape}), {w}, eps=1e-5)")),
    Op("nn.GroupNorm", _group_norm, ("nn.GroupNorm({groups}, {num_channels})",
                                     "nn.GroupNorm({groups}, {num_channels}, affine=False)")),
    Op(F + "group_norm", _group_norm, ("F.group_norm({x}, {groups})", "F.group_norm({x}, {groups}, {w}, {b})")),
    *(Op(f"nn.InstanceNorm{k}d", _instance_norm, (f"nn.InstanceNorm{k}d({{num_features}})",
                                                  f"nn.InstanceNorm{k}d({{num_features}}, affine=True)"), (k + 2,))
      for k in (1, 2, 3)),
    Op(F + "instance_norm", _instance_norm, ("F.instance_norm({x})", "F.instance_norm({x}, eps=1e-4)"), (3, 4, 5)),
    *(Op(f"nn.BatchNorm{k}d", _batch_norm, (f"nn.BatchNorm{k}d({{num_features}})",
                                            f"nn.BatchNorm{k}d({{num_features}}, affine=False)"),
         (2, 3) if k == 1 else (k + 2,)) for k in (1, 2, 3)),
    Op(F + "batch_norm", _batch_norm, _BATCH),
    Op("torch.batch_norm", _batch_norm, _TORCH_BATCH),
    Op("nn.LocalResponseNorm", _local_response, ("nn.LocalResponseNorm(3)", "nn.LocalResponseNorm(2, alpha=0.001)"),
       (3, 4, 5)),
    Op(F + "local_response_norm", _local_response, ("F.local_response_norm({x}, 3)",
                                                    "F.local_response_norm({x}, 2, alpha=0.001, beta=0.5)"), (3, 4, 5)),
    Op("nn.GLU", _glu, ("nn.GLU(dim={dim})",)),
    Op(F + "glu", _glu, ("F.glu({x}, dim={dim})",)),
]  # fmt: skip
