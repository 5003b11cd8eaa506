"""The builder: what is kept and what is not, interruptions, budgets, the files at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelzero.coldstart import build as building
from kernelzero.coldstart.build import BuildSettings, build
from kernelzero.coldstart.commands import app
from kernelzero.coldstart.nearness import Excluder
from kernelzero.coldstart.rows import CorpusRow, load_answers, load_rows
from kernelzero.coldstart.tasks import Draft, Folder
from kernelzero.coldstart.teachers import Assignment, Lesson, Principle, TeacherDown
from kernelzero.coldstart.teachers.endpoint import EndpointTeacher
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.records import Backend, Basis, Candidate, GateReport, Status, Task, Timing, Verdict
from tests.replay_server import ReplayServer, Reply, failed, said

OPERATORS = ("relu", "exp", "tanh", "sin", "cos", "abs", "erf", "sigmoid", "neg", "square")


def module(number: int, name: str = "x") -> str:
    """Distinct chains of operators by number."""
    a, b = OPERATORS[number % 10], OPERATORS[(number // 10 + 3) % 10]
    return (
        "import torch\n\n\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, {name}):\n        return torch.{a}(torch.{b}({name})) + {number}.5\n\n\n"
        "def get_inputs():\n    return [torch.randn(4)]\n\n\ndef get_init_inputs():\n    return []\n"
    )


class Modules:
    """A source in memory."""

    name, most = "memory", None

    def __init__(self, changes: dict[int, str] | None = None) -> None:
        self.changes = changes or {}

    def drafts(self, numbers: Sequence[int]) -> Iterator[Draft]:
        for n in numbers:
            source = self.changes.get(n, module(n))
            yield Draft(n, (f"torch.{OPERATORS[n % 10]}",), source, asked=False, detail="" if source else "cannot")


class FakeTeacher:
    """Writes a kernel that has the sample's number; refuses and fails by number of the call."""

    name, concurrency = "fake", 2

    def __init__(self, refuses: str = "", down: bool = False, same: bool = False) -> None:
        self.refuses, self.down, self.same, self.asked = refuses, down, same, 0

    def teach(self, assignment: Assignment) -> Lesson:
        self.asked += 1
        if self.down:
            raise TeacherDown("nobody there")
        if self.refuses and self.refuses in assignment.task.source:
            return Lesson(refusal="no_code", detail="nothing", principle=assignment.principle.value)
        number = 0 if self.same else assignment.sample
        code = f"class ModelNew:\n    number = {number}\n    # {assignment.sample}\n"
        return Lesson("because", code, assignment.principle.value, seconds=0.01)

    def most_tokens(self, assignment: Assignment) -> int:
        return 0

    def close(self) -> None:
        pass


class StubKeck:
    """Says what the module's text asks for; stops for good after `lives` verdicts."""

    def __init__(self, lives: int = 10**9) -> None:
        self.lives, self.judged = lives, 0

    def judge(self, jobs: Sequence[tuple[Task, Candidate]], *, timed: bool = True) -> Iterator[tuple[int, Verdict]]:
        for index, (task, candidate) in reversed(list(enumerate(jobs))):
            self.judged += 1
            if self.judged > self.lives:
                raise InfrastructureError("Keck stopped")
            wrong = "incorrect" in task.source
            status = Status.INCORRECT if wrong else Status.INFRA_ERROR if "broken" in task.source else Status.CORRECT
            timing = Timing(Basis.MODELLED, 2.0, 1.0, 2.0, 2.0, 2.0) if status is Status.CORRECT else None
            yield index, Verdict(status, "a stub says so", "stub", candidate.backend, timing)

    def examine(self, jobs: Sequence[tuple[Task, Sequence[str]]]) -> Iterator[tuple[int, GateReport]]:
        for index, (task, _) in reversed(list(enumerate(jobs))):
            valid = "infinite" not in task.source
            yield index, GateReport(valid, "" if valid else "finite", "a stub says so")

    def close(self) -> None:
        pass


def run(folder: Path, count: int = 20, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "source": Modules(),
        "teacher": FakeTeacher(),
        "keck": StubKeck(),
        "excluder": Excluder([]),
    }
    settings = {k: options.pop(k) for k in ("samples", "budget_tokens", "seed") if k in options}
    given |= options
    return build(folder, settings=BuildSettings(count, **settings), say=lambda _: None, **given)


def plain(folder: Path) -> dict[int, dict[str, Any]]:
    """Rows without what a clock says."""
    return {n: {**row.to_json(), "seconds": None} for n, row in load_rows(folder).items()}


def test_only_correct_kernels_are_kept_and_every_refusal_is_counted(tmp_path: Path) -> None:
    changes = {
        1: module(1) + "# incorrect",
        2: module(2) + "# infinite",
        3: "",
        4: module(0, name="renamed"),
        5: module(40),
        6: module(6).replace("+ 6.5", "* 2"),
        7: "not python (",
    }
    benchmark = Excluder([Task(module(40).replace("40.5", "1"), name="level1/40")])
    facts = run(tmp_path, 12, source=Modules(changes), teacher=FakeTeacher(refuses=module(8)), excluder=benchmark)
    assert facts["outcomes"] == {
        "kept": 5, "benchmark": 1, "compose": 1, "duplicate": 1, "gate:finite": 1, "gate:parse": 1,
        "teacher:no_code": 1, "verdict:incorrect": 1,
    }  # fmt: skip
    rows = load_rows(tmp_path)
    assert rows[5].detail == "level1/40 (1.00)" and rows[4].detail == "as number 0"
    assert (rows[0].speedup, rows[0].basis, rows[0].device) == (2.0, "modelled", "stub")
    assert facts["corpus"] == 5 and facts["yield"] == pytest.approx(5 / 12, abs=1e-4)


def test_the_parquet_file_has_the_kept_rows_and_the_card_says_what_they_are(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    facts = run(tmp_path, 8, samples=4)
    table = pq.read_table(tmp_path / "corpus-triton.parquet").to_pylist()
    assert [row["number"] for row in table] == list(range(8))
    assert {row["principle"] for row in table[:4]} == {"tiling", "fusion", "pipelining", "reordering"}
    assert table[0]["kernel"].startswith("class ModelNew") and table[0]["apis"] == ["torch.relu"]
    assert facts == json.loads((tmp_path / "card.json").read_text())
    assert facts["modules"] == 2 and facts["operators"] == {"3": 8} and facts["principle"]["fusion"] == 2
    assert facts["versions"]["torch"] and set(facts["seconds"]) >= {"draw", "gate", "teach", "judge", "wall"}
    card = (tmp_path / "card.md").read_text()
    assert "| torch.relu | 4 |" in card and "8 kernels for 2 modules" in card


def test_equal_kernels_of_a_module_are_in_the_corpus_once(tmp_path: Path) -> None:
    facts = run(tmp_path, 8, samples=4, teacher=FakeTeacher(same=True))
    assert facts["corpus"] == 2 and facts["outcomes"]["duplicate:kernel"] == 6


@pytest.mark.parametrize("lives", [0, 1, 7, 13])
def test_a_build_that_was_interrupted_ends_like_one_that_was_not(tmp_path: Path, lives: int) -> None:
    changes = {9: module(2, "renamed"), 2: module(12, "other"), 17: module(17) + "# incorrect"}
    run(tmp_path / "whole", source=Modules(changes))
    with pytest.raises(InfrastructureError):
        run(tmp_path / "torn", source=Modules(changes), keck=StubKeck(lives))
    with (tmp_path / "torn" / "rows.jsonl").open("a") as file:
        file.write('{"number": 3, "tor')
    run(tmp_path / "torn", source=Modules(changes))
    assert plain(tmp_path / "torn") == plain(tmp_path / "whole")
    whole, torn = ((tmp_path / name / "corpus-triton.parquet").read_bytes() for name in ("whole", "torn"))
    assert whole == torn


def test_a_finished_build_does_nothing_and_can_grow(tmp_path: Path) -> None:
    run(tmp_path, 10)
    idle = FakeTeacher()
    run(tmp_path, 10, teacher=idle)
    assert idle.asked == 0
    run(tmp_path, 14, teacher=idle)
    assert idle.asked == 4 and len(load_rows(tmp_path)) == 14


def test_another_build_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 2)
    with pytest.raises(UsageError, match="seed is 1 here and 0 there"):
        run(tmp_path, 2, seed=1)


def test_verdicts_that_say_nothing_are_asked_for_again(tmp_path: Path) -> None:
    changes = {1: module(1) + "# broken"}
    teacher = FakeTeacher()
    assert run(tmp_path, 3, source=Modules(changes), teacher=teacher)["outcomes"]["infra:keck"] == 1
    facts = run(tmp_path, 3, teacher=teacher, source=Modules({1: module(1) + "# broken"}))
    assert facts["rows"] == 3 and teacher.asked == 3, "the answer was there already"


def test_a_teacher_that_is_gone_ends_the_build_and_keeps_what_was_done(tmp_path: Path) -> None:
    run(tmp_path, 5)
    with pytest.raises(InfrastructureError, match="8 lessons in a row failed, what was done is kept: nobody there"):
        run(tmp_path, 40, teacher=FakeTeacher(down=True))
    assert sum(row.kept for row in load_rows(tmp_path).values()) == 5
    assert run(tmp_path, 40)["corpus"] == 40


def kernel(number: int) -> str:
    return f"Fusion.\n```python\nclass ModelNew:\n    number = {number}\n```"


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    server = ReplayServer(lambda i, body: said(kernel(i), tokens=(100, 50)))
    yield server
    server.stop()


def endpoint(server: ReplayServer, **options: Any) -> EndpointTeacher:
    given = {"concurrency": 4, "retries": 1, "pause_s": 0.01, "timeout_s": 5.0, "max_tokens": 100}
    return EndpointTeacher(server.url, "m", **{**given, **options})


def test_an_endpoint_that_fails_in_every_way_is_survived(tmp_path: Path, server: ReplayServer) -> None:
    bad = {
        0: failed(429), 1: failed(500), 2: Reply(200, "{not json"), 3: said("no code here"), 4: said(kernel(4) * 2),
        5: said(kernel(5)[:-12], finish="length"), 6: Reply(200, "late", wait_s=2.5), 7: said("```python\nx = (\n```"),
    }  # fmt: skip
    server.script = lambda i, body: bad.get(i, said(kernel(i)))
    facts = run(tmp_path, 30, teacher=endpoint(server, timeout_s=2.0, retries=3))
    assert facts["outcomes"] == {"kept": 27, "teacher:no_code": 2, "teacher:truncated": 1}
    assert facts["tokens"] == {"answers": 30, "prompt": 3000, "completion": 1500}
    assert 1 < server.most_at_once <= 4


def test_a_budget_is_never_overrun_and_a_larger_one_goes_on(tmp_path: Path, server: ReplayServer) -> None:
    teacher = endpoint(server)
    one = teacher.most_tokens(Assignment(Task(module(0)), Backend.TRITON, "NVIDIA H200", Principle.TILING, 0, 0))
    facts = run(tmp_path, 30, teacher=teacher, budget_tokens=one + 1000)
    spent = facts["tokens"]["prompt"] + facts["tokens"]["completion"]
    assert 150 <= spent <= one + 1000 and facts["rows"] == spent // 150 < 30
    assert facts["stopped"].startswith("the budget of") and "Stopped by" in (tmp_path / "card.md").read_text()
    asked = len(server.bodies)
    assert run(tmp_path, 30, teacher=endpoint(server), budget_tokens=one + 1000)["rows"] == facts["rows"]
    assert len(server.bodies) == asked
    assert run(tmp_path, 30, teacher=endpoint(server))["corpus"] == 30
    assert len(server.bodies) == 30, "no answer was paid for twice"


def test_answers_that_were_paid_for_are_judged_after_a_kill(tmp_path: Path, server: ReplayServer) -> None:
    with pytest.raises(InfrastructureError):
        run(tmp_path, 12, teacher=endpoint(server), keck=StubKeck(lives=2))
    paid = len(load_answers(tmp_path))
    assert paid > 2
    spent = sum(answer.lesson.tokens for answer in load_answers(tmp_path))
    facts = run(tmp_path, 12, teacher=endpoint(server), budget_tokens=spent)
    assert facts["corpus"] == paid and facts["stopped"]


def test_folders_are_tasks_by_number(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for number in range(3):
        (tasks / f"{number}_task.py").write_text(module(number))
    facts = run(tmp_path / "out", 6, source=Folder(tasks), samples=2)
    assert facts["corpus"] == 6 and facts["modules"] == 3
    with pytest.raises(UsageError, match="6 numbers"):
        run(tmp_path / "more", 7, source=Folder(tasks), samples=2)


def test_rows_keep_their_fields_through_json() -> None:
    row = CorpusRow(3, "id", "m", ("torch.relu",), speedup=1.5, seconds={"judge": 0.5})
    assert CorpusRow.from_json(json.loads(json.dumps(row.to_json()))) == row
    assert building.CHUNK > 0


def test_the_command_survives_kill_9(tmp_path: Path) -> None:
    tasks, out = tmp_path / "tasks", tmp_path / "out"
    tasks.mkdir()
    for number in range(2):
        (tasks / f"{number}_task.py").write_text(module(number))
    command = [sys.executable, "-m", "kernelzero.cli", "coldstart", "build", str(out), "--tasks", str(tasks)]
    command += ["--workers", "1"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while not _lines(out / "rows.jsonl") and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = _lines(out / "rows.jsonl")
    assert done > 0
    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert second.returncode == 0, second.stderr
    facts = json.loads(second.stdout)
    assert facts["rows"] == 2 and facts["corpus"] == 2 and _lines(out / "rows.jsonl") == 2
    assert "rows/s" in second.stderr


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--count", "3", "--backend", "cuda"),
        ("--count", "3", "--teacher", "http://localhost:1/v1"),
        ("--count", "3", "--exclude", "nowhere"),
        (),
    ],
)
def test_what_cannot_be_built_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        app(["build", str(tmp_path / "out"), *arguments], standalone_mode=False)
    assert "\n" not in str(caught.value)
