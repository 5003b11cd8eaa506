"""Keck as the rest of KernelZero sees it: one small protocol, and an implementation on this machine's processors."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck.limits import Limits
from kernelzero.keck.terms import Terms
from kernelzero.records import Candidate, GateReport, Status, Task, Timing, Verdict

CPU_DEVICE = "cpu (triton interpreter)"
_GPU_LIMITS = Limits(timeout_s=30.0, memory_mib=8192, case_mib=1024)
"""Triton compiles inside the time of the first call; tensors are as large as a GPU's."""
_RETRIES = 1


class Keck(Protocol):
    """Judges kernels and examines modules. Answers come as they are finished, each with the index of its question."""

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts on candidates, each for its task."""
        ...

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Whether modules can be tasks; each with the dotted torch names that have to affect its output."""
        ...

    def close(self) -> None:
        """Stop everything that was started."""
        ...


class LocalKeck:
    """Keck on this machine's CPU or GPU: `workers` judges, started in a program of their own on first use.

    Use as a context manager, or call `close`. One `judge` or `examine` runs at a time.

    Args:
        workers: judges; one a processor by default.
        limits: what one evaluation may use.
        seed: what the inputs are drawn from. By default it is drawn anew, so that no candidate can have prepared
            answers; all judges share it, so that equal questions get equal answers while this object lives.
        text_rules: False only in tests of the other layers.
        device: "cpu", or "cuda" or "cuda:N" for one GPU, which all judges share.
        profile, policy, baseline: tolerances, rules, and what is timed against; see `terms.Terms`.

    Raises:
        UsageError: this machine has no such device, or there are no such terms.
    """

    def __init__(
        self,
        workers: int | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        text_rules: bool = True,
        device: str = "cpu",
        profile: str = "paper",
        policy: str = "strict",
        baseline: str = "eager",
    ) -> None:
        if sys.platform != "linux":
            raise UsageError("judging kernels needs Linux (Triton and process isolation); other commands work here")
        self.gpu = _gpu_number(device)
        self.workers = workers or _default_workers(self.gpu is not None)
        self.limits = limits or limits_for(device)
        self.terms = Terms(profile, policy, baseline)
        if baseline != "eager" and self.gpu is None:
            raise UsageError(f"baseline {baseline!r}: times are measured on a GPU only (--device cuda)")
        self.seed = secrets.randbits(48) if seed is None else seed
        self.text_rules = text_rules
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = ""
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> LocalKeck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts as they are finished. Work that a fault of Keck interrupts is tried once more.

        Equal jobs share one verdict: a trained Coder's groups are more than half repetitions.
        """
        places: dict[tuple[Task, Candidate], list[int]] = {}
        for index, job in enumerate(jobs):
            places.setdefault(job, []).append(index)
        distinct = list(places)
        messages = [
            {
                "op": "judge",
                "task": task.to_json(),
                "candidate": candidate.to_json(),
                "timed": timed,
                "secret": self.seed,
            }
            for task, candidate in distinct
        ]
        for number, reply in self._ask_all(messages, [task.source for task, _ in distinct]):
            job = distinct[number]
            verdict = _verdict(reply, job[1], timed)
            for index in places[job]:
                yield index, verdict

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Reports as they are finished."""
        messages = [
            {"op": "examine", "task": task.to_json(), "apis": [[a] for a in apis], "secret": self.seed}
            for task, apis in jobs
        ]
        for index, reply in self._ask_all(messages, [task.source for task, _ in jobs]):
            yield index, _report(reply)

    def against_itself(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Timing | str]]:
        """Each task's reference timed against itself, as a candidate would be, or why that could not be done."""
        messages = [{"op": "against_itself", "task": task.to_json(), "secret": self.seed} for task in tasks]
        for index, reply in self._ask_all(messages, [f"{i}" for i in range(len(tasks))]):
            failure = str(reply.get("refused") or reply.get("broken"))
            yield index, Timing.from_json(reply["timing"]) if "timing" in reply else failure

    def close(self) -> None:
        """Stop the judges and all that they run."""
        for sock in self._sockets:
            sock.close()
        self._sockets = []
        if self._process is not None:
            try:
                self._process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
            shutil.rmtree(self._scratch, ignore_errors=True)

    # --- inside ---

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        pairs = [socket.socketpair() for _ in range(self.workers)]
        theirs = [b.fileno() for _, b in pairs]
        command = [sys.executable, "-m", "kernelzero.keck.server", "--fds", ",".join(map(str, theirs))]
        self._scratch = tempfile.mkdtemp(prefix="keck-")
        command += ["--scratch", self._scratch, "--limits", json.dumps(self.limits.to_json())]
        command += ["--device", "cpu" if self.gpu is None else "cuda"]
        command += ["--terms", json.dumps(self.terms.to_json())]
        command += [] if self.text_rules else ["--without-text-rules"]
        self._process = subprocess.Popen(
            command,
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            env=_environment(self.gpu),
        )
        for _, b in pairs:
            b.close()
        self._sockets = [a for a, _ in pairs]

    def _ask_all(self, messages: list[dict[str, Any]], sources: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        if not messages:
            return
        self._start()
        finished = False
        try:
            yield from _Dispatch(self._sockets, messages, sources).run()
            finished = True
        finally:
            if not finished:
                # Answers still on their way would be taken for answers to the next questions.
                self.close()


class _Dispatch:
    """Hands questions to judges, those about one task to the same judge where that keeps nobody idle."""

    def __init__(self, sockets: list[socket.socket], messages: list[dict[str, Any]], sources: list[str]) -> None:
        from kernelzero.keck import wire

        self.wire = wire
        self.channels = [wire.Channel(sock) for sock in sockets]
        self.messages = messages
        self.tries = [0] * len(messages)
        self.waiting: dict[str, list[int]] = {}
        for index, source in enumerate(sources):
            self.waiting.setdefault(source, []).append(index)
        self.sources = sources
        self.owner: dict[str, int] = {}
        self.busy: dict[int, int] = {}

    def run(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (index, reply) until every question is answered."""
        selector = selectors.DefaultSelector()
        for number, channel in enumerate(self.channels):
            selector.register(channel.sock, selectors.EVENT_READ, number)
            self._give(number)
        while self.busy:
            for key, _ in selector.select():
                number = key.data
                index = self.busy.pop(number, None)
                reply = self._receive(number)
                if index is None:
                    continue
                if "broken" in reply and self.tries[index] <= _RETRIES:
                    self.waiting.setdefault(self.sources[index], []).append(index)
                    self._give(number)
                    continue
                self._give(number)
                yield index, reply

    def _receive(self, number: int) -> dict[str, Any]:
        try:
            return self.channels[number].receive()[0]
        except self.wire.PeerGone:
            raise InfrastructureError("Keck stopped; see its messages above") from None

    def _give(self, number: int) -> None:
        source = self._choose(number)
        if source is None:
            return
        index = self.waiting[source].pop(0)
        if not self.waiting[source]:
            del self.waiting[source]
        self.tries[index] += 1
        self.busy[number] = index
        self.channels[number].send(self.messages[index])

    def _choose(self, number: int) -> str | None:
        """A task of this judge's own, else one that nobody has, else the longest queue."""
        mine = next((s for s in self.waiting if self.owner.get(s) == number), None)
        fresh = next((s for s in self.waiting if s not in self.owner), None)
        chosen = mine or fresh or max(self.waiting, key=lambda s: len(self.waiting[s]), default=None)
        if chosen is not None:
            self.owner.setdefault(chosen, number)
        return chosen


def _gpu_number(device: str) -> int | None:
    """Which GPU; None for the CPU."""
    name, _, number = device.partition(":")
    if device == "cpu":
        return None
    if name != "cuda" or not (number or "0").isdigit():
        raise UsageError(f"device {device!r}: Keck judges on cpu, cuda or cuda:N")
    if not glob.glob("/dev/nvidia[0-9]*"):
        raise UsageError(f"device {device!r}: there is no NVIDIA GPU on this machine")
    return int(number or 0)


def _default_workers(on_gpu: bool) -> int:
    """One a processor; on a GPU a few are left for the processes that are being timed."""
    cores = len(os.sched_getaffinity(0))
    return max(1, cores - max(2, cores // 6)) if on_gpu else cores


def _environment(gpu: int | None) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "TORCH_", "PYTORCH_"))}
    path = os.pathsep.join(p for p in sys.path if p)
    return keep | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "" if gpu is None else _visible(gpu),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # of the judges; children: zygote.spawn
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _visible(gpu: int) -> str:
    """The CUDA name of the GPU with this number among those that this process may see."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not allowed:
        return str(gpu)
    names = allowed.split(",")
    if gpu >= len(names):
        raise UsageError(f"device cuda:{gpu}: only {len(names)} GPUs are visible")
    return names[gpu].strip()


def _verdict(reply: dict[str, Any], candidate: Candidate, timed: bool) -> Verdict:
    if "verdict" in reply:
        return Verdict.from_json(reply["verdict"])
    reason = reply.get("refused") or reply.get("broken") or "no answer"
    return Verdict(
        Status.INFRA_ERROR, " ".join(reason.split()), device=CPU_DEVICE, backend=candidate.backend, timed=timed
    )


def _report(reply: dict[str, Any]) -> GateReport:
    if "report" not in reply:
        reason = reply.get("broken") or reply.get("refused") or "no answer"
        return GateReport(valid=None, gate="infrastructure", reason=" ".join(reason.split()))
    report = reply["report"]
    return GateReport(
        valid=report["ok"],
        gate=report["gate"],
        reason=report["reason"],
        launch_bound=report["launch_bound"],
        work_ms=report["work_ms"],
        graph=tuple(report.get("graph") or ()),
    )


def limits_for(device: str, timeout_s: float | None = None) -> Limits:
    """Keck's usual limits on a device, with another time-out if one is given."""
    usual = Limits() if device == "cpu" else _GPU_LIMITS
    return usual if timeout_s is None else dataclasses.replace(usual, timeout_s=timeout_s)


def open_keck(
    device: str = "cpu",
    workers: int | None = None,
    limits: Limits | None = None,
    seed: int | None = None,
    profile: str = "paper",
    policy: str = "strict",
    baseline: str = "eager",
) -> LocalKeck:
    """Keck for a device; the arguments are those of `LocalKeck`.

    Raises:
        UsageError: for a device that it cannot judge on, or terms that there are not.
    """
    return LocalKeck(workers, limits, seed, device=device, profile=profile, policy=policy, baseline=baseline)
