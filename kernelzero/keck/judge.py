"""The trusted side: it holds seeds, inputs, answers and the model of time, asks a child for outputs, and decides.

One judge runs one candidate at a time, in a child that it owns and kills. Nothing that a child says about itself
makes a verdict better: outputs are compared here, and what the child observed (operators, launches, changed state)
can only turn a correct answer into a refusal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelzero.keck import cuda_source, probe, rules, wire
from kernelzero.keck.compare import difference, shape_difference
from kernelzero.keck.limits import Limits
from kernelzero.keck.machine import CpuMachine, Machine, Untimeable
from kernelzero.keck.onboard import FORWARD_SEED, INIT_SEED, Case, Reference, TaskRefused, revive, take_on
from kernelzero.keck.phases import Phases
from kernelzero.keck.terms import Terms
from kernelzero.keck.zygote import GRACE_S, ChildHandle, Zygote
from kernelzero.records import Backend, Candidate, Status, Task, Timing, Verdict

CALLS = 20
"""Calls whose outputs are compared."""
_CALL_S, _CALLS_OF_REFERENCE = 2.0, 100
"""On a GPU one call may take so many seconds and as long as so many of the reference's, where nothing is compiled."""
_ALONE_S, _CALLS_ALONE = 0.6, 50
"""The same without others."""
_LOAD_S = 10.0
"""Seconds to import a candidate and build its model, extensions aside, where that is less than its time-out."""
_LEAST_SHARE = 0.02
"""Of the kernels' time under policy "hybrid": what is less is for show."""
_STREAMS = 8
"""Hardware queues for candidates that may use streams."""
_OUT_OF_MEMORY = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)
_MORE_ATTEMPTS, _LARGE_SHARE = 2, 0.2
"""For candidates that neighbours may have kept from their time or memory; who holds a large share has had its own."""
_BEYOND = {"end": "beyond the end of", "start": "before the start of"}
_CACHED_TASKS = 64
_CACHED_BYTES = 1 << 30
_LIVING_REFERENCES = 1
"""Children of references that a judge keeps for timing, on a GPU."""
_TRACED_CALL = 2
"""The call whose kernels are recorded: by then all are compiled and loaded."""
_FENCED_CALLS = {4: "end", 6: "start"}
"""On a GPU: calls whose tensors lie where mapped memory ends, or starts (gpu/fence.py)."""


class _Decision(Exception):
    """Ends the evaluation of a candidate."""

    def __init__(self, status: Status, reason: str, at_work: bool = False, memory_share: float = 0.0) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason
        self.at_work = at_work
        """Whether it was made while the candidate had the GPU, beside others."""
        self.memory_share = memory_share
        """Of the GPU's memory, what the candidate says that it holds; to say more than is true does it no good."""


@dataclass
class _Observed:
    """What was seen of a candidate so far."""

    phases: Phases
    parameters: str | None = None
    kernels: tuple[str, ...] = ()
    launches: int = 0
    work_ms: float = 0.0
    calls: int = 0
    criterion: str | None = None
    timing: Timing | None = None
    rung: str | None = None
    own_share: float | None = None
    own: dict[str, str] = field(default_factory=dict)
    """Kernels of the candidate's extensions: the compiler's name → as a person would write it."""


@dataclass
class Judge:
    """Judges candidates and examines tasks, one after another."""

    zygote: Zygote
    limits: Limits
    secret: int = 0
    """What the seeds of the inputs are derived from; no child ever gets it."""
    machine: Machine = field(default_factory=CpuMachine)
    terms: Terms = field(default_factory=Terms)
    text_rules: bool = True
    """Off only in tests, which ask whether what runs is enough to refuse an attack."""
    _tasks: OrderedDict[tuple[str, int, bool], Reference | TaskRefused] = field(default_factory=OrderedDict)

    # --- tasks ---

    def reference(self, source: str, move_weights: bool = True) -> Reference:
        """The task, taken on once and remembered, refusals too.

        Raises:
            TaskRefused.
        """
        key = (source, self.secret, move_weights)
        if key not in self._tasks:
            self._tasks[key] = self._taken_on(source, move_weights)
            self._end_others(self._tasks[key])
            self._forget_oldest()
        self._tasks.move_to_end(key)
        found = self._tasks[key]
        if isinstance(found, TaskRefused):
            raise found
        return found

    def _taken_on(self, source: str, move_weights: bool) -> Reference | TaskRefused:
        for last in (False, True):
            try:
                return self._take_on(source, move_weights)
            except TaskRefused as refusal:
                if last or not (self.machine.on_gpu and _OUT_OF_MEMORY.search(refusal.reason)):
                    return refusal
                self.machine.wait_for_memory()
        raise AssertionError("the second attempt decides")

    def _take_on(self, source: str, move_weights: bool) -> Reference:
        return take_on(
            source,
            self.zygote,
            self.limits,
            secret=self.secret,
            move_weights=move_weights,
            keep_child=self.machine.on_gpu and self.terms.baseline == "eager",
            share=self.machine.shared,
            profile=self.terms.profile,
            cache_bytes=self.machine.cache_bytes,
        )

    def _living(self, source: str, reference: Reference) -> ChildHandle | None:
        """A child that has the reference loaded, made anew where it was given up."""
        if self.machine.on_gpu and (reference.child is None or reference.child.ended):
            compiled = self.terms.baseline == "torch.compile"
            reference.child = revive(
                source, self.zygote, self.limits, reference, compiled=compiled, share=self.machine.shared
            )
        self._end_others(reference)
        return reference.child

    def _end_others(self, kept: Reference | TaskRefused) -> None:
        """On a GPU every living child has a context and memory; few tasks are asked about in turn."""
        others = [r for r in self._tasks.values() if isinstance(r, Reference) and r.child is not None and r is not kept]
        for other in others[: max(0, len(others) + 1 - _LIVING_REFERENCES)]:
            if other.child is not None:
                other.child.end()
                other.child = None

    def _forget_oldest(self) -> None:
        def held() -> int:
            return sum(c.nbytes for r in self._tasks.values() if isinstance(r, Reference) for c in r.cases)

        while len(self._tasks) > 1 and (len(self._tasks) > _CACHED_TASKS or held() > _CACHED_BYTES):
            _, oldest = self._tasks.popitem(last=False)
            if isinstance(oldest, Reference) and oldest.child is not None:
                oldest.child.end()

    def examine(self, task: Task, apis: list[list[str]] | None = None) -> dict[str, Any]:
        """Whether a module can be a task; see probe.examine for the keys."""
        return probe.examine(task.source, apis or [], self.zygote, self.limits, self.reference)

    def against_itself(self, task: Task) -> Timing:
        """The reference timed against another process that runs it too: how far from 1 measurement alone can lead.

        Raises:
            TaskRefused, Untimeable.
        """
        try:
            return self._against_itself(task)
        except Untimeable as fault:
            if not (self.machine.on_gpu and _OUT_OF_MEMORY.search(fault.reason)):
                raise
        self.machine.wait_for_memory()
        return self._against_itself(task)

    def _against_itself(self, task: Task) -> Timing:
        reference = self.reference(task.source)
        other = revive(task.source, self.zygote, self.limits, reference)
        try:
            living = self._living(task.source, reference)
            return self.machine.time(reference, living, other, reference.work_ms, own=None)
        finally:
            other.end()
            self.machine.give_back_memory()

    # --- candidates ---

    def judge(self, task: Task, candidate: Candidate, timed: bool = True) -> Verdict:
        """The verdict on one candidate for one task.

        Raises:
            TaskRefused: when the reference itself cannot run; a degenerate task gives a "rejected" verdict.
        """
        started = time.monotonic()
        made, seen = self._decide(task, candidate, timed)
        for _ in range(_MORE_ATTEMPTS):
            wants_memory = bool(_OUT_OF_MEMORY.search(made.reason)) and made.memory_share < _LARGE_SHARE
            if not self.machine.on_gpu or not (wants_memory or (made.status is Status.TIMEOUT and made.at_work)):
                break
            # It may have been a neighbour's doing: once more, while no other candidate computes.
            if wants_memory:
                self.machine.wait_for_memory()
            made, seen = self._decide(task, candidate, timed, alone=True, phases=seen.phases)
            made.at_work = False
        return self._verdict(task, candidate, made, seen, timed, time.monotonic() - started)

    def _decide(
        self, task: Task, candidate: Candidate, timed: bool, alone: bool = False, phases: Phases | None = None
    ) -> tuple[_Decision, _Observed]:
        seen = _Observed(phases or Phases(lambda: self.machine.seconds))
        try:
            if self.text_rules:
                rules.check(candidate.source, candidate.backend)
            if candidate.backend is Backend.CUDA and not self.machine.on_gpu:
                cuda_source.check(candidate.source)
            self._run(task, candidate, seen, timed, alone)
        except rules.RuleBroken as broken:
            return _Decision(broken.status, broken.reason), seen
        except TaskRefused as refusal:
            if refusal.kind != "degenerate":
                raise
            return _Decision(Status.REJECTED, refusal.reason), seen
        except _Decision as made:
            return made, seen
        return _Decision(Status.CORRECT, f"{seen.calls} calls agree with the reference"), seen

    def _verdict(
        self, task: Task, candidate: Candidate, made: _Decision, seen: _Observed, timed: bool, seconds: float
    ) -> Verdict:
        return Verdict(
            status=made.status,
            reason=made.reason,
            device=self.machine.device,
            backend=candidate.backend,
            timing=seen.timing if made.status is Status.CORRECT else None,
            timed=timed,
            parameters=seen.parameters,
            criterion=seen.criterion,
            profile=self.terms.profile,
            policy=self.terms.policy,
            calls=seen.calls,
            kernels=seen.kernels,
            launches=seen.launches,
            rung=seen.rung,
            own_share=seen.own_share,
            judged_s=round(seconds, 4),
            phases=seen.phases.to_json(),
        )

    def _run(self, task: Task, candidate: Candidate, seen: _Observed, timed: bool, alone: bool) -> None:
        with seen.phases("reference"):
            reference = self.reference(task.source)
        with seen.phases("start"):
            child = self.zygote.spawn(
                self.limits.memory_bytes,
                self.limits.cpu_s,
                connections=_STREAMS if "stream" in candidate.source.lower() else 1,
            )
        try:
            run = _Run(child, self.limits.timeout_s, seen, self.machine, hybrid=self.terms.policy == "hybrid")
            if self.machine.on_gpu:
                run.call_limit_s = _CALL_S + _CALLS_OF_REFERENCE * reference.call_s
            if alone:
                run.share, run.call_limit_s = self.machine.alone, _ALONE_S + _CALLS_ALONE * reference.call_s
            with seen.phases("load"):
                run.load(candidate.source, reference)
            if seen.parameters == "same_seed" and reference.weights_moved:
                # Its weights cannot be set, so it is held to the reference as constructed under the same seed.
                reference = self.reference(task.source, move_weights=False)
            run.calls(reference)
            if timed:
                with seen.phases("timing"):
                    seen.timing = self._time(task, reference, child, seen)
            if self.terms.policy == "hybrid":
                run.require_kernels_that_matter(reference)  # the last question: the child may not outlive it
        finally:
            child.end()
            self.machine.give_back_memory()

    def recover(self) -> None:
        """Forget everything after a fault of Keck's own or the machine's, want of memory for example."""
        for known in self._tasks.values():
            if isinstance(known, Reference) and known.child is not None:
                known.child.end()
        self._tasks.clear()
        self.machine.give_back_memory()

    def _time(self, task: Task, reference: Reference, child: ChildHandle, seen: _Observed) -> Timing:
        try:
            living = self._living(task.source, reference)
            own = frozenset(seen.own)
            hybrid = self.terms.policy == "hybrid"
            timing = self.machine.time(reference, living, child, seen.work_ms, own, hybrid)
            return dataclasses.replace(timing, baseline=self.terms.baseline)
        except Untimeable as fault:
            raise _Decision(Status(fault.kind), fault.reason) from None


class _Run:
    """One candidate in its child."""

    def __init__(
        self, child: ChildHandle, timeout_s: float, seen: _Observed, machine: Machine, hybrid: bool = False
    ) -> None:
        self.child, self.seen, self.machine, self.hybrid = child, seen, machine, hybrid
        self.deadline = time.monotonic() + timeout_s
        self.share = machine.shared
        """Context in which it computes."""
        self.at_work = False
        self.turn: contextlib.ExitStack | None = None
        """Where the GPU goes to when the candidate's first call has compiled and asks for it."""
        self.call_limit_s = math.inf
        """Seconds of one call in which nothing is compiled. An endless kernel takes a share of everybody's time."""
        self.full_precision = False
        """Whether the task is float32 or wider throughout."""

    def load(self, source: str, reference: Reference) -> None:
        """Import the candidate, build its model and match its weights."""
        tree, buffers = reference.load_payload()
        message = {
            "op": "load",
            "entry": "ModelNew",
            "source": source,
            "seed": INIT_SEED,
            "tree": tree,
            "full_precision": reference.full_precision,
            "hybrid": self.hybrid,
        }
        self.full_precision = reference.full_precision
        reply, _ = self._ask(message, buffers, limit_s=_LOAD_S)
        self.seen.parameters = reply["parameters"]

    def calls(self, reference: Reference) -> None:
        """Every call of the plan, each compared before the next is made."""
        plan = call_plan(reference.cases)
        for number, (case, in_place) in enumerate(plan):
            # Global state is looked at after the first and the last call: looking costs as much as a call.
            check = number in (0, len(plan) - 1)
            message = {"op": "call", "tree": case.tree, "seed": FORWARD_SEED, "in_place": in_place, "check": check}
            message["trace"] = number == _TRACED_CALL
            message["turn_due"] = number == 0 and self.machine.on_gpu
            message["fence"] = _FENCED_CALLS.get(number) if self.machine.on_gpu else None
            with self.seen.phases("calls" if number else "first_call"), contextlib.ExitStack() as turn:
                if not message["turn_due"]:
                    turn.enter_context(self._share())
                self.turn = turn if message["turn_due"] else None
                self._call(message, case, reference)

    @contextlib.contextmanager
    def _share(self) -> Iterator[None]:
        """The GPU beside others; waiting for it is not the candidate's time."""
        asked = time.monotonic()
        with self.share():
            self.deadline += time.monotonic() - asked
            self.at_work = True
            yield
        self.at_work = False

    def _call(self, message: dict[str, Any], case: Case, reference: Reference) -> None:
        limit = 2 * _expected_bytes(case) + (1 << 20)
        # The first call compiles until it asks for its turn.
        facts, out = self._ask(message, case.buffers, limit, math.inf if message["turn_due"] else self.call_limit_s)
        try:
            self._check_facts(facts, case)
            if message["trace"] and self.machine.on_gpu:
                self._check_kernels(facts)
            self._compare(facts, out, case, reference)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            # Only a child that was taken over sends such an answer.
            raise _Decision(Status.REJECTED, f"the answer is malformed: {type(error).__name__}") from None

    def _check_kernels(self, facts: dict[str, Any]) -> None:
        from kernelzero.keck.gpu.provenance import foreign_kernel, share_of

        own = self.seen.own.keys() | set(map(str, facts["own_names"]))
        reason = foreign_kernel(facts["ran"], own, 2 * int(facts["torch_kernels"]), libraries=self.hybrid)
        if reason:
            raise _Decision(Status.REJECTED, reason)
        self.seen.own_share = share_of(facts["ran"], own)
        ran = [self.seen.own[name] for name, *_ in facts["ran"] if name in self.seen.own]
        self.seen.kernels = tuple(dict.fromkeys((*self.seen.kernels, *ran)))
        self.seen.launches = max(self.seen.launches, len(facts["ran"]))

    def require_kernels_that_matter(self, reference: Reference) -> None:
        """One more call, in which the candidate's kernels leave zeros: the output has to be another one."""
        if self.seen.own_share is not None and self.seen.own_share < _LEAST_SHARE:
            share = f"{self.seen.own_share:.1%}"
            raise _Decision(Status.REJECTED, f"the kernels do not matter: {share} of the GPU's time is theirs")
        case = reference.cases[0]
        message = {"op": "call", "tree": case.tree, "seed": FORWARD_SEED, "check": False, "blank": True}
        try:
            with self._share():
                facts, out = self._ask(message, case.buffers, 2 * _expected_bytes(case) + (1 << 20))
            same = shape_difference(facts["tree"], case.expected) is None
            same = same and difference(wire.decode(facts["tree"], out), case.expected, case.criterion) is None
        except _Decision as failed:
            if failed.status is Status.REJECTED:
                raise
            return  # without its kernels it does not even run
        except (KeyError, TypeError, ValueError, wire.WireError) as error:
            raise _Decision(Status.REJECTED, f"the answer is malformed: {type(error).__name__}") from None
        if same:
            raise _Decision(Status.REJECTED, "the kernels do not matter: the output is the same without them")

    def _ask(
        self,
        message: dict[str, Any],
        buffers: list[Any],
        max_payload: int = wire.MAX_PAYLOAD_BYTES,
        limit_s: float = math.inf,
    ) -> tuple[dict[str, Any], list[Any]]:
        deadline = min(self.deadline, time.monotonic() + limit_s)
        try:
            reply, out = self.child.ask(message, buffers, deadline=deadline, max_payload=max_payload)
            while "build" in reply or "turn" in reply:
                if "turn" in reply:
                    answer = self._take_turn()
                    deadline = min(self.deadline, time.monotonic() + self.call_limit_s)
                else:
                    before = time.monotonic()
                    answer = {"built": self._build(reply["build"])}
                    deadline += time.monotonic() - before
                reply, out = self.child.ask(answer, deadline=deadline, max_payload=max_payload)
        except wire.DeadlinePassed:
            self.child.end(wait=True)  # while the GPU is still this judge's: what never ends disturbs everybody
            reason = f"not finished in time ({message['op']})"
            raise _Decision(Status.TIMEOUT, reason, at_work=self.at_work) from None
        except wire.PeerGone:
            self.child.end(GRACE_S)
            raise _Decision(Status.RUNTIME_ERROR, self.child.how_it_ended()) from None
        except wire.WireError as error:
            if _OUT_OF_MEMORY.search(str(error)):
                raise _Decision(Status.RUNTIME_ERROR, str(error)) from None
            raise _Decision(Status.INCORRECT, f"the output is not what is due: {error}") from None
        if reply.get("ok") is not True:
            made = self._failure(reply)
            if message.get("fence") and "illegal memory access" in made.reason:
                raise _Decision(made.status, f"a kernel reads or stores {_BEYOND[message['fence']]} a tensor")
            raise made
        return reply, out

    def _take_turn(self) -> dict[str, Any]:
        """The GPU for the rest of a first call; asked for again when something more was compiled."""
        if self.turn is None:
            raise _Decision(Status.REJECTED, "the answer is malformed: no turn is due")
        if not self.at_work:
            self.turn.enter_context(self._share())
        return {"turn": True}

    def _build(self, request: Any) -> dict[str, Any]:
        """Build what the candidate asks for; the time that takes is not the candidate's."""
        from kernelzero.keck.build import BuildFailure, BuildSpec, reduced_precision

        started = time.monotonic()
        try:
            with self.seen.phases("build"):
                made = self.machine.builder.build(BuildSpec.from_json(request))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _Decision(Status.REJECTED, "the answer is malformed") from None
        self.deadline += time.monotonic() - started
        self.seen.rung = made.rung
        if isinstance(made, BuildFailure):
            raise _Decision(made.status, made.reason)
        if self.full_precision and reduced_precision(made.ptx).sixteen:
            raise _Decision(Status.REJECTED, "reduced precision inside a float32 task: the kernels compute in 16 bits")
        self.seen.own.update((kernel.symbol, kernel.name) for kernel in made.kernels)
        return made.answer()

    def _failure(self, reply: dict[str, Any]) -> _Decision:
        try:
            reason = " ".join(str(reply["reason"]).split())[:500] or "no reason"
            return _Decision(Status(reply["status"]), reason, memory_share=float(reply.get("memory_share", 0.0)))
        except (KeyError, ValueError, TypeError):
            return _Decision(Status.REJECTED, "the answer is malformed")

    def _check_facts(self, facts: dict[str, Any], case: Case) -> None:
        self.seen.kernels = tuple(dict.fromkeys((*self.seen.kernels, *map(str, facts["kernels"]))))
        if not facts["kernel_launches"]:
            raise _Decision(Status.REJECTED, "forward launched no kernel of its own")
        aliases = set(facts["aliases"])
        if set(facts["unproduced"]) - (aliases & set(case.aliases)):
            raise _Decision(Status.REJECTED, "the output does not come from a kernel of this call")
        if set(facts["mutated"]) - set(case.mutated):
            raise _Decision(Status.INCORRECT, "forward changed its inputs")
        if aliases - set(case.aliases):
            raise _Decision(Status.INCORRECT, "the output shares memory with an input")
        if facts["overwritten"] and not case.aliases:
            raise _Decision(Status.INCORRECT, "a later call overwrote the output of the call before")

    def _compare(self, facts: dict[str, Any], out: list[Any], case: Case, reference: Reference) -> None:
        found = shape_difference(facts["tree"], case.expected)
        if found is None:
            try:
                found = difference(wire.decode(facts["tree"], out), case.expected, case.criterion, wide=case.wide)
            except wire.WireError as error:
                found = f"the output is not what is due: {error}"
        self.seen.criterion = reference.criterion.name
        if found is not None:
            raise _Decision(Status.INCORRECT, self._explain(f"{found} ({case.label})"))
        self.seen.calls += 1
        if not case.label.startswith("inputs"):
            self.seen.work_ms = max(self.seen.work_ms, facts["work_ms"])
            self.seen.launches = max(self.seen.launches, facts["launches"])

    def _explain(self, found: str) -> str:
        if self.seen.parameters == "same_seed":
            return f"parameter mismatch: names and shapes of the weights differ from the reference's; {found}"
        return found


def _expected_bytes(case: Case) -> int:
    return case.nbytes + sum(len(b) for b in case.buffers)


def call_plan(cases: list[Case]) -> list[tuple[Case, bool]]:
    """(case, whether the inputs go to the addresses of the call before), at least `CALLS` of them.

    Fresh inputs at new addresses, new values at old addresses, and values seen before: whoever keys a stored result
    by address, by content or by the number of calls is wrong, or launches nothing, at one of them.
    """
    plan = [(case, index % 3 == 2) for index, case in enumerate(cases)]
    index = 0
    while len(plan) < CALLS:
        plan.append((cases[(index * 5) % len(cases)], index % 2 == 0))
        index += 1
    return plan
