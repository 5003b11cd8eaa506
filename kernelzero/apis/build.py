"""Build the catalogue's table from raw counts: `python -m kernelzero.apis.build INPUT OUTPUT`.

INPUT is a counts file of real classes, OUTPUT the filtered one. Steps: spell names canonically and merge the counts of
spellings of one name; keep candidates (`operators.is_candidate`); drop names that the installed torch does not have;
add the operators of `operators.ADDED` with count 0. The output is the same byte for byte for the same input and torch.

Merging adds up: a class that spells one API in two ways counts twice, which is rare enough not to matter.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kernelzero.apis.catalogue import MINIMUM, exists
from kernelzero.apis.counts import read_counts, write_counts
from kernelzero.apis.names import canonical
from kernelzero.apis.operators import ADDED, is_candidate
from kernelzero.errors import UsageError


def filter_counts(table: Mapping[str, Any], known: Callable[[str], bool] = exists) -> dict[str, Any]:
    """The filtered table, with the numbers of names left out and why.

    `known` says whether the installed torch has a name; `table` is a counts file's object.
    """
    merged = _merge_counts(table["api"])
    candidates = {name: n for name, n in merged.items() if is_candidate(name)}
    counts = {name: n for name, n in candidates.items() if known(name)}
    added = sorted(name for name in ADDED if name not in counts and known(name))
    return {
        "source": table.get("source", ""),
        "modules": table.get("modules", 0),
        "names_in": len(table["api"]),
        "not_operators": len(merged) - len(candidates),
        "not_in_torch": len(candidates) - len(counts),
        "added": added,
        "api": _ranked({**counts, **dict.fromkeys(added, 0)}),
        "pairs": [[a, b, n] for (a, b), n in _ranked_items(_merge_pairs(table["pairs"], counts))],
    }


def _merge_counts(api: list[list[Any]]) -> Counter[str]:
    merged: Counter[str] = Counter()
    for name, n in api:
        merged[canonical(name)] += int(n)
    return merged


def _merge_pairs(pairs: list[list[Any]], kept: Mapping[str, int]) -> Counter[tuple[str, str]]:
    merged: Counter[tuple[str, str]] = Counter()
    for a, b, n in pairs:
        first, second = sorted((canonical(a), canonical(b)))
        if first != second and first in kept and second in kept:
            merged[first, second] += int(n)
    return merged


def _ranked_items(counts: Mapping[Any, int]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _ranked(counts: Mapping[str, int]) -> list[list[Any]]:
    return [[name, n] for name, n in _ranked_items(counts)]


def main(arguments: list[str]) -> int:
    """The command; prints what was kept, dropped and added."""
    if len(arguments) != 2:
        raise UsageError("usage: python -m kernelzero.apis.build INPUT OUTPUT")
    table = filter_counts(read_counts(arguments[0]))
    write_counts(arguments[1], table)
    size, added = len(table["api"]), len(table["added"])
    print(
        f"{size} operator APIs ({size - added} counted, {added} added), {len(table['pairs'])} pairs; of "
        f"{table['names_in']} names {table['not_operators']} are no operators, "
        f"{table['not_in_torch']} not in this torch"
    )
    return 0 if size >= MINIMUM else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"error: {error}")
