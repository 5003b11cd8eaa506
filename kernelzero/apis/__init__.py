"""Operator APIs: the catalogue, its co-occurrence counts, the sampler of API sets, and API names in source code.

Nothing here imports torch until a name is resolved. What the APIs are good for as kernel tasks is not judged here.
"""

from __future__ import annotations

from kernelzero.apis.catalogue import Catalogue, load_catalogue, resolvable, resolve
from kernelzero.apis.counts import read_counts, write_counts
from kernelzero.apis.mine import mine
from kernelzero.apis.names import called_apis, canonical
from kernelzero.apis.sampler import draw, reweight, sample_pool
from kernelzero.apis.usage import constructed_modules_unused

__all__ = [
    "Catalogue",
    "called_apis",
    "canonical",
    "constructed_modules_unused",
    "draw",
    "load_catalogue",
    "mine",
    "read_counts",
    "resolvable",
    "resolve",
    "reweight",
    "sample_pool",
    "write_counts",
]
