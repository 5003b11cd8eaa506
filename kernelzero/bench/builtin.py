"""Tasks of a benchmark: the built-in ones, or any folder of modules in KernelBench's format.

Files are read as text and parsed, never imported: running them is Keck's affair.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from kernelzero.errors import UsageError
from kernelzero.records import Task

_REQUIRED = ("Model", "get_inputs", "get_init_inputs")


def builtin_tasks() -> list[Task]:
    """The built-in tasks, sorted by name: single operators and fused chains with shapes for a CPU."""
    return load_tasks(Path(__file__).parent / "tasks")


def load_tasks(folder: Path | str) -> list[Task]:
    """All tasks under a folder, in natural order; `Task.name` is the path without the suffix, "level1/23_softmax".

    Files whose name begins with "_" or "." are skipped. Raises UsageError where the folder is missing, has no tasks, or
    a file is no task.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"no such folder of tasks: {root}")
    files = [path for path in root.rglob("*.py") if not path.name.startswith(("_", "."))]
    if not files:
        raise UsageError(f"no task (*.py with Model, get_inputs, get_init_inputs) in {root}")
    tasks = [_load(path, path.relative_to(root).with_suffix("").as_posix()) for path in files]
    return sorted(tasks, key=lambda task: _natural(task.name))


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


def named_tasks(name: str) -> list[Task]:
    """The tasks that a configuration or a command names: "builtin", or a folder.

    Raises:
        UsageError: as `load_tasks`.
    """
    return builtin_tasks() if name == "builtin" else load_tasks(name)
