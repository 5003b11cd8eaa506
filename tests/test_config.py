from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelzero.config import Config, first_difference, load_config, parse_config
from kernelzero.errors import UsageError
from kernelzero.records import Backend, Role

MODELS = {"proposer": {"model": "a"}, "coder": {"model": "b"}}
CONFIGS = Path(__file__).parent.parent / "configs"


def test_defaults_are_the_papers():
    config = parse_config(MODELS)
    assert (config.rounds.count, config.proposer.steps, config.coder.steps) == (4, 20, 20)
    assert config.proposer.steps * config.proposer.api_sets_per_step == 400
    assert (config.proposer.group, config.proposer.coder_samples, config.coder.group) == (4, 5, 5)
    assert (config.coder.alpha, config.coder.beta, config.proposer.kl) == (0.5, 0.1, 1e-2)
    assert config.curriculum.api_sets == 4000
    assert config.folder == Path("runs/run")
    assert config.role(Role.CODER).backend is Backend.TRITON


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_read(path):
    assert load_config(path).run.name == path.stem


def test_the_paper_s_preset_has_the_paper_s_numbers():
    config = load_config(CONFIGS / "paper-7b.toml")
    assert config.rounds.count == 4
    assert (config.proposer.steps, config.coder.steps) == (20, 20)
    assert (config.proposer.api_sets_per_step, config.proposer.group, config.proposer.coder_samples) == (20, 4, 5)
    assert (config.coder.modules_per_step, config.coder.group) == (60, 5)
    assert (config.coder.alpha, config.coder.beta) == (0.5, 0.1)


def test_a_server_for_rollouts_is_a_vllm():
    models = {"proposer": {"model": "a"}, "coder": {"model": "b"}}
    with pytest.raises(UsageError, match=r"sampling\.engine"):
        parse_config({**models, "sampling": {"server": "http://gpu:8000"}})
    parse_config({**models, "sampling": {"server": "http://gpu:8000", "engine": "vllm"}})


def test_the_resolved_copy_reads_back_the_same():
    config = parse_config({**MODELS, "training": {"lora": {"rank": 8}}})
    assert parse_config(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"proposer": {"model": "a", "stesp": 3}}, r"unknown key proposer\.stesp \(did you mean steps\?\)"),
        ({"prposer": {}}, r"unknown key prposer \(did you mean proposer\?\)"),
        ({"training": {"lora": {"rnak": 3}}}, r"unknown key training\.lora\.rnak \(did you mean rank\?\)"),
        ({"coder": {"model": "b", "lr": -1}}, r"coder\.lr: .*greater than 0, got -1"),
        ({"coder": {"model": "b", "alpha": float("nan")}}, r"coder\.alpha"),
        ({"coder": {"model": "b", "backend": "hip"}}, r"coder\.backend: .*got 'hip'"),
        ({"coder": {"model": "b", "group": 1}}, r"coder\.group"),
        ({"coder": 3}, r"coder: "),
        ({"coder": {"model": "b"}}, r"proposer\.model is missing"),
        ({"proposer": {"model": "a"}}, r"coder\.model is missing"),
        ({"proposer": {"steps": 0}, "coder": {"model": "b"}}, r"curriculum\.pool"),
        ({**MODELS, "run": {"name": "../x y"}}, r"run\.name"),
    ],
)
def test_a_fault_is_one_line_with_its_key(data, says):
    with pytest.raises(UsageError, match=says) as caught:
        parse_config(data, "my.toml")
    assert str(caught.value).startswith("my.toml: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="cannot read the configuration"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[run\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_config(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a text file"):
        load_config(tmp_path / "binary.toml")


def test_the_first_difference_is_named():
    one, other = Config().to_json(), Config().to_json()
    assert first_difference(one, other) is None
    other["coder"]["lr"] = 0.5
    assert first_difference(one, other) == "coder.lr is 1e-06 here and 0.5 there"
