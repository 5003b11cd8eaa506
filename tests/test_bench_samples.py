"""Samples from elsewhere, tasks in KernelBench's layout, and kinds of tasks: all read as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelzero.bench import load_tasks, named_tasks
from kernelzero.bench.baselines import WritingSampler, reference_as_candidate
from kernelzero.bench.categories import category, group
from kernelzero.bench.imported import read_samples
from kernelzero.errors import UsageError
from kernelzero.records import Backend, Prompt, Sampling
from tests.bench_folder import DOUBLED, RIGHT, make_kernelbench, task


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_kernelbench(tmp_path)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_checkout_is_read_as_it_is(checkout: Path):
    names = [t.name for t in load_tasks(checkout)]
    assert names[:4] == [
        "level1/1_Affine_map",
        "level1/2_Nearly_nothing_",
        "level1/3_Constant",
        "level1/10_Broken_matmul",
    ]
    assert [t.name for t in load_tasks(checkout, [2])] == ["level2/1_Shifted_ReLU"]
    assert load_tasks(checkout / "KernelBench") == load_tasks(checkout)
    assert [t.name for t in load_tasks(checkout / "KernelBench" / "level2")] == ["level2/1_Shifted_ReLU"]


def test_levels_that_are_not_there(checkout: Path):
    with pytest.raises(UsageError, match=r"no tasks of level 3 in .*: it has levels 1, 2"):
        load_tasks(checkout, [1, 3])
    with pytest.raises(UsageError, match="built-in tasks have no levels"):
        named_tasks("builtin", [1])


def test_kinds_and_groups_of_tasks():
    assert category(DOUBLED) == "elementwise"
    assert category(task("return torch.relu(self.c(x))", init="self.c = nn.ConvTranspose2d(1, 2, 3)")) == "convolution"
    assert category(task("return x @ x.T + x.sum()")) == "matrix product"
    assert category(task("return torch.cumsum(x, 1)")) == "scan"
    assert [group(n) for n in ("level1/3_x", "mine/a", "single_add", "other")] == ["level 1", "mine", "single", "tasks"]


def test_samples_by_name_and_by_problem(checkout: Path, tmp_path: Path):
    tasks = load_tasks(checkout)
    code = RIGHT["level1/1_Affine_map"]
    path = write(
        tmp_path / "s.jsonl",
        {"task": "level1/1_Affine_map", "sample_id": 5, "code": code},
        {"task": "1_Affine_map.py", "sample_id": 2, "text": "no", "tokens": 3, "finish": "length"},
        {"level": 1, "problem_id": 10, "code": "x"},
        {"task": "level9/unknown", "code": "x"},
    )
    found = read_samples(path, tasks)
    first = found.by_task[tasks[0].id]
    assert [(s.sample, s.is_code, s.tokens) for s in first] == [(2, False, 3), (5, True, 0)]
    assert found.most == 2 and found.left_out == 1 and tasks[3].id in found.by_task


def test_samples_of_kernelbenchs_scripts(checkout: Path, tmp_path: Path):
    tasks, runs = load_tasks(checkout), tmp_path / "runs"
    runs.mkdir()
    for level, problem, sample in ((1, 1, 1), (1, 1, 0), (2, 1, 0), (3, 7, 0)):
        (runs / f"level_{level}_problem_{problem}_sample_{sample}_kernel.py").write_text(f"# {level} {sample}")
    (runs / "level_1_problem_1_sample_0_prompt.txt").write_text("not a kernel")
    found = read_samples(runs, tasks)
    assert [s.text for s in found.by_task[tasks[0].id]] == ["# 1 0", "# 1 1"]
    assert found.left_out == 1 and len(found.by_task) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("[]", "has to be a JSON object"),
        ('{"task": "1_Affine_map"}', 'needs "code" or "text"'),
        ('{"code": "x", "level": 1}', 'needs "task", or "level" and "problem_id"'),
        ('{"code": "x", "level": 1, "problem_id": "three"}', "problem_id 'three' is no number"),
        ('{"code": "x", "task": "softmax"}', "softmax is none of the 5 tasks"),
        ('{"code": "x", "task": "1_Affine_map", "sample_id": 0}\n' * 2, "sample 0 was there before"),
        ("", "holds no samples"),
    ],
)
def test_bad_samples_are_one_line(checkout: Path, tmp_path: Path, row: str, message: str):
    path = tmp_path / "bad.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(UsageError, match=message) as error:
        read_samples(path, load_tasks(checkout))
    assert "\n" not in str(error.value)


def test_the_reference_becomes_a_candidate():
    text = reference_as_candidate(load_tasks_of(DOUBLED), Backend.TRITON)
    scope: dict = {}
    exec(compile(text.replace("@triton.jit", ""), "candidate", "exec"), scope)
    assert {"ModelNew", "get_inputs"} <= set(scope) and "Model" not in scope
    assert "copy_kernel<<<" in reference_as_candidate(load_tasks_of(DOUBLED), Backend.CUDA)


def load_tasks_of(source: str):
    from kernelzero.records import Task

    return Task(source)


def test_a_writer_that_cannot_is_an_answer_without_code():
    def write_or_not(asked, number, backend):
        if number:
            raise LookupError("no rule for\nsort")
        return f"# {backend.value} {len(asked.source)}\n"

    sampler = WritingSampler("rules", write_or_not, Backend.CUDA)
    [answers] = sampler.sample([Prompt(({"role": "user", "content": "abc"},))], 2, Sampling())
    assert answers[0].text == "```python\n# cuda 3\n```\n" and answers[1].text == "No kernel: no rule for sort"
