"""Keck on a Ray cluster: one actor a GPU or a share of the processors, each with a Keck of its own.

Needs the extra "ray"; an address in RAY_ADDRESS joins a cluster, without one Ray starts on this machine. The nodes
need KernelZero installed. What goes where is decided in `schedule.py`. Between driver and actors Ray pickles; both
are trusted, candidate code stays behind each actor's own Keck.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck.client import Keck
from kernelzero.keck.serve.schedule import Crew, Event, Finished, Lost, Ready, Scheduler, Work
from kernelzero.records import Candidate, GateReport, Status, Task, Verdict

_CLOSE_S = 10.0


class ClusterKeck:
    """Keck on the workers of a crew. One `judge` or `examine` runs at a time; `scheduler` says how."""

    def __init__(self, scheduler: Scheduler, device: str = "unknown") -> None:
        self._scheduler, self._device = scheduler, device

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._scheduler.workers

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts as chunks of them are finished."""
        for index, answer in self._scheduler.run("verdicts", jobs, [task.id for task, _ in jobs], timed):
            if isinstance(answer, str):
                backend = jobs[index][1].backend
                answer = Verdict(Status.INFRA_ERROR, answer, self._device, backend, timed=timed)
            assert isinstance(answer, Verdict)
            yield index, answer

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Reports as chunks of them are finished."""
        for index, answer in self._scheduler.run("reports", jobs, [task.id for task, _ in jobs], False):
            if isinstance(answer, str):
                answer = GateReport(None, "infrastructure", answer)
            assert isinstance(answer, GateReport)
            yield index, answer

    def close(self) -> None:
        """Nothing to stop; whoever made the crew stops it."""


class RayKeck(ClusterKeck):
    """Keck on Ray actors. Use as a context manager, or call `close`.

    Args:
        factory: makes the Keck of one actor, inside of it, e.g. `functools.partial(open_keck, "cuda", 1, seed=7)`.
            Give all the same seed, so that equal questions get equal answers.
        actors: how many; by default as many as the cluster's GPUs (or processors, for `gpus` 0) allow.
        gpus: GPUs of one actor; 0 to judge on processors.
        cpus: processors of one actor.
        chunk: most jobs that an actor is given at once; its loss costs at most these.
        restarts: how often in a row an actor is started again without having finished anything.

    Raises:
        UsageError: Ray is not installed, or the cluster has not what one actor needs.
        InfrastructureError: the cluster in RAY_ADDRESS does not answer.
    """

    def __init__(
        self, factory: Callable[[], Keck], *, actors: int | None = None, gpus: float = 0.0, cpus: float = 1.0,
        chunk: int = 8, restarts: int = 3, device: str = "unknown",
    ) -> None:  # fmt: skip
        self._ray = _import_ray()
        self._started = _join(self._ray)
        workers = _count(self._ray, actors, gpus, cpus)
        self._crew = _RayCrew(self._ray, factory, gpus, cpus)
        super().__init__(Scheduler(self._crew, workers, chunk=chunk, restarts=restarts), device)

    def __enter__(self) -> RayKeck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the actors, and Ray where it was started here."""
        self._crew.close()
        if self._started:
            self._ray.shutdown()
            self._started = False


class _Actor:
    """Runs inside of Ray."""

    def __init__(self, factory: Callable[[], Keck]) -> None:
        self._factory = factory

    def ready(self) -> None:
        """Make the Keck: here and not in the constructor, so that its errors arrive as they are."""
        self._keck = self._factory()

    def answer(self, work: Work) -> tuple[tuple[int, Any], ...]:
        """All answers of a chunk."""
        judging = work.kind == "verdicts"
        return tuple(self._keck.judge(work.jobs, timed=work.timed) if judging else self._keck.examine(work.jobs))

    def close(self) -> None:
        """Stop this actor's Keck."""
        self._keck.close()


class _RayCrew(Crew):
    def __init__(self, ray: Any, factory: Callable[[], Keck], gpus: float, cpus: float) -> None:
        self._ray, self._factory = ray, factory
        self._class = ray.remote(_Actor).options(num_gpus=gpus, num_cpus=cpus, max_restarts=0)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, bool]] = {}
        """What is waited for: the worker, and whether it is its start."""

    def start(self, worker: int) -> None:
        old = self._actors.pop(worker, None)
        if old is not None:
            self._ray.kill(old)
        self._actors[worker] = self._class.remote(self._factory)
        self._pending[self._actors[worker].ready.remote()] = (worker, True)

    def give(self, worker: int, work: Work) -> None:
        self._pending[self._actors[worker].answer.remote(work)] = (worker, False)

    def wait(self, timeout_s: float) -> Event | None:
        if not self._pending:
            return None
        done, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=timeout_s)
        if not done:
            return None
        worker, starting = self._pending.pop(done[0])
        try:
            answers = self._ray.get(done[0])
        except self._ray.exceptions.RayTaskError as error:
            return self._failed(worker, error)
        except self._ray.exceptions.RayError as error:
            return Lost(worker, _one_line(error))
        return Ready(worker) if starting else Finished(worker, answers)

    def _failed(self, worker: int, error: Any) -> Event:
        """An error inside an actor: Keck's machinery failing is a loss, everything else is for the caller."""
        if isinstance(error.cause, InfrastructureError):
            return Lost(worker, _one_line(error.cause))
        if isinstance(error.cause, UsageError):
            raise UsageError(str(error.cause)) from error
        raise error

    def close(self) -> None:
        """Let every Keck stop by itself, then end the actors."""
        closing = [actor.close.remote() for actor in self._actors.values()]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._pending = {}, {}


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UsageError("judging on a cluster needs Ray: pip install 'kernelzero[ray]'") from error
    return ray


def _join(ray: Any) -> bool:
    """Join the cluster, or start Ray here; whether it was this call that did."""
    if ray.is_initialized():
        return False
    try:
        ray.init(include_dashboard=False, logging_level="warning")
    except ConnectionError as error:
        raise InfrastructureError(f"the Ray cluster does not answer: {_one_line(error)}") from error
    return True


def _count(ray: Any, actors: int | None, gpus: float, cpus: float) -> int:
    have = ray.cluster_resources()
    most = int(have.get("GPU", 0) // gpus) if gpus else int(have.get("CPU", 0) // cpus)
    if most < 1:
        raise UsageError(f"the Ray cluster has no {gpus:g} GPUs" if gpus else f"the Ray cluster has no {cpus:g} CPUs")
    if actors is not None and actors > most:
        raise UsageError(f"{actors} actors are asked for, the Ray cluster has room for {most}")
    return actors or most


def _one_line(error: BaseException) -> str:
    """What happened, of Ray's page about it: its head, or for an actor that could not start the cause, at its foot."""
    plain = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]
