"""Samples are drawn beside the judging: a thread or several ask the model, and hand each task over once it is complete.

A model that fails ends the drawing; what was drawn before is kept and still judged. A draw that is to be stopped ends
when the sampler next tells of progress; until then it runs on.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from kernelzero.bench.files import PassFiles
from kernelzero.policy.base import Sampler
from kernelzero.records import Prompt, Sampling, Task, content_id

Told = Callable[[str, int, int], None]


_THREADS = "benchmark samples"


class _Stopped(Exception):
    """Ends a draw whose samples nobody waits for."""


def under_way() -> bool:
    """Whether a draw still runs somewhere in this process."""
    return any(thread.name == _THREADS for thread in threading.enumerate())


@dataclasses.dataclass(frozen=True)
class Draw:
    """One call of the sampler: the same samples are missing from all of its tasks."""

    tasks: list[Task]
    first: int


class Drawing:
    """Draws what is missing of the tasks, and gives the tasks back as they are complete."""

    def __init__(
        self,
        files: PassFiles,
        sampler: Sampler,
        make_prompt: Callable[[Task], Prompt],
        told: Told,
        *,
        chunk_tasks: int,
        at_once: int,
    ) -> None:
        self._files, self._sampler, self._make_prompt, self._told = files, sampler, make_prompt, told
        self._chunk, self._at_once = chunk_tasks, at_once
        self._total = 0
        self._todo: queue.SimpleQueue[Draw] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[list[Task] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.drawn = 0
        """Samples drawn in this call, not in earlier ones."""

    @property
    def failed(self) -> bool:
        """Whether the model ended the drawing."""
        return self._failure is not None

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin; tasks that lack nothing are ready at once."""
        self._total = len(tasks) * self._files.n
        complete = [task for task in tasks if self._files.missing_from(task) == self._files.n]
        if complete:
            self._done.put(complete)
        draws = list(self._draws(tasks))
        for draw in draws:
            self._todo.put(draw)
        for _ in range(max(1, min(self._at_once, len(draws)))):
            thread = threading.Thread(target=self._work, daemon=True, name=_THREADS)
            self._threads.append(thread)
            thread.start()

    def ready(self, wait_for_all: bool = False) -> Iterator[list[Task]]:
        """Tasks that are complete, all that there are at the moment; raises what ended the drawing, last."""
        running, batch = len(self._threads), list[Task]()
        while running or batch:
            while running and (wait_for_all or not batch or not self._done.empty()):
                got = self._done.get()
                running -= got is None
                batch += got or []
            if batch:
                yield batch
            batch = []
        if self._failure is not None:
            raise self._failure

    def stop(self, patience_s: float = 5.0) -> None:
        """Draw nothing more; wait a little for the draws under way."""
        self._stop.set()
        end = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _draws(self, tasks: Sequence[Task]) -> Iterator[Draw]:
        for start in range(0, len(tasks), self._chunk):
            missing: dict[int, list[Task]] = {}
            for task in tasks[start : start + self._chunk]:
                missing.setdefault(self._files.missing_from(task), []).append(task)
            yield from (Draw(group, first) for first, group in sorted(missing.items()) if first < self._files.n)

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    draw = self._todo.get_nowait()
                except queue.Empty:
                    return
                self._draw(draw)
                self._done.put(draw.tasks)
        except _Stopped:
            return
        except BaseException as error:
            self._failure = self._failure or error
            self._stop.set()
        finally:
            self._done.put(None)

    def _draw(self, draw: Draw) -> None:
        files, before = self._files, self._files.sampled()
        prompts, wanted = [self._make_prompt(task) for task in draw.tasks], files.n - draw.first

        def progress(new: int, _: int) -> None:
            if self._stop.is_set():
                raise _Stopped
            self._told("sample", min(before + new, self._total), self._total)

        told = progress if self._at_once == 1 else None
        drawn = self._sampler.sample(prompts, wanted, self._seeded(draw), told)
        for task, completions in zip(draw.tasks, drawn, strict=True):
            files.add_samples(task, draw.first, completions)
            self.drawn += len(completions)
        self._told("sample", min(files.sampled(), self._total), self._total)

    def _seeded(self, draw: Draw) -> Sampling:
        """A seed of its own for every draw: added samples must not repeat the first ones."""
        sampling = self._files.sampling
        if sampling.seed is None:
            return sampling
        text = content_id(str(sampling.seed), str(draw.first), *(task.id for task in draw.tasks))
        return dataclasses.replace(sampling, seed=int(text, 16) % 2**31)
