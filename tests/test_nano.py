"""The embedded models: they load as any folder does, speak in the compact style, and fit in the package."""

from __future__ import annotations

import json

import pytest

from kernelzero.coder.prompt import coder_prompt
from kernelzero.coldstart import nano
from kernelzero.coldstart.corpus import draw_set
from kernelzero.policy import nano_path, open_sampler
from kernelzero.proposer.composer import SUPPORTED_APIS
from kernelzero.proposer.prompt import proposer_prompt
from kernelzero.records import ApiSet, Backend, Finish, Role, Sampling, Task

MODULE = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.relu(x)
        return x


def get_inputs():
    return [torch.randn(16, 64)]


def get_init_inputs():
    return []
"""


def test_both_models_fit_in_30_mb() -> None:
    sizes = [f.stat().st_size for role in Role for f in nano_path(role).iterdir()]
    assert sum(sizes) <= 30_000_000


@pytest.mark.parametrize("role", list(Role))
def test_the_card_says_how_it_was_made_and_what_it_reached(role: Role) -> None:
    card = json.loads((nano_path(role) / "card.json").read_text())
    assert card["role"] == role.value
    assert len(card["apis"]) >= 40 and set(card["apis"]) <= set(SUPPORTED_APIS)
    assert card["pairs"] > 1000 and card["measured"]
    assert card["corpus"]["outcomes"]["benchmark"] > 0, "benchmark tasks were met and left out"


def test_the_nano_proposer_writes_modules_and_the_coder_kernels() -> None:
    proposer = open_sampler("nano:proposer", device="cpu")
    sets = [ApiSet(("nn.Linear", "torch.relu")), ApiSet(("torch.exp", "torch.sum"))]
    answers = proposer.sample([proposer_prompt(s, proposer.style) for s in sets], 2, Sampling(1.0, 1.0, 400, seed=1))
    texts = [c.text for group in answers for c in group]
    assert sum("class Model(nn.Module)" in t and "def get_inputs" in t for t in texts) >= 3
    coder = open_sampler("nano:coder", device="cpu")
    [group] = coder.sample([coder_prompt(Task(MODULE), Backend.TRITON, coder.style)], 2, Sampling(0.0, 1.0, 800))
    assert all("class ModelNew" in c.text and c.finish is Finish.STOP for c in group)


def test_common_lines_have_no_sizes() -> None:
    texts = ["import torch\n    x = torch.relu(x)\n    return torch.randn(16, 64)\n"] * 5
    assert nano.common_lines(texts) == ["    x = torch.relu(x)\n", "import torch\n"]


def test_draws_are_the_same_everywhere() -> None:
    assert [draw_set(0, n) for n in range(4)] == [draw_set(0, n) for n in range(4)]
    assert {len(draw_set(0, n).apis) for n in range(4)} == {2, 3}
