"""The kernel in a Coder's raw answer. For CUDA too this is a Python file: `ModelNew` with its C++ in strings."""

from __future__ import annotations

from kernelzero.policy.extract import extract
from kernelzero.records import Extraction, Finish


def extract_kernel(text: str, finish: Finish = Finish.STOP) -> Extraction:
    """The last block that parses and defines the class `ModelNew`, or the reason why there is none."""
    return extract(text, defines=("ModelNew",), finish=finish)
