"""Questions to judges: who is asked what, and which jobs an answer is for.

Not covered: what a question is (client) and how a judge answers it (server).
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from kernelzero.errors import InfrastructureError
from kernelzero.keck.feed import Feed

_RETRIES = 1


@dataclass(frozen=True)
class Question:
    """What one job asks of a judge."""

    key: Hashable
    """Questions with the same key are asked once."""
    source: str
    """The task: its reference stays with a judge."""
    message: dict[str, Any]
    read: Callable[[dict[str, Any]], Any]
    """A reply to the answer."""


class Dispatch:
    """Hands questions to judges, those about one task to the same judge where that keeps nobody idle."""

    def __init__(
        self, sockets: list[socket.socket], feed: Feed[Any], question: Callable[[int, Any], Question], secret: int
    ) -> None:
        from kernelzero.keck import wire  # imports torch

        self.wire = wire
        self.channels = [wire.Channel(sock) for sock in sockets]
        self.feed, self.question, self.secret = feed, question, secret
        self.ended = False
        self.jobs = 0
        self.questions: dict[Hashable, Question] = {}
        self.places: dict[Hashable, list[int]] = {}
        """Jobs that wait for the answer to a question."""
        self.answers: dict[Hashable, Any] = {}
        self.tries: dict[Hashable, int] = {}
        self.waiting: dict[str, list[Hashable]] = {}
        self.owner: dict[str, int] = {}
        self.busy: dict[int, Hashable] = {}

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield (job's number, answer) until the feed has ended and everything is answered."""
        selector = selectors.DefaultSelector()
        for number, channel in enumerate(self.channels):
            selector.register(channel.sock, selectors.EVENT_READ, number)
        selector.register(self.feed, selectors.EVENT_READ, None)
        yield from self._take()
        while self.busy or not self.ended:
            for key, _ in selector.select():
                if key.data is None:
                    yield from self._take()
                    if self.ended:
                        selector.unregister(self.feed)
                else:
                    yield from self._answered(key.data)

    def _take(self) -> Iterator[tuple[int, Any]]:
        """Take in new jobs; those whose answer is known already are answered."""
        new, self.ended = self.feed.take()
        for job in new:
            number, self.jobs = self.jobs, self.jobs + 1
            asked = self.question(number, job)
            if asked.key in self.answers:
                yield number, self.answers[asked.key]
                continue
            if asked.key not in self.questions:
                self.questions[asked.key] = asked
                self.waiting.setdefault(asked.source, []).append(asked.key)
            self.places.setdefault(asked.key, []).append(number)
        for judge in range(len(self.channels)):
            if judge not in self.busy:
                self._give(judge)

    def _answered(self, judge: int) -> Iterator[tuple[int, Any]]:
        key = self.busy.pop(judge, None)
        reply = self._receive(judge)
        if key is None:
            return
        asked = self.questions[key]
        if "broken" in reply and self.tries[key] <= _RETRIES:
            self.waiting.setdefault(asked.source, []).append(key)
            self._give(judge)
            return
        self._give(judge)
        self.answers[key] = asked.read(reply)
        for number in self.places.pop(key):
            yield number, self.answers[key]

    def _receive(self, number: int) -> dict[str, Any]:
        try:
            return self.channels[number].receive()[0]
        except self.wire.PeerGone:
            raise InfrastructureError("Keck stopped; see its messages above") from None

    def _give(self, judge: int) -> None:
        source = self._choose(judge)
        if source is None:
            return
        key = self.waiting[source].pop(0)
        if not self.waiting[source]:
            del self.waiting[source]
        self.tries[key] = self.tries.get(key, 0) + 1
        self.busy[judge] = key
        self.channels[judge].send(self.questions[key].message | {"secret": self.secret})

    def _choose(self, number: int) -> str | None:
        """A task of this judge's own, else one that nobody has, else the longest queue."""
        mine = next((s for s in self.waiting if self.owner.get(s) == number), None)
        fresh = next((s for s in self.waiting if s not in self.owner), None)
        chosen = mine or fresh or max(self.waiting, key=lambda s: len(self.waiting[s]), default=None)
        if chosen is not None:
            self.owner.setdefault(chosen, number)
        return chosen
