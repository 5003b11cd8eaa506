"""A run on the move: one compressed file, or numbered parts, that hold what the run needs to go on elsewhere.

    NAME.tar.gz                the files and, last, `pack.json` with the size and checksum of each
    NAME.tar.gz.001, .002, …   the same, cut; NAME.tar.gz.parts.json has their checksums

Where the package zstandard is installed it is NAME.tar.zst.

Packed are the configuration, all rows, prompts, benchmark results, the file of given modules, and of each role's newest
complete checkpoint what resuming reads. A tokenizer that is the start model's is left out and written anew on arrival.
Not packed: start models, benchmark tasks that are a folder of their own, older checkpoints, reports.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

import kernelzero
from kernelzero.errors import UsageError
from kernelzero.export import (
    ADAPTER_FILE,
    ADAPTER_WEIGHTS,
    BIN_WEIGHTS,
    GENERATION_FILE,
    SAFE_WEIGHTS,
    TOKENIZER,
    matching,
    point_at_base,
    run_config,
    saved_tokenizer,
    start_model,
    whole_folder,
)
from kernelzero.policy.profile import PROFILE_FILE
from kernelzero.records import Role
from kernelzero.runfolder import COMPLETE, GIVEN_POOL, RunFolder, read_json, write_whole

MEGABYTE = 1_000_000
RUN_FILES = ("config.json", "done.json", "benchmark-*.json", "*.jsonl", "prompts/*.jsonl")
BENCH_FILES = ("bench/*.json", "bench/*.jsonl", "bench/*.md")
TRAINER_FILES = (
    "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin",
)  # fmt: skip
MODEL_FILES = (*SAFE_WEIGHTS, *BIN_WEIGHTS, *ADAPTER_WEIGHTS, *TOKENIZER, ADAPTER_FILE, GENERATION_FILE, PROFILE_FILE)
CHECKPOINT_FILES = (*MODEL_FILES, "config.json", *TRAINER_FILES, COMPLETE)
INDEX, PARTS, FORMAT = "pack.json", ".parts.json", 1
# Measured on an adapter's optimizer state and on rows: xz is ten times slower than gzip and saves another 1 % and 2 %.
_ZSTD_LEVEL, _GZIP_LEVEL, _CHUNK = 3, 6, 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DAMAGED = (
    tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError, KeyError, TypeError, AttributeError,
    FileExistsError, NotADirectoryError,
)  # fmt: skip


class _TooLargeError(Exception):
    """The pack grew over its limit."""


def pack(run: str | Path, out: str | Path, *, limit_mb: float = 64, part_mb: float | None = None) -> list[Path]:
    """Pack a run folder; the files written, the list of parts last.

    Args:
        run: A run folder in which no process is at work.
        out: Name of the pack; the suffix of its compression is added. In a folder that exists it is named as the run.
        limit_mb: Most megabytes (million bytes) of the whole pack.
        part_mb: Megabytes of one part; None for a single file.

    Raises:
        UsageError: This is no run, it is at work, the pack exists already or would be too large.
    """
    folder, out = RunFolder(run), Path(out)
    if part_mb is not None and part_mb * MEGABYTE < 1:
        raise UsageError(f"a part of {part_mb} MB holds nothing")
    config = run_config(folder.path)
    if config is None:
        raise UsageError(f"{run} is no run folder: it has no config.json of a run")
    target = _target(folder, out)
    target.parent.mkdir(parents=True, exist_ok=True)
    with folder.locked(), tempfile.TemporaryDirectory(prefix=".pack-", dir=target.parent) as scratch:
        whole = Path(scratch) / target.name
        files, left_out = _contents(folder, config)
        try:
            _write(whole, files, {"kernelzero": kernelzero.__version__, "tokenizers": left_out}, limit_mb * MEGABYTE)
        except _TooLargeError:
            raise UsageError(_too_large(folder.path, config, files, limit_mb)) from None
        made = [whole] if part_mb is None else _cut(whole, int(part_mb * MEGABYTE))
        return [Path(shutil.move(path, target.parent / path.name)) for path in made]


def unpack(parts: Sequence[str | Path], run: str | Path) -> Path:
    """Unpack a run into a new folder, whole or not at all; the folder.

    Args:
        parts: What `pack` wrote, in any order.
        run: A folder that is empty or not there yet.

    Raises:
        UsageError: A part is missing or damaged, this is no pack, the folder is in use, or the start model is not here.
    """
    paths = _verified([Path(part) for part in parts])
    with whole_folder(Path(run)) as new:
        try:
            tokenizers = _extract(paths, new)
        except _DAMAGED as error:
            raise UsageError(f"{paths[0]} is no pack of a run, or damaged: {_first_line(error)}") from error
        config = run_config(new)
        if config is None:
            raise UsageError(f"{paths[0]} is no pack of a run: it has no config.json of one")
        for role in Role:
            _settle_in(new, role, start_model(config, role), tokenizers)
    return Path(run)


# --- what goes in ----------------------------------------------------------------------------------------------------


def _contents(folder: RunFolder, config: dict[str, Any]) -> tuple[dict[str, Path], dict[str, list[str]]]:
    """Files by their names in the pack, and by checkpoint the names of those that the start model can give."""
    paths = [path for path in matching(folder.path, (*RUN_FILES, *BENCH_FILES)) if path.name not in (INDEX, GIVEN_POOL)]
    left_out: dict[str, list[str]] = {}
    for role in Role:
        done = folder.steps_done(role)
        # A kill between a checkpoint and its rows leaves them here; the resumed run appends them.
        pending = matching(folder.path, [f"pending/{role.value}-*.json"])
        paths += [path for path in pending if int(path.stem.rsplit("-", 1)[1]) <= done]
        checkpoint = folder.last_checkpoint(role)
        if checkpoint is not None:
            given = _given_by_start_model(checkpoint, start_model(config, role))
            paths += [path for path in matching(checkpoint, CHECKPOINT_FILES) if path.name not in given]
            if given:
                left_out[checkpoint.relative_to(folder.path).as_posix()] = given
    files = {path.relative_to(folder.path).as_posix(): path for path in paths}
    pool = _given_pool(folder.path, config)
    return files | ({GIVEN_POOL: pool} if pool else {}), left_out


def _given_pool(run: Path, config: dict[str, Any]) -> Path | None:
    name = config.get("curriculum", {}).get("pool")
    if not name:
        return None
    found = next((path for path in (run / GIVEN_POOL, Path(name)) if path.is_file()), None)
    if found is None:
        raise UsageError(f"there is no file of modules {name}, which the run reads")
    return found


def _given_by_start_model(checkpoint: Path, model: str) -> list[str]:
    """The checkpoint's files that are, byte for byte, its start model's tokenizer; it is not downloaded for this."""
    if not _is_here(model):
        return []
    try:
        with saved_tokenizer(model) as saved:
            return [path.name for path in saved if _same(path, checkpoint / path.name)]
    except UsageError:
        return []


def _is_here(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    if Path(model).is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(model, "tokenizer_config.json"), str)
    except ValueError:  # no name that a hub model can have
        return False


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _too_large(run: Path, config: dict[str, Any], files: dict[str, Path], limit_mb: float) -> str:
    sizes: dict[str, int] = {}
    for name, path in files.items():
        kind = PurePosixPath(name).name if "/checkpoint-" in name else "rows and results"
        sizes[kind] = sizes.get(kind, 0) + path.stat().st_size
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:4]
    what = ", ".join(f"{kind} {size / MEGABYTE:.1f} MB" for kind, size in largest)
    lora = config.get("training", {}).get("lora")
    advice = (
        f"a training.lora.rank below {lora['rank']}" if lora else "adapters ([training.lora]) instead of all weights"
    )
    return f"the pack of {run} is larger than {limit_mb:g} MB ({what}): train {advice} in a new run, or raise the limit"


# --- writing ---------------------------------------------------------------------------------------------------------


def _target(folder: RunFolder, out: Path) -> Path:
    out = out / folder.path.resolve().name if out.is_dir() else out
    stem = out.name.split(".tar")[0]
    target = out.with_name(f"{stem}.tar.{'zst' if _zstandard() else 'gz'}")
    there = [path for path in (target, _part(target, 1), _listed(target)) if path.exists()]
    if there:
        raise UsageError(f"{there[0]} is there already; choose another name")
    return target


def _part(target: Path, number: int) -> Path:
    return target.with_name(f"{target.name}.{number:03}")


def _listed(target: Path) -> Path:
    return target.with_name(target.name + PARTS)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _write(whole: Path, files: dict[str, Path], index: dict[str, Any], limit: float) -> None:
    with (
        whole.open("wb") as raw,
        _compressed(_Limited(raw, limit)) as packed,
        tarfile.TarFile(fileobj=packed, mode="w") as tar,
    ):
        sums = {name: _add(tar, name, path) for name, path in sorted(files.items())}
        text = json.dumps({"format": FORMAT, **index, "files": sums}, indent=1).encode()
        _add_stream(tar, INDEX, io.BytesIO(text), len(text))


def _compressed(file: Any) -> Any:
    zstd = _zstandard()
    if zstd:
        return zstd.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False)
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=_GZIP_LEVEL, mtime=0)


class _Limited:
    """A file that refuses to grow over a limit."""

    def __init__(self, file: IO[bytes], limit: float) -> None:
        self.file, self.left = file, limit

    def write(self, data: bytes) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise _TooLargeError
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


class _Summing:
    """Sums up what is read through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.sum, self.bytes = file, hashlib.sha256(), 0

    def read(self, size: int = -1, /) -> bytes:
        data = self.file.read(size)
        self.sum.update(data)
        self.bytes += len(data)
        return data

    def result(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "sha256": self.sum.hexdigest()}


def _add(tar: tarfile.TarFile, name: str, path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return _add_stream(tar, name, file, os.fstat(file.fileno()).st_size)


def _add_stream(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> dict[str, Any]:
    info, summing = tarfile.TarInfo(name), _Summing(file)
    info.size, info.mode = size, 0o644
    tar.addfile(info, summing)
    return summing.result()


def _cut(whole: Path, size: int) -> list[Path]:
    rows: list[dict[str, Any]] = []
    made: list[Path] = []
    with whole.open("rb") as file:
        while data := file.read(size):
            made.append(_part(whole, len(made) + 1))
            made[-1].write_bytes(data)
            rows.append({"name": made[-1].name, **_sum(made[-1])})
    write_whole(_listed(whole), json.dumps({"format": FORMAT, "parts": rows}, indent=1) + "\n")
    return [*made, _listed(whole)]


def _sum(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        summing = _Summing(file)
        while summing.read(_CHUNK):
            pass
    return summing.result()


# --- reading ---------------------------------------------------------------------------------------------------------


def _verified(given: list[Path]) -> list[Path]:
    """The parts in their order, each there and with its checksum; a single file as it is."""
    if not given:
        raise UsageError("say which files to unpack")
    missing = next((path for path in given if not path.is_file()), None)
    if missing:
        raise UsageError(f"there is no file {missing}")
    cut = [path for path in given if path.name.endswith(PARTS) or path.suffix[1:].isdigit()]
    if not cut and len(given) == 1:
        return given
    if len(cut) < len(given):
        raise UsageError(f"{next(p for p in given if p not in cut)} is no part of a pack; name the parts of one only")
    first = cut[0].name
    listed = cut[0].with_name(first if first.endswith(PARTS) else cut[0].stem + PARTS)
    return _by_list(listed, given)


def _by_list(listed: Path, given: list[Path]) -> list[Path]:
    rows = (read_json(listed) or {}).get("parts")
    if not rows:
        raise UsageError(f"{listed} is missing or empty: it has the checksums of the parts and travels with them")
    places, found = {path.name: path for path in given}, []
    for row in rows:
        name = PurePosixPath(row["name"]).name
        path = places.get(name, listed.with_name(name))
        if not path.is_file():
            raise UsageError(f"the part {name} is missing")
        if _sum(path) != {key: row[key] for key in ("bytes", "sha256")}:
            raise UsageError(f"the part {path} is damaged: its checksum is another; copy it again")
        found.append(path)
    strange = places.keys() - {path.name for path in (*found, listed)}
    if strange:
        raise UsageError(f"{min(strange)} is no part of the pack {listed}")
    return found


class _Joined(io.RawIOBase):
    """Files read one after the other."""

    def __init__(self, paths: list[Path]) -> None:
        self.files = [path.open("rb") for path in paths]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        counts = (file.readinto(buffer) for file in self.files)
        return next((count for count in counts if count), 0)

    def close(self) -> None:
        for file in self.files:
            file.close()
        super().close()


@contextlib.contextmanager
def _reading(paths: list[Path]) -> Iterator[tarfile.TarFile]:
    with io.BufferedReader(_Joined(paths)) as raw:
        if raw.peek(4)[:4] != _ZSTD_MAGIC:
            with tarfile.open(fileobj=raw, mode="r|*") as tar:
                yield tar
            return
        zstd = _zstandard()
        if not zstd:
            raise UsageError(f"{paths[0]} is compressed with zstd; install the package zstandard")
        try:
            with zstd.ZstdDecompressor().stream_reader(raw) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
                yield tar
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from error


def _extract(paths: list[Path], new: Path) -> dict[str, list[str]]:
    """Write every file and compare it with the index; what was left out, by checkpoint."""
    sums: dict[str, dict[str, Any]] = {}
    index: dict[str, Any] = {}
    with _reading(paths) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isreg() and _is_inside(member.name) else None
            if file is None or index or member.name in sums:
                raise ValueError(f"it holds {member.name!r}, which no run has")
            if member.name == INDEX:
                index = json.loads(file.read())
            else:
                sums[member.name] = _save(file, new / member.name)
    if index.get("format") != FORMAT:
        raise ValueError(f"its format is {index.get('format')}, not {FORMAT}")
    wrong = sorted(name for name in sums.keys() | index["files"].keys() if sums.get(name) != index["files"].get(name))
    if wrong:
        raise ValueError(f"{wrong[0]} is missing or has another checksum")
    return {str(name): [str(file) for file in files] for name, files in index["tokenizers"].items()}


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return name == str(path) and not path.is_absolute() and not {"..", "."} & set(path.parts) and "\\" not in name


def _save(file: IO[bytes], path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    summing = _Summing(file)
    with path.open("xb") as out:
        shutil.copyfileobj(summing, out, _CHUNK)
    return summing.result()


def _settle_in(run: Path, role: Role, model: str, tokenizers: dict[str, list[str]]) -> None:
    """Give a role's checkpoint what this machine's start model has: the tokenizer, and where the base lies."""
    checkpoint = RunFolder(run).last_checkpoint(role)
    if checkpoint is None:
        return
    if (checkpoint / ADAPTER_FILE).is_file():
        point_at_base(checkpoint / ADAPTER_FILE, model, checkpoint / ADAPTER_FILE)
    if not tokenizers.get(checkpoint.relative_to(run).as_posix()):
        return
    try:
        with saved_tokenizer(model) as saved:
            for path in saved:
                if not (checkpoint / path.name).exists():
                    shutil.copyfile(path, checkpoint / path.name)
    except UsageError as error:
        raise UsageError(f"the {role.value} starts from a model that is not here: {error}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
