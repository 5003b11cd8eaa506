"""How fast a correct candidate is: interleaved bursts, two clocks, an interval.

Reference and candidate run in children of their own and take turns, in both orders, while the judge has the GPU alone.
A burst queues calls without waiting between them; each has inputs that no call had before and starts with a cold L2
cache; CUDA events around each call give its time. Outputs of timed calls are kept, and one a round, chosen when the
burst is over, is compared with the reference's for the same inputs. The judge's own clock runs over the whole burst:
time that the events do not show must not be longer than the reference's, or the candidate works outside of them.
The speedup is the median over rounds of the ratio of median times, with a 95 % interval (Student's t on logarithms)
that is never narrower than what one kernel timed twice differs by. Where trust ends: docs/keck.md.
"""

from __future__ import annotations

import functools
import math
import secrets
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelzero.errors import InfrastructureError
from kernelzero.keck import wire
from kernelzero.keck.build import Builder
from kernelzero.keck.compare import difference, shape_difference
from kernelzero.keck.gpu.cache import cache_folder
from kernelzero.keck.gpu.cudart import CudaRuntime, wait_without_spinning
from kernelzero.keck.gpu.lease import Lease, lease_folder
from kernelzero.keck.gpu.mailbox import JudgeChannel
from kernelzero.keck.gpu.provenance import foreign_kernel
from kernelzero.keck.machine import Untimeable
from kernelzero.keck.onboard import Case, Reference
from kernelzero.keck.zygote import ChildHandle
from kernelzero.records import Basis, Timing

MIN_ROUNDS, MAX_ROUNDS = 5, 15
HALF_WIDTH = 0.025
"""Rounds end when the interval is this narrow on each side."""
SYSTEMATIC = 0.01
"""Relative error that more rounds do not remove: no interval is narrower."""
BURST_MS = 4.0
MIN_CALLS, MAX_CALLS = 3, 20
POOL = 3
_POOL_BYTES = 4 << 30
_BURST_LIMIT_S = 60.0
_SLOW_MS = 200.0
"""Calls longer than this are timed one at a time, and no oftener than needed for an interval."""
_SPIN_SHARE, _MAX_SPIN_MS = 1.3, 40.0
"""The GPU is kept busy for this share of the time that queueing a burst takes."""
_HIDDEN_FIXED_MS, _HIDDEN_CALL_MS, _HIDDEN_SHARE = 4.0, 0.1, 0.2
_RELAXED = 4.0
"""On the tolerance of timed calls of 16-bit tasks, whose own rounding is known for the checked calls only."""
_T975 = {5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262, 11: 2.228, 12: 2.201, 13: 2.179, 14: 2.160,
         15: 2.145}  # fmt: skip
"""Quantiles of Student's t for a two-sided 95 % interval, by number of rounds."""


class GpuMachine:
    """One GPU, its lease, and the bound CUDA calls of the judge."""

    on_gpu = True

    def __init__(self) -> None:
        wire.use_device("cuda")
        wait_without_spinning()
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.cuda = CudaRuntime()
        self.device = torch.cuda.get_device_name(0)
        self.lease = Lease(lease_folder(), str(torch.cuda.get_device_properties(0).uuid))

    @functools.cached_property
    def builder(self) -> Builder:
        """Finds the compilers when the first extension is asked for."""
        return Builder(cache_folder())

    def connect(self, sock: socket.socket) -> wire.Channel:
        """The judge's end of a connection to a child."""
        return JudgeChannel(sock, self.cuda)

    def shared(self) -> Any:
        """The GPU beside others."""
        return self.lease.shared()

    def time(
        self,
        reference: Reference,
        at_reference: ChildHandle | None,
        at_candidate: ChildHandle,
        work_ms: float,
        own: frozenset[str] | None = frozenset(),
    ) -> Timing:
        """Measured times, the GPU held alone."""
        assert at_reference is not None
        cases = _pool(reference.cases)
        sides = _Side(at_reference, is_candidate=False), _Side(at_candidate, is_candidate=True)
        with self.shared():
            for side in sides:
                side.load(cases)
                side.estimate()
            if own is not None:
                sides[1].require_own_kernels(own)
        with self.lease.exclusive():
            timing = _Race(*sides, cases).run()
        sides[0].rest()
        return timing


def _pool(cases: list[Case]) -> list[Case]:
    draws = [case for case in cases if case.label.startswith("draw")]
    room = max(1, _POOL_BYTES // max(1, draws[0].nbytes))
    return draws[: min(POOL, room)]


class _Side:
    """Reference or candidate in its child."""

    def __init__(self, child: ChildHandle, is_candidate: bool) -> None:
        self.child, self.is_candidate = child, is_candidate
        self.call_ms = 1.0
        self.queue_ms = 0.1
        """Milliseconds that the host needs to queue one call."""

    def load(self, cases: Sequence[Case]) -> None:
        """Give it the inputs; a reference keeps them from one candidate to the next."""
        if getattr(self.child, "pool", None) is cases[0]:
            return
        for number, case in enumerate(cases):
            self._ask({"op": "pool", "tree": case.tree, "first": number == 0}, case.buffers)
        self.child.pool = cases[0]  # type: ignore[attr-defined]

    def estimate(self) -> None:
        """Milliseconds of one call, roughly; also warms up what the first calls would pay for."""
        self.call_ms = self.burst([(0, 1.0)], spin_ms=2.0)[0][0]
        if self.call_ms < _SLOW_MS:
            self.call_ms = max(1e-3, min(self.burst([(0, 1.0)] * 5, spin_ms=2.0)[0]))

    def calls(self) -> int:
        """Calls in a burst: many of a short kernel, few of a long one."""
        return max(MIN_CALLS if self.call_ms < _SLOW_MS else 1, min(MAX_CALLS, round(BURST_MS / self.call_ms)))

    def burst(self, plan: list[tuple[int, float]], spin_ms: float) -> tuple[list[float], list[int], float]:
        """(milliseconds of each call, calls whose outputs were kept, milliseconds by the judge's clock)."""
        started = time.perf_counter()
        reply, _ = self._ask({"op": "burst", "plan": plan, "traced": False, "spin_ms": spin_ms})
        wall_ms = (time.perf_counter() - started) * 1e3
        try:
            times, kept = [float(t) for t in reply["times_ms"]], [int(k) for k in reply["kept"]]
            self.queue_ms = min(max(0.0, float(reply["queued_ms"])) / len(plan), 2 * self.queue_ms + 1.0)
        except (KeyError, TypeError, ValueError):
            raise Untimeable("rejected", "the answer is malformed") from None
        if len(times) != len(plan) or not kept or min(times) <= 0 or not set(kept) <= set(range(len(plan))):
            raise Untimeable("rejected", "the answer is malformed")
        return times, kept, wall_ms

    def require_own_kernels(self, own: frozenset[str]) -> None:
        """Timed calls run without the guards of checked ones, so what runs in them is looked at too."""
        reply, _ = self._ask({"op": "burst", "plan": [(0, 1.0), (0, 0.97)], "traced": True, "spin_ms": 0.0})
        # The harness's own kernels: flush and inputs. All are fills and products of PyTorch's.
        ran = [kernel for kernel in reply["ran"] or [] if not _is_harness(str(kernel[0]))]
        reason = foreign_kernel(ran, own | set(map(str, reply["own_names"])), None)
        if reason:
            raise Untimeable("rejected", reason + " (in a timed call)")

    def rest(self) -> None:
        """Let it give back memory until it is timed again."""
        self._ask({"op": "rest"})

    def output(self, call: int, limit: int) -> tuple[Any, list[Any]]:
        """The encoded output of one call of the last burst."""
        reply, out = self._ask({"op": "burst_output", "call": call}, None, limit)
        return reply.get("tree"), out

    def _ask(
        self, message: dict[str, Any], buffers: list[Any] | None = None, limit: int = wire.MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[Any]]:
        deadline = time.monotonic() + _BURST_LIMIT_S
        if not self.is_candidate:
            return self._ask_reference(message, buffers, deadline, limit)
        try:
            reply, out = self.child.ask(message, buffers, deadline=deadline, max_payload=limit)
        except wire.DeadlinePassed:
            raise Untimeable("timeout", f"not finished in {_BURST_LIMIT_S:.0f} s ({message['op']})") from None
        except wire.PeerGone:
            self.child.end(grace_s=0.02)
            raise Untimeable("runtime_error", self.child.how_it_ended()) from None
        except wire.WireError as error:
            raise Untimeable("rejected", f"the answer is malformed: {error}") from None
        if reply.get("ok") is not True:
            raise Untimeable(_status(reply), " ".join(f"in a timed call: {reply.get('reason')}".split())[:500])
        return reply, out

    def _ask_reference(
        self, message: dict[str, Any], buffers: list[Any] | None, deadline: float, limit: int
    ) -> tuple[dict[str, Any], list[Any]]:
        """The candidate is not to blame for a reference that fails: the judge's caller tries again with a new one."""
        try:
            reply, out = self.child.ask(message, buffers, deadline=deadline, max_payload=limit)
        except (wire.DeadlinePassed, wire.PeerGone, wire.WireError) as error:
            self.child.end()
            raise InfrastructureError(f"the reference failed while it was timed ({type(error).__name__})") from None
        if reply.get("ok") is not True:
            self.child.end()
            raise InfrastructureError(f"the reference failed while it was timed: {reply.get('reason')}")
        return reply, out


def _status(reply: dict[str, Any]) -> str:
    """The status that a child reports of its own failure, where it is one that a verdict can have."""
    status = str(reply.get("status"))
    return status if status in ("compile_error", "runtime_error", "rejected", "unsupported") else "rejected"


def _is_harness(name: str) -> bool:
    """Kernels of a burst's own preparation: zeroing the flush buffer, multiplying inputs by a factor."""
    return "2at6native" in name and any(word in name for word in ("Fill", "fill", "Mul", "mul"))


class _Race:
    """Rounds of one burst each."""

    def __init__(self, reference: _Side, candidate: _Side, cases: Sequence[Case]) -> None:
        self.reference, self.candidate, self.cases = reference, candidate, cases
        self.times: dict[bool, list[float]] = {False: [], True: []}
        self.logs: list[float] = []
        self.hidden: list[str] = []
        """Rounds in which the two clocks disagreed. One can be the machine's fault, most of them cannot."""

    def run(self) -> Timing:
        """Until the interval is narrow enough or the rounds are used up."""
        self._round(0)  # the GPU's clocks rise
        self.times, self.logs, self.hidden = {False: [], True: []}, [], []
        slow = max(self.reference.call_ms, self.candidate.call_ms) > _SLOW_MS
        for number in range(MIN_ROUNDS if slow else MAX_ROUNDS):
            self._round(number)
            if number + 1 >= MIN_ROUNDS and self._half_width() <= HALF_WIDTH:
                break
        if 2 * len(self.hidden) > len(self.logs):
            raise Untimeable("rejected", f"two clocks disagree: {self.hidden[0]}")
        middle = math.exp(statistics.median(self.logs))
        half = max(SYSTEMATIC, self._half_width())
        return Timing(
            Basis.MEASURED,
            statistics.median(self.times[False]),
            statistics.median(self.times[True]),
            middle,
            middle * math.exp(-half),
            middle * math.exp(half),
        )

    def _half_width(self) -> float:
        return _T975[len(self.logs)] * statistics.stdev(self.logs) / math.sqrt(len(self.logs))

    def _round(self, number: int) -> None:
        sides = (self.reference, self.candidate) if number % 2 == 0 else (self.candidate, self.reference)
        longest = max(side.calls() for side in sides)
        plan = [(i % len(self.cases), 1.0 - secrets.randbelow(1 << 20) / (1 << 23)) for i in range(longest)]
        spin_ms = min(_MAX_SPIN_MS, _SPIN_SHARE * max(side.queue_ms * side.calls() for side in sides))
        results = {side.is_candidate: side.burst(plan[: side.calls()], spin_ms) for side in sides}
        self._compare_clocks(results, spin_ms)
        self._require_right_output(results, plan)
        medians = {is_candidate: statistics.median(times) for is_candidate, (times, _, _) in results.items()}
        for is_candidate, median in medians.items():
            self.times[is_candidate].append(median)
        self.logs.append(math.log(medians[False] / medians[True]))

    def _compare_clocks(self, results: dict[bool, tuple[list[float], list[int], float]], spin_ms: float) -> None:
        """What the judge's clock shows beyond the events: input and flush, and nothing of the candidate's."""
        hidden = {side: wall - sum(times) for side, (times, _, wall) in results.items()}
        calls = {side: len(times) for side, (times, _, _) in results.items()}
        median = statistics.median(results[True][0])
        usual = max(0.0, hidden[False] - spin_ms) / calls[False]
        allowed = 1.3 * usual + _HIDDEN_CALL_MS + _HIDDEN_SHARE * median
        if hidden[True] > 1.2 * spin_ms + _HIDDEN_FIXED_MS + calls[True] * allowed:
            self.hidden.append(f"{hidden[True]:.1f} ms of {calls[True]} calls are outside of the timed section")

    def _require_right_output(
        self, results: dict[bool, tuple[list[float], list[int], float]], plan: list[tuple[int, float]]
    ) -> None:
        """One call of this round, chosen now, gives what the reference gives for the same inputs."""
        both = sorted(set(results[False][1]) & set(results[True][1]))
        if not both:
            return
        call = secrets.choice(both)
        case = self.cases[plan[call][0]]
        limit = 2 * case.nbytes + (1 << 20)
        due_tree, due = self.reference.output(call, limit)
        tree, out = self.candidate.output(call, limit)
        try:
            expected = wire.decode(due_tree, due)
            criterion = case.criterion if case.wide is None else replace(case.criterion, relaxed=_RELAXED)
            found = shape_difference(tree, expected) or difference(wire.decode(tree, out), expected, criterion)
        except (wire.WireError, KeyError, TypeError, ValueError) as error:
            raise Untimeable("rejected", f"the answer is malformed: {error}") from None
        if found:
            raise Untimeable("incorrect", f"{found} (a timed call)")
