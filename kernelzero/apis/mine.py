"""Count which APIs the `nn.Module` classes of installed packages use, and which together, from their source alone.

No code of a package is imported or run: its files are located and parsed. A class counts if its bases lead to
`torch.nn`, directly or through classes of the same packages; it counts once for every API that it calls, in whatever
spelling. Inherited code is counted where it is written, not again in the subclass. Methods of tensors, APIs passed
around without a call, and base classes reached through re-exports or other packages are not seen.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from kernelzero.apis.counts import write_counts
from kernelzero.apis.names import Resolver, canonical, short
from kernelzero.errors import UsageError

__all__ = ["mine", "write_counts"]

Progress = Callable[[int, int, str], None]
"""Called with the number of files read, the number of all files and the file's name."""


@dataclass(frozen=True)
class SourceFile:
    """One Python file and the dotted name of its module."""

    path: Path
    module: str
    is_package: bool = False


@dataclass(frozen=True)
class _Class:
    name: str
    """Dotted, with its module."""
    bases: tuple[str, ...]
    apis: frozenset[str]


def mine(packages: Sequence[str], progress: Progress | None = None) -> dict[str, Any]:
    """The counts table of installed packages, ready for `write_counts` and `kernelzero.apis.build`.

    Besides the counts it has `files` read and `skipped` for a syntax error. Raises UsageError for a package that is
    not installed or has no Python source.
    """
    if not packages:
        raise UsageError("name at least one installed package to count")
    sources = [source for package in dict.fromkeys(packages) for source in find_sources(package)]
    classes: list[_Class] = []
    skipped = 0
    for number, source in enumerate(sources, start=1):
        read = _read_classes(source)
        skipped += read is None
        classes += read or []
        if progress is not None:
            progress(number, len(sources), str(source.path))
    names = ", ".join(_with_version(package) for package in dict.fromkeys(packages))
    table = count([found.apis for found in _modules(classes)], f"source of {names}")
    return {"files": len(sources), "skipped": skipped, **table}


def count(uses: Iterable[Iterable[str]], source: str) -> dict[str, Any]:
    """The counts table of classes, each given as the canonical names of the APIs it uses."""
    api: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    modules = 0
    for names in uses:
        spelled = sorted({short(name) for name in names})
        modules += 1
        api.update(spelled)
        pairs.update(combinations(spelled, 2))
    return {
        "source": source,
        "modules": modules,
        "api": [[name, n] for name, n in _ranked(api)],
        "pairs": [[a, b, n] for (a, b), n in _ranked(pairs)],
    }


def _ranked(counts: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def find_sources(package: str) -> list[SourceFile]:
    """The Python files of an installed import package (`torchvision`, `torchvision.models`) or distribution (`trl`)."""
    root, *inner = package.split(".")
    try:
        spec = importlib.util.find_spec(root) if root.isidentifier() else None
    except ValueError:  # a module that is being run as a script has no spec
        spec = None
    if spec is None:
        sources = _distribution_sources(package)
    elif spec.submodule_search_locations:
        sources = _below([Path(p).joinpath(*inner) for p in spec.submodule_search_locations], package)
    else:
        sources = [SourceFile(Path(spec.origin), root)] if spec.origin and spec.origin.endswith(".py") else []
    if not sources:
        raise UsageError(f"no installed package with Python source is named {package!r}")
    return sources


def _below(folders: Iterable[Path], package: str) -> list[SourceFile]:
    found = []
    for folder in folders:
        if folder.with_suffix(".py").is_file() and not folder.is_dir():
            found.append(SourceFile(folder.with_suffix(".py"), package))
        for path in sorted(folder.rglob("*.py")):
            found.append(_source(path, path.relative_to(folder), package))
    return found


def _source(path: Path, relative: Path, package: str) -> SourceFile:
    is_package = relative.name == "__init__.py"
    parts = relative.parent.parts if is_package else (*relative.parent.parts, relative.stem)
    return SourceFile(path, ".".join(part for part in (package, *parts) if part), is_package)


def _distribution_sources(name: str) -> list[SourceFile]:
    try:
        files = importlib.metadata.files(name) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return []
    located = ((Path(str(file.locate())), Path(str(file))) for file in files if file.suffix == ".py")
    return [_source(path, relative, "") for path, relative in sorted(located) if path.is_file()]


def _with_version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package.split('.')[0])}"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return package


def _read_classes(source: SourceFile) -> list[_Class] | None:
    """The classes of a file, None if it is not valid Python."""
    text = source.path.read_bytes()
    if b"class " not in text:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    resolver = Resolver()
    resolver.run(tree)
    return [
        _Class(
            f"{source.module}.{node.name}",
            tuple(_absolute(base, source) for base in bases),
            frozenset(resolver.class_calls[node]),
        )
        for node, bases in resolver.bases.items()
    ]


def _absolute(name: str, source: SourceFile) -> str:
    """A base's name with its module: of the same file, relative to the file, or absolute already."""
    if "." not in name:
        return f"{source.module}.{name}"
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parts = source.module.split(".")
    kept = parts[: len(parts) - dots + source.is_package]
    return ".".join([*kept, name[dots:]])


def _modules(classes: Sequence[_Class]) -> list[_Class]:
    """The classes whose bases lead to torch.nn, by repeating until none is added."""
    known: set[str] = set()
    while True:
        added = {c.name for c in classes if c.name not in known and any(b in known or _is_nn_class(b) for b in c.bases)}
        if not added:
            return [c for c in classes if c.name in known]
        known |= added


def _is_nn_class(name: str) -> bool:
    parts = canonical(name).split(".")
    return len(parts) == 2 and parts[0] == "nn" and parts[1][:1].isupper() and parts[1] not in ("Parameter", "Buffer")
