from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelzero.diversity import api_entropy, distinct_share, skeleton, top_skeleton_share, watch
from kernelzero.proposer.composer import compose_module, draw
from kernelzero.records import ApiSet

SETS = [ApiSet(("nn.Linear", "torch.relu")), ApiSet(("torch.exp", "torch.sum"))]


def module(forward: str, init: str = "pass", above: str = "") -> str:
    lines = "\n        ".join(forward.split("; "))
    return f"""import torch
import torch.nn as nn
import torch.nn.functional as F
{above}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x, y):
        {lines}


def get_inputs():
    return [torch.randn(4, 8), torch.randn(4, 8)]


def get_init_inputs():
    return []
"""


LINEAR = module("return torch.relu(self.fc(x)) + y", "self.fc = nn.Linear(8, 8)")
EXP = module("return torch.sum(torch.exp(x) * y, dim=1)")
SPLIT = module("a, b = torch.chunk(x, 2, dim=1); return torch.relu(a) * b")
BLOCK = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.act = F.gelu

    def forward(self, x):
        return x + self.act(self.fc(x))
"""
LAYERS = module(
    "for layer in self.layers:;     x = layer(x); return x * y",
    "self.layers = nn.ModuleList([Block(8) for _ in range(3)])",
    BLOCK,
)
BROKEN = ["", "no code at all", "def forward(self, x):", "class Model:\n    pass", "x = 1", "\0", "\ud800", "9" * 5000]
DEEP = [module("return " + part * 3000 + "x") for part in ("x + ", "-", "(")]


def test_a_skeleton_names_apis_in_order_with_their_tensors():
    assert skeleton(LINEAR) == "inputs/2 nn.Linear torch.relu add/2"
    assert skeleton(EXP) == "inputs/2 torch.exp mul/2 torch.sum"
    assert skeleton(SPLIT) == "inputs/2 torch.chunk getitem getitem torch.relu mul/2"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LINEAR, LINEAR.replace("fc", "project").replace("8", "512")),
        (LINEAR, module("h = self.fc(x); h = torch.relu(h); return h + y", "self.fc = nn.Linear(3, 5, bias=False)")),
        (EXP, module("weighted = torch.exp(x) * y; return torch.sum(weighted, 0, keepdim=True)")),
        (SPLIT, SPLIT.replace("a, b", "gate, value").replace("(a)", "(gate)").replace("* b", "* value")),
        (module("return x * 2.0"), module("return x * 0.125")),
        (module("return x.view(4, 2, 4)[:, 0]"), module("return x.view(x.size(0), -1)[1]")),
        (LAYERS, LAYERS.replace("Block", "Unit").replace("layer", "step").replace("8", "16").replace("3", "7")),
    ],
    ids=["sizes", "temporaries", "names", "unpacked", "constants", "shapes", "own classes"],
)
def test_names_sizes_and_constants_are_erased(one, other):
    assert one != other
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (module("return torch.relu(x)"), module("return F.relu(x)")),
        (module("return x + y"), module("return x + 1.0")),
        (module("return x + y"), module("return x * y")),
        (module("return torch.relu(torch.exp(x))"), module("return torch.exp(torch.relu(x))")),
        (module("return torch.relu(x)"), module("return torch.relu(torch.relu(x))")),
        (LAYERS, LAYERS.replace("F.gelu", "F.relu")),
    ],
    ids=["spelling", "tensors", "operator", "order", "number", "inside own classes"],
)
def test_what_is_computed_is_kept(one, other):
    assert skeleton(one) != skeleton(other)


def test_what_the_flow_does_not_see_into_counts_by_its_apis():
    assert skeleton(LAYERS) == "inputs/2 call mul/2 for | nn.Linear torch.nn.functional.gelu"
    assert api_entropy([LAYERS], [ApiSet(("nn.Linear", "torch.nn.functional.gelu"))]) == pytest.approx(1.0)


def test_shares_of_a_step():
    other = LINEAR.replace("8", "16")
    sources = [LINEAR, other, LINEAR, EXP]
    assert distinct_share(sources) == 0.5
    assert top_skeleton_share(sources) == 0.75
    assert top_skeleton_share([LINEAR, EXP, SPLIT]) == pytest.approx(1 / 3)
    assert distinct_share([LINEAR, EXP, SPLIT]) == 1.0


def test_entropy_is_over_what_is_used_by_what_was_asked_for():
    assert api_entropy([LINEAR, EXP], SETS) == pytest.approx(1.0)
    assert api_entropy([LINEAR, LINEAR], SETS) == pytest.approx(math.log(2) / math.log(4))
    assert api_entropy([EXP.replace("torch.exp(x)", "x")], SETS) == 0.0


def test_a_habit_lowers_the_entropy_and_more_than_was_asked_for_is_cut_to_one():
    sets = [*SETS, ApiSet(("torch.log", "torch.tanh")), ApiSet(("torch.abs", "torch.neg"))]
    plain = [
        module(f"return torch.{a}(torch.{b}(x))")
        for a, b in (("relu", "sigmoid"), ("exp", "sum"), ("log", "tanh"), ("abs", "neg"))
    ]
    habit = [source.replace("return torch", "y = torch.square(y); return torch") for source in plain]
    counts = [4, *[1] * 8]
    expected = -sum(n / 12 * math.log(n / 12) for n in counts) / math.log(8)
    assert api_entropy(plain, sets) == pytest.approx(1.0)
    assert api_entropy(habit, sets) == pytest.approx(expected)
    assert expected < 0.98
    assert api_entropy(plain, SETS) == 1.0


def test_entropy_at_its_ends():
    single = [ApiSet(("torch.relu",))]
    assert api_entropy([LINEAR], single) == 1.0
    assert api_entropy([EXP], single) == 0.0
    assert api_entropy([module("return x * y")], SETS) == 0.0
    assert api_entropy([LINEAR], []) is None


def test_constructors_and_inputs_are_no_apis_of_a_module():
    scaled = module("return torch.relu(x) * self.scale", "self.scale = nn.Parameter(torch.ones(8))")
    assert api_entropy([scaled], SETS) == 0.0


@pytest.mark.parametrize("sources", [[], BROKEN, DEEP])
def test_no_modules_no_figures_and_nothing_raised(sources):
    assert watch(sources, SETS) == {"distinct": None, "api_entropy": None, "top_skeleton": None}
    assert watch([*sources, LINEAR, EXP], SETS) == watch([LINEAR, EXP], SETS)


@given(st.integers(0, len(LINEAR)), st.integers(0, 60), st.text("()[]=:.+*xyself \n\0\ud800\\\"'", max_size=12))
def test_torn_sources_do_not_raise(start, length, middle):
    torn = LINEAR[:start] + middle + LINEAR[start + length :]
    assert skeleton(torn) is None or skeleton(torn).startswith("inputs/")
    assert set(watch([torn, LINEAR], SETS)) == {"distinct", "api_entropy", "top_skeleton"}


@given(st.lists(st.sampled_from([LINEAR, EXP, SPLIT, LAYERS, "broken("]), max_size=12), st.randoms())
def test_figures_are_shares_and_order_does_not_matter(sources, random):
    figures = watch(sources, SETS)
    shuffled = list(sources)
    random.shuffle(shuffled)
    assert watch(shuffled, SETS) == pytest.approx(figures) if figures["distinct"] is not None else True
    assert all(value is None or 0.0 <= value <= 1.0 for value in figures.values())


def test_a_composers_modules_are_diverse_and_a_copied_one_is_not():
    sets = [draw(5, number) for number in range(12)]
    sources = [compose_module(item, 1).source for item in sets]
    healthy, collapsed = watch(sources, sets), watch([sources[0]] * 12, sets)
    assert healthy["distinct"] == 1.0
    assert healthy["top_skeleton"] == pytest.approx(1 / 12)
    assert healthy["api_entropy"] > 0.9
    assert collapsed["distinct"] == pytest.approx(1 / 12)
    assert collapsed["top_skeleton"] == 1.0
    assert collapsed["api_entropy"] < healthy["api_entropy"]
