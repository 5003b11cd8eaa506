from __future__ import annotations

import subprocess
import sys

import pytest

from kernelzero.apis import load_catalogue, read_counts, resolvable, resolve, write_counts
from kernelzero.apis.build import filter_counts
from kernelzero.apis.build import main as build_main
from kernelzero.apis.catalogue import MINIMUM
from kernelzero.apis.operators import is_candidate
from kernelzero.errors import UsageError


def test_it_has_at_least_as_many_apis_as_the_paper_and_this_torch_has_them() -> None:
    kept, dropped = resolvable(load_catalogue())
    assert len(kept.apis) >= MINIMUM == 442
    assert len(kept.apis) + len(dropped) == len(load_catalogue().apis)
    assert callable(resolve("nn.Conv2d")) and callable(resolve("torch.linalg.norm"))


def test_reading_it_does_not_import_torch() -> None:
    code = "import sys; from kernelzero.apis import load_catalogue; load_catalogue(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [
    "torch.zeros", "torch.randn", "nn.Sequential", "nn.Parameter", "nn.Identity", "nn.init.zeros_", "torch.no_grad",
    "torch.cuda.is_available", "torch.jit.script", "nn.Dropout", "torch.nn.functional.dropout2d", "nn.RReLU",
    "torch.bernoulli", "torch.numel", "torch.eig", "torch.FloatTensor", "torch.distributions.Normal", "nn.LazyLinear",
    "torch._assert", "nn.utils.weight_norm", "torch.lstsq", "torch.set_num_threads", "nn.FractionalMaxPool2d",
])  # fmt: skip
def test_what_is_no_operator(name: str) -> None:
    assert not is_candidate(name)
    assert name not in load_catalogue().apis


def test_three_names_of_one_operator_stay_three_apis() -> None:
    assert {"nn.ReLU", "torch.relu", "torch.nn.functional.relu"} <= set(load_catalogue().apis)


def test_counts_in_either_order_and_neighbours() -> None:
    catalogue = load_catalogue()
    assert catalogue.count("nn.Conv2d") > catalogue.count("nn.Bilinear") > 0
    assert catalogue.pair_count("nn.ReLU", "nn.Conv2d") == catalogue.pair_count("nn.Conv2d", "nn.ReLU") > 1000
    near = catalogue.neighbours("nn.Conv2d")
    assert list(near.values()) == sorted(near.values(), reverse=True)
    assert near["nn.ReLU"] == catalogue.pair_count("nn.ReLU", "nn.Conv2d")
    assert all(catalogue.count(name) == 0 for name in catalogue.added)


def test_building_merges_spellings_drops_what_is_missing_and_says_how_many() -> None:
    table = {
        "source": "s", "modules": 9,
        "api": [["nn.ReLU", 5], ["nn.modules.ReLU", 2], ["F.relu", 4], ["F.gone", 3], ["torch.zeros", 8]],
        "pairs": [["F.relu", "nn.ReLU", 3], ["nn.modules.ReLU", "F.relu", 1], ["nn.ReLU", "torch.zeros", 2]],
    }  # fmt: skip
    built = filter_counts(table, known=lambda name: name in ("nn.ReLU", "torch.nn.functional.relu", "torch.asinh"))
    assert built["api"] == [["nn.ReLU", 7], ["torch.nn.functional.relu", 4], ["torch.asinh", 0]]
    assert built["pairs"] == [["nn.ReLU", "torch.nn.functional.relu", 4]]
    assert (built["not_in_torch"], built["not_operators"], built["added"]) == (1, 1, ["torch.asinh"])


def test_equal_tables_give_equal_files_and_are_read_back(tmp_path) -> None:
    table = {"source": "s", "modules": 1, "api": [["nn.ReLU", 1]], "pairs": []}
    write_counts(tmp_path / "a.gz", table)
    write_counts(tmp_path / "b.gz", table)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert read_counts(tmp_path / "a.gz") == table
    assert build_main([str(tmp_path / "a.gz"), str(tmp_path / "c.gz")]) == 1  # fewer APIs than the paper
    assert load_catalogue(tmp_path / "c.gz").count("nn.ReLU") == 1


def test_bad_input_is_one_clear_line(tmp_path) -> None:
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="no counts file"):
        read_counts(tmp_path / "bad.gz")
    with pytest.raises(UsageError, match=r"torch\.zeros"):
        load_catalogue().restrict(["nn.ReLU", "torch.zeros"])
    with pytest.raises(LookupError):
        resolve("torch.no_such_thing")
