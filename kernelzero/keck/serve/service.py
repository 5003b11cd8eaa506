"""`kernelzero serve`: Keck as a service for several runs, on one machine's judges or a Ray cluster's.

Without a token it listens on this machine only: whoever may ask runs code here, even if in a sandbox. Needs the extra
"serve". The parts: `questions.py` (what may be asked), `dispatch.py` (the queue), `app.py` (HTTP).
"""

from __future__ import annotations

import functools
import ipaddress
import os
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kernelzero.errors import UsageError
from kernelzero.keck.client import CPU_DEVICE, Keck, LocalKeck, limits_for, open_keck
from kernelzero.keck.serve.dispatch import Dispatcher
from kernelzero.keck.serve.questions import TOKEN_VARIABLE, checked_token
from kernelzero.keck.serve.store import StoredKeck, StoreKey, keck_version
from kernelzero.keck.terms import Terms

DEFAULT_PORT = 8017


@dataclass(frozen=True)
class ServeOptions:
    """How Keck is served."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any free one."""
    token: str | None = None
    """By default that of the environment variable KERNELZERO_KECK_TOKEN, if set."""
    device: str = "cpu"
    workers: int | None = None
    """Judges, by default one a processor; with `ray` actors, by default as many as there is room for."""
    terms: Terms = field(default_factory=Terms)
    """Rules, tolerances and baseline of all verdicts."""
    timeout_s: float | None = None
    """Of one candidate; by default Keck's own for the device."""
    store: Path | None = Path("runs/keck.sqlite")
    """None: verdicts are not kept."""
    fresh_timings: bool = False
    """Take the times of known verdicts anew."""
    body_mib: float = 64
    jobs_a_request: int = 10_000
    jobs_queued: int = 50_000
    batch: int | None = None
    """Most jobs in one call of Keck; by default eight a worker."""
    grace_s: float = 10.0
    """How long running jobs may go on when the server is told to end."""
    ray: bool = False
    """Judge on a Ray cluster (extra "ray")."""
    actor_cpus: int = 1
    """Processors and judges of one Ray actor; on GPUs an actor has one GPU."""


def serve(
    options: ServeOptions,
    make_keck: Callable[[ServeOptions], tuple[Keck, int]] | None = None,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> None:
    """Serve until SIGTERM or SIGINT; both end it gracefully.

    Raises:
        UsageError: an option cannot be, the address is taken, or the extra "serve" is not installed.
        InfrastructureError: Keck failed for good while serving.
    """
    _require_extra()
    token = options.token or os.environ.get(TOKEN_VARIABLE) or None
    _check(options, token)
    listener = _listen(options)
    try:
        _run(options, token, listener, make_keck or open_served_keck, say)
    finally:
        listener.close()


def open_served_keck(options: ServeOptions) -> tuple[Keck, int]:
    """The judges that the options name, with a store around them, and how many they are."""
    keck, workers = _open_judges(options)
    if options.store is None:
        return keck, workers
    limits = "default" if options.timeout_s is None else f"timeout_s={options.timeout_s:g}"
    key = StoreKey(device=device_name(options.device), limits=limits, **options.terms.to_json())
    return StoredKeck(keck, options.store, key=key, fresh_timings=options.fresh_timings), workers


def _open_judges(options: ServeOptions) -> tuple[Keck, int]:
    # One secret for all judges: equal questions, equal answers.
    seed = secrets.randbits(48)
    if not options.ray:
        keck = _open_local(options, options.workers, seed)
        return keck, keck.workers
    from kernelzero.keck.serve.cluster import RayKeck

    factory = functools.partial(_open_local, options, options.actor_cpus, seed)
    cluster = RayKeck(
        factory, actors=options.workers, gpus=float(options.device != "cpu"), cpus=options.actor_cpus,
        chunk=max(8, 4 * options.actor_cpus), device=device_name(options.device),
    )  # fmt: skip
    return cluster, cluster.workers * options.actor_cpus


def _open_local(options: ServeOptions, workers: int | None, seed: int) -> LocalKeck:
    """Keck with the device's own limits, but for the time."""
    limits = limits_for(options.device, options.timeout_s)
    return open_keck(options.device, workers, limits, seed, **options.terms.to_json())


def device_name(device: str) -> str:
    """What a verdict store calls a device: on a GPU its model, as the driver tells it without CUDA."""
    if device == "cpu":
        return CPU_DEVICE
    texts = [p.read_text(encoding="utf-8") for p in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    lines = [line for text in texts for line in text.splitlines()]
    models = {line.partition(":")[2].strip() for line in lines if line.startswith("Model:")}
    return ", ".join(sorted(models)) or device


def _require_extra() -> None:
    try:
        import fastapi
        import uvicorn
    except ImportError as error:
        raise UsageError(f"the service needs {error.name}: pip install 'kernelzero[serve]'") from error
    del fastapi, uvicorn


def _check(options: ServeOptions, token: str | None) -> None:
    if not token and not _is_loopback(options.host):
        raise UsageError(f"serving on {options.host} needs a token: set {TOKEN_VARIABLE}")
    if token:
        checked_token(token)
    for name in ("body_mib", "jobs_a_request", "jobs_queued", "timeout_s", "workers", "batch", "actor_cpus"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UsageError(f"{name} has to be greater than 0")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot listen on {options.host}:{options.port}: {reason}") from error


def _run(
    options: ServeOptions,
    token: str | None,
    listener: socket.socket,
    make_keck: Callable[[ServeOptions], tuple[Keck, int]],
    say: Callable[[str], None],
) -> None:
    from kernelzero.keck.serve.app import Server, ServiceFacts, make_app

    keck, workers = make_keck(options)
    facts = ServiceFacts(
        keck_version(), device_name(options.device), workers, int(options.body_mib * 2**20),
        min(options.jobs_a_request, options.jobs_queued), options.jobs_queued,
    )  # fmt: skip
    dispatcher = Dispatcher(
        keck, batch=options.batch or 8 * workers, jobs_queued=options.jobs_queued, device=facts.device
    )
    server = Server(make_app(dispatcher, facts, token), dispatcher, options.grace_s)
    host, port = listener.getsockname()[:2]
    say(f"Keck {facts.version} on {facts.device}, workers: {workers}, http://{host}:{port}")
    try:
        server.run(sockets=[listener])
    finally:
        dispatcher.close()
    if dispatcher.failure is not None:
        raise dispatcher.failure
    say("stopped")
