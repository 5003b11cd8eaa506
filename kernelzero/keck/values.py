"""Nested values of tensors: what Keck's parts look for in them, change in them and compare of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tensors(value: Any) -> list[Any]:
    """All tensors of a nested structure, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in _items(value) for t in tensors(item)]
    if isinstance(value, dict):
        return [t for item in dict.values(value) for t in tensors(item)]
    return []


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """The structure with each tensor replaced; lists, tuples and dictionaries become plain ones."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(item, function) for item in _items(value))
    if isinstance(value, list):
        return [map_tensors(item, function) for item in _items(value)]
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in dict.items(value)}
    return value


def _items(value: list[Any] | tuple[Any, ...]) -> list[Any]:
    # By the base class's own method: a candidate's may compute.
    return list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))


def same_values(a: Any, b: Any) -> bool:
    """Whether two tensors have one shape, one dtype and the same values, NaN equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # First without NaN: the usual case, and a fraction of the memory traffic.
    return bool(a.equal(b)) or bool(((a == b) | ((a != a) & (b != b))).all())
