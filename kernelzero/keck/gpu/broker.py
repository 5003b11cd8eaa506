"""The compilers that Triton starts, for a child that may start no program.

On a GPU Triton runs `ptxas` on the PTX that it made, and older versions the C compiler on the launcher of a kernel. A
child is denied new processes, so a sibling of its own, confined as it is but for that, runs the two for it: nothing
else, on files of the child's folder. What the C compiler made is kept by its source, machine-wide.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelzero.keck import sandbox, wire

_TIMEOUT_S = 30
_MEMORY_BYTES = 6 << 30


class Refused(RuntimeError):
    """The broker runs only Triton's compilers."""


# --- the broker's process --------------------------------------------------------------------------------------------


def serve(channel: wire.Channel, folder: Path, cache: Path, cpu_s: int) -> None:
    """Run compilers until the child hangs up. Called right after the fork, in the child's folder."""
    os.chdir(folder)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(folder)
    bounds = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, _MEMORY_BYTES))
    for what, value in bounds:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (value, value))
    sandbox.drop_capabilities()
    os.nice(10)  # processes that are being timed share the cores with compilers
    tools = _tools()
    with contextlib.suppress(wire.PeerGone):
        while True:
            message, _ = channel.receive()
            channel.send(_answer([str(word) for word in message["argv"]], tools, folder, cache))


def _tools() -> dict[str, str]:
    """Programs that may be run: path → kind."""
    import torch
    from triton import knobs

    # torch.compile prefers the one that came with torch.
    own = Path(torch.__file__).parent / "bin" / "ptxas"
    found = {str(knobs.nvidia.ptxas.path): "ptxas", str(own): "ptxas"}
    with contextlib.suppress(AttributeError, RuntimeError):
        found[str(knobs.nvidia.ptxas_blackwell.path)] = "ptxas"
    for name in (os.environ.get("CC", "cc"), "gcc", "clang"):
        if path := shutil.which(name):
            found[path] = "cc"
    return found


def _answer(argv: list[str], tools: dict[str, str], folder: Path, cache: Path) -> dict[str, Any]:
    kind = tools.get(argv[0]) if argv else None
    strange = [word for word in argv[1:] if not _harmless(word, folder)]
    if kind is None or strange:
        what = f"{argv[0]} with {strange[0]}" if strange else " ".join(argv)[:200]
        return {"refused": f"a child asks for a program that is not Triton's: {what}"}
    if kind == "ptxas":
        return _run(argv)
    return _cached(argv, cache)


def _harmless(word: str, folder: Path) -> bool:
    """Options that Triton gives, files of the child's folder, and directories to search."""
    if word.startswith(("-I/", "-L/")):
        return True
    if word.startswith("/"):
        return os.path.realpath(word).startswith(os.path.realpath(folder) + os.sep)
    if ".." in word:
        return False
    return word in _COMPILER_OPTIONS or not word.startswith(_DANGEROUS)


_COMPILER_OPTIONS = ("-fPIC", "-Wno-psabi")
_DANGEROUS = ("@", "-f", "-W", "-B", "-x", "-include", "-X", "-I", "-L")
"""Response files, plugins, other compilers and linkers, and relative places to search."""


def _run(argv: Sequence[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return {"code": 124, "out": "", "err": f"not finished in {_TIMEOUT_S} s"}
    return {"code": done.returncode, "out": _text(done.stdout), "err": _text(done.stderr)}


def _text(raw: bytes) -> str:
    return raw[-100_000:].decode(errors="replace")


def _cached(argv: list[str], cache: Path) -> dict[str, Any]:
    """Like `_run`, for `cc SOURCE … -o TARGET`: the same source and options are compiled once a machine."""
    target = Path(argv[argv.index("-o") + 1])
    sources = [word for word in argv[1:] if word.endswith((".c", ".cpp")) and not word.startswith("-")]
    options = [w for w in argv if w not in (str(target), *sources) and not w.startswith("-I" + str(target.parent))]
    digest = hashlib.sha256(json.dumps(options).encode())
    for source in sources:
        digest.update(Path(source).read_bytes())
    kept = cache / f"{digest.hexdigest()}.so"
    if kept.exists():
        shutil.copyfile(kept, target)
        return {"code": 0, "out": "", "err": ""}
    result = _run(argv)
    if result["code"] == 0:
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f"{digest.hexdigest()}.{os.getpid()}"
        shutil.copyfile(target, part)
        os.replace(part, kept)
    return result


# --- the child's side ------------------------------------------------------------------------------------------------


class BrokeredSubprocess:
    """Stands for the module `subprocess` inside Triton."""

    CalledProcessError = subprocess.CalledProcessError
    TimeoutExpired = subprocess.TimeoutExpired
    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT

    def __init__(self, channel: wire.Channel) -> None:
        self._channel = channel

    def run(self, argv: Sequence[str], check: bool = False, stderr: Any = None, **options: Any) -> Any:
        """The program's end; its messages go to `stderr` where that is a file."""
        self._channel.send({"argv": [str(word) for word in argv]})
        reply, _ = self._channel.receive()
        if "refused" in reply:
            raise Refused(reply["refused"])
        if hasattr(stderr, "name") and reply["err"]:
            Path(stderr.name).write_text(reply["err"], encoding="utf-8")
        if check and reply["code"]:
            raise subprocess.CalledProcessError(reply["code"], list(argv), reply["out"], reply["err"])
        return subprocess.CompletedProcess(list(argv), reply["code"], reply["out"], reply["err"])

    def check_call(self, argv: Sequence[str], **kwargs: Any) -> int:
        """Like `run`, an error where the program fails."""
        self.run(argv, check=True, **kwargs)
        return 0

    def check_output(self, argv: Sequence[str], **_: Any) -> bytes:
        """What the program prints."""
        return self.run(argv, check=True).stdout.encode()


def install(channel: wire.Channel) -> None:
    """Give this process's Triton the broker at the other end of `channel`."""
    import triton.backends.nvidia.compiler
    import triton.runtime.build

    brokered: Any = BrokeredSubprocess(channel)
    triton.backends.nvidia.compiler.subprocess = brokered
    triton.runtime.build.subprocess = brokered
    with contextlib.suppress(AttributeError):
        triton.knobs.subprocess = brokered
