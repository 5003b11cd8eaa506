"""The module in a Proposer's raw answer. Whether it may become a task is for the gates, not decided here."""

from __future__ import annotations

from kernelzero.policy.extract import extract
from kernelzero.records import Extraction, Finish


def parse_module(text: str, finish: Finish = Finish.STOP) -> Extraction:
    """The last block that parses and defines `Model`, `get_inputs` and `get_init_inputs`, or why there is none."""
    return extract(text, defines=("Model", "get_inputs", "get_init_inputs"), finish=finish)
