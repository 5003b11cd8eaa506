"""The report of whole, partial, broken and hostile run folders."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_sample import KERNEL, sample_run

from kernelzero.errors import UsageError
from kernelzero.records import Status, Task, content_id
from kernelzero.report import build_report
from kernelzero.report.charts import histogram, line_chart
from kernelzero.report.facts import facts
from kernelzero.report.gallery import exhibits
from kernelzero.report.graph import GraphNode, draw_graph, module_graph
from kernelzero.report.highlight import highlight
from kernelzero.report.reading import read_run

EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>'


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that what opens is closed."""

    VOID = ("meta", "br", "img")

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    return tags


def report(folder: Path) -> tuple[str, dict]:
    page = build_report(folder).read_text()
    return page, json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return sample_run(tmp_path_factory.mktemp("run"))


def edit(folder: Path, name: str, change) -> None:
    path = folder / name
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def test_a_whole_run(whole: Path):
    page, summary = report(whole)
    text = " ".join(parsed(page).text)
    for heading in ("Benchmark before and after", "Training", "around the frontier", "Coder's answers", "Gallery"):
        assert heading in text
    assert summary["rounds"] == 2 and summary["steps"] == {"proposer": 24, "coder": 24}
    assert "Modelled speedup" in text and "no GPU was timed" in text and "round 2" in text
    assert page.count('<svg class="graph"') >= 8 and page.count('class="card exhibit"') >= 9
    assert summary["bench"]["before"]["tasks"] == 42 and summary["bench"]["problem"] is None


def test_the_page_loads_nothing(whole: Path):
    page, _ = report(whole)
    for tag, attributes in parsed(page).seen:
        assert tag not in ("script", "link", "iframe", "img", "object")
        assert not {"src", "href", "onerror", "onload"} & set(attributes)
    assert "url(" not in page and "@import" not in page and "default-src 'none'" in page


def test_equal_folders_give_equal_reports(whole: Path):
    assert build_report(whole).read_bytes() == build_report(whole).read_bytes()


@pytest.mark.parametrize(
    "gain, outcome, words", [(0.4, "better", "solves more"), (0.0, "within_noise", "told from noise")]
)
def test_the_headline_claims_only_what_the_intervals_say(tmp_path: Path, gain, outcome, words):
    page, summary = report(sample_run(tmp_path, gain=gain))
    assert summary["outcome"] == outcome and words in summary["headline"] and "95 % interval" in summary["headline"]
    assert f"headline {outcome}" in page and ("within noise" in page or outcome == "better")


def test_a_loss_is_told(tmp_path: Path):
    sample_run(tmp_path, gain=0.4)
    before, after = (tmp_path / "bench" / f"{side}.jsonl" for side in ("before", "after"))
    first, second = before.read_text(), after.read_text()
    before.write_text(second)
    after.write_text(first)
    _, summary = report(tmp_path)
    assert summary["outcome"] == "worse" and "solves less" in summary["headline"]


PARTS = ["config.json", "steps.jsonl", "proposals.jsonl", "attempts.jsonl", "pool.jsonl", "bench/before.jsonl",
         "bench/after.jsonl"]  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("empty", [True, False])
def test_a_missing_or_empty_part_is_a_sentence(tmp_path: Path, part: str, empty: bool):
    sample_run(tmp_path, tasks=8)
    (tmp_path / part).unlink()
    if empty:
        (tmp_path / part).touch()
    page, summary = report(tmp_path)
    parsed(page)
    if part.startswith("bench"):
        assert summary["outcome"] == "unavailable" and "there is no benchmark" in summary["headline"]


@pytest.mark.parametrize("kept", PARTS)
def test_one_part_alone_makes_a_report(tmp_path: Path, kept: str):
    sample_run(tmp_path / "full", tasks=8)
    (tmp_path / "one" / "bench").mkdir(parents=True)
    (tmp_path / "one" / kept).write_bytes((tmp_path / "full" / kept).read_bytes())
    page, summary = report(tmp_path / "one")
    parsed(page)
    assert summary["outcome"] == "unavailable"


def test_no_run_folder(tmp_path: Path):
    with pytest.raises(UsageError, match="no such run folder"):
        build_report(tmp_path / "none")
    with pytest.raises(UsageError, match="is no run folder"):
        build_report(tmp_path)


def test_a_killed_benchmark_is_unfinished_not_worse(tmp_path: Path):
    sample_run(tmp_path, gain=0.3)
    path = tmp_path / "bench" / "after.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:102]) + '{"key": "torn')
    names = {json.loads(line)["task_id"]: json.loads(line)["task"] for line in lines}
    (tmp_path / "bench" / "after.json").write_text(json.dumps({"n": 5, "tasks": names}))
    _, summary = report(tmp_path)
    assert summary["outcome"] == "unavailable" and "unfinished, 102 of 210" in summary["headline"]
    assert summary["unreadable_lines"] == 0


def test_samples_without_a_verdict_make_no_claim(tmp_path: Path):
    sample_run(tmp_path)

    def fail(row):
        if row["sample"] == 0:
            row["verdict"] |= {"status": Status.INFRA_ERROR.value, "timing": None}
        return row

    edit(tmp_path, "bench/after.jsonl", fail)
    page, summary = report(tmp_path)
    assert summary["outcome"] == "unavailable" and "42 infrastructure errors" in summary["headline"]
    assert "not to be had" in page


def test_mixed_devices_are_not_compared(tmp_path: Path):
    sample_run(tmp_path)

    def move(row):
        row["verdict"]["device"] = "another"
        return row

    edit(tmp_path, "bench/after.jsonl", move)
    _, summary = report(tmp_path)
    assert summary["outcome"] == "unavailable" and "differ in device" in summary["headline"]


def test_a_judged_again_sample_counts_once(tmp_path: Path):
    sample_run(tmp_path, tasks=8)
    path = tmp_path / "bench" / "after.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    row["key"] += "#1"
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    assert report(tmp_path)[1]["bench"]["after"]["samples"] == 40


def test_everything_from_the_run_is_escaped(tmp_path: Path):
    sample_run(tmp_path, tasks=8)

    def spoil(row):
        if row.get("task") and isinstance(row["task"], dict):
            row["task"] |= {"source": row["task"]["source"] + f"# {EVIL}\n", "apis": [EVIL]}
            row["report"]["gate"] = row["report"]["gate"] and EVIL
        elif "task" in row:
            row["task"] = EVIL
        if row.get("candidate"):
            row["candidate"]["source"] = f"'''{EVIL}'''\n{EVIL}"
        if "verdict" in row:
            row["verdict"] |= {"device": EVIL, "reason": EVIL}
        if "role" in row:
            row["role"] = row["role"] if row["step"] else EVIL
            row["seconds"] = {EVIL: 1.0}
        return row

    for name in ("steps.jsonl", "proposals.jsonl", "attempts.jsonl", "bench/before.jsonl", "bench/after.jsonl"):
        edit(tmp_path, name, spoil)
    (tmp_path / "config.json").write_text(json.dumps({EVIL: EVIL}))
    page, _ = report(tmp_path)
    assert "alert" in page and EVIL not in page
    assert not {tag for tag, _ in parsed(page).seen} & {"script", "img"}


def test_odd_values_do_not_crash(tmp_path: Path):
    sample_run(tmp_path, tasks=8)
    odd = {"round": None, "validity": float("nan"), "frontier": "x", "speedup": True, "seconds": None}
    edit(tmp_path, "steps.jsonl", lambda row: {**row, **odd, "role": "proposer"})
    edit(tmp_path, "proposals.jsonl", lambda row: {**row, "report": None, "task": "\ud800"})
    with (tmp_path / "attempts.jsonl").open("a") as file:
        file.write('{"key": "a"}\nnot json\n[1]\n')
    page, summary = report(tmp_path)
    parsed(page)
    assert summary["unreadable_lines"] == 3 and "3 lines of the run folder could not be read" in page


def test_rates_may_stand_in_the_pool(whole: Path, tmp_path: Path):
    sample_run(tmp_path, tasks=8)
    rows = [json.loads(line) for line in (tmp_path / "proposals.jsonl").read_text().splitlines()]
    for row in rows:
        row["task_id"] = Task(row["task"]["source"]).id
    kept = ("round", "step", "task_id", "solve_rate", "task")
    pool = [{name: row[name] for name in kept} for row in rows if row["report"]["valid"]]
    named = [{"id": row.pop("key"), **row} for row in rows]
    for row in named:
        del row["solve_rate"]
    for name, several in (("pool.jsonl", pool), ("proposals.jsonl", named)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in several))
    assert facts(read_run(tmp_path))["proposals"] == facts(read_run(whole))["proposals"]
    assert len(exhibits(read_run(tmp_path))) >= 8


def test_solve_rates_are_spread_by_round(whole: Path):
    found = facts(read_run(whole))["proposals"]
    assert [row["round"] for row in found["per_round"]] == [1, 2]
    assert sum(row["valid"] for row in found["per_round"]) == found["valid"] == found["rated"]
    assert found["proposed"] == found["valid"] + sum(found["refused_by"].values())


def test_the_gallery_is_diverse_and_near_the_frontier(whole: Path):
    shown = exhibits(read_run(whole))
    assert 8 <= len(shown) <= 12
    assert len({exhibit.task.apis for exhibit in shown}) == len(shown)
    assert sum(abs(exhibit.solve_rate - 0.5) < 0.25 for exhibit in shown) > len(shown) / 2
    for exhibit in shown:
        assert exhibit.graph and exhibit.best and exhibit.best.verdict.speedup


def test_a_recorded_graph_is_preferred(tmp_path: Path):
    sample_run(tmp_path, tasks=8)
    shown = exhibits(read_run(tmp_path))[0].task
    nodes = [
        {"id": "x", "op": "placeholder", "label": "x", "inputs": []},
        {"id": "r", "op": "call_function", "label": "traced_op", "inputs": ["x"]},
        {"id": "output", "op": "output", "label": "output", "inputs": ["r"]},
    ]
    row = {"key": "0", "task": shown.to_json(), "graph": {"nodes": nodes}}
    (tmp_path / "pool.jsonl").write_text(json.dumps(row) + "\n")
    assert "traced_op" in report(tmp_path)[0]


@pytest.mark.parametrize("wrong", [None, 3, {}, {"nodes": []}, {"nodes": [3]}, {"nodes": [{"op": "x"}]}])
def test_an_unsound_recorded_graph_falls_back_on_the_source(wrong):
    source = "import torch\nclass Model:\n    def forward(self, x):\n        return torch.relu(x)\n"
    graph = module_graph(source, wrong)
    assert graph and [node.label for node in graph] == ["x", "torch.relu", "output"]
    assert module_graph("not python (", wrong) is None


def test_a_graph_with_a_skip_is_drawn_with_every_edge():
    nodes = [GraphNode("x", "input", "x", ()), GraphNode("a", "operator", "A", ("x",)),
             GraphNode("b", "operator", "B", ("a",)), GraphNode("c", "operator", "C", ("b", "x")),
             GraphNode("o", "output", "output", ("c",))]  # fmt: skip
    drawing = draw_graph(nodes)
    parsed(drawing)
    assert drawing.count("<rect") == 5 and drawing.count('class="edge"') == 5 + 2
    numbers = [float(v) for v in re.findall(r'[xy]="(-?[\d.]+)"', drawing)]
    assert min(numbers) >= 0


def test_large_graphs_and_cycles():
    assert "too large" in draw_graph([GraphNode(str(i), "operator", "a", ()) for i in range(50)])
    loop = {"nodes": [{"id": 1, "op": "a", "inputs": [2]}, {"id": 2, "op": "b", "inputs": [1]}]}
    graph = module_graph("", loop)
    assert graph and "<svg" in draw_graph(graph)


def test_highlighting_keeps_every_character():
    for source in (KERNEL, EVIL, '\'unclosed\n"""open', "x = f'{a}' # é\n\td", ""):
        tags = parsed(highlight(source))
        assert "".join(tags.text) == source
        assert all(tag == "span" for tag, _ in tags.seen)
    assert '<span class="kw">def</span>' in highlight(KERNEL)


@pytest.mark.parametrize("values", [[0.5], [0.0, 0.0], [None, 1.0, None], [-3.0, 1e6], [1e-9, 2e-9]])
def test_charts_of_few_or_extreme_values(values):
    parsed(line_chart(values, [1] * len(values), unit="", role="Coder"))


def test_histogram_counts_every_rate():
    drawing = histogram([0.0, 0.2, 0.2, 1.0], "Round 1")
    assert sorted(re.findall(r": (\d+)</title>", drawing)) == ["1", "1", "2"]
    parsed(histogram([0.123, 0.77], "odd values"))


def test_the_sample_is_made_of_real_records(whole: Path):
    run = read_run(whole)
    assert run.unreadable == 0 and run.first_round == 0
    source = exhibits(run)[0].task.source
    assert Task(source).id == content_id("task", source)
