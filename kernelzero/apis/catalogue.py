"""The catalogue of operator APIs, with how often real `nn.Module` classes use each and each two of them together.

The table is package data (`data/api_counts.json.gz`), written by `python -m kernelzero.apis.build`. Reading it imports
no torch; `resolve` and `resolvable` do. Counts are of classes, not of calls. They say what people write, not whether an
API makes a good kernel task: that is for the gates to judge.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelzero.apis.counts import read_counts
from kernelzero.apis.names import canonical
from kernelzero.errors import UsageError

MINIMUM = 442
"""Number of candidate APIs in the paper."""
DATA = "data/api_counts.json.gz"


@dataclass(frozen=True)
class Catalogue:
    """Operator APIs by canonical name, in alphabetical order, and their counts."""

    apis: tuple[str, ...]
    counts: Mapping[str, int] = field(repr=False)
    """API → number of classes that use it."""
    pairs: Mapping[tuple[str, str], int] = field(repr=False)
    """(a, b) with a < b → number of classes that use both; only pairs that were seen."""
    added: frozenset[str] = field(default=frozenset(), repr=False)
    """APIs that no counted class uses, added by hand; their count is 0."""
    source: str = ""
    """Where the counts come from."""

    def count(self, name: str) -> int:
        """Number of classes that use an API, 0 if none does."""
        return self.counts.get(name, 0)

    def pair_count(self, a: str, b: str) -> int:
        """Number of classes that use both APIs, in either order."""
        return self.pairs.get((min(a, b), max(a, b)), 0)

    def neighbours(self, name: str) -> dict[str, int]:
        """The APIs used together with `name` → number of classes, most frequent first."""
        found = {(b if a == name else a): n for (a, b), n in self.pairs.items() if name in (a, b)}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def restrict(self, names: Iterable[str]) -> Catalogue:
        """The catalogue of some of its APIs, any spelling. UsageError for a name that is not in it."""
        wanted = {canonical(name) for name in names}
        unknown = sorted(wanted - set(self.apis))
        if unknown:
            raise UsageError(f"not in the catalogue of operator APIs: {', '.join(unknown)}")
        return _keep(self, wanted)


def _keep(catalogue: Catalogue, names: Iterable[str]) -> Catalogue:
    kept = set(names)
    return Catalogue(
        tuple(name for name in catalogue.apis if name in kept),
        MappingProxyType({k: v for k, v in catalogue.counts.items() if k in kept}),
        MappingProxyType({k: v for k, v in catalogue.pairs.items() if kept.issuperset(k)}),
        catalogue.added & kept,
        catalogue.source,
    )


@lru_cache(maxsize=8)
def load_catalogue(path: Path | None = None) -> Catalogue:
    """The package's catalogue, or one that `kernelzero.apis.build` wrote to `path`."""
    if path is None:
        return parse(json.loads(gzip.decompress(resources.files("kernelzero.apis").joinpath(DATA).read_bytes())))
    return parse(read_counts(path))


def parse(table: Mapping[str, Any]) -> Catalogue:
    """A catalogue from a filtered counts table."""
    counts = {name: int(n) for name, n in table["api"]}
    pairs = {(min(a, b), max(a, b)): int(n) for a, b, n in table["pairs"]}
    added = frozenset(table.get("added", ()))
    return Catalogue(
        tuple(sorted(counts)), MappingProxyType(counts), MappingProxyType(pairs), added, str(table.get("source", ""))
    )


def resolve(name: str) -> Any:
    """The installed torch's object of a canonical name. LookupError if this torch has no such callable."""
    namespace, _, leaf = name.rpartition(".")
    module = import_module("torch.nn" if namespace == "nn" else namespace)
    found = getattr(module, leaf, None)
    if not callable(found):
        raise LookupError(f"{name} is not in the installed torch")
    return found


def exists(name: str) -> bool:
    """Whether the installed torch has the operator: a module class for `nn.*`, a function elsewhere."""
    try:
        found = resolve(name)
    except LookupError:
        return False
    if not name.startswith("nn."):
        return not isinstance(found, type)
    return isinstance(found, type) and issubclass(found, import_module("torch.nn").Module)


def resolvable(catalogue: Catalogue) -> tuple[Catalogue, tuple[str, ...]]:
    """The part of the catalogue that the installed torch has, and the names dropped because it has not."""
    dropped = tuple(name for name in catalogue.apis if not exists(name))
    return _keep(catalogue, set(catalogue.apis) - set(dropped)), dropped
