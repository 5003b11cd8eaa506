"""Softmax and its family, and normalisations: rows that are read, folded and written again."""

from __future__ import annotations

from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import Expr, as_float, function
from kernelzero.coldstart.rulebook.loops.rules import dims_of, require, rows, rule, stage
from kernelzero.coldstart.rulebook.loops.rules_reductions import moments
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import At, Elements, Index, Value, size


def _softmax(s: Scheduler, name: str, input: Value, dim: int | None, final: Any, flip: float = 1.0) -> Value:
    require(dim is not None and bool(input.shape), f"{name} without a dimension")

    def stages(at: At) -> list[Any]:
        largest = stage(s, "max", lambda i: as_float(at(i)) * flip)
        return [largest, stage(s, "sum", lambda i: function("exp", as_float(at(i)) * flip - largest.value))]

    return rows(
        s, name, input, dims_of(dim, len(input.shape)), stages,
        lambda at, found: lambda i: final(as_float(at(i)) * flip - found[0], found[1]), per_row=False,
    )  # fmt: skip


@rule("softmax")
def softmax(s: Scheduler, input: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    """e^(x − max) / Σ."""
    return _softmax(s, "softmax", input, dim, lambda x, total: function("exp", x) / total)


@rule("log_softmax")
def log_softmax(s: Scheduler, input: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    """x − max − log Σ."""
    return _softmax(s, "log_softmax", input, dim, lambda x, total: x - function("log", total))


@rule("softmin")
def softmin(s: Scheduler, input: Value, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Value:
    """Softmax of −x."""
    return _softmax(s, "softmin", input, dim, lambda x, total: function("exp", x) / total, flip=-1.0)


def normalised(
    s: Scheduler, name: str, input: Value, dims: tuple[int, ...], eps: float, weight: Any, bias: Any
) -> Value:
    """(x − mean) / sqrt(var + eps) over rows, then weight and bias, each an expression by index or None."""
    count = size([input.shape[d] for d in dims])

    def final(at: At, found: Any) -> At:
        mean, scale = found[0] / float(count), function("rsqrt", found[1] / float(count) + eps)

        def element(i: Index) -> Expr:
            return _affine((as_float(at(i)) - mean) * scale, i, weight, bias)

        return element

    return rows(s, name, input, dims, lambda at: moments(s, at, count), final, per_row=False)


def _affine(x: Expr, i: Index, weight: Any, bias: Any) -> Expr:
    x = x if weight is None else x * weight(i)
    return x if bias is None else x + bias(i)


def _of_last(value: Value | None, rank: int) -> Any:
    return None if value is None else lambda i: as_float(value.at(i[len(i) - rank :]))


def _of_channel(value: Value | None, dim: int = 1) -> Any:
    return None if value is None else lambda i: as_float(value.at((i[dim],)))


@rule("layer_norm")
def layer_norm(
    s: Scheduler,
    input: Value,
    normalized_shape: Any,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    """Layer norm."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    rank = len(shape)
    dims = tuple(range(len(input.shape) - rank, len(input.shape)))
    return normalised(s, "layer_norm", input, dims, eps, _of_last(weight, rank), _of_last(bias, rank))


@rule("rms_norm")
def rms_norm(
    s: Scheduler, input: Value, normalized_shape: Any, weight: Value | None = None, eps: float | None = None
) -> Value:
    """x / sqrt(mean x² + eps)."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    dims = tuple(range(len(input.shape) - len(shape), len(input.shape)))
    count, small = size(shape), 1.1920928955078125e-07 if eps is None else eps

    def final(at: At, found: Any) -> At:
        scale = function("rsqrt", found[0] / float(count) + small)
        return lambda i: _affine(as_float(at(i)) * scale, i, _of_last(weight, len(shape)), None)

    def stages(at: At) -> list[Any]:
        return [stage(s, "sum", lambda i: as_float(at(i)) * as_float(at(i)))]

    return rows(s, "rms_norm", input, dims, stages, final, per_row=False)


@rule("batch_norm")
def batch_norm(
    s: Scheduler,
    input: Value,
    running_mean: Value | None,
    running_var: Value | None,
    weight: Value | None = None,
    bias: Value | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Value:
    """With statistics of the batch while it is trained, else with those that were kept."""
    if training or running_mean is None or running_var is None:
        dims = (0, *range(2, len(input.shape)))
        return normalised(s, "batch_norm", input, dims, eps, _of_channel(weight), _of_channel(bias))
    mean, var = _of_channel(running_mean), _of_channel(running_var)

    def at(i: Index) -> Expr:
        x = (as_float(input.at(i)) - mean(i)) * function("rsqrt", var(i) + eps)
        return _affine(x, i, _of_channel(weight), _of_channel(bias))

    return s.cheap(input.shape, input.dtype, at, "batch_norm", [input])


@rule("torch.batch_norm")
def torch_batch_norm(
    s: Scheduler,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: Any,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    """The same with arguments in torch's order."""
    return batch_norm(s, input, running_mean, running_var, weight, bias, training, momentum, eps)  # type: ignore[no-any-return]


@rule("group_norm")
def group_norm(
    s: Scheduler,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    """Normalised over groups of channels: as a space (batch, group, channel in it, …)."""
    batch, channels, *rest = input.shape
    each = channels // num_groups
    source = s.read(input)

    def joined(i: Index) -> Index:
        return (i[0], i[1] * each + i[2], *i[3:])

    split = Value((batch, num_groups, each, *rest), input.dtype, lambda i: source.at(joined(i)))
    channel_weight, channel_bias = _of_channel(weight), _of_channel(bias)
    found = normalised(
        s, "group_norm", split, tuple(range(2, len(split.shape))), eps,
        None if weight is None else lambda i: channel_weight(joined(i)),
        None if bias is None else lambda i: channel_bias(joined(i)),
    )  # fmt: skip
    return reshaped(s, found, input.shape)


def reshaped(s: Scheduler, value: Value, shape: tuple[int, ...]) -> Value:
    """The same elements in the same order under another shape."""
    from kernelzero.coldstart.rulebook.loops.rules_layout import reshape

    return reshape(s, value, *shape)  # type: ignore[no-any-return]


@rule("instance_norm")
def instance_norm(
    s: Scheduler,
    input: Value,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Value | None = None,
    bias: Value | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Value:
    """Normalised over each channel of each sample."""
    require(use_input_stats, "instance_norm with kept statistics")
    dims = tuple(range(2, len(input.shape)))
    return normalised(s, "instance_norm", input, dims, eps, _of_channel(weight), _of_channel(bias))


@rule("torch.instance_norm")
def torch_instance_norm(
    s: Scheduler,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    """The same with arguments in torch's order."""
    return instance_norm(s, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)  # type: ignore[no-any-return]


@rule("normalize")
def normalize(s: Scheduler, input: Value, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None) -> Value:
    """x / max(‖x‖, eps)."""
    require(float(p) in (1.0, 2.0), f"normalize with p={p}")

    def stages(at: At) -> list[Any]:
        power = (lambda x: function("abs", x)) if float(p) == 1.0 else (lambda x: as_float(x) * x)
        return [stage(s, "sum", lambda i: power(as_float(at(i))))]

    def final(at: At, found: Any) -> At:
        length = found[0] if float(p) == 1.0 else function("sqrt", found[0])
        return lambda i: as_float(at(i)) / function("max", length, eps)

    return rows(s, "normalize", input, dims_of(dim, len(input.shape)), stages, final, per_row=False)


@rule("local_response_norm")
def local_response_norm(
    s: Scheduler, input: Value, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Value:
    """x / (k + α·mean of squares over neighbouring channels)^β."""
    from kernelzero.coldstart.rulebook.loops.expr import bounded, fold, where
    from kernelzero.coldstart.rulebook.loops.rules_layout import guarded

    x = s.read(input)
    channels = input.shape[1]

    def at(i: Index) -> Expr:
        name = s.name("r")
        place = i[1] + bounded(name, size) + (-(size // 2))
        inside = (place >= 0) & (place < channels)
        near = as_float(x.at((i[0], guarded(place, channels), *i[2:])))
        total = fold("sum", [(name, size)], where(inside, near * near, 0.0))
        scale = total * (alpha / size) + k
        return as_float(x.at(i)) * function("exp2", function("log2", scale) * -beta)

    return s.heavy(Elements(at), input.shape, input.dtype, "local_response_norm")
