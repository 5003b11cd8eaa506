"""Matrix products, layers of them, einsum, distances and similarities."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import F, Op, form, require
from kernelzero.proposer.composer.sizes import Size, any_size, numel


def _width(d: Draft, x: Value) -> Size:
    """Another number of columns."""
    table = "features" if x.rank == 2 else "dim"
    return any_size(table, d.rng)


def _linear(d: Draft, op: Op, x: Value) -> Value:
    out = _width(d, x)
    text, operands = form(d, op), {"x": x}
    if not text.startswith("nn."):
        operands["w"] = d.weight((out, x.shape[-1]), "weight")
    if "{b}" in text:
        operands["b"] = d.parameter((out,), "bias")
    shape = (*x.shape[:-1], out)
    return d.call(text, operands, shape, api=op.api, in_features=x.shape[-1], out_features=out)


def _right(d: Draft, op: Op, x: Value) -> Value:
    """`x` times a matrix, of as many batches as `x` has where the operator wants that."""
    out = _width(d, x)
    batches = x.shape[:-2] if op.given == "batched" or (op.given == "either" and x.rank > 2 and d.chance(0.5)) else ()
    other = d.input((*batches, x.shape[-1], out)) if batches else d.weight((x.shape[-1], out), "weight")
    return d.call(form(d, op), {"x": x, "y": other}, (*x.shape[:-1], out), api=op.api)


def _chain(d: Draft, op: Op, x: Value) -> Value:
    middle, out = _width(d, x), _width(d, x)
    first, second = d.weight((x.shape[1], middle), "w1"), d.weight((middle, out), "w2")
    return d.call(form(d, op), {"x": x, "y": first, "z": second}, (x.shape[0], out), api=op.api)


def _added(d: Draft, op: Op, x: Value) -> Value:
    """A product with something added: addmm, baddbmm, addbmm."""
    out = _width(d, x)
    batches = x.shape[:-2]
    other = d.input((*batches, x.shape[-1], out)) if batches else d.weight((x.shape[-1], out), "weight")
    shape = (x.shape[-2], out) if op.given == "summed" else (*x.shape[:-1], out)
    start = d.parameter((out,), "bias") if d.chance(0.5) else d.input(shape)
    return d.call(form(d, op), {"b": start, "x": x, "y": other}, shape, api=op.api)


def _with_vector(d: Draft, op: Op, x: Value) -> Value:
    operands = {"x": x, "v": d.weight((x.shape[1],), "vector", 1.0)}
    if op.api == "torch.addmv":
        operands["b"] = d.input((x.shape[0],))
    return d.call(form(d, op), operands, (x.shape[0],), api=op.api)


def _vectors(d: Draft, op: Op, x: Value) -> Value:
    """Two vectors: their dot product, used on one of them, or their outer product."""
    if op.given == "dot":
        y = d.input(x.shape)
        number = d.call(form(d, op), {"x": x, "y": y}, (), api=op.api)
        return d.call(d.pick("{x} * {r}", "{x} - {r}"), {"x": x, "r": number}, x.shape) if d.chance(0.5) else number
    y = d.input((any_size("features", d.rng),))
    if op.api == "torch.addr":
        start = d.input((x.shape[0], y.shape[0]))
        return d.call(form(d, op), {"b": start, "x": x, "y": y}, start.shape, api=op.api)
    return d.call(form(d, op), {"x": x, "y": y}, (x.shape[0], y.shape[0]), api=op.api)


_EINSUMS = {
    1: (("i,j->ij", "ab"), ("i,i->i", "aa")),
    2: (("ij,jk->ik", "jk"), ("ij,kj->ik", "kj"), ("ij,ij->i", "ij"), ("ij,ik->jk", "ik"), ("ij,j->i", "j")),
    3: (("bij,bjk->bik", "bjk"), ("bij,bkj->bik", "bkj"), ("bij,jk->bik", "jk"), ("bij,bij->bi", "bij"),
        ("bij,bik->bjk", "bik")),
    4: (("bchw,co->bohw", "co"), ("bhij,bhkj->bhik", "bhkj"), ("bchw,bchw->bc", "bchw"), ("bchw,wk->bchk", "wk")),
}  # fmt: skip


def _einsum(d: Draft, op: Op, x: Value) -> Value:
    equation, _ = d.rng.choice(_EINSUMS[x.rank])
    left, result = equation.split("->")
    first, second = left.split(",")
    sizes = dict(zip(first, x.shape, strict=True))
    for letter in second:
        sizes.setdefault(letter, _width(d, x) if x.rank != 4 else any_size("channels", d.rng))
    wanted = tuple(sizes[c] for c in second)
    other = d.input(wanted) if first[0] in second else d.weight(wanted, "weight", 1.0)
    shape = tuple(sizes[c] for c in result)
    return d.call(f'torch.einsum("{equation}", {{x}}, {{y}})', {"x": x, "y": other}, shape, api=op.api)


def _tensordot(d: Draft, op: Op, x: Value) -> Value:
    out = _width(d, x)
    if d.chance(0.5):
        text, shape = "torch.tensordot({x}, {y}, dims=1)", (x.shape[-1], out)
    else:
        text, shape = f"torch.tensordot({{x}}, {{y}}, dims=([{x.rank - 1}], [1]))", (out, x.shape[-1])
    return d.call(text, {"x": x, "y": d.weight(shape, "weight")}, (*x.shape[:-1], out), api=op.api)


def _bilinear(d: Draft, op: Op, x: Value) -> Value:
    out = d.pick(Size(4, 32), Size(6, 48), Size(5, 35))
    second = d.input((*x.shape[:-1], d.pick(Size(5, 60), Size(4, 64), Size(3, 33))))
    operands = {"x": x, "y": second}
    require(x.shape[-1].small <= 40, "a long row for bilinear")
    d.spend(numel((*x.shape[:-1], out)), x.shape[-1] * second.shape[-1])
    if not op.api.startswith("nn."):
        operands["w"] = d.parameter((out, x.shape[-1], second.shape[-1]), "weight", 0.2)
    return d.call(form(d, op), operands, (*x.shape[:-1], out), api=op.api, in1_features=x.shape[-1],
                  in2_features=second.shape[-1], out_features=out)  # fmt: skip


def _attention(d: Draft, op: Op, x: Value) -> Value:
    require(x.shape[-1].gpu <= 512, "long rows for attention")
    text = form(d, op)
    key = x if d.chance(0.2) else d.input(x.shape, d.pick("k", "key"))
    value = key if d.chance(0.2) else d.input(x.shape, d.pick("v", "value"))
    # Scores of inputs that are handed in are large on large inputs; how large is the reference's own affair.
    return d.call(text, {"x": x, "k": key, "v": value}, x.shape, api=op.api)


def _distance(d: Draft, op: Op, x: Value) -> Value:
    """A number for each pair of rows."""
    y = d.input(x.shape)
    last = x.shape[-1]
    require(last.least() >= 3, "rows of nearly nothing")
    d.spend(numel(x.shape[:-1]), 1, 1)
    return d.call(form(d, op), {"x": x, "y": y}, x.shape[:-1], api=op.api)


def _dist(d: Draft, op: Op, x: Value) -> Value:
    number = d.call(form(d, op), {"x": x, "y": d.input(x.shape)}, (), api=op.api)
    return d.call(d.pick("{x} / ({r} + 1.0)", "{x} - 0.1 * {r}"), {"x": x, "r": number}, x.shape)


def _cdist(d: Draft, op: Op, x: Value) -> Value:
    y = d.input((*x.shape[:-2], d.pick(Size(6, 300), Size(9, 513), Size(12, 256)), x.shape[-1]))
    shape = (*x.shape[:-1], y.shape[-2])
    d.spend(numel(shape), x.shape[-1])
    return d.call(form(d, op), {"x": x, "y": y}, shape, api=op.api)


def _kron(d: Draft, op: Op, x: Value) -> Value:
    y = d.input((Size(2, 2), Size(3, 4)))
    return d.call(form(d, op), {"x": x, "y": y}, (x.shape[0] * y.shape[0], x.shape[1] * y.shape[1]), api=op.api)


_LINEAR = ("nn.Linear({in_features}, {out_features})",) * 2 + ("nn.Linear({in_features}, {out_features}, bias=False)",)
_ADD = "({b}, {x}, {y})"
_SCALED = "({b}, {x}, {y}, beta=0.5, alpha=2.0)"

OPS: list[Op] = [
    Op("nn.Linear", _linear, _LINEAR, (2, 3)),
    Op(F + "linear", _linear, ("F.linear({x}, {w})", "F.linear({x}, {w}, {b})"), (2, 3)),
    Op("torch.matmul", _right, ("torch.matmul({x}, {y})",), (2, 3), given="either"),
    Op("torch.linalg.matmul", _right, ("torch.linalg.matmul({x}, {y})",), (2, 3), given="either"),
    Op("torch.mm", _right, ("torch.mm({x}, {y})",), (2,)),
    Op("torch.bmm", _right, ("torch.bmm({x}, {y})",), (3,), given="batched"),
    Op("torch.chain_matmul", _chain, ("torch.chain_matmul({x}, {y}, {z})",), (2,)),
    Op("torch.linalg.multi_dot", _chain, ("torch.linalg.multi_dot([{x}, {y}, {z}])",), (2,)),
    Op("torch.addmm", _added, ("torch.addmm" + _ADD, "torch.addmm" + _SCALED), (2,)),
    Op("torch.baddbmm", _added, ("torch.baddbmm" + _ADD, "torch.baddbmm" + _SCALED), (3,)),
    Op("torch.addbmm", _added, ("torch.addbmm" + _ADD,), (3,), given="summed", late=0.3),
    Op("torch.mv", _with_vector, ("torch.mv({x}, {v})",), (2,), late=0.8),
    Op("torch.addmv", _with_vector, ("torch.addmv({b}, {x}, {v})", "torch.addmv({b}, {x}, {v}, alpha=0.5)"), (2,),
       late=0.8),
    Op("torch.dot", _vectors, ("torch.dot({x}, {y})",), (1,), given="dot", late=0.9),
    Op("torch.vdot", _vectors, ("torch.vdot({x}, {y})",), (1,), given="dot", late=0.9),
    Op("torch.outer", _vectors, ("torch.outer({x}, {y})", "torch.outer({x}, torch.tanh({y}))"), (1,), late=0.8),
    Op("torch.ger", _vectors, ("torch.ger({x}, {y})",), (1,), late=0.8),
    Op("torch.addr", _vectors, ("torch.addr({b}, {x}, {y})", "torch.addr({b}, {x}, {y}, alpha=0.5)"), (1,), late=0.8),
    Op("torch.inner", _right, ("torch.inner({x}, {y}.t())",), (2, 3)),
    Op("torch.einsum", _einsum, (), (1, 2, 3, 4)),
    Op("torch.tensordot", _tensordot, (), (2, 3)),
    Op("nn.Bilinear", _bilinear, ("nn.Bilinear({in1_features}, {in2_features}, {out_features})",), (2, 3)),
    Op(F + "bilinear", _bilinear, ("F.bilinear({x}, {y}, {w})",), (2, 3)),
    Op(F + "scaled_dot_product_attention", _attention, (
        "F.scaled_dot_product_attention({x}, {k}, {v})",
        "F.scaled_dot_product_attention({x}, {k}, {v}, is_causal=True)",
    ), (3,)),  # of four dimensions PyTorch takes a kernel that asks the generator
    Op(F + "cosine_similarity", _distance, ("F.cosine_similarity({x}, {y}, dim=-1)",), late=0.7),
    Op("torch.cosine_similarity", _distance, ("torch.cosine_similarity({x}, {y}, dim=-1)",), late=0.7),
    Op(F + "pairwise_distance", _distance, ("F.pairwise_distance({x}, {y})", "F.pairwise_distance({x}, {y}, p=1.0)"),
       (2, 3), late=0.7),
    Op("nn.PairwiseDistance", _distance, ("nn.PairwiseDistance()", "nn.PairwiseDistance(p=1.0)"), (2, 3), late=0.7),
    Op("nn.CosineSimilarity", _distance, ("nn.CosineSimilarity(dim=-1)",), late=0.7),
    Op("torch.linalg.vecdot", _distance, ("torch.linalg.vecdot({x}, {y})", "torch.linalg.vecdot({x}, {y}, dim=-1)"),
       late=0.7),
    Op("torch.dist", _dist, ("torch.dist({x}, {y})", "torch.dist({x}, {y}, p=2)"), late=0.5),
    Op("torch.cdist", _cdist, ("torch.cdist({x}, {y})", "torch.cdist({x}, {y}, p=1.0)"), (2, 3)),
    Op("torch.kron", _kron, ("torch.kron({x}, {y})", "torch.kron({x}, {y}.tanh())"), (2,)),
]  # fmt: skip

SPELLED: list[Op] = [Op("", _right, ("{x} @ {y}",), (2, 3), given="either")]
"""What people write as an operator."""
