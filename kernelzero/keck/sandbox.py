"""What a child gives up before it loads untrusted code, and how its whole family is killed.

Layers, each best effort where the machine does not allow it: own session, resource limits, no capabilities, no
network, a private folder as working directory, and a seccomp filter that denies new processes and threads, program
execution, sockets, tracing and signals to others. A child of the same user that gets past all of them is not stopped
by this file; it still holds neither the answer nor the verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import tempfile
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 24, 36, 38
_CLONE_NEWNET = 0x40000000

# syscall numbers of the two architectures that are supported
_SYSCALLS = {
    "x86_64": dict(
        arch=0xC000003E, clone=56, clone3=435, fork=57, vfork=58, execve=59, execveat=322, ptrace=101,
        process_vm_readv=310, process_vm_writev=311, socket=41, connect=42, kill=62, tkill=200, tgkill=234,
        capset=126, mount=165, unshare=272, setns=308, bpf=321, pidfd_open=434, pidfd_getfd=438,
        rt_sigqueueinfo=129, io_uring_setup=425,
    ),
    "aarch64": dict(
        arch=0xC00000B7, clone=220, clone3=435, execve=221, execveat=281, ptrace=117,
        process_vm_readv=270, process_vm_writev=271, socket=198, connect=203, kill=129, tkill=130, tgkill=131,
        capset=91, mount=40, unshare=97, setns=268, bpf=280, pidfd_open=434, pidfd_getfd=438,
        rt_sigqueueinfo=138, io_uring_setup=425,
    ),
}  # fmt: skip
_DENIED = (
    "clone", "fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "socket",
    "connect", "kill", "tkill", "rt_sigqueueinfo", "mount", "setns", "bpf", "pidfd_open", "pidfd_getfd",
    "io_uring_setup",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def confine(folder: Path, memory_bytes: int, cpu_s: int, file_bytes: int = 64 << 20, gpu: bool = False) -> None:
    """Give up, for good, what a child that runs untrusted code must not have; `lock` comes after it.

    Args:
        folder: private folder, becomes the working directory and HOME.
        memory_bytes: address space that may be taken beyond what the process has now.
        cpu_s: processor seconds.
        file_bytes: size of the largest file that may be written.
        gpu: the CUDA driver needs threads, and reserves address space beyond all measure, so threads are allowed and
            only memory that is written to is limited.
    """
    os.chdir(folder)
    for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ[name] = str(folder)
    tempfile.tempdir = str(folder)  # the parent's answer may be remembered
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, file_bytes)
    _limit(resource.RLIMIT_NOFILE, 1024 if gpu else 256)
    _limit(resource.RLIMIT_CPU, cpu_s)
    pages = Path("/proc/self/statm").read_text().split()
    if gpu:
        _limit(resource.RLIMIT_DATA, int(pages[5]) * resource.getpagesize() + memory_bytes)
    else:
        _limit(resource.RLIMIT_AS, int(pages[0]) * resource.getpagesize() + memory_bytes)
    drop_capabilities()


def lock(threads: bool) -> None:
    """Deny new processes, program execution, sockets, tracing and signals to others, for good.

    Args:
        threads: whether this process may still start threads; the CUDA driver does.
    """
    _install_seccomp(threads)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def leave_network() -> None:
    """Move this process, and all that it will fork, to a network namespace without devices (where it is allowed).

    Done once a zygote and not once a child: the kernel makes namespaces one after another, tens of milliseconds each.
    """
    _libc.unshare(_CLONE_NEWNET)


def hide_memory() -> None:
    """Close this process's memory to others of the same user (no /proc/PID/mem, no ptrace)."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that none escapes being killed."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit(what: int, value: int) -> None:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (value, value))


def drop_capabilities() -> None:
    """Give up root's privileges, for good."""
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    numbers = _SYSCALLS.get(platform.machine())
    if numbers:
        header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0))
        _libc.syscall(numbers["capset"], header, ctypes.create_string_buffer(24))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _install_seccomp(threads: bool) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        return
    code = _filter_program(numbers, threads)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


_CLONE_THREAD = 0x10000


def _filter_program(numbers: dict[str, int], threads: bool) -> bytes:
    """Classic BPF: refuse the denied calls with EPERM, allow the rest; with `threads`, threads of the process too."""
    load, equal, give, any_bit = 0x20, 0x15, 0x06, 0x45
    allow, refuse, unknown = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
    steps: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),
        (equal, 1, 0, numbers["arch"]),
        (give, 0, 0, refuse),
        (load, 0, 0, 0),
    ]
    if threads:
        # clone with CLONE_THREAD among its flags, the first argument
        steps += [(equal, 0, 4, numbers["clone"]), (load, 0, 0, 16), (any_bit, 0, 1, _CLONE_THREAD)]
        steps += [(give, 0, 0, allow), (give, 0, 0, refuse)]
    for name in _DENIED:
        if name in numbers:
            steps += [(equal, 0, 1, numbers[name]), (give, 0, 0, refuse)]
    # ENOSYS makes libc fall back from clone3 to clone, whose refusal it can report.
    steps += [(equal, 0, 1, numbers["clone3"]), (give, 0, 0, unknown), (give, 0, 0, allow)]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def descendants(pid: int) -> list[int]:
    """Process ids of all living descendants of `pid`, in no order."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The second field, the program's name in parentheses, may hold anything.
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def kill_all(pids: list[int]) -> None:
    """Kill each process and its group at once; processes that are gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def reap(pid: int, deadline: float) -> int | None:
    """Wait status of the child `pid`, or None when it still runs at `deadline` (monotonic seconds)."""
    while True:
        with contextlib.suppress(ChildProcessError):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.0005)
