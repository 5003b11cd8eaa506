"""What a request to the Keck service may say: JSON in, records out, one clear line for everything else.

Checked by hand and not by a schema library, because sources come from models: a lone surrogate in one of them is a
candidate that does not compile, not a request that cannot be read. Not covered: the size of the body, which has to be
bounded before it is read (`app.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kernelzero.errors import UsageError
from kernelzero.records import Backend, Candidate, Task

Job: TypeAlias = tuple[Task, Candidate] | tuple[Task, tuple[str, ...]]
MAX_ID_CHARS = 200
TOKEN_VARIABLE = "KERNELZERO_KECK_TOKEN"
"""The environment variable that service and client take their token from."""


@dataclass(frozen=True)
class Questions:
    """One request: jobs of one kind."""

    kind: str
    """"verdicts" or "reports"."""
    jobs: tuple[Job, ...]
    timed: bool = False
    """Whether times are asked for; False for reports."""
    id: str = ""
    """What the client calls this piece of work; "" if it gave no name."""


def checked_token(token: str) -> str:
    """The token, if it can stand in a header.

    Raises:
        UsageError: it cannot.
    """
    if not token or not all("!" <= character <= "~" for character in token):
        raise UsageError("a token consists of printable ASCII characters, without spaces")
    return token


def verdict_job(task: Task, candidate: Candidate) -> dict[str, Any]:
    """One job of `POST /v1/verdicts`."""
    return {"task": task.to_json(), "candidate": candidate.to_json()}


def report_job(task: Task, apis: Sequence[str]) -> dict[str, Any]:
    """One job of `POST /v1/reports`."""
    return {"task": task.to_json(), "apis": list(apis)}


def read_verdicts(body: bytes) -> Questions:
    """The body of `POST /v1/verdicts`.

    Raises:
        UsageError: one line that names the place.
    """
    data = _object(_parse(body), "the body", {"jobs", "timed", "id"})
    jobs = tuple(_jobs(data, _verdict_job))
    timed = data.get("timed", True)
    if not isinstance(timed, bool):
        raise UsageError("timed: true or false is due")
    return Questions("verdicts", jobs, timed, _id(data))


def read_reports(body: bytes) -> Questions:
    """The body of `POST /v1/reports`.

    Raises:
        UsageError: one line that names the place.
    """
    data = _object(_parse(body), "the body", {"jobs", "id"})
    return Questions("reports", tuple(_jobs(data, _report_job)), False, _id(data))


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise UsageError("the body is not usable JSON: nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {' '.join(str(error).split())}") from None


def _jobs(data: dict[str, Any], read: Callable[[Any, str], Job]) -> list[Job]:
    if "jobs" not in data:
        raise UsageError("the body has no jobs")
    if not isinstance(data["jobs"], list):
        raise UsageError("jobs: a list is due")
    return [read(job, f"jobs[{i}]") for i, job in enumerate(data["jobs"])]


def _verdict_job(value: Any, where: str) -> Job:
    job = _object(value, where, {"task", "candidate"})
    candidate = _object(job.get("candidate"), f"{where}.candidate", {"source", "backend"})
    backend = candidate.get("backend", Backend.TRITON.value)
    if not isinstance(backend, str) or backend not in {b.value for b in Backend}:
        raise UsageError(f"{where}.candidate.backend: {' or '.join(Backend)} is due, got {_short(backend)}")
    return _task(job, where), Candidate(_text(candidate, "source", f"{where}.candidate"), Backend(backend))


def _report_job(value: Any, where: str) -> Job:
    job = _object(value, where, {"task", "apis"})
    return _task(job, where), _names(job, "apis", where)


def _task(job: dict[str, Any], where: str) -> Task:
    task = _object(job.get("task"), f"{where}.task", {"source", "apis", "name"})
    name = _text({"name": "", **task}, "name", f"{where}.task")
    return Task(_text(task, "source", f"{where}.task"), _names(task, "apis", f"{where}.task"), name)


def _names(data: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    names = data.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}.{key}: a list of texts is due")
    return tuple(names)


def _text(data: dict[str, Any], key: str, where: str) -> str:
    if not isinstance(data.get(key), str):
        raise UsageError(f"{where}.{key}: a text is due, got {_short(data.get(key))}")
    return data[key]


def _id(data: dict[str, Any]) -> str:
    given = data.get("id")
    if given is not None and not (isinstance(given, str) and 0 < len(given) <= MAX_ID_CHARS):
        raise UsageError(f"id: a text of 1 to {MAX_ID_CHARS} characters is due")
    return given or ""


def _object(value: Any, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: an object is due, got {_short(value)}")
    unknown = sorted(value.keys() - known)
    if unknown:
        raise UsageError(f"{where}: unknown field {_short(unknown[0])}; known are {', '.join(sorted(known))}")
    return value


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
