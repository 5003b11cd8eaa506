"""Where the modules of a corpus come from: drawn by number from the composer, or a folder of them.

Number n of a corpus is always the same module, so that a build that was interrupted goes on with what it left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from kernelzero.records import Record, Task, content_id


@dataclass(frozen=True)
class Draft(Record):
    """One module, or the reason why there is none."""

    task_number: int
    apis: tuple[str, ...]
    module: str = ""
    asked: bool = True
    """Whether the module was written for these APIs, so that each of them has to matter."""
    detail: str = ""
    """Where there is no module: why not."""
    seconds: float = 0.0

    @property
    def task(self) -> Task:
        """The module as a task."""
        return Task(self.module, self.apis)


class Source(Protocol):
    """Modules by number."""

    name: str
    """What has to be the same for a build to go on."""

    @property
    def most(self) -> int | None:
        """Number of different modules, None where there is no end."""
        ...

    def drafts(self, numbers: Sequence[int]) -> Iterator[Draft]:
        """The modules with these numbers, in their order."""
        ...


@dataclass(frozen=True)
class Dialect:
    """Which modules the composer writes."""

    name: str = "all"
    """"all": every API of the composer, with branches and several styles; "nano": the chains of the nano models."""
    sizes: Literal["small", "gpu"] = "small"
    """Extents of "all": for Keck on a CPU, or a GPU's."""


def draw_and_compose(dialect: Dialect, seed: int, number: int) -> Draft:
    """The one place where the composer is called: an API set by number, and its module."""
    from kernelzero.coldstart.corpus import draw_set
    from kernelzero.proposer.composer import CannotCompose, compose, compose_module, draw

    started = time.perf_counter()
    nano = dialect.name == "nano"
    api_set = draw_set(seed, number) if nano else draw(seed, number)
    module = detail = ""
    try:
        task = compose(api_set, number) if nano else compose_module(api_set, number, dialect.sizes)
        module = task.source
    except CannotCompose as error:
        detail = " ".join(str(error).split())
    return Draft(number, api_set.apis, module, detail=detail, seconds=time.perf_counter() - started)


class Composed:
    """Modules from the composer, written in the processes of a pool."""

    most: int | None = None

    def __init__(self, seed: int, pool: Executor, dialect: Dialect | None = None) -> None:
        self._seed, self._pool, self._dialect = seed, pool, dialect or Dialect()
        self.name = f"composer, dialect {self._dialect.name}, sizes {self._dialect.sizes}"

    def drafts(self, numbers: Sequence[int]) -> Iterator[Draft]:
        """Compose, all at once and ahead of who asks; equal on every machine."""
        count = len(numbers)
        return self._pool.map(draw_and_compose, [self._dialect] * count, [self._seed] * count, numbers, chunksize=4)


class Folder:
    """The tasks of a folder in KernelBench's format, in natural order."""

    def __init__(self, folder: Path) -> None:
        from kernelzero.bench import load_tasks

        self.tasks = load_tasks(folder)
        self.most: int | None = len(self.tasks)
        self.name = f"folder of {len(self.tasks)} tasks, {content_id(*(t.source for t in self.tasks))}"

    def drafts(self, numbers: Sequence[int]) -> Iterator[Draft]:
        """The tasks, each with the APIs of the catalogue that it calls; nobody asked for just these."""
        for number in numbers:
            source = self.tasks[number].source
            yield Draft(number, called(source), source, asked=False)


def called(source: str) -> tuple[str, ...]:
    """The catalogue's APIs that a module calls, sorted; empty where it does not parse."""
    import ast

    from kernelzero.apis import load_catalogue
    from kernelzero.apis.names import called_apis

    try:
        found = called_apis(ast.parse(source))
    except (SyntaxError, ValueError):
        return ()
    known = set(load_catalogue().apis)
    return tuple(sorted(name for name in found if name in known))
