from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from kernelzero import pack as packing
from kernelzero.coevolve import coevolve
from kernelzero.errors import UsageError
from kernelzero.pack import pack, unpack
from kernelzero.records import Role, Task
from kernelzero.runfolder import FILES, RunFolder, read_rows
from tests.fakes import fake_services, make_tiny_model, tiny_config

pytest.importorskip("trl")
LORA = {"lora": {"rank": 4, "alpha": 8}}
INSTALLED = packing._zstandard


@pytest.fixture(autouse=True)
def gzip_only(monkeypatch):
    """Python's own tarfile, with which these tests look into packs, reads no zstd."""
    monkeypatch.setattr(packing, "_zstandard", lambda: None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    (folder / "kernelzero.json").write_text('{"prompt": "compact"}')
    return str(folder)


def run(folder, model, training, stop=None):
    """A run of two rounds; `stop` ends it with an exception, in the second step of the Coder's second phase."""

    def interrupt(event):
        if stop and (event.kind, event.role, event.round, event.step) == ("step", Role.CODER, 2, 2):
            raise stop

    role = {"model": model}
    config = tiny_config(folder, training=training, proposer=role, coder=role)
    coevolve(config, services=fake_services(model), on_event=interrupt)
    return folder


@pytest.fixture(scope="module", params=[{}, LORA], ids=["all weights", "adapters"])
def runs(request, tiny, tmp_path_factory):
    """A run that went through, and the same stopped on its way."""
    place = tmp_path_factory.mktemp("runs")
    with pytest.raises(KeyboardInterrupt):
        run(place / "stopped", tiny, request.param, KeyboardInterrupt())
    return run(place / "whole", tiny, request.param), place / "stopped", request.param


@pytest.fixture(scope="module")
def stopped(runs):
    return runs[1]


def untimed(rows):
    """Without the clock: `time`, `seconds` and whatever is named as seconds."""
    timed = ("time", "seconds")
    return [{key: row[key] for key in row if key not in timed and not key.endswith("_s")} for row in rows]


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def names_in(archive):
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def nothing_in(folder):
    return not folder.exists() or not any(folder.iterdir())


def test_a_run_that_moved_ends_as_if_it_had_stayed(runs, tiny, tmp_path):
    whole, stopped, training = runs
    before = snapshot(stopped)
    assert any(name.startswith("pending/") for name in before)
    [archive] = pack(stopped, tmp_path / "run")
    assert snapshot(stopped) == before
    moved = unpack([archive], tmp_path / "elsewhere" / "run")
    assert [row["step"] for row in read_rows(moved / "steps.jsonl")] == [1, 2, 1, 2, 3, 4, 3]
    run(moved, tiny, training)
    assert untimed(read_rows(moved / "steps.jsonl")) == untimed(read_rows(whole / "steps.jsonl"))
    for name in set(FILES) - {"steps.jsonl"}:
        assert read_rows(moved / name) == read_rows(whole / name)
    for role in Role:
        last = RunFolder(moved).last_checkpoint(role)
        [weights] = last.glob("*model.safetensors")
        assert weights.read_bytes() == (whole / role.value / "checkpoint-4" / weights.name).read_bytes()


def test_it_holds_what_resuming_reads_and_nothing_else(runs, tmp_path):
    _, stopped, training = runs
    (stopped / "report.html").write_text("a page")
    (stopped / "summary.json").write_text("{}")
    [archive] = pack(stopped, tmp_path / "run.tar.gz")
    weights = {"adapter_model.safetensors", "adapter_config.json"}
    if not training:
        weights = {"model.safetensors", "config.json", "generation_config.json"}
    trainer = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}
    each = weights | trainer | {"kernelzero.json", "complete"}
    prompts = {f"prompts/{role}-{number}.jsonl" for role in ("proposer", "coder") for number in (1, 2)}
    steps = {"proposer": 4, "coder": 3}
    checkpoints = {f"{role}/checkpoint-{step}/{name}" for role, step in steps.items() for name in each}
    assert names_in(archive) == {"config.json", "pack.json", *FILES, *prompts, *checkpoints}
    assert not list(archive.parent.glob(".pack*"))


def test_what_arrives_is_what_left(stopped, tmp_path):
    moved = unpack(pack(stopped, tmp_path / "run"), tmp_path / "moved")
    for name, data in snapshot(moved).items():
        assert (stopped / name).read_bytes() == data, name
    checkpoint = moved / "coder" / "checkpoint-3"
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {p.name for p in checkpoint.iterdir()}


def test_a_tokenizer_of_its_own_is_packed(stopped, tmp_path):
    changed = tmp_path / "changed"
    shutil.copytree(stopped, changed)
    path = changed / "coder" / "checkpoint-3" / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    [archive] = pack(changed, tmp_path / "run")
    found = {name for name in names_in(archive) if "tokenizer" in name}
    assert found == {"coder/checkpoint-3/tokenizer_config.json"}
    moved = unpack([archive], tmp_path / "moved")
    assert (moved / "coder" / "checkpoint-3" / "tokenizer_config.json").read_bytes() == path.read_bytes()


def test_an_adapter_finds_its_base_where_the_start_model_is_now(tiny, tmp_path):
    folder = small_run(tmp_path / "run", tiny, {"adapter_config.json": '{"base_model_name_or_path": "/gone"}'})
    moved = unpack(pack(folder, tmp_path / "pack"), tmp_path / "moved")
    config = json.loads((moved / "coder" / "checkpoint-1" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == tiny


def small_run(folder, model, files=None, **sections):
    """A run folder as a run would leave it, without training."""
    checkpoint = folder / "coder" / "checkpoint-1"
    checkpoint.mkdir(parents=True)
    role = {"model": model}
    config = tiny_config(folder, proposer=role, coder=role, **sections)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    (folder / "pool.jsonl").write_text('{"key": "a"}\n')
    for name, text in {"complete": "", "optimizer.pt": "x", **(files or {})}.items():
        (checkpoint / name).write_text(text)
    return folder


def test_rows_that_a_kill_left_behind_their_checkpoint_travel(tiny, tmp_path):
    folder = small_run(tmp_path / "run", tiny)
    run = RunFolder(folder)
    run.stage(Role.CODER, 1, {"steps.jsonl": [{"reward": 1.0}]})
    run.stage(Role.CODER, 2, {"steps.jsonl": [{"reward": 2.0}]})
    moved = unpack(pack(folder, tmp_path / "pack"), tmp_path / "moved")
    assert [p.name for p in (moved / "pending").iterdir()] == ["coder-1.json"]
    RunFolder(moved).recover()
    assert [row["reward"] for row in read_rows(moved / "steps.jsonl")] == [1.0]


def test_given_modules_travel_and_go_on_travelling(tiny, tmp_path):
    pool = tmp_path / "pool.jsonl"
    pool.write_text(json.dumps({"task": Task("module").to_json(), "outcomes": [True]}) + "\n")
    folder = small_run(tmp_path / "run", tiny, curriculum={"pool": str(pool)})
    moved = unpack(pack(folder, tmp_path / "one"), tmp_path / "moved")
    assert (moved / "given-pool.jsonl").read_bytes() == pool.read_bytes()
    pool.rename(tmp_path / "gone")
    again = unpack(pack(moved, tmp_path / "two"), tmp_path / "again")
    assert (again / "given-pool.jsonl").read_bytes() == (tmp_path / "gone").read_bytes()
    with pytest.raises(UsageError, match="no file of modules"):
        pack(folder, tmp_path / "three")


def test_benchmark_results_travel(tiny, tmp_path):
    folder = small_run(tmp_path / "run", tiny)
    (folder / "bench").mkdir()
    for name in ("benchmark-before.json", "bench/before.json", "bench/before.samples.jsonl", "done.json"):
        (folder / name).write_text("{}")
    (folder / "bench" / "before.jsonl.new").write_text("half")
    moved = unpack(pack(folder, tmp_path / "pack"), tmp_path / "moved")
    assert json.loads((moved / "done.json").read_text()) == {}
    assert {p.name for p in (moved / "bench").iterdir()} == {"before.json", "before.samples.jsonl"}
    assert (moved / "benchmark-before.json").exists()


# --- parts, limits, refusals -----------------------------------------------------------------------------------------


def test_parts_in_any_order_and_what_is_wrong_with_them(stopped, tmp_path):
    [whole] = pack(stopped, tmp_path / "whole")
    made = pack(stopped, tmp_path / "run", part_mb=0.02)
    *parts, listed = made
    assert len(parts) > 3 and all(part.stat().st_size <= 20_000 for part in parts)
    assert b"".join(part.read_bytes() for part in parts) == whole.read_bytes()
    assert snapshot(unpack(made[::-1], tmp_path / "a")) == snapshot(unpack([whole], tmp_path / "b"))
    assert snapshot(unpack([parts[2]], tmp_path / "c")) == snapshot(tmp_path / "b")
    with pytest.raises(UsageError, match=r"whole\.tar\.\w+ is no part of a pack"):
        unpack([*made, whole], tmp_path / "d")
    data = parts[1].read_bytes()
    parts[1].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UsageError, match=rf"{parts[1].name} is damaged"):
        unpack(made, tmp_path / "d")
    parts[1].unlink()
    with pytest.raises(UsageError, match="there is no file"):
        unpack(made, tmp_path / "d")
    with pytest.raises(UsageError, match=rf"{parts[1].name} is missing"):
        unpack([parts[0]], tmp_path / "d")
    listed.unlink()
    with pytest.raises(UsageError, match=r"parts\.json is missing"):
        unpack([parts[0]], tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_too_large_says_what_takes_how_much(runs, tmp_path):
    _, stopped, training = runs
    with pytest.raises(UsageError) as caught:
        pack(stopped, tmp_path / "run", limit_mb=0.01)
    text = str(caught.value)
    assert "larger than 0.01 MB (optimizer.pt " in text and "\n" not in text
    assert ("a training.lora.rank below 4" if training else "adapters ([training.lora])") in text
    assert nothing_in(tmp_path)


def test_a_run_at_work_is_not_packed(stopped, tmp_path):
    with RunFolder(stopped).locked(), pytest.raises(UsageError, match="another process is at work"):
        pack(stopped, tmp_path / "run")
    assert nothing_in(tmp_path)


def test_what_is_no_run_and_what_is_there_already(stopped, tiny, tmp_path):
    for folder in (tmp_path / "none", Path(tiny)):
        with pytest.raises(UsageError, match="is no run folder"):
            pack(folder, tmp_path / "run")
    [archive] = pack(stopped, tmp_path)
    assert archive.name.startswith("stopped.tar.")
    with pytest.raises(UsageError, match="is there already"):
        pack(stopped, tmp_path, part_mb=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        unpack([archive], tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["a"]
    (tmp_path / "empty").mkdir()
    assert unpack([archive], tmp_path / "empty") == tmp_path / "empty"


def test_a_start_model_that_is_not_here_is_one_line(tiny, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    folder = small_run(tmp_path / "run", str(model))
    with packing.saved_tokenizer(str(model)) as saved:
        for path in saved:
            shutil.copy(path, folder / "coder" / "checkpoint-1")
    [archive] = pack(folder, tmp_path / "pack")
    shutil.rmtree(model)
    with pytest.raises(UsageError, match="the coder starts from a model that is not here"):
        unpack([archive], tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


def rewritten(archive, to, change):
    """The pack with its members given to `change`, which returns those to write."""
    with tarfile.open(archive) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(to, "w:gz") as tar:
        for member, data in change(members):
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return to


def link(kind):
    info = tarfile.TarInfo("coder/link")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


HOSTILE = {
    "up": lambda: tarfile.TarInfo("../escaped"),
    "up within": lambda: tarfile.TarInfo("coder/../../escaped"),
    "absolute": lambda: tarfile.TarInfo("/tmp/kernelzero-escaped"),
    "backslash": lambda: tarfile.TarInfo("..\\escaped"),
    "symbolic link": lambda: link(tarfile.SYMTYPE),
    "hard link": lambda: link(tarfile.LNKTYPE),
    "device": lambda: link(tarfile.CHRTYPE),
    "folder": lambda: link(tarfile.DIRTYPE),
    "twice": lambda: tarfile.TarInfo("config.json"),
    "below a file": lambda: tarfile.TarInfo("config.json/x"),
    "itself": lambda: tarfile.TarInfo("."),
    "not in the index": lambda: tarfile.TarInfo("more.txt"),
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("place", [1, -1])
def test_nothing_is_written_outside_and_no_links(kind, place, tiny, tmp_path):
    [archive] = pack(small_run(tmp_path / "run", tiny), tmp_path / "pack")
    position = {1: lambda n: n - 1, -1: lambda n: n}[place]

    def add(members):
        at = position(len(members))
        return [*members[:at], (HOSTILE[kind](), b""), *members[at:]]

    bad = rewritten(archive, tmp_path / "bad.tar.gz", add)
    before = {p.name for p in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="no pack of a run"):
        unpack([bad], tmp_path / "moved")
    assert {p.name for p in tmp_path.iterdir()} == before
    assert not Path("/tmp/kernelzero-escaped").exists()


def test_damage_is_found(tiny, tmp_path):
    [archive] = pack(small_run(tmp_path / "run", tiny), tmp_path / "pack")
    changed = rewritten(
        archive,
        tmp_path / "a.tar.gz",
        lambda m: [(i, d.replace(b'"a"', b'"b"') if i.name == "pool.jsonl" else d) for i, d in m],
    )
    without = rewritten(archive, tmp_path / "b.tar.gz", lambda m: [x for x in m if x[0].name != "pool.jsonl"])
    no_index = rewritten(archive, tmp_path / "c.tar.gz", lambda m: m[:-1])
    cut = tmp_path / "d.tar.gz"
    cut.write_bytes(archive.read_bytes()[:-200])
    text = tmp_path / "e.tar.gz"
    text.write_text("no archive at all")
    for bad in (changed, without):
        with pytest.raises(UsageError, match=r"pool\.jsonl is missing or has another checksum"):
            unpack([bad], tmp_path / "moved")
    for bad in (no_index, cut, text):
        with pytest.raises(UsageError, match="is no pack of a run, or damaged"):
            unpack([bad], tmp_path / "moved")
    data = bytearray(archive.read_bytes())
    for position in range(20, len(data), 97):
        data[position] ^= 255
        cut.write_bytes(data)
        with pytest.raises(UsageError):
            unpack([cut], tmp_path / "moved")
        data[position] ^= 255
    assert not (tmp_path / "moved").exists()


def test_without_zstandard_it_is_gzip_and_either_is_read(stopped, tmp_path, monkeypatch):
    [archive] = pack(stopped, tmp_path / "pack")
    assert archive.name == "pack.tar.gz"
    unpack([archive], tmp_path / "a")
    pytest.importorskip("zstandard")
    monkeypatch.setattr(packing, "_zstandard", INSTALLED)
    with pytest.raises(UsageError, match="larger than"):
        pack(stopped, tmp_path / "pack", limit_mb=0.01)
    [other] = pack(stopped, tmp_path / "pack")
    assert other.name == "pack.tar.zst"
    assert snapshot(unpack([other], tmp_path / "b")) == snapshot(unpack([archive], tmp_path / "c"))
    assert snapshot(unpack(pack(stopped, tmp_path / "cut", part_mb=0.02), tmp_path / "d")) == snapshot(tmp_path / "b")
    data = other.read_bytes()
    for bad in (data[:-50], data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]):
        other.write_bytes(bad)
        with pytest.raises(UsageError, match="damaged"):
            unpack([other], tmp_path / "e")
    monkeypatch.setattr(packing, "_zstandard", lambda: None)
    with pytest.raises(UsageError, match="install the package zstandard"):
        unpack([other], tmp_path / "e")


@pytest.mark.parametrize("model", ["nobody/has-this", "/gone/model", "a name with spaces"])
def test_a_start_model_that_is_not_on_this_machine_is_not_looked_for_elsewhere(model, tiny, tmp_path, monkeypatch):
    def never(model):
        raise AssertionError(model)

    monkeypatch.setattr(packing, "saved_tokenizer", never)
    folder = small_run(tmp_path / "run", model, {"tokenizer.json": "{}"})
    [archive] = pack(folder, tmp_path / "pack")
    assert "coder/checkpoint-1/tokenizer.json" in names_in(archive)
    unpack([archive], tmp_path / "moved")
