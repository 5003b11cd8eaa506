"""Look-ups by integers: embeddings, selections, one-hot codes."""

from __future__ import annotations

from kernelzero.proposer.composer.draft import Draft, Value
from kernelzero.proposer.composer.op import F, Op, a_dim, facts, form, replaced
from kernelzero.proposer.composer.sizes import Shape, Size, any_size, fixed

_VOCABULARY = (Size(20, 1000), Size(32, 4096), Size(50, 10000), Size(11, 1001))


def integers(d: Draft, shape: Shape, high: Size, name: str) -> Value:
    """An input of whole numbers below `high`."""
    value = d.input(shape, name, "torch.randint(0, {high}, ({shape}))", "int")
    leaf = d.leaves[-1]
    leaf.params["high"] = high
    if len(shape) == 1:
        d.leaves[-1] = type(leaf)(
            leaf.value, leaf.name, leaf.kind, leaf.fill.replace("({shape})", "({shape},)"), leaf.params
        )
    return value


def _embedding(d: Draft, op: Op, x: Value) -> Value:
    words, width = d.rng.choice(_VOCABULARY), any_size("dim", d.rng)
    batch = any_size("batch_size", d.rng)
    shape = (batch, any_size("seq_len", d.rng)) if d.chance(0.75) else (batch * 2,)
    tokens = integers(d, shape, words, d.pick("tokens", "ids", "indices"))
    operands = {"x": tokens}
    if not op.api.startswith("nn."):
        operands["w"] = d.weight((words, width), d.pick("table", "weight"), 1.0)
    return d.call(form(d, op), operands, (*shape, width), api=op.api, facts="exact", num_embeddings=words,
                  embedding_dim=width)  # fmt: skip


def _one_hot(d: Draft, op: Op, x: Value) -> Value:
    classes = d.pick(Size(5, 10), Size(7, 100), Size(10, 128))
    shape = (any_size("batch_size", d.rng) * 2,)
    labels = integers(d, shape, classes, "labels")
    code = d.call(form(d, op), {"x": labels}, (*shape, classes), api=op.api, dtype="int", facts="exact", n=classes)
    values = d.weight((classes,), "class_weight", 1.0)
    return d.call(d.pick("{x}.float() * {w}", "{x} * {w}"), {"x": code, "w": values}, code.shape, facts="exact")


def _index_select(d: Draft, op: Op, x: Value) -> Value:
    dim = a_dim(d, x, 3)
    count = d.pick(Size(3, 48), Size(5, 50), Size(8, 64))
    index = integers(d, (count,), x.shape[dim], d.pick("index", "idx"))
    return d.call(form(d, op), {"x": x, "i": index}, replaced(x.shape, dim, count), api=op.api, facts=facts(op, x),
                  d=dim)  # fmt: skip


def _gather(d: Draft, op: Op, x: Value) -> Value:
    dim = a_dim(d, x, 3)
    shape = replaced(x.shape, dim, d.pick(fixed(1), Size(2, 8), Size(4, 16)))
    index = integers(d, shape, x.shape[dim], d.pick("index", "idx"))
    return d.call(form(d, op), {"x": x, "i": index}, shape, api=op.api, facts=facts(op, x), d=dim)


def _take(d: Draft, op: Op, x: Value) -> Value:
    count = x.shape[0] * x.shape[1]
    shape = (any_size("batch_size", d.rng), any_size("seq_len", d.rng))
    index = integers(d, shape, count, d.pick("index", "idx"))
    return d.call(form(d, op), {"x": x, "i": index}, shape, api=op.api, facts=facts(op, x))


OPS: list[Op] = [
    Op("nn.Embedding", _embedding, ("nn.Embedding({num_embeddings}, {embedding_dim})",), starts=True),
    Op(F + "embedding", _embedding, ("F.embedding({x}, {w})",), starts=True),
    Op(F + "one_hot", _one_hot, ("F.one_hot({x}, {n})", "F.one_hot({x}, num_classes={n})"), starts=True),
    Op("torch.index_select", _index_select, ("torch.index_select({x}, {d}, {i})",
                                                "torch.index_select({x}, dim={d}, index={i})"),
       gives="exact nonneg bounded"),
    Op("torch.gather", _gather, ("torch.gather({x}, {d}, {i})", "torch.gather({x}, dim={d}, index={i})"),
       gives="exact nonneg bounded", late=0.3),
    Op("torch.take_along_dim", _gather, ("torch.take_along_dim({x}, {i}, dim={d})",), gives="exact nonneg bounded",
       late=0.3),
    Op("torch.take", _take, ("torch.take({x}, {i})",), (2,), gives="exact nonneg bounded", late=0.3),
]  # fmt: skip
