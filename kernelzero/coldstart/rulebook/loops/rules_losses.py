"""Losses, and the distances that some of them are made of.

Losses of pairs of elements are pointwise and then summed; those that look along a dimension are rows. Not covered: the
old arguments size_average and reduce, orders of distances other than 1 and 2, ctc and the multi-class margin losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kernelzero.coldstart.rulebook.loops.expr import Expr, as_float, as_int, compare, const, function, where
from kernelzero.coldstart.rulebook.loops.rules import (
    aligned,
    broadcast,
    pointwise,
    require,
    rows,
    rule,
    stage,
)
from kernelzero.coldstart.rulebook.loops.rules_pointwise import exp
from kernelzero.coldstart.rulebook.loops.rules_reductions import mean, sum_
from kernelzero.coldstart.rulebook.loops.schedule import Scheduler
from kernelzero.coldstart.rulebook.loops.value import At, Index, Rows, Stage, Value

Formula = Callable[..., Expr]


def log(x: Expr) -> Expr:
    """Natural logarithm."""
    return function("log", x)


def reduced(s: Scheduler, losses: Value, reduction: str, name: str) -> Value:
    """All losses, their sum or their mean."""
    require(reduction in ("none", "sum", "mean"), f"{name} with reduction {reduction}")
    if reduction == "none":
        return losses
    return sum_(s, losses) if reduction == "sum" else mean(s, losses)  # type: ignore[no-any-return]


def _no_old_arguments(name: str, given: dict[str, Any]) -> None:
    require(set(given) <= {"size_average", "reduce"}, f"{name} with {', '.join(given)}")
    require(all(v is None for v in given.values()), f"{name} with size_average or reduce")


# --- of pairs of elements --------------------------------------------------------------------------------------------


def _mse(x: Expr, y: Expr) -> Expr:
    return (x - y) * (x - y)


def _l1(x: Expr, y: Expr) -> Expr:
    return function("abs", x - y)


def _smooth_l1(x: Expr, y: Expr, beta: float = 1.0) -> Expr:
    distance = function("abs", x - y)
    if beta == 0:
        return distance
    return where(distance < float(beta), distance * distance * (0.5 / beta), distance - 0.5 * beta)


def _huber(x: Expr, y: Expr, delta: float = 1.0) -> Expr:
    distance = function("abs", x - y)
    return where(distance < float(delta), 0.5 * distance * distance, float(delta) * (distance - 0.5 * delta))


def _kl_div(x: Expr, y: Expr, log_target: bool = False) -> Expr:
    if log_target:
        return exp(y) * (y - x)
    return where(compare("eq", y, 0.0), 0.0, y * log(y)) - y * x


def _soft_margin(x: Expr, y: Expr) -> Expr:
    return log(1.0 + exp(-(y * x)))


def _hinge_embedding(x: Expr, y: Expr, margin: float = 1.0) -> Expr:
    far = where(compare("ne", y, 1.0), function("max", float(margin) - x, 0.0), 0.0)
    return far + where(compare("ne", y, -1.0), x, 0.0)


def _poisson_nll(x: Expr, y: Expr, log_input: bool = True, full: bool = False, eps: float = 1e-8) -> Expr:
    found = exp(x) - y * x if log_input else x - y * log(x + eps)
    if not full:
        return found
    safe = function("max", y, 1.0)
    return found + where(y > 1.0, safe * log(safe) - safe + 0.5 * log(2.0 * math.pi * safe), 0.0)


def _bce(x: Expr, y: Expr) -> Expr:
    yes, no = (function("max", log(p), -100.0) for p in (x, 1.0 - x))
    return (y - 1.0) * no - y * yes


def _bce_with_logits(x: Expr, y: Expr) -> Expr:
    return function("max", x, 0.0) - x * y + log(1.0 + exp(-function("abs", x)))


def _bce_with_pos_weight(x: Expr, y: Expr, pos_weight: Expr) -> Expr:
    lifted = log(1.0 + exp(-function("abs", x))) + function("max", -x, 0.0)
    return (1.0 - y) * x + (1.0 + (pos_weight - 1.0) * y) * lifted


_PAIRS: dict[str, tuple[str, Formula, tuple[str, ...]]] = {
    "mse_loss": ("MSELoss", _mse, ()),
    "l1_loss": ("L1Loss", _l1, ()),
    "smooth_l1_loss": ("SmoothL1Loss", _smooth_l1, ("beta",)),
    "huber_loss": ("HuberLoss", _huber, ("delta",)),
    "kl_div": ("KLDivLoss", _kl_div, ("log_target",)),
    "soft_margin_loss": ("SoftMarginLoss", _soft_margin, ()),
    "hinge_embedding_loss": ("HingeEmbeddingLoss", _hinge_embedding, ("margin",)),
    "poisson_nll_loss": ("PoissonNLLLoss", _poisson_nll, ("log_input", "full", "eps")),
}
"""Function → module class, formula, options."""


def _floats(compute: Formula) -> Formula:
    return lambda *values: compute(*(as_float(v) for v in values))


def _pairs(s: Scheduler, name: str, input: Value, target: Value, reduction: str, given: dict[str, Any]) -> Value:
    _, formula, options = _PAIRS[name]
    chosen = {key: given.pop(key) for key in options if key in given}
    require(given.pop("weight", None) is None, f"{name} with a weight")
    _no_old_arguments(name, given)
    compute = _floats(lambda x, y: formula(x, y, **chosen))
    losses = pointwise(s, name, compute, input, target, dtype=input.dtype)
    if reduction == "batchmean":
        total, batch = sum_(s, losses), float(input.shape[0])
        return pointwise(s, "batchmean", lambda x: as_float(x) / batch, total)
    return reduced(s, losses, reduction, name)


def _register_pairs(name: str) -> None:
    @rule(name)
    def loss(s: Scheduler, input: Value, target: Value, *, reduction: str = "mean", **given: Any) -> Value:
        return _pairs(s, name, input, target, reduction, given)


for _name in _PAIRS:
    _register_pairs(_name)


@rule("binary_cross_entropy")
def binary_cross_entropy(
    s: Scheduler, input: Value, target: Value, weight: Value | None = None, *, reduction: str = "mean", **given: Any
) -> Value:
    """Of probabilities; logarithms end at −100."""
    _no_old_arguments("binary_cross_entropy", given)
    return _weighted(s, "binary_cross_entropy", _bce, [input, target], weight, reduction)


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    s: Scheduler,
    input: Value,
    target: Value,
    weight: Value | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Value | None = None,
    **given: Any,
) -> Value:
    """Of logits, without a large exponential."""
    _no_old_arguments("binary_cross_entropy_with_logits", given)
    operands = [input, target] if pos_weight is None else [input, target, pos_weight]
    compute = _bce_with_logits if pos_weight is None else _bce_with_pos_weight
    return _weighted(s, "binary_cross_entropy_with_logits", compute, operands, weight, reduction)


def _weighted(
    s: Scheduler, name: str, compute: Formula, operands: list[Value], weight: Value | None, reduction: str
) -> Value:
    losses = pointwise(s, name, _floats(compute), *operands, dtype=operands[0].dtype)
    if weight is not None:
        losses = pointwise(s, "weight", lambda x, w: as_float(x) * w, losses, weight)
    return reduced(s, losses, reduction, name)


@rule("margin_ranking_loss")
def margin_ranking_loss(
    s: Scheduler,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0,
    *,
    reduction: str = "mean",
    **given: Any,
) -> Value:
    """max(0, −y(a − b) + margin)."""
    _no_old_arguments("margin_ranking_loss", given)
    compute = _floats(lambda a, b, y: function("max", -y * (a - b) + float(margin), 0.0))
    losses = pointwise(s, "margin_ranking_loss", compute, input1, input2, target, dtype=input1.dtype)
    return reduced(s, losses, reduction, "margin_ranking_loss")


@rule("gaussian_nll_loss")
def gaussian_nll_loss(
    s: Scheduler,
    input: Value,
    target: Value,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Value:
    """½(log v + (x − y)² / v), v not below eps."""
    spread = var
    if isinstance(var, Value) and var.shape != input.shape and var.shape == input.shape[:-1]:
        spread = Value((*var.shape, 1), var.dtype, lambda i: var.at(i[:-1]))

    def compute(x: Expr, y: Expr, v: Expr) -> Expr:
        bounded = function("max", v, eps)
        found = 0.5 * (log(bounded) + (x - y) * (x - y) / bounded)
        return found + 0.5 * math.log(2.0 * math.pi) if full else found

    losses = pointwise(s, "gaussian_nll_loss", _floats(compute), input, target, spread, dtype=input.dtype)
    return reduced(s, losses, reduction, "gaussian_nll_loss")


# --- of classes ------------------------------------------------------------------------------------------------------


class _Classes:
    """Which class each sample has, and what it weighs."""

    def __init__(self, s: Scheduler, name: str, input: Value, target: Value, weight: Value | None, ignored: int):
        self.dim = 0 if len(input.shape) == 1 else 1
        self.target = s.read(target)
        self.weight, self.ignored = weight, ignored
        shape = tuple(n for d, n in enumerate(input.shape) if d != self.dim)
        require(self.target.kind == "i" and self.target.shape == shape, f"{name} of such a target")

    def sample(self, i: Index) -> Index:
        """The index of a sample, from one in the whole space."""
        return (*i[: self.dim], *i[self.dim + 1 :])

    def counts(self, n: Index) -> Expr:
        """Whether a sample is not left out."""
        return compare("ne", self.target.at(n), self.ignored)

    def place(self, n: Index) -> Expr:
        """Its class, 0 where it is left out."""
        return where(self.counts(n), as_int(self.target.at(n)), 0)

    def within(self, n: Index) -> Index:
        """The index of its class's element in the whole space."""
        return (*n[: self.dim], self.place(n), *n[self.dim :])

    def weight_of(self, place: Expr) -> Expr:
        """Of a class."""
        return const(1.0) if self.weight is None else as_float(self.weight.at((place,)))

    def share(self, n: Index) -> Expr:
        """What a sample counts in a mean."""
        return where(self.counts(n), self.weight_of(self.place(n)), 0.0)


def _of_samples(s: Scheduler, name: str, losses: Value, classes: _Classes, reduction: str) -> Value:
    """All, their sum, or their mean by the weights of the classes. A single row, however short: it has gathers."""
    require(reduction in ("none", "sum", "mean"), f"{name} with reduction {reduction}")
    if reduction == "none":
        return losses
    if not losses.shape:
        require(classes.weight is None, f"{name} of one sample with weights")
        return losses
    source = s.read(losses)
    stages = [stage(s, "sum", lambda i: as_float(source.at(i)))]
    found = stages[0].value
    if reduction == "mean":
        stages.append(stage(s, "sum", classes.share))
        found = found / stages[1].value
    core = Rows(source.shape, tuple(range(len(source.shape))), tuple(stages), lambda i: found, per_row=True)
    return s.heavy(core, (), source.dtype, name)


@rule("nll_loss", "nll_loss_nd")
def nll_loss(
    s: Scheduler,
    input: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    **given: Any,
) -> Value:
    """−w·x at the place of the class."""
    _no_old_arguments("nll_loss", given)
    classes = _Classes(s, "nll_loss", input, target, weight, ignore_index)
    x = s.read(input)

    def at(n: Index) -> Expr:
        found = -as_float(x.at(classes.within(n)))
        return where(classes.counts(n), found if weight is None else found * classes.weight_of(classes.place(n)), 0.0)

    losses = s.cheap(classes.target.shape, x.dtype, at, "nll_loss", [x, classes.target])
    return _of_samples(s, "nll_loss", losses, classes, reduction)


@rule("cross_entropy", "cross_entropy_loss")
def cross_entropy(
    s: Scheduler,
    input: Value,
    target: Value,
    weight: Value | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **given: Any,
) -> Value:
    """By classes, or by probabilities of classes."""
    _no_old_arguments("cross_entropy", given)
    if target.kind == "f":
        return _soft_cross_entropy(s, input, target, weight, reduction, label_smoothing)
    classes = _Classes(s, "cross_entropy", input, target, weight, ignore_index)
    dim, share = classes.dim, label_smoothing / input.shape[classes.dim]

    def stages(at: At) -> list[Stage]:
        found = _softmax_stages(s, at)

        def below(i: Index) -> Expr:
            return as_float(at(i)) - found[0].value

        def own(i: Index) -> Expr:
            return where(compare("eq", classes.place(classes.sample(i)), i[dim]), below(i), 0.0)

        found.append(stage(s, "sum", own))
        if label_smoothing:
            found.append(stage(s, "sum", lambda i: below(i) * classes.weight_of(i[dim])))
        if label_smoothing and weight is not None:
            found.append(stage(s, "sum", lambda i: classes.weight_of(i[dim])))
        return found

    def final(at: At, found: Any) -> At:
        def element(i: Index) -> Expr:
            n, logs = classes.sample(i), log(found[1])
            loss = (logs - found[2]) * classes.weight_of(classes.place(n))
            if label_smoothing:
                mass = float(input.shape[dim]) if weight is None else found[4]
                loss = loss * (1.0 - label_smoothing) + (logs * mass - found[3]) * share
            return where(classes.counts(n), loss, 0.0)

        return element

    losses = rows(s, "cross_entropy", input, (dim,), stages, final, per_row=True)
    return _of_samples(s, "cross_entropy", losses, classes, reduction)


def _softmax_stages(s: Scheduler, at: At) -> list[Stage]:
    largest = stage(s, "max", lambda i: as_float(at(i)))
    return [largest, stage(s, "sum", lambda i: exp(as_float(at(i)) - largest.value))]


def _soft_cross_entropy(
    s: Scheduler, input: Value, target: Value, weight: Value | None, reduction: str, smoothing: float
) -> Value:
    """−Σ w·y·log softmax(x), as log(total)·Σwy − Σwy(x − max)."""
    require(input.shape == target.shape, "cross_entropy of such a target")
    y, dim = s.read(target), 0 if len(input.shape) == 1 else 1
    share = smoothing / input.shape[dim]

    def mass(i: Index) -> Expr:
        given = as_float(y.at(i)) * (1.0 - smoothing) + share if smoothing else as_float(y.at(i))
        return given if weight is None else given * weight.at((i[dim],))

    def stages(at: At) -> list[Stage]:
        found = _softmax_stages(s, at)
        dot = stage(s, "sum", lambda i: mass(i) * (as_float(at(i)) - found[0].value))
        return [*found, dot, stage(s, "sum", mass)]

    losses = rows(
        s, "cross_entropy", input, (dim,), stages, lambda at, f: lambda i: log(f[1]) * f[3] - f[2], per_row=True
    )
    return reduced(s, losses, reduction, "cross_entropy")


# --- of vectors ------------------------------------------------------------------------------------------------------


def _along(
    s: Scheduler,
    name: str,
    vectors: list[Value],
    dim: int,
    sums: Callable[..., list[Expr]],
    final: Callable[..., Expr],
    keepdim: bool = False,
) -> Value:
    """Sums along a dimension of expressions of several vectors' elements, broadcast, and what is made of them."""
    read = [s.read(v) for v in vectors]
    shape = broadcast([v.shape for v in read])
    whole = Value(shape, read[0].dtype, lambda i: aligned(read[0], i))

    def elements(i: Index) -> list[Expr]:
        return [as_float(aligned(v, i)) for v in read]

    count = len(sums(*(const(0.0) for _ in read)))
    made = [stage(s, "sum", lambda i, _n=n: sums(*elements(i))[_n]) for n in range(count)]  # type: ignore[misc]
    return rows(
        s, name, whole, (dim % len(shape),), lambda at: made, lambda at, found: lambda i: final(*found),
        per_row=True, keepdim=keepdim,
    )  # fmt: skip


@rule("cosine_similarity")
def cosine_similarity(s: Scheduler, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    """a·b / (max(‖a‖, eps) max(‖b‖, eps))."""
    return _along(
        s, "cosine_similarity", [x1, x2], dim, lambda a, b: [a * b, a * a, b * b],
        lambda dot, a, b: dot / (function("max", function("sqrt", a), eps) * function("max", function("sqrt", b), eps)),
    )  # fmt: skip


@rule("cosine_embedding_loss")
def cosine_embedding_loss(
    s: Scheduler,
    input1: Value,
    input2: Value,
    target: Value,
    margin: float = 0,
    *,
    reduction: str = "mean",
    **given: Any,
) -> Value:
    """1 − cos where y is 1, max(0, cos − margin) where it is −1."""
    _no_old_arguments("cosine_embedding_loss", given)
    cosine = _along(
        s, "cosine", [input1, input2], -1, lambda a, b: [a * b, a * a, b * b],
        lambda dot, a, b: dot / function("sqrt", (a + 1e-12) * (b + 1e-12)),
    )  # fmt: skip

    def compute(c: Expr, y: Expr) -> Expr:
        far = where(compare("eq", y, -1.0), function("max", c - float(margin), 0.0), 0.0)
        return where(compare("eq", y, 1.0), 1.0 - c, far)

    losses = pointwise(s, "cosine_embedding_loss", _floats(compute), cosine, target, dtype=input1.dtype)
    return reduced(s, losses, reduction, "cosine_embedding_loss")


@rule("pairwise_distance")
def pairwise_distance(
    s: Scheduler, x1: Value, x2: Value, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Value:
    """‖a − b + eps‖."""
    require(float(p) in (1.0, 2.0), f"pairwise_distance with p={p}")
    if float(p) == 1.0:
        return _along(
            s, "pairwise_distance", [x1, x2], -1, lambda a, b: [function("abs", a - b + eps)], lambda n: n, keepdim
        )
    return _along(
        s, "pairwise_distance", [x1, x2], -1, lambda a, b: [_square(a - b + eps)],
        lambda n: function("sqrt", n), keepdim,
    )  # fmt: skip


def _square(x: Expr) -> Expr:
    return x * x


@rule("triplet_margin_loss")
def triplet_margin_loss(
    s: Scheduler,
    anchor: Value,
    positive: Value,
    negative: Value,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
    **given: Any,
) -> Value:
    """max(0, ‖a − p‖ − ‖a − n‖ + margin)."""
    _no_old_arguments("triplet_margin_loss", given)
    require(float(p) == 2.0, f"triplet_margin_loss with p={p}")

    def sums(a: Expr, near: Expr, far: Expr) -> list[Expr]:
        found = [_square(a - near + eps), _square(a - far + eps)]
        return [*found, _square(near - far + eps)] if swap else found

    def final(near: Expr, far: Expr, between: Expr | None = None) -> Expr:
        distance = function("sqrt", far if between is None else function("min", far, between))
        return function("max", function("sqrt", near) - distance + float(margin), 0.0)

    losses = _along(s, "triplet_margin_loss", [anchor, positive, negative], -1, sums, final)
    return reduced(s, losses, reduction, "triplet_margin_loss")
