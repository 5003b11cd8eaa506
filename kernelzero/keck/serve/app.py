"""Keck over HTTP: the FastAPI application. Answers stream as lines of JSON while later jobs are still judged.

A request is let in by its token before its body is read, and its body is bounded while it is read. Needs the extra
"serve". Not covered: TLS, which is a proxy's business, and the queue behind it (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from kernelzero.errors import UsageError
from kernelzero.keck.serve.dispatch import SHUTTING_DOWN, Dispatcher, Line, QueueFull, ShuttingDown, Ticket
from kernelzero.keck.serve.questions import Questions, read_reports, read_verdicts
from kernelzero.records import Record

SERVICE = "kernelzero-keck"
_BODY_S = 60.0
"""Longest time that a body may take to arrive."""
_CONNECTIONS = 500
"""More at once are turned away with 503."""
_HEARTBEAT_S = 10.0
"""An empty line goes out this often while nothing is finished: both sides notice that the other one has gone."""


@dataclass(frozen=True)
class ServiceFacts(Record):
    """What a client has to know, and finds under /health."""

    version: str
    device: str
    workers: int
    body_bytes: int
    """Largest body of a request."""
    jobs_a_request: int
    jobs_queued: int
    """Most jobs of all requests that may wait."""


class _Refused(Exception):
    def __init__(self, status: int, line: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.line, self.headers = status, line, headers or {}


def make_app(dispatcher: Dispatcher, facts: ServiceFacts, token: str | None) -> FastAPI:
    """The application; with a token, everything but /health wants it as a bearer token."""
    app = FastAPI(title="Keck", version=facts.version, docs_url=None, redoc_url=None, openapi_url=None)
    started = time.monotonic()

    async def verdicts(request: Request) -> Response:
        return await _answer(request, dispatcher, facts, read_verdicts)

    async def reports(request: Request) -> Response:
        return await _answer(request, dispatcher, facts, read_reports)

    async def health(_: Request) -> Response:
        return JSONResponse(_health(dispatcher, facts, time.monotonic() - started))

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(_metrics(dispatcher), media_type="text/plain; version=0.0.4")

    async def queue(_: Request) -> Response:
        return JSONResponse(dispatcher.queue())

    allow = _Guard(token, dispatcher)
    app.add_api_route("/v1/verdicts", allow(verdicts), methods=["POST"], response_model=None)
    app.add_api_route("/v1/reports", allow(reports), methods=["POST"], response_model=None)
    app.add_api_route("/v1/queue", allow(queue), methods=["GET"], response_model=None)
    app.add_api_route("/metrics", allow(metrics), methods=["GET"], response_model=None)
    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    app.add_exception_handler(HTTPException, _no_such_thing)
    return app


class _Guard:
    """Lets a request in by its token, and turns a refusal into one line and a count."""

    def __init__(self, token: str | None, dispatcher: Dispatcher) -> None:
        self._token = token.encode() if token else None
        self._metrics = dispatcher.metrics

    def __call__(self, endpoint: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def guarded(request: Request) -> Response:
            try:
                self._check(request)
                return await endpoint(request)
            except _Refused as refused:
                self._metrics.count("refused_total", f'code="{refused.status}"')
                return JSONResponse({"error": refused.line}, refused.status, refused.headers)

        return guarded

    def _check(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Compared in constant time, so that a token cannot be guessed letter by letter.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            line = "the bearer token is missing or wrong"
            raise _Refused(401, line, {"WWW-Authenticate": "Bearer"})


async def _no_such_thing(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail).lower()}, error.status_code, error.headers)


async def _answer(
    request: Request, dispatcher: Dispatcher, facts: ServiceFacts, read: Callable[[bytes], Questions]
) -> Response:
    body = await _body(request, facts.body_bytes)
    try:
        # Beside the event loop: a body of many megabytes takes a while to parse.
        questions = await asyncio.to_thread(read, body)
    except UsageError as error:
        raise _Refused(422, str(error)) from None
    if len(questions.jobs) > facts.jobs_a_request:
        raise _Refused(413, f"{len(questions.jobs)} jobs in one request, {facts.jobs_a_request} may be")
    lines: asyncio.Queue[Line] = asyncio.Queue()
    ticket = _submit(dispatcher, questions, lines)
    return _Stream(dispatcher, ticket, _stream(ticket, lines), media_type="application/x-ndjson")


def _submit(dispatcher: Dispatcher, questions: Questions, lines: asyncio.Queue[Line]) -> Ticket:
    loop = asyncio.get_running_loop()
    ticket = Ticket(questions, lambda line: loop.call_soon_threadsafe(lines.put_nowait, line))
    try:
        dispatcher.submit(ticket)
    except QueueFull as full:
        raise _Refused(429, str(full), {"Retry-After": str(full.retry_after_s)}) from None
    except ShuttingDown:
        raise _Refused(503, SHUTTING_DOWN, {"Retry-After": "5"}) from None
    return ticket


class _Stream(StreamingResponse):
    """A stream whose end, whichever way it comes, takes the request out of the queue."""

    def __init__(self, dispatcher: Dispatcher, ticket: Ticket, content: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(content, media_type=media_type)
        self._dispatcher, self._ticket = dispatcher, ticket

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._dispatcher.cancel(self._ticket)


async def _stream(ticket: Ticket, lines: asyncio.Queue[Line]) -> AsyncIterator[bytes]:
    key = "verdict" if ticket.questions.kind == "verdicts" else "report"
    ended = False
    while not ended:
        try:
            ready = [await asyncio.wait_for(lines.get(), _HEARTBEAT_S)]
        except TimeoutError:
            yield b"\n"
            continue
        while not lines.empty():
            ready.append(lines.get_nowait())
        ended = ready[-1].answer is None
        yield b"".join(_encode(line, key, len(ticket.questions.jobs)) for line in ready)


def _encode(line: Line, key: str, jobs: int) -> bytes:
    if line.answer is not None:
        data: dict[str, Any] = {"index": line.index, key: line.answer.to_json()}
    else:
        data = {"error": line.error} if line.error else {"done": jobs}
    return json.dumps(data).encode() + b"\n"


async def _body(request: Request, most: int) -> bytes:
    """The whole body, never more than `most` bytes of it in memory, whatever its headers say."""
    too_long = _Refused(413, f"the body is longer than {most} bytes; send fewer jobs in one request")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_long
    except TimeoutError:
        raise _Refused(408, f"the body did not arrive within {_BODY_S:g} s") from None
    return bytes(body)


def _health(dispatcher: Dispatcher, facts: ServiceFacts, uptime_s: float) -> dict[str, Any]:
    data = facts.to_json()
    limits = {name: data.pop(name) for name in ("body_bytes", "jobs_a_request", "jobs_queued")}
    return {"service": SERVICE, **data, "uptime_s": round(uptime_s, 3), "limits": limits}


def _metrics(dispatcher: Dispatcher) -> str:
    queue = dispatcher.queue()
    gauges = {"queue_jobs": queue["waiting"], "running_jobs": queue["running"], "open_requests": len(queue["requests"])}
    return dispatcher.metrics.text(gauges)


class Server(uvicorn.Server):
    """uvicorn's server, ended by us: the queue has to stop first, or open streams would never end.

    SIGTERM and SIGINT end it: running jobs have `grace_s` seconds to be answered, a second signal does not wait.
    """

    def __init__(self, app: FastAPI, dispatcher: Dispatcher, grace_s: float) -> None:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False,
            limit_concurrency=_CONNECTIONS,
            # A client that does not read its answers may not keep the server from ending.
            timeout_graceful_shutdown=math.ceil(grace_s) + 2,
        )  # fmt: skip
        super().__init__(config)
        self._dispatcher, self._grace_s = dispatcher, grace_s
        dispatcher.on_failure = self._end_soon

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: uvicorn's own would raise the signal once more at the end, before Keck is closed."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and end on signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        await super().startup(sockets)

    def _end(self) -> None:
        if self.should_exit:
            self._dispatcher.hurry()
            self.force_exit = True
        self.should_exit = True
        self._dispatcher.stop()
        asyncio.get_running_loop().call_later(self._grace_s, self._dispatcher.hurry)

    def _end_soon(self) -> None:
        """From another thread; the server looks at it ten times a second."""
        self.should_exit = True
