"""Rules of convolutions, pooling, look-ups and losses: their kernels in Triton's interpreter against PyTorch.

Shapes are small, as the interpreter takes loops one step after another. Not covered: speed, and what only a GPU shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from kernelzero.coldstart.rulebook.loops.module_text import write_triton
from kernelzero.coldstart.rulebook.operators import CannotWrite

_RUN = """
import importlib, json, os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch
torch.set_num_threads(1)
from pathlib import Path
from kernelzero.coldstart.rulebook.graph import load
from kernelzero.coldstart.rulebook.loops.module_text import write_triton
from kernelzero.coldstart.rulebook.prove import _import

def fault(source, kernel, path, large):
    path.write_text(kernel)
    namespace, module = load(source), _import(path)
    torch.manual_seed(0)
    model, candidate = namespace["Model"](), module.ModelNew()
    candidate.load_state_dict(model.state_dict())
    for factor in (1.0, 30.0) if large else (1.0,):
        inputs = [x * factor if x.is_floating_point() else x for x in namespace["get_inputs"]()]
        with torch.no_grad():
            expected, output = model(*inputs), candidate(*inputs)
        if (output.shape, output.dtype) != (expected.shape, expected.dtype):
            return f"{tuple(output.shape)} {output.dtype} instead of {tuple(expected.shape)} {expected.dtype}"
        if not torch.allclose(output.double(), expected.double(), atol=1e-3, rtol=1e-3):
            return f"off by {float((output.double() - expected.double()).abs().max()):.3g}, inputs times {factor}"
    return ""

found = {}
for number, (name, source) in enumerate(json.load(sys.stdin).items()):
    faults = []
    for variant in (number % 2,):
        path = Path(sys.argv[1]) / f"kernel_{number}_{variant}.py"
        try:
            faults.append(fault(source, write_triton(source, variant), path, "BCELoss" not in name))
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
    found[name] = " / ".join(f for f in faults if f)
json.dump(found, sys.stdout)
"""


def _module(call: str, *inputs: str) -> str:
    """A module that makes one call: of a layer, where it is written "nn.…", else of a function."""
    names = ", ".join("xyz"[: len(inputs)])
    is_layer = call.startswith("nn.")
    layer, _, rest = call.partition(" @ ")
    body = f"self.layer({names}){rest}" if is_layer else call
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {f'self.layer = {layer}' if is_layer else 'pass'}\n\n"
        f"    def forward(self, {names}):\n        return {body}\n\n\n"
        f"def get_inputs():\n    return [{', '.join(inputs)}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


IMAGE, LINE, VOLUME = "torch.randn(2, 4, 6, 5)", "torch.randn(2, 4, 9)", "torch.randn(1, 2, 3, 4, 4)"
CONVOLUTIONS = {
    IMAGE: (
        "nn.Conv2d(4, 8, 3, stride=2, padding=1)", "nn.Conv2d(4, 9, (3, 2), dilation=2, bias=False, padding=(2, 0))",
        "nn.Conv2d(4, 8, (2, 3), padding='same')", "nn.Conv2d(4, 8, 3, padding='valid') @ .relu()",
        "nn.Conv2d(4, 16, 3, padding=1, groups=2)", "nn.Conv2d(4, 4, 2, groups=2)", "nn.Conv2d(4, 4, 2, groups=4)",
        "nn.Conv2d(4, 8, 2, groups=4, stride=2)", "nn.Conv2d(4, 12, 1)",
        "nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1)",
        "nn.ConvTranspose2d(4, 8, 3, dilation=2)", "nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2)",
        "nn.ConvTranspose2d(4, 16, 3, stride=(2, 1), groups=2)", "F.pad(x, (1, 2, 0, 3)) + 1",
        "F.pad(x, (1, 2), value=-1.5)", "F.pad(x, (1, 2), value=float('-inf')).clamp(-2, 2)",
        "F.pad(x, (-1, 2, 1, -3))",
        "F.pad(x, (1, 2, 3, 0), mode='reflect')", "F.pad(x, (1, 2, 3, 0), mode='replicate')",
        "F.pad(x, (1, 5, 3, 0), mode='circular')", "F.pad(x.reshape(2, 24, 5), (1, 2))", "nn.ZeroPad2d(2)",
        "nn.ReflectionPad2d((1, 2, 3, 4))", "F.unfold(x, (2, 3), padding=1, stride=2)",
        "nn.Unfold(2, dilation=2, padding=1)", "F.pixel_shuffle(torch.relu(x), 2)", "nn.PixelShuffle(2)",
        "nn.ChannelShuffle(2)", "nn.Upsample(scale_factor=2)", "nn.Upsample(size=(13, 3))",
        "nn.Upsample(scale_factor=2, mode='bilinear')",
        "nn.Upsample(scale_factor=2, mode='bilinear', align_corners=True)",
        "F.interpolate(x, size=(5, 12), mode='bilinear')", "F.interpolate(x, scale_factor=1.7, mode='bilinear')",
    ),
    LINE: (
        "nn.Conv1d(4, 9, 3, padding=2, dilation=2)", "nn.Conv1d(4, 1, 3)",
        "nn.ConvTranspose1d(4, 9, 3, stride=3, output_padding=2)", "nn.ConstantPad1d((1, 2), 3.5)",
        "F.interpolate(x, scale_factor=1.7)", "F.interpolate(x, size=14, mode='linear', align_corners=True)",
    ),
    VOLUME: ("nn.Conv3d(2, 9, 2, padding=1, stride=(1, 2, 1))", "nn.ConvTranspose3d(2, 3, 2, stride=2)",
             "nn.ReplicationPad3d(1)"),
    "torch.randn(4, 6, 5)": ("nn.Conv2d(4, 8, 3)",),
    "torch.randn(2, 2, 6, 9)": ("nn.PixelUnshuffle(3)",),
}  # fmt: skip
POOLING = {
    IMAGE: (
        "nn.MaxPool2d(2)", "nn.MaxPool2d(3, 2, 1)", "nn.MaxPool2d((3, 2), 1, 1, dilation=2)",
        "nn.MaxPool2d(2, ceil_mode=True)", "F.max_pool2d(torch.relu(x), 3, stride=1, padding=1) + 1",
        "nn.AvgPool2d(2)",
        "nn.AvgPool2d(3, 2, 1)", "nn.AvgPool2d(3, 2, 1, count_include_pad=False)",
        "nn.AvgPool2d(3, 2, 1, ceil_mode=True)",
        "nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)", "nn.AvgPool2d(2, 3, divisor_override=3)",
        "torch.sigmoid(F.avg_pool2d(x, 3, 1, 1))", "nn.LPPool2d(2, 2, ceil_mode=True)", "F.lp_pool2d(x.abs(), 3, 2)",
        "nn.AdaptiveAvgPool2d(1)", "nn.AdaptiveAvgPool2d((4, 3))", "nn.AdaptiveAvgPool2d((None, 3))",
        "nn.AdaptiveMaxPool2d(1)", "nn.AdaptiveMaxPool2d((4, 3))", "F.adaptive_avg_pool2d(x, (1, 1)).flatten(1)",
        "nn.AdaptiveAvgPool2d((3, 5))", "nn.AdaptiveAvgPool2d((8, 7))",
    ),
    LINE: (
        "nn.MaxPool1d(3, 2, 1, ceil_mode=True)", "F.max_pool1d(x, 2)", "nn.AvgPool1d(4, 2, 1)", "nn.LPPool1d(2, 3, 2)",
        "F.lp_pool1d(x, 4, 3)", "nn.AdaptiveMaxPool1d(4)", "F.adaptive_avg_pool1d(x, 5)",
    ),
    VOLUME: ("nn.MaxPool3d(2)", "nn.AvgPool3d((2, 2, 1), 1, (1, 0, 0), count_include_pad=False)",
             "nn.AdaptiveMaxPool3d((2, 3, 4))", "nn.AdaptiveAvgPool3d((None, 3, 4))"),
    "torch.randn(1, 2, 20, 24)": ("nn.AdaptiveAvgPool2d(2)", "nn.AdaptiveMaxPool2d(2)"),
}  # fmt: skip


def _whole(high: int, shape: str, low: int = 0) -> str:
    return f"torch.randint({low}, {high}, {shape})"


_CUBE = "torch.randn(5, 7, 6)"
GATHERS = (
    ("F.embedding(y, x).relu()", "torch.randn(20, 6)", _whole(20, "(3, 4)")),
    ("F.unfold(F.embedding(y, x).unsqueeze(0), 2, padding=1)", "torch.randn(20, 6)", _whole(20, "(3, 4)")),
    ("torch.embedding(x, y) + 1", "torch.randn(20, 6)", _whole(20, "(3, 4)")),
    ("torch.softmax(F.embedding(y, x), -1)", "torch.randn(20, 40)", _whole(20, "(3, 4)")),
    ("F.embedding(y, x) @ z", "torch.randn(20, 24)", _whole(20, "(3, 4)"), "torch.randn(24, 10)"),
    ("nn.Embedding(20, 6, padding_idx=2)", _whole(20, "(3, 4)")),
    ("F.one_hot(y, 7) * x", "torch.randn(7)", _whole(7, "(3, 4)")),
    ("F.one_hot(x, 7)", _whole(7, "(3, 4)")),
    ("torch.index_select(x, 1, y)", _CUBE, _whole(7, "(9,)")),
    ("x.index_select(-1, y)", _CUBE, _whole(6, "(3,)")),
    ("torch.gather(x, 1, y)", _CUBE, _whole(7, "(4, 3, 6)")),
    ("x.relu().gather(2, y)", _CUBE, _whole(6, "(5, 7, 2)")),
    ("torch.take_along_dim(x, y, 1)", _CUBE, _whole(7, "(5, 3, 1)")),
    ("torch.take_along_dim(x, y)", _CUBE, _whole(200, "(5, 3)")),
    ("torch.take(x, y)", _CUBE, _whole(200, "(5, 3)", -200)),
    ("x[y]", _CUBE, _whole(5, "(3, 2)", -5)),
    ("x[:, y]", _CUBE, _whole(7, "(3,)", -7)),
    ("x[..., y] + 1", _CUBE, _whole(6, "(2, 2)", -6)),
    ("x[:, y, :]", _CUBE, _whole(7, "(3, 2)", -7)),
    ("x.transpose(0, 1).reshape(7, 30)[y]", _CUBE, _whole(7, "(3, 2)")),
)
_PAIR = ("torch.randn(6, 9)", "torch.randn(6, 9)")
_SHARES = ("torch.rand(6, 9)", "torch.rand(6, 9)")
_SIGNS = ("torch.randn(6, 9)", "torch.randn(6, 9).sign()")
LOSSES = (
    ("nn.MSELoss({r})", *_PAIR),
    ("F.l1_loss(x, y, {r})", *_PAIR),
    ("nn.SmoothL1Loss(beta=0.7, {r})", *_PAIR),
    ("F.huber_loss(x, y, {r}, delta=1.5)", *_PAIR),
    ("nn.BCELoss({r})", *_SHARES),
    ("F.binary_cross_entropy((x > 0).float(), (y > 0).float(), {r})", *_PAIR),
    ("nn.BCEWithLogitsLoss({r})", *_SHARES),
    ("F.binary_cross_entropy_with_logits(x, y, {r}, pos_weight=z)", *_SHARES, "torch.rand(9)"),
    ("nn.KLDivLoss({r})", *_SHARES),
    ("nn.KLDivLoss(log_target=True, {r})", "torch.randn(6, 9)", "-torch.rand(6, 9)"),
    ("nn.NLLLoss({r})", "torch.randn(6, 7)", _whole(7, "(6,)")),
    ("nn.NLLLoss({r}, weight=torch.rand(7), ignore_index=2)", "torch.randn(6, 7, 4)", _whole(7, "(6, 4)")),
    ("nn.CrossEntropyLoss({r})", "torch.randn(6, 7)", _whole(7, "(6,)")),
    ("F.cross_entropy(x * 2, y, {r})", "torch.randn(6, 70)", _whole(70, "(6,)")),
    ("nn.CrossEntropyLoss({r}, weight=torch.rand(7), ignore_index=2, label_smoothing=0.2)", "torch.randn(6, 7, 4)",
     _whole(7, "(6, 4)")),
    ("F.cross_entropy(x, y, {r}, label_smoothing=0.1)", "torch.randn(6, 40, 2)", _whole(40, "(6, 2)")),
    ("F.cross_entropy(x, torch.softmax(y, 1), z, {r}, label_smoothing=0.1)", *_PAIR, "torch.rand(9)"),
    ("nn.HingeEmbeddingLoss({r})", *_SIGNS),
    ("nn.MarginRankingLoss(0.3, {r})", *_PAIR, "torch.randn(6, 9).sign()"),
    ("F.soft_margin_loss(x, y, {r})", *_SIGNS),
    ("nn.CosineEmbeddingLoss(0.1, {r})", *_PAIR, "torch.randn(6).sign()"),
    ("nn.TripletMarginLoss(swap=True, margin=0.5, {r})", *_PAIR, "torch.randn(6, 9)"),
    ("nn.PoissonNLLLoss({r})", *_SHARES),
    ("nn.PoissonNLLLoss(log_input=False, full=True, {r})", "torch.rand(6, 9)", "torch.randint(0, 5, (6, 9)).float()"),
    ("nn.GaussianNLLLoss(full=True, {r})", *_PAIR, "torch.rand(6)"),
)  # fmt: skip
ALONE = (
    ("nn.KLDivLoss(reduction='batchmean')", *_SHARES),
    ("F.cross_entropy(x, y)", "torch.randn(9)", "torch.tensor(3)"),
    ("F.cross_entropy(x.view(-1, 9), y.view(-1))", "torch.randn(2, 5, 9)", _whole(9, "(2, 5)")),
    ("F.cosine_similarity(x, y, dim=-1)", "torch.randn(3, 5, 40)", "torch.randn(5, 40)"),
    ("nn.CosineSimilarity()", *_PAIR),
    ("nn.PairwiseDistance()", *_PAIR),
    ("F.pairwise_distance(x, y, 1, keepdim=True)", *_PAIR),
)


def _cases() -> dict[str, str]:
    calls = [(call, inputs) for table in (CONVOLUTIONS, POOLING) for inputs, found in table.items() for call in found]
    given = [*((call, inputs) for call, inputs in calls), *GATHERS, *ALONE]
    for number, (call, *inputs) in enumerate(LOSSES):
        kinds = [("mean", "none"), ("sum", "mean")][number % 2]
        given += [(call.format(r=f"reduction='{kind}'"), *inputs) for kind in kinds]
    return {f"{call} of {', '.join(inputs)}": _module(call, *inputs) for call, *inputs in given}


CASES = _cases()


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case's kernels, one variant each."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _RUN, str(tmp_path_factory.mktemp("kernels"))],
        input=json.dumps(CASES), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_rule_computes_what_pytorch_does(faults: dict[str, str], name: str) -> None:
    assert faults[name] == ""


REFUSED: tuple[tuple[Any, ...], ...] = (
    ("F.interpolate(x, scale_factor=2, mode='bicubic')", "interpolate with mode bicubic", IMAGE),
    ("x.unfold(2, 3, 1)", "unfold by three numbers", IMAGE),
    ("nn.MaxPool2d(2, return_indices=True)", "max_pool2d_with_indices", IMAGE),
    ("F.max_pool2d(x, 2, return_indices=True)[0]", "max_pool2d_with_indices", IMAGE),
    ("nn.LPPool1d(2.5, 2)", "lp_pool1d of order 2.5", LINE),
    ("nn.Embedding(20, 6, max_norm=1.0)", "embedding with max_norm", _whole(20, "(3,)")),
    ("F.one_hot(x)", "depend on values", _whole(20, "(3,)")),
    ("x.argsort(1)", "argsort", IMAGE),
    ("torch.sort(x, 1)[0]", "sort", IMAGE),
    ("torch.topk(x, 2)[0]", "topk", IMAGE),
    ("x.scatter(1, y, 1.0)", "scatter", IMAGE, _whole(4, "(2, 4, 6, 5)")),
    ("F.mse_loss(x, y, size_average=False)", "size_average", *_PAIR),
    ("nn.TripletMarginLoss(p=1)", "triplet_margin_loss with p=1", *_PAIR, "torch.randn(6, 9)"),
    ("F.pairwise_distance(x, y, 3)", "pairwise_distance with p=3", *_PAIR),
    ("nn.MultiMarginLoss()", "multi_margin_loss", "torch.randn(6, 7)", _whole(7, "(6,)")),
)


@pytest.mark.parametrize(("call", "named", "inputs"), [(c, n, i) for c, n, *i in REFUSED])
def test_what_has_no_rule_is_refused_by_name(call: str, named: str, inputs: list[str]) -> None:
    with pytest.raises(CannotWrite, match=named):
        write_triton(_module(call, *inputs))


def test_padding_is_a_masked_read_of_what_lies_in_memory() -> None:
    text = write_triton(_module("nn.Conv2d(8, 16, 3, padding=1)", "torch.randn(2, 8, 16, 16)"))
    assert "tl.dot" in text and ", other=0.0)" in text and text.count("_kernel[") == 1
