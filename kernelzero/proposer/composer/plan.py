"""From a set of APIs to a draft: an order, a first input, and what holds the operators together.

Operators follow one another on a running value. Where the next one cannot take it, its rank is changed; where that
cannot be done, or now and then, a second path begins, and the two are joined at the end.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kernelzero.proposer.composer.draft import DoesNotFit, Draft, Value
from kernelzero.proposer.composer.families import MOVERS, OPS, SPELLED
from kernelzero.proposer.composer.op import F, Op, require
from kernelzero.proposer.composer.sizes import Shape, first_shape, fixed, numel

_EXTRAS = (
    "torch.relu", F + "relu", "nn.ReLU", F + "gelu", "nn.GELU", F + "silu", "nn.SiLU", "torch.sigmoid", "torch.tanh",
    "nn.Tanh", "torch.add", "torch.mul", "torch.sub", "nn.Linear", F + "linear", "torch.exp", "nn.LeakyReLU",
    F + "softplus", "torch.square", "torch.clamp",
)  # fmt: skip
"""Operators that are added now and then, so that a module has more of them than its set."""
_MORE = (0.55, 0.4, 0.25, 0.1)
"""Chance of one more operator, by the number of APIs."""
_SECOND_PATH, _RESIDUAL, _SUM = 0.2, 0.15, 0.3
"""Chances of a second path, of adding an operator's operand again, and that two equal shapes are simply added."""


def build(apis: Sequence[str], rng: random.Random) -> Draft:
    """A draft that calls every API. Raises DoesNotFit where this order, or these sizes, cannot be."""
    path = _Path(Draft(rng))
    ops = _with_extras([OPS[api] for api in apis], rng)
    ends = [op for op in ops if op.ends]
    order = sorted((op for op in ops if not op.ends), key=lambda op: _place(op, rng))
    path.walk(order or [OPS[rng.choice(_EXTRAS)]])
    path.finish(ends)
    return path.draft


def _with_extras(ops: list[Op], rng: random.Random) -> list[Op]:
    """The set, with an operator more now and then, and always one where the set only moves elements."""
    apis = {op.api for op in ops}
    free = [OPS[api] for api in _EXTRAS if api not in apis] + 2 * SPELLED
    chosen = list(ops)
    if apis <= MOVERS:
        chosen.append(free.pop(rng.randrange(len(free))))
    while rng.random() < _MORE[min(len(chosen), len(_MORE)) - 1]:
        chosen.append(free.pop(rng.randrange(len(free))))
    return chosen


def _place(op: Op, rng: random.Random) -> float:
    """Images come before rows, rows before vectors; what jumps comes before what rounds."""
    low, high = min(op.ranks), max(op.ranks)
    by_rank = {5: -3.0, 4: -2.0, 3: -1.0}.get(low, 0.0) + {1: 1.2, 2: 0.6}.get(high, 0.0)
    return rng.random() * 1.2 + op.late + by_rank - 0.7 * op.jumps - 1.5 * op.starts


class _Path:
    """The running value of a draft, and the paths that wait to be joined."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.x: Value | None = None
        self.root: Value | None = None
        self.aside: list[Value] = []

    def walk(self, order: list[Op]) -> None:
        """Put operators one after another."""
        for place, op in enumerate(order):
            if op.starts:
                self._begin(op)
                continue
            if self.x is None:
                self.x = self._first(op, order[place:])
            elif self.x.rank == 0 or (not self.aside and self.draft.chance(_SECOND_PATH)):
                self._second_path(op, order[place:])
            self._put(op)

    def _begin(self, op: Op) -> None:
        """An operator with inputs of its own is the beginning, or is joined."""
        made = op.apply(self.draft, op, Value(0, ()))
        self.x = made if self.x is None else join(self.draft, self.x, made)

    def _first(self, op: Op, rest: list[Op]) -> Value:
        """A first input of a rank that suits most of what follows."""
        d = self.draft
        scores = {rank: sum(rank in other.ranks for other in rest) + 1.5 * d.rng.random() for rank in op.ranks}
        if len(op.ranks) > 2:
            scores = {rank: score - 0.4 * max(0, rank - 2) for rank, score in scores.items()}
        rank = max(scores, key=lambda r: scores[r])
        named = first_shape(rank, d.rng)
        for role, size in named:
            d.roles.setdefault(size, role)
        self.root = d.input(tuple(size for _, size in named))
        return self.root

    def _second_path(self, op: Op, rest: list[Op]) -> None:
        """What there is waits; the next operators work on the first input again, or on a new one."""
        assert self.x is not None
        require(len(self.aside) < 2, "too many paths")
        self.aside.append(self.x)
        again = self.root is not None and self.root.rank in op.ranks and self.root is not self.x
        self.x = self.root if again and self.draft.chance(0.7) else self._first(op, rest)

    def _put(self, op: Op) -> None:
        d = self.draft
        assert self.x is not None
        try:
            before = with_rank(d, self.x, op.ranks)
        except DoesNotFit:
            self._second_path(op, [op])
            assert self.x is not None
            before = self.x
        if op.jumps and "exact" not in before.facts:
            made = op.apply(d, op, d.input(before.shape))
            self.x = join(d, before, made)
            return
        made = op.apply(d, op, before)
        if made.shape == before.shape and made.dtype == "float" and d.chance(_RESIDUAL):
            made = join(d, before, made)
        self.x = made

    def finish(self, ends: list[Op]) -> None:
        """Join what waits, and put the operators that nothing follows."""
        d, x = self.draft, self.x
        assert x is not None
        for other in self.aside:
            if other.number != x.number:
                x = join(d, other, x)
        if not ends:
            d.outputs = [x]
            return
        x = with_rank(d, x, ends[0].ranks)
        found = [op.apply(d, op, x) for op in ends]
        both = len(found) == 1 and d.chance(0.2) and any(node.value.number == x.number for node in d.nodes)
        d.outputs = [x, *found] if both else found


def with_rank(d: Draft, x: Value, ranks: tuple[int, ...]) -> Value:
    """`x` with dimensions folded, or one more of one element, until its rank is one of `ranks`."""
    while x.rank not in ranks:
        lower = [r for r in ranks if r < x.rank]
        if lower:
            x = _lowered(d, x, max(lower))
        elif x.rank + 1 in ranks and x.rank and d.chance(0.4):
            at = 2 if x.rank == 4 else 1
            x = _glue(d, f"{{x}}.unsqueeze({at})", x, (*x.shape[:at], fixed(1), *x.shape[at:]), "exact nonneg bounded")
        else:
            raise DoesNotFit("a value of too few dimensions")
    return x


def _glue(d: Draft, text: str, x: Value, shape: Shape, keeps: str = "") -> Value:
    return d.call(text, {"x": x}, shape, facts=" ".join(set(keeps.split()) & x.facts))


def _lowered(d: Draft, x: Value, rank: int) -> Value:
    """One step down, or all of them at once."""
    kept = "exact nonneg bounded"
    if rank == 2 and x.rank > 3:
        dims = ", ".join(map(str, range(2, x.rank)))
        if d.chance(0.6):
            return _glue(d, f"{{x}}.{d.pick('mean', 'mean', 'amax')}(dim=({dims}))", x, x.shape[:2])
        return _glue(d, "{x}.flatten(1)", x, (x.shape[0], numel(x.shape[1:])), kept)
    if x.rank > 3:
        if d.chance(0.5):
            joined = (*x.shape[: x.rank - 2], x.shape[-2] * x.shape[-1])
            return _glue(d, f"{{x}}.flatten({x.rank - 2})", x, joined, kept)
        return _glue(d, f"{{x}}.{d.pick('mean', 'amax')}(dim=-1)", x, x.shape[:-1])
    if x.rank == 3:
        text, shape, keeps = d.pick(
            ("{x}.mean(dim=1)", (x.shape[0], x.shape[2]), ""), ("{x}[:, -1]", (x.shape[0], x.shape[2]), kept),
            ("{x}.flatten(1)", (x.shape[0], x.shape[1] * x.shape[2]), kept), ("{x}.mean(dim=2)", x.shape[:2], ""),
            ("{x}.amax(dim=1)", (x.shape[0], x.shape[2]), kept),
        )  # fmt: skip
        return _glue(d, text, x, shape, keeps)
    if x.rank == 2:
        text, shape, keeps = d.pick(
            ("{x}.mean(dim=0)", x.shape[1:], ""), ("{x}.sum(dim=1)", x.shape[:1], ""), ("{x}[0]", x.shape[1:], kept),
            ("{x}.flatten()", (x.shape[0] * x.shape[1],), kept), ("{x}[:, 0]", x.shape[:1], kept),
        )  # fmt: skip
        return _glue(d, text, x, shape, keeps)
    raise DoesNotFit("a value of too few dimensions")


def join(d: Draft, a: Value, b: Value) -> Value:
    """Two paths as one value: a sum, a product, a gate, or side by side."""
    operands = {"a": a, "b": b}
    if a.shape == b.shape:
        forms = [
            "{a} + {b}",
            "{a} * {b}",
            "{a} - {b}",
            "{a} * torch.sigmoid({b})",
            "{b} * {a}.tanh()",
            "{a} + 0.5 * {b}",
        ]
        if a.rank > 1 and d.chance(0.15):
            shape = (*a.shape[:-1], a.shape[-1] * 2)
            return d.call("torch.cat([{a}, {b}], dim=-1)", operands, shape)
        return d.call(d.rng.choice(forms if not d.chance(_SUM) else forms[:1]), operands, a.shape)
    if 0 in (a.rank, b.rank):
        large = a if b.rank == 0 else b
        return d.call(d.pick("{a} + {b}", "{a} * {b}"), operands, large.shape)
    if a.rank == b.rank:
        other = [k for k in range(a.rank) if a.shape[k] != b.shape[k]]
        if len(other) == 1:
            k = other[0]
            shape = (*a.shape[:k], a.shape[k] + b.shape[k], *a.shape[k + 1 :])
            return d.call(f"torch.cat([{{a}}, {{b}}], dim={k})", operands, shape)
    if a.shape[0] == b.shape[0] and max(a.rank, b.rank) > 2 and min(a.rank, b.rank) > 1:
        return join(d, with_rank(d, a, (2,)), with_rank(d, b, (2,)))
    if b.rank < a.rank and b.shape == a.shape[a.rank - b.rank :]:
        return d.call(d.pick("{a} + {b}", "{a} * {b}"), operands, a.shape)
    summary = d.call(d.pick("{x}.square().mean()", "{x}.amax()", "{x}.std()"), {"x": b}, ())
    return d.call(d.pick("{a} * {b}", "{a} + {b}"), {"a": a, "b": summary}, a.shape)
