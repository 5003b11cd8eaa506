"""Tasks of a benchmark: the built-in ones, or any folder of modules in KernelBench's format.

Files are read as text and parsed, never imported: running them is Keck's affair.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import Path

from kernelzero.errors import UsageError
from kernelzero.records import Task

_REQUIRED = ("Model", "get_inputs", "get_init_inputs")


def builtin_tasks() -> list[Task]:
    """The built-in tasks, sorted by name: single operators and fused chains with shapes for a CPU."""
    return load_tasks(Path(__file__).parent / "tasks")


def load_tasks(folder: Path | str, levels: Collection[int] | None = None) -> list[Task]:
    """All tasks under a folder, in natural order; `Task.name` is the path without the suffix, "level1/23_softmax".

    A checkout of KernelBench is read as it is (its folder `KernelBench/`), and so is one of its level folders. Files
    whose name begins with "_" or "." are skipped.

    Args:
        levels: only the tasks in folders "level1", "level2", … with these numbers; None: all.

    Raises:
        UsageError: the folder is missing, has no tasks, or not one of the levels, or a file is no task.
    """
    root = _root(Path(folder))
    prefix = f"{root.name}/" if re.fullmatch(r"level\d+", root.name) else ""
    named = {prefix + path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.py")}
    files = {name: path for name, path in named.items() if not path.name.startswith(("_", "."))}
    if not files:
        raise UsageError(f"no task (*.py with Model, get_inputs, get_init_inputs) in {root}")
    for level in sorted(levels or ()):
        if not any(level_of(name) == level for name in files):
            raise UsageError(f"no tasks of level {level} in {root}: it has {_known_levels(files)}")
    chosen = {name: path for name, path in files.items() if levels is None or level_of(name) in levels}
    tasks = [_load(path, name) for name, path in chosen.items()]
    return sorted(tasks, key=lambda task: _natural(task.name))


def level_of(name: str) -> int | None:
    """The level of a task by its name: 1 for "level1/23_softmax", None where there is none."""
    found = re.match(r"(?:.*/)?level(\d+)/", name)
    return int(found[1]) if found else None


def _root(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"no such folder of tasks: {folder}")
    inner = folder / "KernelBench"
    return inner if any(inner.glob("level*/*.py")) else folder


def _known_levels(names: Collection[str]) -> str:
    levels = sorted({level for level in map(level_of, names) if level is not None})
    return "levels " + ", ".join(map(str, levels)) if levels else "no folders level1, level2, …"


def _load(path: Path, name: str) -> Task:
    try:
        source = path.read_text(encoding="utf-8")
        defined = _defined(ast.parse(source))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is no Python module: {str(error).splitlines()[0]}") from error
    missing = [required for required in _REQUIRED if required not in defined]
    if missing:
        raise UsageError(f"{path} is no task: it does not define {', '.join(missing)}")
    return Task(source=source, name=name)


def _defined(tree: ast.Module) -> set[str]:
    return {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key with numbers by value, so that 10_x comes after 9_x."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def named_tasks(name: str, levels: Collection[int] | None = None) -> list[Task]:
    """The tasks that a configuration or a command names: "builtin", or a folder, and of that the given levels.

    Raises:
        UsageError: as `load_tasks`, and for levels of the built-in tasks.
    """
    if name != "builtin":
        return load_tasks(name, levels)
    if levels is not None:
        raise UsageError("the built-in tasks have no levels: --level goes with --tasks FOLDER")
    return builtin_tasks()
