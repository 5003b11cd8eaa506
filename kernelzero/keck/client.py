"""Keck as the rest of KernelZero sees it: one small protocol, and an implementation on this machine's processors."""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kernelzero.errors import UsageError
from kernelzero.keck.dispatch import Dispatch, Question
from kernelzero.keck.feed import Feed
from kernelzero.keck.limits import Limits
from kernelzero.keck.terms import Terms
from kernelzero.records import Candidate, GateReport, Status, Task, Timing, Verdict

CPU_DEVICE = "cpu (triton interpreter)"
_GPU_LIMITS = Limits(timeout_s=30.0, memory_mib=8192, case_mib=1024)
"""Triton compiles inside the time of the first call; tensors are as large as a GPU's."""

Job = tuple[Task, Candidate]


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

    def judge(self, jobs: Sequence[Job] | Feed[Job], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        """Verdicts as they are finished. Work that a fault of Keck interrupts is tried once more.

        Equal jobs share one verdict: a trained Coder's groups are more than half repetitions. Of a feed, whose jobs are
        numbered as they come, verdicts are given until it has ended.
        """

        def question(number: int, job: Job) -> Question:
            task, candidate = (part.to_json() for part in job)
            message = {"op": "judge", "task": task, "candidate": candidate, "timed": timed}
            return Question(job, job[0].source, message, lambda reply: _verdict(reply, job[1], timed))

        yield from self._ask_all(jobs, question)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Reports as they are finished."""

        def question(number: int, job: tuple[Task, Sequence[str]]) -> Question:
            task, apis = job
            message = {"op": "examine", "task": task.to_json(), "apis": [[a] for a in apis]}
            return Question(number, task.source, message, _report)

        yield from self._ask_all(jobs, question)

    def against_itself(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Timing | str]]:
        """Each task's reference timed against itself, as a candidate would be, or why that could not be done."""

        def question(number: int, task: Task) -> Question:
            message = {"op": "against_itself", "task": task.to_json()}
            return Question(number, str(number), message, _timing_or_failure)

        yield from self._ask_all(tasks, question)

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

    def _ask_all(self, jobs: Sequence[Any] | Feed[Any], question: Callable[[int, Any], Question]) -> Iterator[Any]:
        if not isinstance(jobs, Feed) and not jobs:
            return
        self._start()
        feed = jobs if isinstance(jobs, Feed) else Feed(jobs, ended=True)
        finished = False
        try:
            yield from Dispatch(self._sockets, feed, question, self.seed).run()
            finished = True
        finally:
            if feed is not jobs:
                feed.close()
            if not finished:
                # Answers still on their way would be taken for answers to the next questions.
                self.close()


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


def _timing_or_failure(reply: dict[str, Any]) -> Timing | str:
    return Timing.from_json(reply["timing"]) if "timing" in reply else str(reply.get("refused") or reply.get("broken"))


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
