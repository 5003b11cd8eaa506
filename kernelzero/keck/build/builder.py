"""Builds candidates' extensions: cached by content, one build a key on all of a machine's processes, under limits.

The trusted side. `Builder.build` answers with a `Built` or a `BuildFailure`, never with an exception for what the
candidate did. A library that was built is never loaded here. Not covered: running it (inprocess.py, in a child), and a
cache folder that candidates may write to: give it to another user, or mount it read-only where they run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.errors import InfrastructureError
from kernelzero.keck.build import provenance, rules, rungs
from kernelzero.keck.build.diagnostics import Curable, Diagnostic, first_error, missing_method
from kernelzero.keck.build.elf import Elf
from kernelzero.keck.build.spec import BuildSpec, kernel_symbol
from kernelzero.keck.build.toolchain import BuildLimits, Ran, find_toolchain, find_torch, python_include, run_all
from kernelzero.keck.rules import RuleBroken
from kernelzero.records import Record, Status, content_id


@dataclass(frozen=True)
class Kernel(Record):
    """A __global__ function of a built library."""

    symbol: str
    """The exact name that a profiler sees before demangling."""
    name: str
    """As a person would write it."""


@dataclass(frozen=True)
class Built(Record):
    """A library that was built."""

    path: str
    """candidate.so, candidate.cubin where there is device code alone; kernels.ptx lies beside it."""
    rung: str
    """"mini", "aten", "full" or "device"."""
    seconds: float
    """Wall seconds that building took, when it was built."""
    kernels: tuple[Kernel, ...]
    functions: tuple[str, ...]
    """Names that the module has, as far as the text tells."""

    @property
    def ptx(self) -> str:
        """PTX of all kernels, "" where there are none."""
        path = Path(self.path).with_name("kernels.ptx")
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def answer(self) -> dict[str, Any]:
        """What the candidate's process is told."""
        told: dict[str, Any] = {"path": self.path, "functions": list(self.functions)}
        if self.rung == rungs.DEVICE:
            counts = parameter_counts(self.ptx)
            told["kernels"] = [[k.symbol, k.name, counts.get(k.symbol, 0)] for k in self.kernels]
        return told


@dataclass(frozen=True)
class BuildFailure(Record):
    """Why there is no library."""

    status: Status
    reason: str
    """One line."""
    rung: str
    """Where it was decided; "text" where no compiler ran."""
    seconds: float = 0.0

    def answer(self) -> dict[str, Any]:
        """What the candidate's process is told."""
        return {"status": self.status.value, "reason": self.reason}


class _Decided(Exception):
    """A rung came to a verdict."""

    def __init__(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, " ".join(reason.split())[:500]
        super().__init__(self.reason)


class Builder:
    """Builds requests in one cache folder, which any number of processes may share."""

    def __init__(
        self, cache: Path, arch: str = "sm_90", jobs: int | None = None, limits: BuildLimits | None = None
    ) -> None:
        """Find the compilers.

        Args:
            cache: folder for results; made if missing.
            arch: the one GPU architecture that is built for.
            jobs: builds at a time on this cache, of all processes together; None: half of the cores.
            limits: for each build.

        Raises:
            InfrastructureError: where a compiler is missing.
        """
        self.cache, self.arch, self.limits = cache.resolve(), arch, limits or BuildLimits()
        self.jobs = jobs or max(1, (os.cpu_count() or 2) // 2)
        self._toolchain, self._torch = find_toolchain(), find_torch()
        for name in ("built", "locks", "tmp", "slots"):
            (self.cache / name).mkdir(parents=True, exist_ok=True)
        self._headers = rungs.lay_out_headers(self.cache)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what builders that were killed left behind a day ago or earlier."""
        for folder in (self.cache / "tmp").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if folder.stat().st_mtime < time.time() - 86400:
                    shutil.rmtree(folder, ignore_errors=True)

    def key(self, spec: BuildSpec) -> str:
        """Content id of everything that a result depends on; the module's name is no part of it."""
        limits = json.dumps(dataclasses.asdict(self.limits), sort_keys=True)
        tools = (self._toolchain.versions, self._torch.version, self._headers.name, _rules_id())
        return content_id(spec.id, self.arch, *tools, limits)

    def build(self, spec: BuildSpec) -> Built | BuildFailure:
        """The library for a request, built now or earlier.

        Failures are kept like successes, except those of the machine.
        """
        try:
            rules.check(spec)
        except RuleBroken as broken:
            return BuildFailure(broken.status, broken.reason, "text")
        if spec.device_only:
            return _with_kernels(spec, self._cached(dataclasses.replace(spec, functions=None)))
        if spec.functions is None and not any("PYBIND11_MODULE" in text for text in spec.sources):
            reason = "no functions are bound: neither functions= nor a PYBIND11_MODULE"
            return BuildFailure(Status.COMPILE_ERROR, reason, "text")
        return self._cached(spec)

    def _cached(self, spec: BuildSpec) -> Built | BuildFailure:
        key = self.key(spec)
        known = self._known(key)
        if known is None:
            with self._locked(key):
                known = self._known(key) or self._build(key, spec)
        return known

    def _known(self, key: str) -> Built | BuildFailure | None:
        try:
            data = json.loads((self.cache / "built" / key / "result.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if "path" not in data:
            return BuildFailure.from_json(data)
        return Built.from_json(data | {"path": str(self.cache / "built" / key / Path(data["path"]).name)})

    def _build(self, key: str, spec: BuildSpec) -> Built | BuildFailure:
        with self._slot():
            # What a builder that was killed left behind; nobody else works on this key.
            for old in (self.cache / "tmp").glob(f"{key}.*"):
                shutil.rmtree(old, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=self.cache / "tmp"))
            try:
                made = _Ladder(self, spec, folder).climb()
                return made if _is_the_machines(made) else self._keep(key, folder, made)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, key: str, folder: Path, made: Built | BuildFailure) -> Built | BuildFailure:
        target = self.cache / "built" / key
        result = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=self.cache / "tmp"))
        result.chmod(0o755)
        if isinstance(made, Built):
            library = Path(made.path).name
            made = dataclasses.replace(made, path=str(target / library))
            for name in (library, "kernels.ptx"):
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, result / name)
            (result / library).chmod(0o755)
        (result / "result.json").write_text(json.dumps(made.to_json()), encoding="utf-8")
        os.rename(result, target)
        return made

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of a key; the kernel lets go of it when the process dies, however it dies."""
        with open(self.cache / "locks" / key, "wb") as file:
            longest = 2 * len(rungs.RUNGS) * self.limits.wall_s
            _acquire(lambda: _try_lock(file.fileno()), longest, "another build of the same sources never ended")
            yield

    @contextlib.contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold one of `jobs` places."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(self.cache / "slots" / str(number), "wb")) for number in range(self.jobs)]
            _acquire(lambda: any(_try_lock(f.fileno()) for f in files), 3600.0, "no place for a build came free")
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _acquire(attempt: Callable[[], bool], seconds: float, message: str) -> None:
    deadline = time.monotonic() + seconds
    while not attempt():
        if time.monotonic() > deadline:
            raise InfrastructureError(message)
        time.sleep(0.01)


def _is_the_machines(made: Built | BuildFailure) -> bool:
    return isinstance(made, BuildFailure) and not made.status.is_outcome


# --- one build -------------------------------------------------------------------------------------------------------


class _Ladder:
    """Tries the rungs in order; the first that can carry the request, or that knows that none can, decides."""

    def __init__(self, builder: Builder, spec: BuildSpec, folder: Path) -> None:
        self.builder, self.spec, self.folder = builder, spec, folder
        self.limits = builder.limits
        self.workshop = rungs.Workshop(builder._toolchain, builder._torch, builder._headers, builder.arch, folder)
        self.curable = Curable(spec.sources, builder._torch.includes[0], libc_names(), rungs.names_of_cuda_header())
        self.start = time.monotonic()

    def climb(self) -> Built | BuildFailure:
        if self.spec.device_only:
            return self._device()
        for rung in rungs.RUNGS:
            try:
                error = self._try(rung)
                if error is None:
                    return self._built(rung)
            except _Decided as decided:
                return BuildFailure(decided.status, decided.reason, rung, self._seconds())
            if rung == rungs.RUNGS[-1]:
                return BuildFailure(Status.COMPILE_ERROR, error.reason, rung, self._seconds())
        raise AssertionError("the last rung decides")

    def _device(self) -> Built | BuildFailure:
        """Device code alone: one command, and no other header could cure what it says."""
        try:
            command = self.workshop.device_command(self.spec)
            (ran,) = run_all([command], self.folder, self.limits.cpu_s, self.limits)
            self._check_ended(ran, self.limits.cpu_s)
            if not ran.ok:
                raise _Decided(Status.COMPILE_ERROR, first_error(ran.output, self.limits.memory_mib).reason)
            return self._described(rungs.DEVICE, "candidate.cubin", [self.folder / "candidate.cubin"])
        except _Decided as decided:
            return BuildFailure(decided.status, decided.reason, rungs.DEVICE, self._seconds())

    def _seconds(self) -> float:
        return round(time.monotonic() - self.start, 3)

    def _try(self, rung: str) -> Diagnostic | None:
        """None where the rung built it; else an error that the next rung may cure."""
        found = self.workshop.prepare(self.spec, rung)
        if not found:
            raise _Decided(Status.COMPILE_ERROR, "there are no sources")
        cpu_s = self.limits.full_cpu_s if rung == "full" else self.limits.cpu_s
        ran = run_all(self.workshop.compile_commands(self.spec, rung, found), self.folder, cpu_s, self.limits)
        for one in ran:
            self._check_ended(one, cpu_s)
        errors = [first_error(one.output, self.limits.memory_mib) for one in ran if not one.ok]
        if not errors:
            self._link(rung, found)
            return None
        for error in errors:
            self._decide(rung, error)
        return errors[0]

    def _check_ended(self, ran: Ran, cpu_s: int) -> None:
        if ran.timed_out:
            raise _Decided(Status.TIMEOUT, f"the compiler did not finish in {cpu_s} s of processor time")
        if ran.late:
            raise _Decided(Status.INFRA_ERROR, f"the machine is too busy: no end after {self.limits.wall_s:g} s")
        if ran.killed:
            raise _Decided(Status.INFRA_ERROR, "the compiler was killed from outside, probably for want of memory")

    def _decide(self, rung: str, error: Diagnostic) -> None:
        """Raise the verdict where no heavier rung can change it."""
        method = missing_method(error) if rung == "mini" else None
        if method and provenance.computes(method):
            raise _Decided(Status.REJECTED, f"PyTorch computes in C++: {method} ({error.reason})")
        if re.search(r"(?:pybind11|kz::bindings)\W+(?:has no member|::)", error.reason):
            raise _Decided(Status.REJECTED, f"C++ that handles Python objects is not built ({error.reason})")
        curable = {"mini": self.curable.after_mini, "aten": self.curable.after_aten}.get(rung)
        if curable is not None and not curable(error):
            raise _Decided(Status.COMPILE_ERROR, error.reason)

    def _link(self, rung: str, found: list[rungs.Unit]) -> None:
        (ran,) = run_all([self.workshop.link_command(rung, found)], self.folder, self.limits.cpu_s, self.limits)
        self._check_ended(ran, self.limits.cpu_s)
        if not ran.ok:
            raise _Decided(Status.COMPILE_ERROR, first_error(ran.output, self.limits.memory_mib).reason)
        library = self.folder / "candidate.so"
        try:
            provenance.check(library, libc_names())
        except RuleBroken as broken:
            raise _Decided(broken.status, broken.reason) from None
        if "PyInit_candidate" not in Elf.read(library).exported():
            raise _Decided(Status.COMPILE_ERROR, "no PYBIND11_MODULE was compiled: nothing is bound")

    def _built(self, rung: str) -> Built:
        return self._described(rung, "candidate.so", sorted((self.folder / "keep").glob("*.cubin")))

    def _described(self, rung: str, library: str, cubins: Iterable[Path]) -> Built:
        symbols = [name for cubin in cubins for name in Elf.read(cubin).kernels()]
        readable = provenance.demangle(symbols)
        for symbol in symbols:
            if provenance.is_a_librarys(symbol, readable[symbol]):
                raise _Decided(Status.REJECTED, f"a kernel has a name like a library's: {readable[symbol][:80]}")
        ptx = "\n".join(p.read_text(errors="replace") for p in sorted((self.folder / "keep").glob("*.ptx")))
        if ptx:
            (self.folder / "kernels.ptx").write_text(ptx, encoding="utf-8")
        kernels = tuple(Kernel(symbol, readable[symbol]) for symbol in symbols)
        return Built(str(self.folder / library), rung, self._seconds(), kernels, exported_names(self.spec))


def _with_kernels(spec: BuildSpec, made: Built | BuildFailure) -> Built | BuildFailure:
    """What was made, a failure where a kernel that the request names is not in it."""
    if isinstance(made, BuildFailure):
        return made
    try:
        for wanted in spec.functions or ():
            kernel_symbol([(kernel.symbol, kernel.name) for kernel in made.kernels], wanted)
    except LookupError as error:
        return BuildFailure(Status.COMPILE_ERROR, str(error.args[0])[:500], rungs.DEVICE, made.seconds)
    return made


def parameter_counts(ptx: str) -> dict[str, int]:
    """How many parameters each kernel of a PTX text has."""
    entries = re.findall(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?", ptx)
    return {symbol: parameters.count(".param") for symbol, parameters in entries}


@functools.cache
def _rules_id() -> str:
    """Content id of what decides: a verdict must not outlive the rule that made it."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("*.py")), here.parent / "guard.py"]
    return content_id(*(file.read_text(encoding="utf-8") for file in files))


def exported_names(spec: BuildSpec) -> tuple[str, ...]:
    """The functions that a request binds: those it lists, or those of m.def in its text."""
    if spec.functions is not None:
        return spec.functions
    return tuple(dict.fromkeys(n for text in spec.sources for n in re.findall(r'\.\s*def\s*\(\s*"(\w+)"', text)))


@functools.cache
def libc_names() -> frozenset[str]:
    """Everything that the C libraries of this machine provide."""
    found: set[str] = set()
    for name in ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgomp.so.1"):
        for folder in ("/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib",
                       "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"):  # fmt: skip
            path = Path(folder) / name
            if path.is_file():
                found |= set(Elf.read(path).exported())
                break
    return frozenset(found)


# --- the loading side's helper ---------------------------------------------------------------------------------------


def host_library(cache: Path) -> Path:
    """The extension module that loads what was built (kz_host.c), compiled once for this Python; takes half a second.

    Raises:
        InfrastructureError: where it does not compile.
    """
    toolchain, source = find_toolchain(), rungs.OWN_HEADERS / "kz_host.c"
    key = content_id(rungs.headers_id(), python_include(), toolchain.versions)
    target = cache.resolve() / "host" / f"kz_host.{key}.so"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as text:
        folder = Path(text)
        command = [str(toolchain.cc), "-O2", "-shared", "-fPIC", f"-I{rungs.OWN_HEADERS}", f"-I{python_include()}"]
        (ran,) = run_all([[*command, str(source), "-o", "kz_host.so"]], folder, 60, BuildLimits())
        if not ran.ok:
            raise InfrastructureError(f"the loader does not compile: {first_error(ran.output, 8192).reason}")
        os.rename(folder / "kz_host.so", target)
    return target
