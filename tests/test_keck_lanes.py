"""Many programs at once give what one after another gives: values bit by bit, the cost model's counts, and faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="judging needs Linux")
ROOT = Path(__file__).resolve().parent.parent
COMPOSED = 24


@pytest.fixture(scope="module")
def compared():
    command = [sys.executable, "-m", "tests.lanes_compare", str(COMPOSED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines, done.stderr[-2000:]
    return {entry["name"]: entry for entry in json.loads(lines[0])}


@pytest.mark.parametrize("name", ["tiles", "scans", "products"])
def test_programs_that_go_one_way_run_at_once(compared, name):
    assert compared[name]["same"] and compared[name]["single"] == "ran"
    assert compared[name]["lanes"] > 0


@pytest.mark.parametrize("name", ["own_ways", "shared_sum"])
def test_programs_of_different_ways_or_with_atomics_run_one_after_another(compared, name):
    assert compared[name]["single"] == "ran"
    assert compared[name]["lanes"] == 0
    # The order of atomics changes from launch to launch on purpose, and with it their rounding.
    assert compared[name]["same"] or name == "shared_sum"


def test_races_and_accesses_outside_are_seen_among_programs_that_run_at_once(compared):
    assert "race in kernel" in compared["race"]["single"]
    assert "outside of the tensors" in compared["outside"]["single"]
    assert compared["own"]["single"] == "ran"
    assert "race in kernel" in compared["neighbours"]["single"]


def test_composed_modules(compared):
    modules = [entry for name, entry in compared.items() if "class Model" in name]
    assert len(modules) > COMPOSED // 2
    assert all(entry["same"] for entry in modules), [entry["name"] for entry in modules if not entry["same"]]
    assert sum(entry["lanes"] > 0 for entry in modules) >= 5
