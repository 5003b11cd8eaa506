"""How fast a correct candidate is: interleaved bursts, two clocks, an interval.

Reference and candidate run in children of their own and take turns, in both orders, while the judge has the GPU alone.
A burst queues calls without waiting between them; each has inputs that no call had before and starts with a cold L2
cache; CUDA events around each call give its time. Outputs of timed calls are kept, and one a round, chosen when the
burst is over, is set aside and compared later with what the reference gives for the same inputs. The judge's own clock
runs over the whole burst: time that the events do not show must not be longer than the reference's, or the candidate
works outside of them. The speedup is the median over rounds of the ratio of median times, with a 95 % interval
(Student's t on logarithms) that is never narrower than what one kernel timed in two processes differs by. Where trust
ends: docs/keck.md.
"""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from kernelzero.keck.onboard import Case, Reference, rehearse
from kernelzero.keck.zygote import GRACE_S, ChildHandle
from kernelzero.records import Basis, Timing

MIN_ROUNDS, MAX_ROUNDS = 5, 15
HALF_WIDTH = 0.025
"""Rounds end when the interval is this narrow on each side."""
SYSTEMATIC = 0.025
"""Relative error that more rounds do not remove (where memory lies differs from process to process): no interval is
narrower. References timed against themselves differ by more in one pair of a hundred."""
UNSTEADY = 0.2
"""Half-widths above this, after all rounds, are no measurement."""
BURST_MS = 3.0
MIN_CALLS, MAX_CALLS = 3, 12
POOL = 3
_POOL_BYTES = 4 << 30
_BURST_LIMIT_S = 60.0
_SLOW_MS = 200.0
"""Calls longer than this are timed one at a time, and no oftener than needed for an interval."""
_MAX_QUEUE_MS = 3.0
"""Bound on what a child says that queueing one call takes."""
_MIN_SPIN_MS, _SPIN_SHARE, _MAX_SPIN_MS, _MAX_STRETCH = 0.3, 1.3, 40.0, 4.0
"""The GPU is kept busy for this share of the time that queueing a burst takes."""
_ROOMY, _SLACK_BYTES = 0.25, 256 << 20
_COPIED_BYTES = 256 << 20
_HIDDEN_MS, _HIDDEN_SHARE = 0.7, 0.25
"""What the candidate's bursts may show beyond the reference's, fixed and as a share of the reference's work."""
_SET_ASIDE_BYTES = 1 << 30
"""Outputs that wait for their comparison; beyond that they are compared at once."""
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
        rehearse()
        self.cuda = CudaRuntime()
        self.seconds = {"wait": 0.0, "wait_alone": 0.0, "alone": 0.0}
        about = torch.cuda.get_device_properties(0)
        self.device, self.cache_bytes = about.name, about.L2_cache_size
        self.lease = Lease(lease_folder(), str(about.uuid))

    @functools.cached_property
    def builder(self) -> Builder:
        """Finds the compilers when the first extension is asked for."""
        return Builder(cache_folder())

    def connect(self, sock: socket.socket) -> wire.Channel:
        """The judge's end of a connection to a child."""
        return JudgeChannel(sock, self.cuda)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """The GPU beside others."""
        with self._counted("wait", self.lease.shared()):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """The GPU without others."""
        with self._counted("wait_alone", self.lease.exclusive()):
            started = time.monotonic()
            try:
                yield
            finally:
                self.seconds["alone"] += time.monotonic() - started

    @functools.cached_property
    def bytes_a_ms(self) -> float:
        """What memory moves in a millisecond: measured by copying, and a fifth more, for reads alone are faster."""
        source = torch.zeros(_COPIED_BYTES // 4, dtype=torch.int32, device="cuda")
        target, best = torch.empty_like(source), math.inf
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(4):
            begin.record()
            target.copy_(source)
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end))
        del source, target
        torch.cuda.empty_cache()
        return 1.2 * 2 * _COPIED_BYTES / best

    @contextlib.contextmanager
    def _counted(self, name: str, lease: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        started = time.monotonic()
        with lease:
            self.seconds[name] += time.monotonic() - started
            yield

    def wait_for_memory(self) -> None:
        """Return when a good part of the GPU's memory is free, or after half a minute."""
        for _ in range(60):
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            if free > _ROOMY * total:
                return
            time.sleep(0.5)

    def give_back_memory(self) -> None:
        """Let others have what this process holds for nothing."""
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _SLACK_BYTES:
            torch.cuda.empty_cache()

    def time(
        self,
        reference: Reference,
        at_reference: ChildHandle | None,
        at_candidate: ChildHandle,
        work_ms: float,
        own: frozenset[str] | None = frozenset(),
        libraries: bool = False,
    ) -> Timing:
        """Measured times, the GPU held alone."""
        assert at_reference is not None
        cases = _pool(reference.cases)
        sides = _Side(at_reference, is_candidate=False), _Side(at_candidate, is_candidate=True)
        with self.shared():
            for side in sides:
                side.load(cases)
                side.estimate()
        race = _Race(*sides, cases, own, libraries)
        try:
            with self.alone():
                race.run()
                floor_ms = reference.needed_bytes / self.bytes_a_ms
            with self.shared():
                race.look()  # nobody inside can know that no more rounds follow
                race.compare_outputs()
        finally:
            if not at_reference.ended:
                sides[0].rest()
        return _possible(race.timing(), reference, floor_ms)


def _possible(timing: Timing, reference: Reference, floor_ms: float) -> Timing:
    if timing.candidate_ms < floor_ms:
        mib = reference.needed_bytes / 2**20
        reason = f"{timing.candidate_ms:.4g} ms is less than memory needs for {mib:.0f} MiB ({floor_ms:.4g} ms)"
        raise Untimeable("rejected", f"faster than possible: {reason}")
    return timing


def _pool(cases: list[Case]) -> list[Case]:
    draws = [case for case in cases if case.label.startswith("draw")]
    room = max(1, _POOL_BYTES // max(1, draws[0].nbytes))
    return draws[: min(POOL, room)]


@dataclass(frozen=True)
class _Burst:
    """What one burst of calls gave."""

    plan: list[tuple[int, float]]
    """For each call the set of inputs and the factor."""
    times_ms: list[float]
    kept: list[int]
    """Calls whose outputs were kept."""
    wall_ms: float
    """By the judge's clock."""
    spin_ms: float
    """How long the GPU was to be kept busy first."""
    spun_ms: float
    """How long it was, as the child says; it depends on the GPU's clock."""
    between_ms: float
    """The GPU's time before and between the calls, flushing and making inputs, as the child says."""
    dry: bool
    """Whether the GPU waited for the host within a call, so that its time may be the host's."""

    @property
    def hidden_ms(self) -> float:
        """What the judge's clock shows beyond the events."""
        return self.wall_ms - sum(self.times_ms)


class _Side:
    """Reference or candidate in its child."""

    def __init__(self, child: ChildHandle, is_candidate: bool) -> None:
        self.child, self.is_candidate = child, is_candidate
        self.scaled_inputs = 0
        """Inputs that are multiplied by a factor before each call."""
        self.call_ms = 1.0
        self.queue_ms = 0.1
        """Milliseconds that the host needs to queue one call."""
        self._limit_s = _BURST_LIMIT_S
        self._stretch = 1.0
        """Factor on the time that the GPU is kept busy, for a host that is slower than it was."""

    def load(self, cases: Sequence[Case]) -> None:
        """Give it the inputs; a reference keeps them from one candidate to the next."""
        inputs = wire.decode(cases[0].tree, cases[0].buffers)
        self.scaled_inputs = sum(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in inputs)
        if getattr(self.child, "pool", None) is cases[0]:
            return
        for number, case in enumerate(cases):
            self._ask({"op": "pool", "tree": case.tree, "first": number == 0}, case.buffers)
        self.child.pool = cases[0]  # type: ignore[attr-defined]

    def estimate(self) -> None:
        """Milliseconds of one call, roughly; also warms up what the first calls would pay for."""
        self.call_ms = self._shortest(1)
        if self.call_ms >= _SLOW_MS:
            self.call_ms = self._shortest(1)  # the first call of a library loads it
        if self.call_ms < _SLOW_MS:
            self.call_ms = self._shortest(5)
        self._limit_s = min(_BURST_LIMIT_S, 5.0 + 0.02 * self.calls() * self.call_ms)

    def _shortest(self, calls: int) -> float:
        return max(1e-3, min(self.burst([(0, 1.0)] * calls, spin_ms=2.0).times_ms))

    def calls(self) -> int:
        """Calls in a burst: many of a short kernel, few of a long one."""
        return max(MIN_CALLS if self.call_ms < _SLOW_MS else 1, min(MAX_CALLS, round(BURST_MS / self.call_ms)))

    def queued_burst(self, draw: Callable[[], tuple[int, float]], spin_ms: float) -> _Burst:
        """A burst that was queued before the GPU got to it; where the host is too slow for that, the third attempt."""
        while True:
            burst = self.burst([draw() for _ in range(self.calls())], min(_MAX_SPIN_MS, spin_ms * self._stretch))
            if not burst.dry or self._stretch >= _MAX_STRETCH:
                return burst
            self._stretch *= 2

    def burst(self, plan: list[tuple[int, float]], spin_ms: float) -> _Burst:
        """One burst of calls with these sets of inputs, each times a factor."""
        started = time.perf_counter()
        reply, _ = self._ask({"op": "burst", "plan": plan, "traced": False, "spin_ms": spin_ms})
        wall_ms = (time.perf_counter() - started) * 1e3
        try:
            times, kept = [float(t) for t in reply["times_ms"]], [int(k) for k in reply["kept"]]
            dry, spun_ms, between_ms = bool(reply["dry"]), float(reply["spun_ms"]), float(reply["between_ms"])
            self.queue_ms = min(max(0.0, float(reply["queued_ms"])) / len(plan), _MAX_QUEUE_MS)
        except (KeyError, TypeError, ValueError):
            raise Untimeable("rejected", "the answer is malformed") from None
        if len(times) != len(plan) or not kept or min(times) <= 0 or not set(kept) <= set(range(len(plan))):
            raise Untimeable("rejected", "the answer is malformed")
        return _Burst(plan, times, kept, wall_ms, spin_ms, spun_ms, between_ms, dry)

    def require_own_kernels(self, draw: Callable[[], tuple[int, float]], own: frozenset[str], libraries: bool) -> None:
        """Timed calls run without the guards of checked ones, so what runs in a burst of them is looked at too."""
        plan = [draw() for _ in range(self.calls())]
        reply, _ = self._ask({"op": "burst", "plan": plan, "traced": True, "spin_ms": 1.0})
        known = own | set(map(str, reply["own_names"]))
        ran = _without_harness(reply["ran"] or [], len(plan) * self.scaled_inputs)
        reason = foreign_kernel(ran, known, None, libraries=libraries)
        if not reason and sum(str(kernel[0]) in known for kernel in ran) < len(plan):
            reason = f"{len(plan)} calls launched fewer kernels of their own"
        if reason:
            raise Untimeable("rejected", reason + " (in a timed call)")

    def rest(self) -> None:
        """Let it give back memory until it is timed again."""
        self._ask({"op": "rest"})

    def set_aside(self, call: int) -> None:
        """Have it copy the output of one call of the last burst, before anything else runs."""
        self._ask({"op": "set_aside", "call": call})

    def next_aside(self, limit: int) -> tuple[Any, list[Any]]:
        """The encoded output that was set aside first, of those that it still has."""
        reply, out = self._ask({"op": "next_aside"}, None, limit)
        return reply.get("tree"), out

    def replay(self, number: int, factor: float, limit: int) -> tuple[Any, list[Any]]:
        """The encoded output for inputs of the pool times a factor."""
        reply, out = self._ask({"op": "replay", "number": number, "factor": factor}, None, limit)
        return reply.get("tree"), out

    def _ask(
        self, message: dict[str, Any], buffers: list[Any] | None = None, limit: int = wire.MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[Any]]:
        deadline = time.monotonic() + self._limit_s
        if not self.is_candidate:
            return self._ask_reference(message, buffers, deadline, limit)
        try:
            reply, out = self.child.ask(message, buffers, deadline=deadline, max_payload=limit)
        except wire.DeadlinePassed:
            self.child.end(wait=True)
            raise Untimeable("timeout", f"not finished in {self._limit_s:.0f} s ({message['op']})") from None
        except wire.PeerGone:
            self.child.end(GRACE_S)
            raise Untimeable("runtime_error", self.child.how_it_ended()) from None
        except wire.WireError as error:
            if "out of memory" in str(error):
                raise Untimeable("runtime_error", f"in a timed call: {error}") from None
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


def _half_width(logs: Sequence[float]) -> float:
    """Half of the 95 % interval of their mean."""
    return _T975[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))


def _status(reply: dict[str, Any]) -> str:
    """The status that a child reports of its own failure, where it is one that a verdict can have."""
    status = str(reply.get("status"))
    return status if status in ("compile_error", "runtime_error", "rejected", "unsupported") else "rejected"


def _without_harness(ran: Sequence[Sequence[Any]], products: int) -> list[Sequence[Any]]:
    """Without a burst's own products of inputs and factors, so many of them; fills and copies may run anyway."""
    kept = []
    for kernel in ran:
        if products and "2at6native" in str(kernel[0]) and "MulFunctor" in str(kernel[0]):
            products -= 1
        else:
            kept.append(kernel)
    return kept


class _Race:
    """Rounds of one burst each."""

    def __init__(
        self,
        reference: _Side,
        candidate: _Side,
        cases: Sequence[Case],
        own: frozenset[str] | None = None,
        libraries: bool = False,
    ) -> None:
        self.reference, self.candidate, self.cases = reference, candidate, cases
        self.own, self.libraries = own, libraries
        self.times: dict[bool, list[float]] = {False: [], True: []}
        self.bursts: list[tuple[_Burst, _Burst]] = []
        """Of reference and candidate, a pair a round."""
        self.aside: list[tuple[int, float]] = []
        """Set of inputs and factor of the outputs that the candidate has set aside, in order."""

    def run(self) -> None:
        """Until the interval is narrow enough or the rounds are used up; the GPU has to be held alone."""
        self._round(0)  # the GPU's clocks rise
        self.times, self.bursts = {False: [], True: []}, []
        slow = max(self.reference.call_ms, self.candidate.call_ms) > _SLOW_MS
        looked_at = secrets.randbelow(MIN_ROUNDS)
        for number in range(MIN_ROUNDS if slow else MAX_ROUNDS):
            if number == looked_at:
                self.look()
            self._round(number)
            if number + 1 >= MIN_ROUNDS and self._half_width() <= HALF_WIDTH:
                break

    def look(self) -> None:
        """See what runs in a burst like the others."""
        if self.own is not None:
            self.candidate.require_own_kernels(self._draw, self.own, self.libraries)

    def timing(self) -> Timing:
        """What the rounds say.

        Raises:
            Untimeable: the clocks disagreed, or the candidate's times are not those of one computation.
            InfrastructureError: the machine is not quiet enough to measure.
        """
        self._compare_clocks()
        self._require_steady()
        middle = math.exp(statistics.median(self._logs()))
        half = math.hypot(SYSTEMATIC, min(UNSTEADY, self._half_width()))
        return Timing(
            Basis.MEASURED,
            statistics.median(self.times[False]),
            statistics.median(self.times[True]),
            middle,
            middle * math.exp(-half),
            middle * math.exp(half),
        )

    def compare_outputs(self) -> None:
        """What the candidate has set aside is what the reference gives."""
        for number, factor in self.aside:
            case = self.cases[number]
            limit = 2 * case.nbytes + (1 << 20)
            self._require_right(case, self.reference.replay(number, factor, limit), self.candidate.next_aside(limit))
        self.aside = []

    def _logs(self) -> list[float]:
        return [math.log(a / b) for a, b in zip(self.times[False], self.times[True], strict=True)]

    def _half_width(self) -> float:
        return _half_width(self._logs())

    def _require_steady(self) -> None:
        """Times that jump are a fault of the machine where the reference's do too, else the candidate's.

        One round of many may have met a neighbour who was just started or ended; the median does not notice it.
        """
        if self._half_width() <= UNSTEADY:
            return
        middle = statistics.median(self._logs())
        others = sorted(self._logs(), key=lambda log: abs(log - middle))[:-1]
        if len(others) > MIN_ROUNDS and _half_width(others) <= UNSTEADY:
            return
        theirs, ours = (statistics.stdev(map(math.log, self.times[side])) for side in (True, False))
        if theirs < 3 * ours:
            raise InfrastructureError("the GPU is not quiet: times of the reference vary, too")
        fast, slow = min(self.times[True]), max(self.times[True])
        raise Untimeable("rejected", f"its calls do not all do the same: {fast:.4g} to {slow:.4g} ms a round")

    def _round(self, number: int) -> None:
        sides = (self.reference, self.candidate) if number % 2 == 0 else (self.candidate, self.reference)
        spin_ms = _MIN_SPIN_MS + _SPIN_SHARE * max(side.queue_ms * side.calls() for side in sides)
        found = {side.is_candidate: side.queued_burst(self._draw, spin_ms) for side in sides}
        self._set_aside(found[True])
        self.bursts.append((found[False], found[True]))
        for is_candidate, burst in found.items():
            self.times[is_candidate].append(statistics.median(burst.times_ms))

    def _draw(self) -> tuple[int, float]:
        """A set of inputs and a factor that no call had before."""
        return secrets.randbelow(len(self.cases)), 1.0 - secrets.randbelow(1 << 20) / (1 << 23)

    def _set_aside(self, burst: _Burst) -> None:
        """One call of this burst, chosen now; copied now, so that later calls cannot mend it."""
        call = secrets.choice(burst.kept)
        self.candidate.set_aside(call)
        self.aside.append(burst.plan[call])
        if sum(self.cases[number].nbytes for number, _ in self.aside) > _SET_ASIDE_BYTES:
            self.compare_outputs()

    def _compare_clocks(self) -> None:
        """What the judge's clock shows beyond the events is input and flush, and nothing of the candidate's.

        By the median of the rounds: one can be the machine's fault. Bursts in which the GPU waited for the host say
        nothing here, but there the host's time is inside of the events.
        """
        pairs = [(r, c) for r, c in self.bursts if not (r.dry or c.dry)]
        if 2 * len(pairs) < len(self.bursts):
            return
        # All that is due is the reference's word: what the host adds to a burst, what flush and inputs take a call, and
        # what a nominal millisecond of keeping busy really takes.
        fixed = statistics.median(r.hidden_ms - r.spun_ms - r.between_ms for r, _ in pairs)
        a_call = statistics.median(r.between_ms / len(r.times_ms) for r, _ in pairs)
        calls = statistics.median(len(c.times_ms) for _, c in pairs)
        hidden = statistics.median(c.hidden_ms - c.spin_ms * r.spun_ms / r.spin_ms for r, c in pairs)
        work = statistics.median(sum(r.times_ms) / len(r.times_ms) for r, _ in pairs) * calls
        due = 1.2 * (max(0.0, fixed) + calls * a_call)
        if hidden > due + _HIDDEN_MS + _HIDDEN_SHARE * work:
            reason = f"{hidden:.1f} ms of {calls:.0f} calls are outside of the timed section, {due:.1f} ms are due"
            raise Untimeable("rejected", f"two clocks disagree: {reason}")

    def _require_right(self, case: Case, due: tuple[Any, list[Any]], given: tuple[Any, list[Any]]) -> None:
        try:
            expected = wire.decode(*due)
            criterion = case.criterion if case.wide is None else replace(case.criterion, relaxed=_RELAXED)
            found = shape_difference(given[0], expected) or difference(wire.decode(*given), expected, criterion)
        except (wire.WireError, KeyError, TypeError, ValueError) as error:
            raise Untimeable("rejected", f"the answer is malformed: {error}") from None
        if found:
            raise Untimeable("incorrect", f"{found} (a timed call)")
