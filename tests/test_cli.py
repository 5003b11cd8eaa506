"""The command line as a user meets it: exit codes, one clear line, JSON on standard output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXPLOITS = Path(__file__).resolve().parent.parent / "exploits"


def kernelzero(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelzero.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=120)


def assert_one_line(result: subprocess.CompletedProcess[str], code: int) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_check_prints_a_verdict_and_exits_by_it() -> None:
    reference = str(EXPLOITS / "references" / "softmax.py")
    right = kernelzero("check", reference, str(EXPLOITS / "controls" / "softmax_correct.py"), "--json")
    assert right.returncode == 0, right.stderr
    verdict = json.loads(right.stdout)
    assert verdict["status"] == "correct"
    assert verdict["basis"] == "modelled"
    assert verdict["speedup"] > 0 and verdict["reference_ms"] > 0 and verdict["candidate_ms"] > 0
    assert verdict["device"].startswith("cpu")
    wrong = kernelzero("check", reference, str(EXPLOITS / "controls" / "softmax_wrong.py"), "--json")
    assert wrong.returncode == 1
    assert json.loads(wrong.stdout)["status"] == "incorrect"
    assert json.loads(wrong.stdout)["speedup"] is None


def test_a_reference_that_cannot_run_is_bad_usage(tmp_path: Path) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text("import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x.nope()\n"
                         "def get_inputs(): return [torch.randn(4)]\ndef get_init_inputs(): return []\n")  # fmt: skip
    result = kernelzero("check", str(reference), str(EXPLOITS / "controls" / "softmax_correct.py"))
    assert_one_line(result, 2)
    assert "nope" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "missing.py", "missing.py"),
        ("propose-check", "missing.py", "--apis", "nn.Linear"),
        ("extract", "missing.txt"),
        ("coevolve", "missing.toml"),
        ("report", "missing-folder"),
        ("bench", "--tasks", "missing-folder"),
        ("bench", "--model", "./missing-model"),
        ("apis", "mine", "no_such_package_anywhere"),
        ("apis", "sample", "--size", "7"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...]) -> None:
    assert_one_line(kernelzero(*arguments), 2)


def test_unknown_key_in_a_configuration_is_named(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[coder]\nmodel = "nano:coder"\nlearning_rate = 1\n')
    result = kernelzero("coevolve", str(config))
    assert_one_line(result, 2)
    assert "coder.learning_rate" in result.stderr


def test_extract_prints_code_or_the_reason() -> None:
    answer = "Sure:\n```python\nclass ModelNew:\n    pass\n```\n"
    found = kernelzero("extract", "-", stdin=answer)
    assert found.returncode == 0 and found.stdout.strip() == "class ModelNew:\n    pass"
    cut = kernelzero("extract", "-", "--finish", "length", stdin=answer[:-5])
    assert cut.returncode == 1 and "truncated" in cut.stderr


def test_doctor_names_every_command() -> None:
    facts = json.loads(kernelzero("doctor", "--json").stdout)
    assert {"check", "propose-check", "extract", "bench", "coevolve", "report"} <= set(facts["commands"])


def test_propose_check() -> None:
    reference = str(EXPLOITS / "references" / "softmax.py")
    valid = kernelzero("propose-check", reference, "--apis", "torch.softmax", "--json")
    report = json.loads(valid.stdout)
    assert report["valid"] is (valid.returncode == 0)
    refused = kernelzero("propose-check", reference, "--apis", "nn.Linear")
    assert refused.returncode == 1 and "nn.Linear" in refused.stdout
