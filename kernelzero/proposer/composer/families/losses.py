"""Losses: a prediction against a target of the right kind; the mean, the sum, or one number an element."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.families.gathers import integers
from kernelzero.proposer.composer.op import F, Op, guarded, require
from kernelzero.proposer.composer.sizes import Shape, fixed, numel

_SIGNS = "torch.randint(0, 2, ({shape})).float() * 2.0 - 1.0"


def _loss(d: Draft, op: Op, x: Value) -> Value:
    kind, name, options = op.given
    x = guarded(d, op.needs, x)
    others, each = _TARGETS[kind](d, x)
    d.spend(numel(each) if kind in _OF_ROWS else fixed(1), 1, 1)
    reduction = d.pick("mean", "mean", "sum", "none", "none") if each != () else "mean"
    words = [d.rng.choice(options)] if options and d.chance(0.5) else []
    words += [f'reduction="{reduction}"'] if reduction != "mean" else []
    shape = each if reduction == "none" else ()
    operands = {"x": x, **others}
    given = ", ".join(f"{{{key}}}" for key in operands)
    text = f"{op.api}({', '.join(words)})" if op.api.startswith("nn.") else f"{name}({', '.join([given, *words])})"
    return d.call(text, operands, shape, api=op.api)


Target = tuple[dict[str, Value], Shape]


def _same(d: Draft, x: Value) -> Target:
    known = [v for v in d.earlier(x) if "exact" in v.facts]
    return {"y": d.rng.choice(known) if known and d.chance(0.15) else d.input(x.shape, "target")}, x.shape


def _fraction(d: Draft, x: Value) -> Target:
    return {"y": d.input(x.shape, "target", "torch.rand({shape})")}, x.shape


def _sign(d: Draft, x: Value) -> Target:
    return {"y": d.input(x.shape, "target", _one_dim(_SIGNS, x.shape))}, x.shape


def _whole_sign(d: Draft, x: Value) -> Target:
    fill = _one_dim("torch.randint(0, 2, ({shape})) * 2 - 1", x.shape)
    return {"y": d.input(x.shape, "target", fill, "int")}, x.shape


def _counts(d: Draft, x: Value) -> Target:
    fill = _one_dim("torch.randint(0, 5, ({shape})).float()", x.shape)
    return {"y": d.input(x.shape, "target", fill)}, x.shape


def _probabilities(d: Draft, x: Value) -> Target:
    return {"y": d.input(x.shape, "target", "torch.softmax(torch.randn({shape}), dim=-1)")}, x.shape


def _classes(d: Draft, x: Value) -> Target:
    require(x.shape[1].least() >= 3, "too few classes")
    shape = (x.shape[0], *x.shape[2:])
    return {"y": integers(d, shape, x.shape[1], d.pick("target", "labels"))}, shape


def _ranked(d: Draft, x: Value) -> Target:
    return {"y": d.input(x.shape), "t": d.input(x.shape, "target", _one_dim(_SIGNS, x.shape))}, x.shape


def _signed_rows(d: Draft, x: Value) -> Target:
    """For each row whether it should be like the other one."""
    require(x.shape[1].least() >= 3, "rows of nearly nothing")
    shape = x.shape[:1]
    return {
        "y": d.input(x.shape),
        "t": d.input(shape, "target", "torch.randint(0, 2, ({shape},)) * 2 - 1", "int"),
    }, shape


def _triplet(d: Draft, x: Value) -> Target:
    require(x.shape[-1].least() >= 3, "rows of nearly nothing")
    return {"y": d.input(x.shape, "positive"), "z": d.input(x.shape, "negative")}, x.shape[:-1]


def _variance(d: Draft, x: Value) -> Target:
    return {"y": d.input(x.shape, "target"), "v": d.input(x.shape, "var", "torch.rand({shape}) + 0.5")}, ()


def _one_dim(fill: str, shape: Shape) -> str:
    return fill.replace("({shape})", "({shape},)") if len(shape) == 1 else fill


_TARGETS = {
    "same": _same, "fraction": _fraction, "sign": _sign, "whole sign": _whole_sign, "counts": _counts,
    "probabilities": _probabilities, "classes": _classes,
    "ranked": _ranked, "signed rows": _signed_rows, "triplet": _triplet, "variance": _variance,
}  # fmt: skip


_OF_ROWS = ("classes", "signed rows", "triplet")


def _pair(
    kind: str, layer: str, function: str, *options: str, needs: str = "", ranks: tuple[int, ...] = (2, 3, 4)
) -> list[Op]:
    """A layer and its function."""
    rows = ((f"nn.{layer}", ""), (F + function, f"F.{function}"))
    return [Op(api, _loss, (), ranks, needs, late=3.0, given=(kind, name, options)) for api, name in rows]


OPS: list[Op] = [
    *_pair("same", "MSELoss", "mse_loss"),
    *_pair("same", "L1Loss", "l1_loss"),
    *_pair("same", "SmoothL1Loss", "smooth_l1_loss", "beta=0.5", "beta=2.0"),
    *_pair("same", "HuberLoss", "huber_loss", "delta=0.5", "delta=2.0"),
    *_pair("fraction", "BCELoss", "binary_cross_entropy", needs="inside unit"),
    *_pair("fraction", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits"),
    *_pair("sign", "SoftMarginLoss", "soft_margin_loss"),
    *_pair("whole sign", "HingeEmbeddingLoss", "hinge_embedding_loss", "margin=0.5", "margin=2.0"),
    *_pair("counts", "PoissonNLLLoss", "poisson_nll_loss", needs="bounded"),
    *_pair("probabilities", "KLDivLoss", "kl_div", needs="log softmax"),
    *_pair("classes", "CrossEntropyLoss", "cross_entropy", "label_smoothing=0.1"),
    *_pair("classes", "NLLLoss", "nll_loss", needs="log softmax over classes"),
    *_pair("ranked", "MarginRankingLoss", "margin_ranking_loss", "margin=0.5"),
    *_pair("signed rows", "CosineEmbeddingLoss", "cosine_embedding_loss", "margin=0.25", ranks=(2,)),
    *_pair("triplet", "TripletMarginLoss", "triplet_margin_loss", "margin=2.0", ranks=(2,)),
    *_pair("variance", "GaussianNLLLoss", "gaussian_nll_loss", "full=True"),
]
