"""The field's way to judge kernels, beside Keck, on the same candidates: python benchmarks/field_way.py --backend cuda

The field's way, with KernelBench's own evaluation as the example (this is no copy of it): a fresh Python a candidate
imports torch, runs the module under test beside the reference five times and compares with allclose at 1e-2, then
times a hundred calls of each with CUDA events. load_inline builds with torch's own header, pybind11 and ninja. Nothing
is cached: each process has folders of its own for extensions and for Triton.

    keck         all chosen candidates, --parallel judges, nothing cached; the start of the judges is told apart
    single       one judge that is up; one candidate of a task that it has not seen, from asking to the verdict
    sequential   the field, --sequential of them one after another
    parallel     the field, all of them, --parallel processes at once

Not measured: how good the field's times are when several processes share a GPU. They are not, so who wants times that
mean something runs one at a time: "sequential". Interrupted or out of time, it reports what it has; a rate of a part
that was cut counts finished candidates only. Choose --candidates as a multiple of --parallel.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "corpus")]

import gpu_report  # noqa: E402
import read  # noqa: E402
from gpu_report import Clock, an_hour, median, ratio, say  # noqa: E402

from kernelzero.keck import LocalKeck  # noqa: E402
from kernelzero.records import Backend, Candidate  # noqa: E402

TRIALS, TOLERANCE, TIMED_CALLS, WARM_UP = 5, 1e-2, 100, 3
_CPU_TIMED_CALLS = 3
"""In the interpreter, for a try without a GPU."""


@dataclass(frozen=True)
class Judged:
    """What became of one candidate."""

    name: str
    status: str
    seconds: float
    """Wall seconds: a whole process of the field; what the verdict says it took with Keck."""
    is_expected: bool
    reason: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    speedup: float | None = None


# --- the worker: one fresh process a candidate -----------------------------------------------------------------------


def one(name: str, device: str) -> dict[str, Any]:
    """Judge one corpus candidate in this process."""
    started, phases = time.perf_counter(), {}

    def mark(phase: str) -> None:
        phases[phase] = round(time.perf_counter() - started - sum(phases.values()), 3)

    entry = next(e for e in read.entries() if e.name == name)
    import torch

    if entry.candidate.backend is Backend.TRITON:
        import triton  # noqa: F401
    mark("import")
    status, reason, speedup = "compile_error", "", None
    try:
        reference = _module_of_text(read.task(entry.task, small=device == "cpu").source)
        candidate = _module_of_file(entry.path)
        mark("load")
        status = "runtime_error"
        with torch.no_grad():
            models = [_made(make, reference, device) for make in (reference.Model, candidate.ModelNew)]
            reason = _compared(models, reference, device)
            mark("checks")
            status = "incorrect" if reason else "correct"
            if not reason:
                times = [_mean_ms(model, reference, device) for model in models]
                speedup = times[0] / times[1]
                mark("timing")
    except Exception as error:
        mark("failed")
        status = "compile_error" if type(error).__name__ in ("CompilationError", "SyntaxError") else status
        reason = f"{type(error).__name__}: {error}"
    return {"status": status, "reason": " ".join(reason.split())[:300], "speedup": speedup, "phases": phases}


def _module_of_text(source: str) -> ModuleType:
    module = ModuleType("reference")
    exec(compile(source, "reference.py", "exec"), vars(module))
    return module


def _module_of_file(path: Path) -> ModuleType:
    # Triton reads a kernel's text from its file.
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


def _made(make: Any, reference: ModuleType, device: str) -> Any:
    import torch

    torch.manual_seed(42)
    init = _moved(reference.get_init_inputs(), device)
    torch.manual_seed(42)
    return make(*init).to(device)


def _moved(values: Any, device: str) -> list[Any]:
    return [v.to(device) if hasattr(v, "to") else v for v in values]


def _compared(models: list[Any], reference: ModuleType, device: str) -> str:
    """Why the two disagree; "" where they do not."""
    import torch

    for trial in range(TRIALS):
        torch.manual_seed(trial)
        inputs = _moved(reference.get_inputs(), device)
        outputs = []
        for model in models:
            torch.manual_seed(trial)
            outputs.append(_leaves(model(*inputs)))
            _wait(device)
        if len(outputs[0]) != len(outputs[1]):
            return f"{len(outputs[1])} outputs, not {len(outputs[0])}"
        for due, got in zip(*outputs, strict=True):
            if got.shape != due.shape or got.dtype != due.dtype:
                return f"{tuple(got.shape)} {got.dtype}, not {tuple(due.shape)} {due.dtype}"
            if not torch.allclose(got, due, rtol=TOLERANCE, atol=TOLERANCE):
                return f"trial {trial}: values differ"
    return ""


def _leaves(output: Any) -> list[Any]:
    if isinstance(output, dict):
        output = list(output.values())
    return [t for item in output for t in _leaves(item)] if isinstance(output, list | tuple) else [output]


def _mean_ms(model: Any, reference: ModuleType, device: str) -> float:
    inputs = _moved(reference.get_inputs(), device)
    for _ in range(WARM_UP):
        model(*inputs)
    _wait(device)
    clock = _host_ms if device == "cpu" else _event_ms
    calls = _CPU_TIMED_CALLS if device == "cpu" else TIMED_CALLS
    return sum(clock(lambda: model(*inputs)) for _ in range(calls)) / calls


def _event_ms(call: Callable[[], Any]) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _host_ms(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


# --- the field's way: processes --------------------------------------------------------------------------------------


class Process:
    """One worker, with folders that nobody else uses."""

    def __init__(self, entry: read.Entry, options: argparse.Namespace) -> None:
        self.entry, self.timeout_s = entry, options.timeout_s
        self.folder = Path(tempfile.mkdtemp(prefix="field-"))
        private = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TMPDIR")
        for name in private:
            (self.folder / name).mkdir()
        environment = os.environ | {name: str(self.folder / name) for name in private}
        environment |= {"TORCH_CUDA_ARCH_LIST": options.arch, "PYTHONWARNINGS": "ignore"}
        environment |= {"TRITON_INTERPRET": "1"} if options.device == "cpu" else {}
        command = [sys.executable, __file__, "--one", entry.name, "--device", options.device]
        self.started = time.monotonic()
        with (self.folder / "said").open("wb") as said, (self.folder / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
            )

    def ended(self) -> Judged | None:
        """The result, once there is one."""
        seconds = time.monotonic() - self.started
        if self.process.poll() is None:
            if seconds < self.timeout_s:
                return None
            self.stop()
            return self._judged({"status": "timeout", "reason": f"not finished in {self.timeout_s} s"}, seconds)
        lines = (self.folder / "said").read_text(errors="replace").splitlines()
        try:
            result = json.loads(lines[-1])
        except (IndexError, ValueError):
            last = (self.folder / "errors").read_text(errors="replace").strip().splitlines()[-1:]
            result = {"status": "runtime_error", "reason": f"ended with {self.process.returncode}: {''.join(last)}"}
        self.stop()
        return self._judged(result, seconds)

    def stop(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _judged(self, result: dict[str, Any], seconds: float) -> Judged:
        return Judged(self.entry.name, seconds=round(seconds, 2),
                      is_expected=result["status"] in self.entry.expect, **result)  # fmt: skip


def field_verdicts(entries: Sequence[read.Entry], at_once: int, options: argparse.Namespace) -> Iterator[Judged]:
    """Results as they come, at most `at_once` processes at a time; none is left when this ends, however it ends."""
    waiting, running = list(entries), []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(Process(waiting.pop(0), options))
            for process in list(running):
                judged = process.ended()
                if judged is not None:
                    running.remove(process)
                    yield judged
            time.sleep(0.01)
    finally:
        for process in running:
            process.stop()


# --- Keck ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fresh_keck(workers: int, device: str) -> Iterator[LocalKeck]:
    """A Keck whose cache is empty."""
    before = os.environ.get("KERNELZERO_CACHE")
    with tempfile.TemporaryDirectory(prefix="keck-cache-", ignore_cleanup_errors=True) as folder:
        os.environ["KERNELZERO_CACHE"] = folder
        try:
            with LocalKeck(workers, device=device) as keck:
                yield keck
        finally:
            os.environ.pop("KERNELZERO_CACHE")
            if before is not None:
                os.environ["KERNELZERO_CACHE"] = before


def brought_up(keck: LocalKeck, backend: Backend) -> float:
    """Seconds until every judge has answered: each gets a text that is no candidate."""
    begun = time.monotonic()
    task = read.task(read.task_names()[0])
    list(keck.judge([(task, Candidate(f"# nothing {i}", backend)) for i in range(keck.workers)]))
    return time.monotonic() - begun


def keck_verdicts(keck: LocalKeck, entries: Sequence[read.Entry], small: bool) -> Iterator[Judged]:
    """Verdicts as they come, timed."""
    for index, verdict in keck.judge([(read.task(e.task, small), e.candidate) for e in entries]):
        yield Judged(
            entries[index].name,
            verdict.status.value,
            verdict.judged_s,
            verdict.status.value in entries[index].expect,
            verdict.reason[:300],
            dict(getattr(verdict, "phases", None) or {}),
            verdict.speedup,
        )


def keck_part(entries: Sequence[read.Entry], options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """All of them, many judges."""
    found: list[Judged] = []
    start_s = 0.0
    with clock.part() as span, fresh_keck(options.parallel, options.device) as keck:
        start_s = brought_up(keck, Backend(options.backend))
        say(f"  {keck.workers} judges are up after {start_s:.1f} s")
        span.started = time.monotonic()
        _collect(found, keck_verdicts(keck, entries, options.device == "cpu"), len(entries), span)
    return _summary(found, len(entries), span) | {"start_s": round(start_s, 1), "workers": options.parallel}


def single_part(entries: Sequence[read.Entry], options: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """One judge that is up and has judged another task's candidate; each of these with a task that is new to it."""
    found: list[Judged] = []
    chosen = list({e.task: e for e in reversed(entries)}.values())[::-1]
    chosen, others = chosen[: options.single], chosen[options.single :]
    with clock.part() as span, fresh_keck(1, options.device) as keck:
        small = options.device == "cpu"
        brought_up(keck, Backend(options.backend))
        list(keck_verdicts(keck, others[:1], small))
        for entry in chosen:
            begun = time.monotonic()
            (judged,) = keck_verdicts(keck, [entry], small)
            whole = round(time.monotonic() - begun, 3)
            found.append(Judged(**asdict(judged) | {"seconds": whole}))
            say(f"  {entry.name}: {judged.status}, {whole:.2f} s")
    span.seconds = sum(judged.seconds for judged in found)
    return _summary(found, len(chosen), span)


# --- the whole -------------------------------------------------------------------------------------------------------


def field_part(
    entries: Sequence[read.Entry], at_once: int, options: argparse.Namespace, clock: Clock, share: float
) -> dict[str, Any]:
    """The field's way, `at_once` at a time."""
    found: list[Judged] = []
    with clock.part(share) as span, contextlib.closing(field_verdicts(entries, at_once, options)) as results:
        _collect(found, results, len(entries), span)
    return _summary(found, len(entries), span)


def _collect(found: list[Judged], results: Iterator[Judged], count: int, span: gpu_report.Span) -> None:
    for judged in results:
        found.append(judged)
        # What follows the last result, closing Keck for instance, is no part of the rate.
        span.seconds = time.monotonic() - span.started
        mark = "" if judged.is_expected else f", not as expected: {judged.reason[:120]}"
        say(f"  {len(found)} of {count} {judged.name}: {judged.status}, {judged.seconds:.2f} s{mark}")


def _summary(found: list[Judged], asked: int, span: gpu_report.Span) -> dict[str, Any]:
    seconds = span.seconds
    names = list(dict.fromkeys(name for judged in found for name in judged.phases))
    return {
        "asked": asked,
        "judged": len(found),
        "as_expected": sum(judged.is_expected for judged in found),
        "seconds": round(seconds, 1),
        "an_hour": an_hour(len(found), seconds),
        "median_s": median(judged.seconds for judged in found),
        "phases_s": {name: median(j.phases[name] for j in found if name in j.phases) for name in names},
        "cut": span.cut,
        "candidates": [asdict(judged) for judged in found],
    }


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """How much faster Keck is."""

    def rate(part: str) -> float | None:
        return found.get(part, {}).get("an_hour")

    single = {j["name"]: j["seconds"] for j in found.get("single", {}).get("candidates", [])}
    field_s = {j["name"]: j["seconds"] for j in found.get("sequential", {}).get("candidates", [])}
    both = [name for name in single if name in field_s]
    return {
        "an hour, Keck by the field in parallel": ratio(rate("keck"), rate("parallel")),
        "an hour, Keck by the field one after another": ratio(rate("keck"), rate("sequential")),
        "seconds alone, the field by Keck, median": ratio(
            found.get("sequential", {}).get("median_s"), found.get("single", {}).get("median_s")
        ),
        f"seconds alone, the field by Keck, same {len(both)} candidates": ratio(
            sum(field_s[name] for name in both), sum(single[name] for name in both)
        ),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All parts; the field's, which take longest, last."""
    gpu_report.load_client()
    clock = Clock(options.budget_s)
    entries = chosen_entries(options)
    found: dict[str, Any] = {
        "options": {name: getattr(options, name) for name in ("backend", "seed", "candidates", "timeout_s")},
        "at_once": options.parallel,
        "machine": gpu_report.machine(options.device),
    }
    first = entries[: options.sequential]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "keck": lambda: keck_part(entries, options, clock),
        "single": lambda: single_part(entries, options, clock),
        "sequential": lambda: field_part(first, 1, options, clock, 0.5),
        "parallel": lambda: field_part(entries, options.parallel, options, clock, 1.0),
    }
    for name in options.parts:
        if clock.left_s:
            say(f"{name}, {clock.left_s:.0f} s left")
            found[name] = parts[name]()
            gpu_report.write(options.out, found | {"ratios": ratios(found)})
    return found | {"ratios": ratios(found)}


def chosen_entries(options: argparse.Namespace) -> list[read.Entry]:
    """A random sample of the corpus."""
    entries = read.entries(Backend(options.backend))
    return random.Random(options.seed).sample(entries, min(options.candidates, len(entries)))


def show(found: dict[str, Any]) -> None:
    """The table, last."""
    on = found["machine"]
    say(f"\n{found['options']['backend']}, {on['gpu'] or 'no GPU'}, {on['cores']} cores, torch {on['torch']}")
    titles = {
        "sequential": "the field, one after another",
        "parallel": f"the field, {found['at_once']} at once",
        "keck": f"Keck, {found['at_once']} judges",
        "single": "Keck, one judge, one candidate",
    }
    rows = [
        (title, p["asked"], p["judged"], p["as_expected"], p["seconds"], p["median_s"], p["an_hour"], p["cut"])
        for name, title in titles.items()
        if (p := found.get(name))
    ]
    head = ("", "asked", "judged", "as expected", "seconds", "median s", "an hour", "cut")
    gpu_report.table(head, rows)
    for name in titles:
        if found.get(name, {}).get("phases_s"):
            say(f"median seconds of phases, {titles[name]}: {found[name]['phases_s']}")
    for candidate in found.get("sequential", {}).get("candidates", []):
        say(f"one after another: {candidate['name']}: {candidate['seconds']} s {candidate['phases']}")
    if "keck" in found:
        say(f"start of the judges, not in the rate: {found['keck']['start_s']} s")
    for name, value in found["ratios"].items():
        say(f"{name}: {value}")


def put_ninja_on_path() -> bool:
    """Whether there is ninja, without which torch builds no extension; pip puts it beside Python."""
    beside = Path(sys.executable).parent
    if shutil.which("ninja") is None and (beside / "ninja").is_file():
        os.environ["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("ninja") is not None


def main() -> int:
    """0; 2 where the field's way cannot work on this machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # "single" first: libraries come from the disk once, and neither way should pay for that.
    names = ["single", "keck", "sequential", "parallel"]
    parser.add_argument("parts", nargs="*", default=names, help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--backend", default="cuda", choices=["triton", "cuda"])
    parser.add_argument("--candidates", type=int, default=24, help="a random sample of the corpus")
    parser.add_argument("--sequential", type=int, default=3, help="how many of them one after another")
    parser.add_argument("--single", type=int, default=3, help="how many of them one judge judges alone")
    parser.add_argument("--parallel", type=int, default=12, help="processes at once, and judges")
    parser.add_argument("--timeout-s", type=float, default=300.0, help="for one process of the field")
    parser.add_argument("--budget-s", type=float, default=560.0, help="for everything")
    parser.add_argument("--arch", default="9.0", help="TORCH_CUDA_ARCH_LIST")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: a try in Triton's interpreter")
    parser.add_argument("--out", type=Path, help="default: results/field_way_BACKEND.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.device)), flush=True)
        # What native code prints while it ends would come after the result.
        os._exit(0)
    if not set(options.parts) <= set(names):
        parser.error(f"parts are {', '.join(names)}")
    if options.backend == "cuda" and {"sequential", "parallel"} & set(options.parts) and not put_ninja_on_path():
        print("ninja is not on PATH: torch builds no extension without it, so the field's way cannot run", flush=True)
        return 2
    options.out = options.out or HERE / "results" / f"field_way_{options.backend}.json"
    show(run(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
