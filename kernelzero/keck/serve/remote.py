"""Keck on another machine: the client of the Keck service (`kernelzero serve`).

A connection that breaks, a server that restarts and a full queue are waited out; only jobs without an answer are
asked again, each answer is given once. Not covered: finding servers and spreading work over several, which is what
Ray (`cluster.py`) or a proxy in front is for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import httpx

from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.keck.feed import Feed, in_batches
from kernelzero.keck.serve.questions import TOKEN_VARIABLE, checked_token, report_job, verdict_job
from kernelzero.records import Candidate, GateReport, Task, Verdict

_LOG = logging.getLogger(__name__)
_ANSWER = TypeVar("_ANSWER", Verdict, GateReport)
_Reader: TypeAlias = Callable[[dict[str, Any]], tuple[int, _ANSWER]]
_AGAIN = (408, 429, 502, 503, 504)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 15.0
_QUEUE_SHARE = 4
"""A request takes at most one in so many places of the server's queue."""
_ENVELOPE_BYTES = 1024
_REQUESTS_AT_ONCE = 8


@dataclass(frozen=True)
class _ServerLimits:
    body_bytes: int
    jobs: int


class _TryAgain(Exception):
    """This attempt failed in a way that another may not."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(" ".join(reason.split()))
        self.wait_s = wait_s


class RemoteKeck:
    """Keck behind `url`, e.g. "http://judges:8017". Several threads may ask at once.

    Args:
        url: where `kernelzero serve` listens.
        token: by default that of the environment variable KERNELZERO_KECK_TOKEN, if set.
        timeout_s: longest silence on a connection; the server sends something every 10 s.
        patience_s: how long to try on without one answer, before it is an InfrastructureError.
        jobs_a_request: most jobs of one request; the server's own limits hold as well.

    Raises:
        UsageError: the address is none, or the server refuses what is asked (wrong token, a body that it cannot read).
        InfrastructureError: the server was not to be had for `patience_s`.
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout_s: float = 45.0, patience_s: float = 600.0,
        jobs_a_request: int = 1000,
    ) -> None:  # fmt: skip
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is not the address of a Keck service; it begins with http:// or https://")
        self.url = url.rstrip("/")
        self._patience_s, self._jobs_a_request = patience_s, jobs_a_request
        token = token or os.environ.get(TOKEN_VARIABLE) or None
        headers = {"Authorization": f"Bearer {checked_token(token)}"} if token else {}
        try:
            # Loading the certificates takes longer than a request; plain HTTP has no use for them.
            secure = self.url.startswith("https://")
            self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, verify=secure)
        except httpx.InvalidURL as error:
            raise UsageError(f"{url!r} is not an address: {error}") from error
        self._limits: _ServerLimits | None = None

    def __enter__(self) -> RemoteKeck:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def judge(
        self, jobs: Sequence[tuple[Task, Candidate]] | Feed[tuple[Task, Candidate]], *, timed: bool = True
    ) -> Iterator[tuple[int, Verdict]]:
        """Verdicts as they are finished; of a feed, whose jobs are numbered as they come, until it has ended."""
        if isinstance(jobs, Feed):
            yield from in_batches(jobs, functools.partial(self.judge, timed=timed), _REQUESTS_AT_ONCE)
            return
        read = functools.partial(_read, Verdict, "verdict")
        yield from self._ask("/v1/verdicts", [verdict_job(*job) for job in jobs], {"timed": timed}, read)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        """Reports as they are finished."""
        read = functools.partial(_read, GateReport, "report")
        yield from self._ask("/v1/reports", [report_job(*job) for job in jobs], {}, read)

    def health(self) -> dict[str, Any]:
        """What the server says about itself."""
        retries = _Retries(self.url, self._patience_s)
        while True:
            try:
                with _transport():
                    response = self._client.get("/health")
                _raise_for_status(response, self.url)
                return self._facts(response)
            except _TryAgain as failed:
                retries.wait(failed)

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._client.close()

    # --- inside ---

    def _facts(self, response: httpx.Response) -> dict[str, Any]:
        try:
            facts = response.json()
            limits = facts["limits"]
            # A share of the queue, so that a request does not have to wait until the queue is empty.
            jobs = min(limits["jobs_a_request"], max(1, limits["jobs_queued"] // _QUEUE_SHARE), self._jobs_a_request)
            self._limits = _ServerLimits(limits["body_bytes"], jobs)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.url} answers, but is not a Keck service") from error
        return facts

    def _ask(
        self, path: str, jobs: list[dict[str, Any]], extra: dict[str, Any], read: _Reader[_ANSWER]
    ) -> Iterator[tuple[int, _ANSWER]]:
        if not jobs:
            return
        if self._limits is None:
            self.health()
        assert self._limits is not None
        for left in _chunks([json.dumps(job) for job in jobs], self._limits):
            # The same id on every try: the server does not judge again what it judged for a connection that broke.
            envelope = json.dumps({**extra, "id": uuid.uuid4().hex})
            yield from self._ask_chunk(path, left, envelope, read)

    def _ask_chunk(
        self, path: str, left: dict[int, str], envelope: str, read: _Reader[_ANSWER]
    ) -> Iterator[tuple[int, _ANSWER]]:
        """All answers to one request's jobs, in as many requests as it takes; empties `left`."""
        retries = _Retries(self.url, self._patience_s)
        while left:
            try:
                for index, answer in self._stream(path, left, envelope, read):
                    retries.progress()
                    yield index, answer
            except _TryAgain as failed:
                retries.wait(failed)

    def _stream(
        self, path: str, left: dict[int, str], envelope: str, read: _Reader[_ANSWER]
    ) -> Iterator[tuple[int, _ANSWER]]:
        """One request for what is left; what is answered is taken out of `left`."""
        asked = list(left)
        body = f'{envelope[:-1]}, "jobs": [{", ".join(left.values())}]}}'.encode()
        headers = {"Content-Type": "application/json"}
        with _transport(), self._client.stream("POST", path, content=body, headers=headers) as response:
            _raise_for_status(response, self.url)
            for data in _lines(response):
                number, answer = read(data)
                if not 0 <= number < len(asked):
                    raise InfrastructureError(f"{self.url} answered job {number} of {len(asked)}")
                if left.pop(asked[number], None) is not None:
                    yield asked[number], answer
        if left:
            raise _TryAgain("the stream ended before all jobs were answered")


class _Retries:
    """Waits between attempts, longer each time, until there was no progress for `patience_s`."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url, self._patience_s = url, patience_s
        self._failures, self._failing_since = 0, 0.0

    def progress(self) -> None:
        """Something was answered: patience begins anew with the next failure."""
        self._failures = 0

    def wait(self, failed: _TryAgain) -> None:
        """Sleep before the next attempt. Raises InfrastructureError where patience is at its end."""
        now = time.monotonic()
        if not self._failures:
            self._failing_since = now
            _LOG.warning("%s: %s; trying again for up to %g s", self._url, failed, self._patience_s)
        backoff_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self._failures)
        self._failures += 1
        # Spread, so that clients that failed together do not come back together.
        wait_s = (failed.wait_s or backoff_s) * random.uniform(0.75, 1.25)
        if now + wait_s > self._failing_since + self._patience_s:
            since_s = now - self._failing_since
            raise InfrastructureError(f"{self._url}: {failed} (given up after {since_s:.0f} s)") from failed
        time.sleep(wait_s)


@contextlib.contextmanager
def _transport() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise _TryAgain(str(error) or type(error).__name__) from error


def _raise_for_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status == 200:
        return
    response.read()
    line = f"{url}: {_error_line(response)}"
    if status in _AGAIN:
        raise _TryAgain(_error_line(response), _retry_after_s(response))
    if status in (404, 405):
        raise UsageError(f"{url} answers, but is not a Keck service (HTTP {status})")
    if 400 <= status < 500:
        raise UsageError(line)
    raise InfrastructureError(line)


def _error_line(response: httpx.Response) -> str:
    try:
        line = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        # A proxy's page.
        line = response.text[:200]
    return " ".join(str(line).split()) or f"HTTP {response.status_code}"


def _retry_after_s(response: httpx.Response) -> float | None:
    given = response.headers.get("retry-after", "")
    return min(float(given), 60.0) if given.isdigit() else None


def _lines(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The answers of a stream up to its "done"."""
    for line in response.iter_lines():
        if not line:
            continue
        try:
            data = json.loads(line)
        except ValueError:
            raise _TryAgain("the stream broke off in the middle of a line") from None
        if "error" in data:
            raise _TryAgain(data["error"])
        if "done" in data:
            return
        yield data


def _read(kind: type[_ANSWER], key: str, data: dict[str, Any]) -> tuple[int, _ANSWER]:
    try:
        return data["index"], kind.from_json(data[key])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InfrastructureError(f"an answer of the Keck service cannot be read ({error}); same version?") from error


def _chunks(texts: Sequence[str], limits: _ServerLimits) -> Iterator[dict[int, str]]:
    """Jobs by index, as many as fit in one request; one that does not fit at all goes alone and is refused there."""
    chunk: dict[int, str] = {}
    size = _ENVELOPE_BYTES
    for index, text in enumerate(texts):
        # JSON is ASCII here: a character is a byte. Two more for the comma.
        if chunk and (len(chunk) >= limits.jobs or size + len(text) + 2 > limits.body_bytes):
            yield chunk
            chunk, size = {}, _ENVELOPE_BYTES
        chunk[index] = text
        size += len(text) + 2
    if chunk:
        yield chunk
