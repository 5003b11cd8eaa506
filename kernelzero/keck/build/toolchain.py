"""The compilers of this machine, and how they are run: bounded in time, memory and output, as a group, without network.

Limits are set by the shell that becomes the compiler, so that starting one costs no fork of a large process. Where the
machine allows no network namespace, compilers run without one. Not covered: reading of files that the limits' user may
read; rules.py refuses the directives that would.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelzero.errors import InfrastructureError


@dataclass(frozen=True)
class BuildLimits:
    """What one build may take."""

    cpu_s: int = 60
    """Processor seconds of each compiler process: a source that takes more is a time-out, however busy the machine."""
    full_cpu_s: int = 180
    """The same for the rung with all of torch's headers."""
    wall_s: float = 600.0
    """Wall seconds of each rung; only a machine that is too busy comes near, so it is the machine's failure."""
    memory_mib: int = 8192
    """Address space of each compiler process."""
    file_mib: int = 256
    """Size of the largest file that a compiler may write."""


@dataclass(frozen=True)
class Toolchain:
    """Where the compilers and headers are."""

    nvcc: Path
    cuda: Path
    """Root of the CUDA toolkit."""
    cxx: Path
    cc: Path
    versions: str
    """One line that changes when a compiler does."""

    @property
    def cuda_include(self) -> Path:
        """Headers of the CUDA runtime."""
        return self.cuda / "include"

    @property
    def cuda_lib(self) -> Path:
        """Libraries of the CUDA runtime."""
        return self.cuda / "lib64"


@functools.cache
def find_toolchain() -> Toolchain:
    """The compilers of this machine.

    Raises:
        InfrastructureError: where nvcc or a C++ compiler is missing.
    """
    nvcc, cxx, cc = _nvcc(), shutil.which("g++"), shutil.which("gcc") or shutil.which("cc")
    if nvcc is None or cxx is None or cc is None:
        raise InfrastructureError("CUDA candidates are built with nvcc and g++, and one of them is not installed")
    versions = " ".join(subprocess.check_output([str(t), "--version"], text=True) for t in (nvcc, cxx))
    return Toolchain(nvcc, nvcc.parent.parent, Path(cxx), Path(cc), " ".join(versions.split()))


def _nvcc() -> Path | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [Path(home) / "bin" / "nvcc"] if home else []
    found = shutil.which("nvcc")
    places += [Path(found)] if found else []
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    for place in places:
        # A wrapper on the PATH has no toolkit around it.
        real = place.resolve()
        if real.is_file() and (real.parent.parent / "include" / "cuda_runtime.h").is_file():
            return real
    default = Path("/usr/local/cuda/bin/nvcc")
    return default if default.is_file() else None


@dataclass(frozen=True)
class TorchPaths:
    """Headers and libraries of the torch that is installed, found without importing it."""

    version: str
    root: Path

    @property
    def includes(self) -> list[Path]:
        """Folders for -I."""
        return [self.root / "include", self.root / "include" / "torch" / "csrc" / "api" / "include"]

    @property
    def lib(self) -> Path:
        """Folder of libtorch_cpu.so."""
        return self.root / "lib"


@functools.cache
def find_torch() -> TorchPaths:
    """The installed torch."""
    import importlib.metadata
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InfrastructureError("torch is not installed")
    return TorchPaths(importlib.metadata.version("torch"), Path(spec.origin).parent)


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How one compiler process ended."""

    code: int
    """Exit status; negative: the signal that ended it."""
    output: str
    late: bool
    """Whether the wall time was over."""

    @property
    def timed_out(self) -> bool:
        """Whether a process used up its processor time."""
        marks = ("signal 24", "CPU time limit exceeded", "Cputime limit exceeded")
        return self.code in (-signal.SIGXCPU, 152) or any(mark in self.output for mark in marks)

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0 and not self.late

    @property
    def killed(self) -> bool:
        """Whether something outside, such as the machine's out-of-memory killer, ended it or a part of it."""
        marks = ("died due to signal 9", "Killed signal terminated program", "(Kill signal)")
        return (
            not self.timed_out
            and not self.late
            and (self.code in (-signal.SIGKILL, 137) or any(m in self.output for m in marks))
        )


_OUTPUT_BYTES = 1 << 20


def run_all(commands: Sequence[Sequence[str]], folder: Path, cpu_s: int, limits: BuildLimits) -> list[Ran]:
    """Run commands in `folder` at the same time, each process for `cpu_s` at most; late ones are killed as groups."""
    deadline = time.monotonic() + limits.wall_s
    processes = [_start(command, folder, number, cpu_s, limits) for number, command in enumerate(commands)]
    try:
        late = [not _wait(process, deadline) for process in processes]
    finally:
        for process in processes:
            _kill(process)
    return [
        Ran(process.returncode, _tail(folder / f"output.{number}"), is_late)
        for number, (process, is_late) in enumerate(zip(processes, late, strict=True))
    ]


def _start(
    command: Sequence[str], folder: Path, number: int, cpu_s: int, limits: BuildLimits
) -> subprocess.Popen[bytes]:
    limit = (
        f"ulimit -c 0; ulimit -v {limits.memory_mib << 10}; ulimit -f {limits.file_mib << 11}; "
        f'ulimit -S -t {cpu_s}; ulimit -H -t {cpu_s + 5}; exec "$@"'
    )
    (folder / "tmp").mkdir(exist_ok=True)
    with open(folder / f"output.{number}", "wb") as output:
        return subprocess.Popen(
            [*_without_network(), "/bin/sh", "-c", limit, "sh", *_stepping_back(), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                "PATH": os.pathsep.join((str(Path(command[0]).parent), "/usr/local/bin", "/usr/bin", "/bin")),
                "TMPDIR": str(folder / "tmp"),
                "HOME": str(folder),
                "LC_ALL": "C",
            },
            start_new_session=True,
        )


@functools.cache
def _stepping_back() -> tuple[str, ...]:
    """Processes that are being timed share the cores with compilers."""
    nice = shutil.which("nice")
    return (nice, "-n", "10") if nice else ()


@functools.cache
def _without_network() -> tuple[str, ...]:
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    for flags in (("-n",), ("-r", "-n")):
        command = (unshare, *flags, "--")
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return ()


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader where a compiler left something running.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_OUTPUT_BYTES).decode("utf-8", "replace")


def python_include() -> str:
    """Folder of Python.h."""
    return sysconfig.get_paths()["include"]
