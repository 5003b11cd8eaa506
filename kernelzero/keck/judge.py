"""The trusted side: it holds seeds, inputs, answers and the model of time, asks a child for outputs, and decides.

One judge runs one candidate at a time, in a child that it owns and kills. Nothing that a child says about itself
makes a verdict better: outputs are compared here, and what the child observed (operators, launches, changed state)
can only turn a correct answer into a refusal.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from kernelzero.keck import cuda_source, probe, rules, wire
from kernelzero.keck.compare import difference, shape_difference
from kernelzero.keck.limits import Limits
from kernelzero.keck.onboard import FORWARD_SEED, INIT_SEED, Case, Reference, TaskRefused, take_on
from kernelzero.keck.zygote import ChildHandle, Zygote
from kernelzero.records import Backend, Basis, Candidate, Status, Task, Timing, Verdict

DEVICE = "cpu (triton interpreter)"
CALLS = 20
"""Calls whose outputs are compared."""
_CACHED_TASKS = 64
_CACHED_BYTES = 1 << 30


@dataclass(frozen=True)
class _Decision(Exception):
    """Ends the evaluation of a candidate."""

    status: Status
    reason: str


@dataclass
class _Observed:
    """What was seen of a candidate so far."""

    parameters: str | None = None
    kernels: tuple[str, ...] = ()
    launches: int = 0
    work_ms: float = 0.0
    calls: int = 0
    criterion: str | None = None


@dataclass
class Judge:
    """Judges candidates and examines tasks, one after another."""

    zygote: Zygote
    limits: Limits
    secret: int = 0
    """What the seeds of the inputs are derived from; no child ever gets it."""
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
            try:
                self._tasks[key] = take_on(
                    source, self.zygote, self.limits, secret=self.secret, move_weights=move_weights
                )
            except TaskRefused as refusal:
                self._tasks[key] = refusal
            self._forget_oldest()
        self._tasks.move_to_end(key)
        found = self._tasks[key]
        if isinstance(found, TaskRefused):
            raise found
        return found

    def _forget_oldest(self) -> None:
        def held() -> int:
            return sum(c.nbytes for r in self._tasks.values() if isinstance(r, Reference) for c in r.cases)

        while len(self._tasks) > 1 and (len(self._tasks) > _CACHED_TASKS or held() > _CACHED_BYTES):
            self._tasks.popitem(last=False)

    def examine(self, task: Task, apis: list[list[str]] | None = None) -> dict[str, Any]:
        """Whether a module can be a task; see probe.examine for the keys."""
        return probe.examine(task.source, apis or [], self.zygote, self.limits, self.reference)

    # --- candidates ---

    def judge(self, task: Task, candidate: Candidate, timed: bool = True) -> Verdict:
        """The verdict on one candidate for one task.

        Raises:
            TaskRefused: when the reference itself cannot run; a degenerate task gives a "rejected" verdict.
        """
        started = time.monotonic()
        seen = _Observed()
        try:
            if self.text_rules:
                rules.check(candidate.source, candidate.backend)
            if candidate.backend is Backend.CUDA:
                cuda_source.check(candidate.source)
            self._run(task, candidate, seen)
            decision = _Decision(Status.CORRECT, f"{seen.calls} calls agree with the reference")
        except rules.RuleBroken as broken:
            decision = _Decision(broken.status, broken.reason)
        except TaskRefused as refusal:
            if refusal.kind != "degenerate":
                raise
            decision = _Decision(Status.REJECTED, refusal.reason)
        except _Decision as made:
            decision = made
        return self._verdict(task, candidate, decision, seen, timed, time.monotonic() - started)

    def _verdict(
        self, task: Task, candidate: Candidate, made: _Decision, seen: _Observed, timed: bool, seconds: float
    ) -> Verdict:
        timing = None
        if made.status is Status.CORRECT and timed:
            reference_ms = self.reference(task.source).work_ms
            ratio = reference_ms / seen.work_ms
            timing = Timing(Basis.MODELLED, reference_ms, seen.work_ms, ratio, ratio, ratio)
        return Verdict(
            status=made.status,
            reason=made.reason,
            device=DEVICE,
            backend=candidate.backend,
            timing=timing,
            timed=timed,
            parameters=seen.parameters,
            criterion=seen.criterion,
            calls=seen.calls,
            kernels=seen.kernels,
            launches=seen.launches,
            judged_s=round(seconds, 4),
        )

    def _run(self, task: Task, candidate: Candidate, seen: _Observed) -> None:
        reference = self.reference(task.source)
        deadline = time.monotonic() + self.limits.timeout_s
        child = self.zygote.spawn(self.limits.memory_bytes, self.limits.cpu_s)
        try:
            run = _Run(child, deadline, seen)
            run.load(candidate.source, reference)
            if seen.parameters == "same_seed" and reference.weights_moved:
                # Its weights cannot be set, so it is held to the reference as constructed under the same seed.
                reference = self.reference(task.source, move_weights=False)
            run.calls(reference)
        finally:
            child.end()


class _Run:
    """One candidate in its child."""

    def __init__(self, child: ChildHandle, deadline: float, seen: _Observed) -> None:
        self.child, self.deadline, self.seen = child, deadline, seen

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
        }
        reply, _ = self._ask(message, buffers)
        self.seen.parameters = reply["parameters"]

    def calls(self, reference: Reference) -> None:
        """Every call of the plan, each compared before the next is made."""
        plan = call_plan(reference.cases)
        for number, (case, in_place) in enumerate(plan):
            # Global state is looked at after the first and the last call: looking costs as much as a call.
            check = number in (0, len(plan) - 1)
            message = {"op": "call", "tree": case.tree, "seed": FORWARD_SEED, "in_place": in_place, "check": check}
            facts, out = self._ask(message, case.buffers, max_payload=2 * _expected_bytes(case) + (1 << 20))
            try:
                self._check_facts(facts, case)
                self._compare(facts, out, case, reference)
            except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                # Only a child that was taken over sends such an answer.
                raise _Decision(Status.REJECTED, f"the answer is malformed: {type(error).__name__}") from None

    def _ask(
        self, message: dict[str, Any], buffers: list[bytes], max_payload: int = wire.MAX_PAYLOAD_BYTES
    ) -> tuple[dict[str, Any], list[bytearray]]:
        try:
            reply, out = self.child.ask(message, buffers, deadline=self.deadline, max_payload=max_payload)
        except wire.DeadlinePassed:
            raise _Decision(Status.TIMEOUT, f"not finished in time ({message['op']})") from None
        except wire.PeerGone:
            self.child.end(grace_s=0.02)
            raise _Decision(Status.RUNTIME_ERROR, self.child.how_it_ended()) from None
        except wire.WireError as error:
            raise _Decision(Status.INCORRECT, f"the output is not what is due: {error}") from None
        if reply.get("ok") is not True:
            raise self._failure(reply)
        return reply, out

    def _failure(self, reply: dict[str, Any]) -> _Decision:
        try:
            return _Decision(Status(reply["status"]), " ".join(str(reply["reason"]).split())[:500] or "no reason")
        except (KeyError, ValueError):
            return _Decision(Status.REJECTED, "the answer is malformed")

    def _check_facts(self, facts: dict[str, Any], case: Case) -> None:
        self.seen.kernels = tuple(facts["kernels"])
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

    def _compare(self, facts: dict[str, Any], out: list[bytearray], case: Case, reference: Reference) -> None:
        found = shape_difference(facts["tree"], case.expected)
        if found is None:
            try:
                found = difference(wire.decode(facts["tree"], out), case.expected, case.criterion)
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
