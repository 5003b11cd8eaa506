"""Faults of Keck on a GPU that show without one: what timed calls let through, and what a failed call leaves behind."""

from __future__ import annotations

import contextlib
import sys
import time
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")


@pytest.fixture
def ledger(monkeypatch):
    """A fresh ledger's values in the one that all modules share."""
    from kernelzero.keck.ledger import ACTIVE, Ledger

    for name, value in vars(Ledger()).items():
        monkeypatch.setattr(ACTIVE, name, value)
    return ACTIVE


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of pretence for bursts: what happened, in order, and which stream is current."""
    import torch

    from kernelzero.keck.gpu import runtime

    seen = SimpleNamespace(order=[], stream="default")

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self, stream):
            seen.order.append("event")

        def query(self):
            return False

        def elapsed_time(self, other):
            return 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: seen.stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None, raising=False)
    monkeypatch.setattr(runtime, "_flush_buffer", lambda: torch.zeros(1))
    return seen


def test_an_output_that_computes_when_it_is_looked_at_computes_inside_of_the_timed_section(gpu, ledger):
    """Such a tuple passes all checked calls, where it is unpacked under the guards, and is honest there."""
    import torch

    from kernelzero.keck.gpu.runtime import Burst

    class Lazy(tuple):
        def __iter__(self):
            gpu.order.append("work")
            return tuple.__iter__(self)

    Burst(lambda x: Lazy((x + 1,)), [[torch.ones(4)]], [(0, 1.0), (0, 0.9)], 0.0).check_settled()
    outside, inside = 0, False
    for what in gpu.order:
        inside ^= what == "event"
        outside += what == "work" and not inside
    assert not outside


def test_looking_for_tensors_runs_no_code_of_a_container():
    import torch

    from kernelzero.keck.values import map_tensors, tensors

    class Lazy(tuple):
        def __iter__(self):
            raise AssertionError("code of the candidate ran")

    class LazyList(list):
        def __iter__(self):
            raise AssertionError("code of the candidate ran")

    for value in (Lazy((torch.ones(1),)), LazyList([torch.ones(1)])):
        assert len(tensors(value)) == 1
        assert len(map_tensors(value, torch.clone)) == 1


def test_a_timed_call_that_leaves_another_stream_current_is_refused(gpu, ledger):
    """Otherwise the events are on a stream on which nothing runs."""
    import torch

    from kernelzero.keck.gpu.runtime import Burst

    def forward(x):
        gpu.stream = "side"
        return x + 1

    with contextlib.suppress(BaseException):
        Burst(forward, [[torch.ones(4)]], [(0, 1.0), (0, 0.9)], 0.0).check_settled()
    assert ledger.finding() is not None


def test_every_specialization_of_a_kernel_is_looked_at_for_16_bits(ledger):
    from kernelzero.keck.gpu.runtime import _look_at
    from kernelzero.keck.ledger import Violation

    ledger.full_precision = True
    kernel = SimpleNamespace(fn=SimpleNamespace(__name__="scale"))
    wide = SimpleNamespace(name="scale", hash="1", asm={"ptx": "fma.rn.f32 %f1, %f2, %f3, %f4;"})
    narrow = SimpleNamespace(name="scale", hash="2", asm={"ptx": "fma.rn.f16 %h1, %h2, %h3, %h4;"})
    _look_at(kernel, wide)
    with pytest.raises(Violation, match="16 bits"):
        _look_at(kernel, narrow)


def test_a_call_without_kernels_that_fails_leaves_the_next_ones_their_kernels(ledger, tmp_path):
    import torch

    from kernelzero.keck import wire
    from kernelzero.keck.child import Child

    class Fails(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("an index is out of bounds")

    child = Child(None, tmp_path)
    child.model = Fails()
    tree, buffers = wire.encode([torch.ones(4)])
    message = {"op": "call", "tree": tree, "seed": 1, "blank": True, "turn_due": True}
    reply, _ = child._answer(message, wire.copies(buffers))
    assert reply["status"] == "runtime_error"
    assert not ledger.blank
    assert ledger.turn_due is None


def test_waiting_for_the_gpu_is_not_the_references_time():
    from kernelzero.keck.onboard import Asker

    @contextlib.contextmanager
    def busy():
        time.sleep(0.3)
        yield

    class Child:
        def ask(self, message, buffers, *, deadline):
            self.left = deadline - time.monotonic()
            return {"ok": True}, []

    child = Child()
    Asker(child, time.monotonic() + 0.2, busy)({"op": "inputs", "seed": 1})
    assert child.left > 0.1


def test_want_of_memory_in_timed_calls_is_no_broken_rule():
    from kernelzero.errors import InfrastructureError
    from kernelzero.keck import wire
    from kernelzero.keck.gpu.timing import _Side
    from kernelzero.keck.machine import Untimeable

    class Child:
        def ask(self, *_, **__):
            raise wire.WireError("CUDA out of memory: no room for inputs of 2048 MiB")

    with pytest.raises((Untimeable, InfrastructureError)) as failure:
        _Side(Child(), is_candidate=True)._ask({"op": "pool"})
    assert getattr(failure.value, "kind", "") != "rejected"
