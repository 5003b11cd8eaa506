"""The Proposer's prompts: nothing in them would count as an answer."""

from __future__ import annotations

from kernelzero.proposer.parse import parse_module
from kernelzero.proposer.prompt import SKELETON, proposer_prompt
from kernelzero.records import ApiSet

API_SET = ApiSet(("torch.relu", "nn.Linear"))


def test_full_prompt_names_every_api_and_the_form() -> None:
    _, user = proposer_prompt(API_SET, "full", target="NVIDIA B300").messages
    for needed in ["- nn.Linear\n- torch.relu", "get_init_inputs", "NVIDIA B300", "Deterministic", "Finite", "float32"]:
        assert needed in user["content"]


def test_a_copied_prompt_is_no_module() -> None:
    assert parse_module(f"```python\n{SKELETON}```").code is None
    assert parse_module(proposer_prompt(API_SET).messages[-1]["content"]).code is None


def test_compact_prompt_is_the_names() -> None:
    assert proposer_prompt(API_SET, "compact").messages == ({"role": "user", "content": "nn.Linear torch.relu"},)
