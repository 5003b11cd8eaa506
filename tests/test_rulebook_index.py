"""Index arithmetic of the rulebook: what is simplified stays what it was."""

import itertools
import random

import pytest

from kernelzero.coldstart.rulebook.loops.expr import bounded, flat, floordiv, modulo, unflat


def value(expression, known):
    """The number that an index expression stands for."""
    op, args = expression.op, expression.args
    if op == "const":
        return args[0]
    if op == "var":
        return known[args[0]]
    if op == "sum":
        return sum((1 if e is None else value(e, known)) * c for e, c in args)
    if op == "floordiv":
        return value(args[0], known) // args[1]
    assert op == "mod"
    return value(args[0], known) % args[1]


@pytest.mark.parametrize("seed", range(40))
def test_random_arithmetic(seed):
    rng = random.Random(seed)
    extents = [rng.choice((1, 2, 3, 4, 6, 20)) for _ in range(3)]
    names = [f"i{seed}_{d}" for d in range(3)]
    index = [bounded(n, e) for n, e in zip(names, extents, strict=True)]
    plain = [(i, lambda known, n=n: known[n]) for i, n in zip(index, names, strict=True)]
    pool = list(plain)
    for _ in range(8):
        (a, fa), (b, fb) = rng.choice(pool), rng.choice(pool)
        c = rng.choice((2, 3, 4, 6, 20))
        kind = rng.choice(("add", "scale", "div", "mod", "reverse"))
        if kind == "add":
            pool.append((a + b, lambda k, fa=fa, fb=fb: fa(k) + fb(k)))
        elif kind == "scale":
            pool.append((a * c, lambda k, fa=fa, c=c: fa(k) * c))
        elif kind == "div":
            pool.append((floordiv(a, c), lambda k, fa=fa, c=c: fa(k) // c))
        elif kind == "mod":
            pool.append((modulo(a, c), lambda k, fa=fa, c=c: fa(k) % c))
        else:
            pool.append((1000 + a * c - b, lambda k, fa=fa, fb=fb, c=c: 1000 + fa(k) * c - fb(k)))
    for place in itertools.product(*map(range, extents)):
        known = dict(zip(names, place, strict=True))
        for expression, due in pool:
            assert value(expression, known) == due(known)


@pytest.mark.parametrize("shape", [(6, 4), (2, 3, 4), (5,), (1, 7, 1)])
def test_taking_apart_and_putting_together_is_nothing(shape):
    count = 1
    for extent in shape:
        count *= extent
    q = bounded(f"q{count}", count)
    assert flat(unflat(q, shape), shape) == q
    backwards = (count - 1) - q
    again = flat(unflat(backwards, shape), shape)
    assert [value(again, {f"q{count}": k}) for k in range(count)] == list(reversed(range(count)))
