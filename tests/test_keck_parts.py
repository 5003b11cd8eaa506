"""Keck's parts that need no process: values on the wire, comparison, matching of parameters, rules on text."""

from __future__ import annotations

import json
import socket
import struct
import time

import pytest
import torch

from kernelzero.keck import rules, wire
from kernelzero.keck.compare import ABSOLUTE, KERNELBENCH, SCALED, difference, shape_difference
from kernelzero.records import Backend, Status


def sent(value):
    tree, buffers = wire.encode(value)
    return wire.decode(json.loads(json.dumps(tree)), [bytearray(b) for b in buffers])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(5).expand(3, 5),
        torch.randn(100)[7:9],
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([2**62, -1]),
        torch.randn(3).half(),
        torch.randn(3).bfloat16(),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.tensor([float("nan"), float("inf")]),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_tensors_arrive_as_they_were(tensor):
    back = sent(tensor)
    assert (back.shape, back.dtype) == (tensor.shape, tensor.dtype)
    assert tensor.numel() == 0 or back.stride() == tensor.stride()
    assert torch.equal(torch.nan_to_num(back), torch.nan_to_num(tensor))


def test_shared_storage_stays_shared():
    base = torch.arange(8.0)
    a, b = sent([base[:6], base[2:]])
    a[2] = 100
    assert b[0] == 100


def test_structures_and_plain_values():
    value = {"a": (1, [2.5, float("inf")], None), 3: torch.float16, "s": "text", "t": True}
    assert sent(value) == value
    assert isinstance(sent(value)["a"], tuple)


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value", [object(), torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.ones(2).as_subclass(Sub)]
)
def test_what_does_not_travel(value):
    with pytest.raises(wire.WireError):
        wire.encode([value])


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"t": "float32", "shape": [4], "stride": [1], "b": 0, "offset": 0},
        {"t": "float32", "shape": [2], "stride": [1], "b": 3, "offset": 0},
        {"t": "float32", "shape": [2], "stride": [-1], "b": 0, "offset": 0},
        {"t": "void", "shape": [2], "stride": [1], "b": 0, "offset": 0},
        {"t": "float32", "shape": [2], "stride": [1], "b": 0, "offset": 100},
        {"l": [{"v": 1}]},
        {"f": "zero"},
        {"d": [[{"l": [], "tuple": False}, {"v": 1}]]},
    ],
)
def test_malformed_trees_are_wire_errors(tree):
    with pytest.raises(wire.WireError):
        wire.decode(tree, [bytearray(8)])


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<QQ", 1 << 40, 0),
        struct.pack("<QQ", 2, 1 << 60),
        struct.pack("<QQ", 4, 0) + b"nope",
        struct.pack("<QQ", 2, 0) + b"[]",
        struct.pack("<QQ", 22, 4) + b'{"m": {}, "sizes": []}',
        struct.pack("<QQ", 25, 0) + b'{"m": {}, "sizes":[5,-5]}',
        struct.pack("<QQ", 100_000, 0) + b"[" * 100_000,
    ],
)
def test_malformed_frames_are_wire_errors(frame):
    mine, theirs = socket.socketpair()
    theirs.sendall(frame)
    with mine, theirs, pytest.raises(wire.WireError):
        wire.Channel(mine).receive(time.monotonic() + 2)


def test_a_silent_peer_and_a_gone_one():
    mine, theirs = socket.socketpair()
    with mine:
        with pytest.raises(wire.DeadlinePassed):
            wire.Channel(mine).receive(time.monotonic() + 0.02)
        theirs.close()
        with pytest.raises(wire.PeerGone):
            wire.Channel(mine).receive(time.monotonic() + 1)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        (torch.tensor([1.0, 2.009]), torch.tensor([1.0, 2.0]), True),
        (torch.tensor([1.0, 2.05]), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([NAN]), torch.tensor([NAN]), True),
        (torch.tensor([NAN]), torch.tensor([0.0]), False),
        (torch.tensor([0.0]), torch.tensor([NAN]), False),
        (torch.tensor([INF, -INF]), torch.tensor([INF, -INF]), True),
        (torch.tensor([INF]), torch.tensor([-INF]), False),
        (torch.tensor([1e30]), torch.tensor([INF]), False),
        (torch.ones(4, 1), torch.ones(4), False),
        (torch.ones(1), torch.ones(()), False),
        (torch.ones(2, dtype=torch.float64), torch.ones(2), False),
        (torch.tensor([100]), torch.tensor([101]), False),
        (torch.tensor([True]), torch.tensor([False]), False),
        ([torch.ones(2)], (torch.ones(2),), True),
        ([torch.ones(2)], torch.ones(2), False),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False),
        (3, 3, True),
        (True, 1, False),
        (1.001, 1.0, True),
        (None, torch.ones(1), False),
    ],
)
def test_comparison(actual, expected, same):
    assert (difference(actual, expected, ABSOLUTE) is None) is same


def test_the_scaled_criterion_follows_the_reference():
    expected = torch.full((4,), 1e-4)
    assert difference(torch.zeros(4), expected, ABSOLUTE) is None
    assert difference(torch.zeros(4), expected, SCALED) is not None
    assert difference(expected * 1.005, expected, SCALED) is None


def test_profiles_and_the_rounding_of_16_bits():
    expected = torch.linspace(0.5, 1.5, 64)
    off = expected * 1.002
    assert difference(off, expected, ABSOLUTE) is None
    assert difference(off, expected, KERNELBENCH) is not None
    assert difference(off.half(), expected.half(), KERNELBENCH) is None
    due, exact = torch.tensor([0.5313], dtype=torch.bfloat16), torch.tensor([0.5469], dtype=torch.bfloat16)
    assert difference(exact, due, ABSOLUTE) is not None
    assert difference(exact, due, ABSOLUTE, wide=torch.tensor([0.5450])) is None
    assert difference((exact,), (due,), ABSOLUTE, wide=(torch.tensor([0.5310]),)) is not None


def test_shapes_are_compared_before_bytes():
    tree, _ = wire.encode(torch.ones(1).expand(4))
    assert shape_difference(tree, torch.ones(4)) is None
    huge = {"t": "float32", "shape": [10**15], "stride": [0], "b": 0, "offset": 0}
    assert "shape" in shape_difference(huge, torch.ones(4))
    assert "dtype" in shape_difference(tree, torch.ones(4).long())


def test_parameters_by_name_order_or_not_at_all():
    from kernelzero.keck.child import match_parameters

    state = {k: v.detach().clone() for k, v in torch.nn.Linear(3, 2).state_dict().items()}
    named, ordered = torch.nn.Linear(3, 2), torch.nn.Module()
    ordered.a, ordered.b = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(2))
    assert match_parameters(named, state) == "by_name"
    assert match_parameters(ordered, state) == "by_order"
    assert torch.equal(named.weight, state["weight"])
    assert torch.equal(ordered.a, state["weight"])
    assert match_parameters(torch.nn.Linear(4, 2), state) == "same_seed"
    assert match_parameters(torch.nn.ReLU(), {}) == "none"


KERNEL = """
import torch, triton
import triton.language as tl
@triton.jit
def k(x_ptr): pass
class ModelNew(torch.nn.Module):
    def forward(self, x):
        BODY
"""


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("return getattr(torch, x)", "getattr"),
        ("g = getattr", "getattr"),
        ("return x.__array_interface__", "__array_interface__"),
        ("return {'__torch_function__': x}", "__torch_function__"),
        ("import os; os.write(3, b'')", "os.write"),
        ("import logging; logging.os.write(3, b'')", "os"),
        ("torch.matmul = None", "global state"),
        ("try:\n            k[(1,)](x)\n        except Exception:\n            pass", "fallback"),
    ],
)
def test_text_that_is_refused(body, word):
    with pytest.raises(rules.RuleBroken, match=word) as caught:
        rules.check(KERNEL.replace("BODY", body), Backend.TRITON)
    assert caught.value.status is Status.REJECTED


@pytest.mark.parametrize(
    "body", ["return getattr(tl, 'float' + '32')", "'the matmul is eval-free; try: exec'", "return x.select(0, 1)"]
)
def test_text_that_is_accepted(body):
    rules.check(KERNEL.replace("BODY", body), Backend.TRITON)
