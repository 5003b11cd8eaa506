"""Keck's own program: loads torch once, forks judges, keeps them alive. Started by client.py in a fresh interpreter.

    client ──socket── judge 1 ── zygote 1 ── children
           ──socket── judge 2 ── zygote 2 ── children

It is a program of its own so that nothing of the caller (CUDA contexts, threads, models) is ever forked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.keck import sandbox, wire
from kernelzero.keck.limits import Limits
from kernelzero.keck.terms import Terms
from kernelzero.records import Candidate, Task


def serve_judge(sock: socket.socket, options: Options, scratch: Path) -> None:
    """Answer a client's questions until it hangs up."""
    from kernelzero.keck.judge import Judge
    from kernelzero.keck.machine import open_machine
    from kernelzero.keck.zygote import Zygote

    sandbox.die_with_parent()
    zygote = Zygote(scratch)
    machine = open_machine(options.device)
    zygote.connect, zygote.on_gpu = machine.connect, machine.on_gpu
    judge = Judge(zygote, options.limits, machine=machine, terms=options.terms, text_rules=options.text_rules)
    # After the zygote was forked, so that only the holder of the answers hides its memory.
    sandbox.hide_memory()
    channel = wire.Channel(sock)
    while True:
        try:
            message, _ = channel.receive()
        except wire.PeerGone:
            return
        reply = answer(judge, message)
        with contextlib.suppress(wire.PeerGone):
            channel.send(reply)


@dataclass(frozen=True)
class Options:
    """What all judges of one server share."""

    device: str
    limits: Limits
    text_rules: bool
    terms: Terms


def answer(judge: Any, message: dict[str, Any]) -> dict[str, Any]:
    """One question, one answer; what goes wrong in Keck itself is an infrastructure error, said as such."""
    from kernelzero.keck.machine import Untimeable
    from kernelzero.keck.onboard import TaskRefused

    try:
        task = Task.from_json(message["task"])
        judge.secret = message["secret"]
        if message["op"] == "examine":
            return {"report": judge.examine(task, message["apis"])}
        if message["op"] == "against_itself":
            return {"timing": judge.against_itself(task).to_json()}
        verdict = judge.judge(task, Candidate.from_json(message["candidate"]), message["timed"])
        return {"verdict": verdict.to_json()}
    except (TaskRefused, Untimeable) as refusal:
        return {"refused": refusal.reason}
    except wire.PeerGone:
        raise RuntimeError("the process that children are forked from is gone") from None
    except Exception as error:
        judge.recover()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"broken": f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"}


def _fork_judge(sock: socket.socket, others: list[socket.socket], options: Options, scratch: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in others:
            if other is not sock:
                other.close()
        serve_judge(sock, options, scratch)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Fork one judge a socket; replace judges that die, telling their client; end when all clients hung up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fds", required=True, help="comma-separated descriptors of connected sockets, one a judge")
    parser.add_argument("--scratch", required=True, help="a folder of its own, which it removes in the end")
    parser.add_argument("--limits", required=True, help="JSON of Limits")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--terms", default="{}", help="JSON of Terms")
    parser.add_argument("--without-text-rules", action="store_true", help="for tests of the other layers only")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sandbox.die_with_parent()
    sandbox.adopt_orphans()
    from kernelzero.keck.zygote import preload

    preload(arguments.device)
    limits, terms = Limits.from_json(json.loads(arguments.limits)), Terms.from_json(json.loads(arguments.terms))
    options = Options(arguments.device, limits, not arguments.without_text_rules, terms)
    sockets = [socket.socket(fileno=int(fd)) for fd in arguments.fds.split(",")]
    scratch = Path(arguments.scratch)
    try:
        _supervise(sockets, options, scratch)
    finally:
        sandbox.kill_all(sandbox.descendants(os.getpid()))
        shutil.rmtree(scratch, ignore_errors=True)
    # Without the interpreter's own farewell: native libraries report everything they still hold as leaks.
    sys.stderr.flush()
    os._exit(0)


def _supervise(sockets: list[socket.socket], options: Options, scratch: Path) -> None:
    running: dict[int, socket.socket] = {}
    born = 0
    for sock in sockets:
        born += 1
        running[_fork_judge(sock, sockets, options, scratch / f"judge-{born}")] = sock
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        sock = running.pop(pid)
        if status == 0:
            sock.close()
            continue
        with contextlib.suppress(wire.PeerGone):
            wire.Channel(sock).send({"broken": f"the judge died (wait status {status})"})
        born += 1
        running[_fork_judge(sock, sockets, options, scratch / f"judge-{born}")] = sock


if __name__ == "__main__":
    main()
