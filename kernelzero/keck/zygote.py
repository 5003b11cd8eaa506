"""The process that forks children: torch and Triton loaded, nothing else in it, no answer ever in its memory.

One judge owns one zygote. A child is ended by killing everything below the zygote that does not belong to another
living child, so neither a daemonised grandchild nor a stray thread outlives its verdict.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelzero.errors import InfrastructureError
from kernelzero.keck import sandbox, wire

GRACE_S = 1.0
"""How long a child that hung up may take to be gone: on a GPU the driver has to clean up first."""
_START_S = 60.0
_PAUSES = (0.2, 0.4, 0.8, 1.6, 3.0, 5.0, 8.0)
"""Seconds before each further attempt to start a child."""


def serve(sock: socket.socket, scratch: Path) -> None:
    """Fork and end children on the judge's orders until it hangs up; then end what is left."""
    sandbox.die_with_parent()
    sandbox.adopt_orphans()
    sandbox.leave_network()
    channel = wire.Channel(sock)
    living: dict[int, int | None] = {}
    with contextlib.suppress(wire.PeerGone):
        while True:
            message, _ = channel.receive()
            if message["op"] == "spawn":
                pid, broker = _spawn(sock, message, scratch)
                living[pid] = broker
                channel.send({"pid": pid})
            else:
                living.pop(message["pid"], None)
                status = _end(message["pid"], living, message["grace_s"])
                shutil.rmtree(message["folder"], ignore_errors=True)
                channel.send({"status": status})
    sandbox.kill_all(sandbox.descendants(os.getpid()))


def _spawn(sock: socket.socket, message: dict[str, Any], scratch: Path) -> tuple[int, int | None]:
    """Fork a child, and where it needs one a broker of compilers before it; their process ids."""
    _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    broker, compilers = _spawn_broker(sock, message, scratch) if message["broker"] else (None, None)
    pid = os.fork()
    if pid == 0:
        _become_child(sock, fds[0], compilers, message)
    os.close(fds[0])
    if compilers is not None:
        compilers.close()
    return pid, broker


def _spawn_broker(sock: socket.socket, message: dict[str, Any], scratch: Path) -> tuple[int, socket.socket]:
    from kernelzero.keck.gpu import broker

    theirs, ours = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            sandbox.die_with_parent()
            sock.close()
            _close_other_descriptors({ours.fileno()})
            broker.serve(wire.Channel(ours), Path(message["folder"]), scratch / "compiled", message["cpu_s"])
        finally:
            os._exit(0)
    ours.close()
    return pid, theirs


def _become_child(sock: socket.socket, fd: int, compilers: socket.socket | None, message: dict[str, Any]) -> None:
    code = 1
    try:
        os.setsid()
        sandbox.die_with_parent()
        sock.close()
        _close_other_descriptors({fd} | ({compilers.fileno()} if compilers is not None else set()))
        folder = Path(message["folder"])
        from kernelzero.keck import child

        sandbox.confine(folder, message["memory_bytes"], message["cpu_s"], gpu=child.RUNTIME.on_gpu)
        # Before the lock: the CUDA driver opens sockets while it is started, and never after.
        child.RUNTIME.start(message["connections"])
        sandbox.lock(threads=child.RUNTIME.on_gpu)
        child.main(child.RUNTIME.channel(socket.socket(fileno=fd)), folder, compilers)
        code = 0
    except BaseException as error:
        # Keck's own fault or the machine's: a module's faults end inside child.main.
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        print(f"a child failed: {line} ({Path(where.filename).name}:{where.lineno})", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _close_other_descriptors(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def _end(pid: int, living: dict[int, int | None], grace_s: float) -> int | None:
    """Kill the child and whatever it left; its wait status as `os.waitpid` gives it, if it ended by itself in time."""
    status = sandbox.reap(pid, time.monotonic() + grace_s)
    protected = {p for family in living.items() for p in family if p is not None}
    for other in tuple(protected):
        protected.update(sandbox.descendants(other))
    doomed = [p for p in sandbox.descendants(os.getpid()) if p not in protected]
    sandbox.kill_all(doomed)
    if status is None:
        sandbox.reap(pid, time.monotonic() + 5)
    with contextlib.suppress(ChildProcessError):
        for orphan in doomed:
            if orphan != pid:
                os.waitpid(orphan, 0)
    return status


class Zygote:
    """The judge's handle: fork children, talk to them, end them."""

    def __init__(self, scratch: Path) -> None:
        mine, theirs = socket.socketpair()
        self.scratch = scratch
        self.connect: Callable[[socket.socket], wire.Channel] = wire.Channel
        """Makes the judge's end of a connection to a child."""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                mine.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                serve(theirs, scratch.parent)
            finally:
                os._exit(0)
        theirs.close()
        self._sock = mine
        self._channel = wire.Channel(mine)
        self._due: deque[Callable[[dict[str, Any]], None]] = deque()
        """Who is told the replies that have not been read yet, in order: nobody waits while a child is ended."""
        self._count = 0
        self.on_gpu = False
        """Whether children get a GPU, and with it a broker of compilers."""
        self._spare: tuple[dict[str, int], ChildHandle] | None = None
        """A child that was started ahead, and what it was started with."""

    def spawn(self, memory_bytes: int, cpu_s: int, *, connections: int = 1) -> ChildHandle:
        """Fork a confined child with a private folder; on a GPU, one that was started ahead where it fits.

        Args:
            memory_bytes: what it may take beyond what it starts with.
            cpu_s: processor seconds it may use.
            connections: hardware queues on a GPU. Eight are usual and take the driver 0.2 s, one child after another;
                one takes 0.08 s, and streams run one after another.

        Raises:
            InfrastructureError: it cannot be started, not even after a while: on a GPU others may take all memory.
        """
        order = {"memory_bytes": memory_bytes, "cpu_s": cpu_s, "connections": connections}
        for pause in _PAUSES:
            with contextlib.suppress(InfrastructureError):
                return self._started(order)
            time.sleep(pause)
        return self._started(order)

    def _started(self, order: dict[str, int]) -> ChildHandle:
        child = self._take_spare(order) or self._fork(order)
        try:
            child.channel.receive(time.monotonic() + _START_S)
        except (wire.PeerGone, wire.DeadlinePassed, wire.WireError):
            child.end(GRACE_S)
            raise InfrastructureError(f"a child could not be started ({child.how_it_ended()})") from None
        if self.on_gpu and self._spare is None:
            # Getting a context takes the driver a while. The next one gets it while this one is judged.
            usual = order | {"connections": 1}
            try:
                self._spare = (usual, self._fork(usual))
            except BaseException:
                child.end()
                raise
        return child

    def _take_spare(self, order: dict[str, int]) -> ChildHandle | None:
        if self._spare is None or self._spare[0] != order:
            return None
        (_, child), self._spare = self._spare, None
        return child

    def _fork(self, order: dict[str, int]) -> ChildHandle:
        self._count += 1
        folder = self.scratch / f"child-{self._count}"
        folder.mkdir(parents=True)
        mine, theirs = socket.socketpair()
        child = ChildHandle(self, self.connect(mine), folder)
        self._channel.send({"op": "spawn", "folder": str(folder), "broker": self.on_gpu, **order})
        socket.send_fds(self._sock, [b"f"], [theirs.fileno()])
        theirs.close()
        self._due.append(child.born)
        return child

    def settle(self) -> None:
        """Read what is due."""
        while self._due:
            reply, _ = self._channel.receive(time.monotonic() + 60)
            self._due.popleft()(reply)

    def end(self, child: ChildHandle, grace_s: float) -> None:
        """Kill a child with all its descendants and remove its folder; it learns how it ended when this is settled."""
        if child.pid is None:
            self.settle()
        self._channel.send({"op": "end", "pid": child.pid, "grace_s": grace_s, "folder": str(child.folder)})
        self._due.append(child.died)


class ChildHandle:
    """One living child."""

    def __init__(self, zygote: Zygote, channel: wire.Channel, folder: Path) -> None:
        self._zygote, self.folder = zygote, folder
        self.pid: int | None = None
        """Known when the zygote's reply was read."""
        self.channel = channel
        self.ended = False
        self.wait_status: int | None = None
        """As `os.waitpid` gives it, if it ended by itself in time."""

    def born(self, reply: dict[str, Any]) -> None:
        """The zygote says who it is."""
        self.pid = reply["pid"]

    def died(self, reply: dict[str, Any]) -> None:
        """The zygote says how it ended."""
        self.wait_status = reply["status"]

    def ask(
        self,
        message: dict[str, Any],
        buffers: list[Any] | None = None,
        *,
        deadline: float,
        max_payload: int = wire.MAX_PAYLOAD_BYTES,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Send one message and wait for its answer.

        Raises:
            wire.PeerGone, wire.DeadlinePassed, wire.WireError.
        """
        self.channel.send(message, buffers, deadline)
        return self.channel.receive(deadline, max_payload)

    def end(self, grace_s: float = 0.0, wait: bool = False) -> None:
        """Kill it and all that it started; wait for its end where asked to, or where it has grace to go itself."""
        if self.ended:
            return
        self.ended = True
        self._zygote.end(self, grace_s)
        if grace_s or wait:
            self._zygote.settle()
        self.channel.close()

    def how_it_ended(self) -> str:
        """What happened to a child that hung up, for a person."""
        status = self.wait_status
        if status is None:
            return "the process hung up"
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"the process was killed by {name}"
        return f"the process exited by itself with code {os.WEXITSTATUS(status)}"


def preload(device: str) -> None:
    """Import everything that children need, once, and prepare the runtime of the device ("cpu" or "cuda")."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    import torch.utils.flop_counter

    from kernelzero.keck import child, guard

    with contextlib.suppress(ImportError):
        from triton.language.extra import libdevice  # noqa: F401
    if device != "cpu":
        from kernelzero.keck.gpu.runtime import GpuRuntime

        child.RUNTIME = GpuRuntime()
    child.RUNTIME.preload()
    guard.snapshot()
    # What is loaded lives for ever. Unless it is out of the collector's sight, the first collection in a child touches,
    # and so copies, every page of it.
    gc.collect()
    gc.freeze()
