"""A run is a folder: resolved configuration, append-only JSONL files, checkpoints. It survives a kill at any moment.

The rows of a training step are durable if and only if the step's checkpoint is:

1. before the checkpoint, the rows are staged as `pending/<role>-<step>.json` (written whole or not at all);
2. a checkpoint counts once its folder holds the file `complete`, written last;
3. then the staged rows are appended to their files, each under a key that is never written twice.

`recover` finishes or undoes whatever a killed process left half done. One process at a time works in a folder.

Not covered: the benchmark's files, which its own code keeps, and folders shared between machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelzero.errors import UsageError
from kernelzero.records import Role

Row = dict[str, Any]
COMPLETE = "complete"
GIVEN_POOL = "given-pool.jsonl"
"""A copy of the file that `curriculum.pool` names, in a run that came from another machine."""
FILES = ("proposals.jsonl", "attempts.jsonl", "pool.jsonl", "steps.jsonl")


class RunFolder:
    """The files of one run. Reading needs no lock; writing happens inside `locked`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._keys: dict[str, set[str]] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out; the lock ends with the process, however it ends.

        Raises:
            UsageError: Another process is at work here, or the folder cannot be made.
        """
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / "lock").open("w")
        except OSError as error:
            raise UsageError(f"cannot write to the run folder {self.path}: {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(f"another process is at work in {self.path}") from error
            yield

    def write_json(self, name: str, data: Any) -> None:
        """Write a file whole or not at all."""
        write_whole(self.path / name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def read_json(self, name: str) -> Any:
        """The content of a JSON file, None where there is none."""
        return read_json(self.path / name)

    def read_rows(self, name: str) -> list[Row]:
        """All whole rows of a JSONL file; a last line that a kill cut off is left out."""
        return read_rows(self.path / name)

    def append(self, name: str, rows: Iterable[Row]) -> None:
        """Append rows whose `key` is not in the file yet."""
        keys = self._known_keys(name)
        new = [row for row in rows if row["key"] not in keys]
        if not new:
            return
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in new)
        with (self.path / name).open("a", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
            _sync(file)
        keys.update(row["key"] for row in new)

    def stage(self, role: Role, step: int, rows: Mapping[str, Sequence[Row]]) -> None:
        """Put the rows of one step aside until its checkpoint is complete; `rows` maps files to rows."""
        at = {"role": role.value, "step": step}
        named = {
            file: [{"key": f"{role.value}-{step}-{i}", **at, **row} for i, row in enumerate(several)]
            for file, several in rows.items()
        }
        write_whole(self.path / "pending" / f"{role.value}-{step}.json", json.dumps(named, allow_nan=False))

    def commit(self, role: Role, step: int) -> None:
        """Declare the checkpoint of a step complete, then append all rows staged up to it."""
        write_whole(self.checkpoint_path(role, step) / COMPLETE, "")
        self._settle(role, step)

    def recover(self) -> None:
        """Bring the folder into the state of its last complete checkpoints."""
        self._keys.clear()
        for file in FILES:
            repair(self.path / file)
        for role in Role:
            self._drop_partial_checkpoints(role)
            self._settle(role, self.steps_done(role))
            for _, pending in self._pending(role):
                pending.unlink()

    def checkpoint_path(self, role: Role, step: int) -> Path:
        """Where the trainer puts the checkpoint of a step."""
        return self.path / role.value / f"checkpoint-{step}"

    def checkpoints(self, role: Role) -> list[tuple[int, Path]]:
        """Complete checkpoints with their steps, oldest first."""
        return [(step, path) for step, path in self._checkpoint_folders(role) if (path / COMPLETE).exists()]

    def last_checkpoint(self, role: Role) -> Path | None:
        """The newest complete checkpoint."""
        found = self.checkpoints(role)
        return found[-1][1] if found else None

    def steps_done(self, role: Role) -> int:
        """Steps of the newest complete checkpoint, 0 where there is none."""
        found = self.checkpoints(role)
        return found[-1][0] if found else 0

    def _checkpoint_folders(self, role: Role) -> list[tuple[int, Path]]:
        found = []
        for path in (self.path / role.value).glob("checkpoint-*"):
            number = path.name.removeprefix("checkpoint-")
            if number.isdigit():
                found.append((int(number), path))
        return sorted(found)

    def _drop_partial_checkpoints(self, role: Role) -> None:
        for _, path in self._checkpoint_folders(role):
            if not (path / COMPLETE).exists():
                shutil.rmtree(path)

    def _pending(self, role: Role) -> list[tuple[int, Path]]:
        found = (self.path / "pending").glob(f"{role.value}-*.json")
        return sorted((int(path.stem.rsplit("-", 1)[1]), path) for path in found)

    def _settle(self, role: Role, step: int) -> None:
        for staged, path in self._pending(role):
            if staged <= step:
                for file, rows in read_json(path).items():
                    self.append(file, rows)
                path.unlink()

    def _known_keys(self, name: str) -> set[str]:
        if name not in self._keys:
            self._keys[name] = {row["key"] for row in self.read_rows(name)}
        return self._keys[name]


def read_rows(path: str | Path) -> list[Row]:
    """All whole rows of a JSONL file; none where there is no file.

    Raises:
        UsageError: A whole line is no JSON object.
    """
    path = Path(path)
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line.decode("utf-8", "surrogatepass")) for line in lines if line.strip()]
    except ValueError as error:
        raise UsageError(f"{path} holds a line that is no JSON: {error}") from error


def read_json(path: str | Path) -> Any:
    """The content of a JSON file, None where there is none."""
    path = Path(path)
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error


def repair(path: Path) -> None:
    """Cut off a last line without an end, which a killed process left."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)
        _sync(file)
    os.replace(new, path)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
