"""The command line: one command a stage. Heavy imports are late, so that `--help` and errors are instant.

Exit codes: 0 done, 1 a "no" about the thing that was asked about, 2 input that cannot be used, 3 infrastructure, 130
interrupted. What a person reads goes to standard error, what a program reads to standard output.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelzero.bench.commands import bench_app
from kernelzero.coldstart.commands import app as coldstart_app
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.records import ApiSet, Backend, Candidate, Finish, Role, Status, Task

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=(__doc__ or "").split("\n")[0]
)
apis_app = typer.Typer(no_args_is_help=True, help="The catalogue of operator APIs and sets of them.")
nano_app = typer.Typer(no_args_is_help=True, help="The embedded nano models.")
app.add_typer(apis_app, name="apis")
app.add_typer(nano_app, name="nano")
app.add_typer(coldstart_app, name="coldstart")


def _rulebook(task: Task, number: int, backend: Backend) -> str:
    from kernelzero.coldstart.rulebook import VARIANTS, write_kernel

    return write_kernel(task, variant=number % VARIANTS, backend=backend)


app.add_typer(bench_app({"rulebook": _rulebook}), name="bench")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Profile = Annotated[str, typer.Option(help="Tolerances: paper or kernelbench.")]
Policy = Annotated[str, typer.Option(help="Rules: strict, or hybrid to let PyTorch compute beside the kernels.")]
Baseline = Annotated[str, typer.Option(help="Timed against eager or torch.compile (on a GPU).")]


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Keep progress bars and deprecation notices of the libraries underneath off the screen."""
    import warnings

    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)


def read_text(path: Path) -> str:
    """The text of a file, "-" for standard input.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from error


# --- Keck ------------------------------------------------------------------------------------------------------------


@app.command()
def check(
    reference: Annotated[Path, typer.Argument(help="Module with Model, get_inputs and get_init_inputs.")],
    candidate: Annotated[Path, typer.Argument(help="Kernel with ModelNew.")],
    backend: Annotated[Backend, typer.Option(help="Language of the kernel.")] = Backend.TRITON,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for the candidate; 10 on a CPU, 30 on a GPU.", min=0.1)
    ] = None,
    profile: Profile = "paper",
    policy: Policy = "strict",
    baseline: Baseline = "eager",
    as_json: Json = False,
) -> None:
    """Judge one kernel: the verdict on standard output; exit 0 correct, 1 not, 2 bad reference, 3 infrastructure."""
    from kernelzero.keck import limits_for, open_keck

    task, kernel = Task(read_text(reference), name=reference.name), Candidate(read_text(candidate), backend)
    limits = limits_for(device, timeout)
    with open_keck(device, 1, limits, profile=profile, policy=policy, baseline=baseline) as keck:
        _require_reference(keck, task, reference)
        [(_, verdict)] = keck.judge([(task, kernel)])
    print(json.dumps(_flat(verdict), indent=None if as_json else 2))
    raise typer.Exit(_verdict_code(verdict.status))


def _require_reference(keck: Any, task: Task, path: Path) -> None:
    [(_, report)] = keck.examine([(task, [])])
    if report.valid is None:
        raise InfrastructureError(report.reason)
    if not report.valid and report.gate in ("runs", "time", "deterministic"):
        raise UsageError(f"{path}: {report.reason}")


def _flat(verdict: Any) -> dict[str, Any]:
    """A verdict with its times at the top level."""
    data = verdict.to_json()
    timing = data.pop("timing") or {}
    keys = ("basis", "baseline", "reference_ms", "candidate_ms", "speedup", "speedup_low", "speedup_high")
    return {**data, **{key: timing.get(key) for key in keys}}


def _verdict_code(status: Status) -> int:
    return {Status.CORRECT: 0, Status.INFRA_ERROR: 3}.get(status, 1)


@app.command("propose-check")
def propose_check(
    file: Annotated[Path, typer.Argument(help="The proposed module.")],
    apis: Annotated[str, typer.Option(help="APIs it has to use, separated by commas.")],
    timeout: Annotated[float, typer.Option(help="Seconds for the module.", min=0.1)] = 10.0,
    as_json: Json = False,
) -> None:
    """Run the gates on one proposed module; exit 0 valid, 1 refused."""
    from kernelzero.apis import canonical
    from kernelzero.keck import Limits, open_keck
    from kernelzero.proposer import gates

    names = [name.strip() for name in apis.split(",") if name.strip()]
    if not names:
        raise UsageError("--apis names no API")
    unknown = [name for name in names if not _is_torch_name(name)]
    if unknown:
        raise UsageError(f"--apis: {unknown[0]!r} is not the name of a PyTorch API")
    source = read_text(file)
    with open_keck(workers=1, limits=Limits(timeout_s=timeout)) as keck:
        [(_, report)] = gates.check(keck, [(ApiSet(tuple(canonical(n) for n in names)), source)])
    if report.valid is None:
        raise InfrastructureError(report.reason)
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        print("valid" if report.valid else f"refused by the gate {report.gate!r}", f"- {report.reason}")
    raise typer.Exit(0 if report.valid else 1)


def _is_torch_name(name: str) -> bool:
    from kernelzero.apis import resolve

    try:
        resolve(name)
    except LookupError:
        return False
    return True


@app.command()
def extract(
    file: Annotated[Path, typer.Argument(help="Raw answer of a model; - for standard input.")],
    role: Annotated[Role, typer.Option(help="Whose answer it is.")] = Role.CODER,
    finish: Annotated[Finish, typer.Option(help="Why generation ended.")] = Finish.STOP,
) -> None:
    """Print the code in a model's answer, or exit 1 with the reason why there is none."""
    from kernelzero.coder.extract import extract_kernel
    from kernelzero.proposer.parse import parse_module

    found = (extract_kernel if role is Role.CODER else parse_module)(read_text(file), finish)
    if found.code is None:
        say(found.reason)
        raise typer.Exit(1)
    print(found.code)


# --- API sets --------------------------------------------------------------------------------------------------------


@apis_app.command("list")
def apis_list() -> None:
    """Print every API of the catalogue with its count."""
    from kernelzero.apis import load_catalogue

    catalogue = load_catalogue()
    for name in catalogue.apis:
        print(f"{catalogue.count(name):>6} {name}")
    say(f"{len(catalogue.apis)} APIs")


@apis_app.command("sample")
def apis_sample(
    size: Annotated[int, typer.Option(help="Number of sets, half pairs, half triples.")] = 4000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same sets.")] = 0,
) -> None:
    """Draw a pool of API sets, one JSON list a line."""
    from kernelzero.apis import load_catalogue, resolvable, sample_pool

    catalogue, _ = resolvable(load_catalogue())
    for api_set in sample_pool(catalogue, size, seed):
        print(json.dumps(list(api_set.apis)))


@apis_app.command("mine")
def apis_mine(
    packages: Annotated[list[str], typer.Argument(help="Installed packages.")],
    out: Annotated[Path, typer.Option(help="Where the counts go.")] = Path("api_counts.json.gz"),
) -> None:
    """Count APIs and their pairs in the nn.Module classes of installed packages, from their source."""
    from kernelzero.apis.mine import mine, write_counts

    def progress(done: int, total: int, path: Any) -> None:
        if done % 200 == 0 or done == total:
            say(f"{done}/{total} files")

    counts = mine(packages, progress)
    write_counts(out, counts)
    say(f"{counts['modules']} modules, {len(counts['api'])} APIs, {len(counts['pairs'])} pairs → {out}")


# --- runs ------------------------------------------------------------------------------------------------------------


@app.command()
def coevolve(
    config: Annotated[Path, typer.Argument(help="TOML configuration, e.g. configs/demo.toml.")],
    report: Annotated[bool, typer.Option(help="Write the report at the end.")] = True,
) -> None:
    """Train Proposer and Coder in turn; goes on where an interrupted run was, does nothing when done."""
    from kernelzero.coevolve import coevolve as run
    from kernelzero.config import load_config
    from kernelzero.live import Live
    from kernelzero.training.processes import is_main

    settings = load_config(config)
    quiet_libraries()
    if not is_main():  # one of several training processes; the main one shows what goes on
        run(settings)
        return
    with Live(settings) as live:
        folder = run(settings, on_event=live.on_event)
    if report:
        _report(folder)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Run folder, checkpoint, or output of coldstart train.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; empty or not there yet.")],
    role: Annotated[Role, typer.Option(help="Whose model.")] = Role.CODER,
    adapter: Annotated[bool, typer.Option(help="The adapter alone, not merged into its base.")] = False,
) -> None:
    """Write a model as a plain Hugging Face folder for transformers, vLLM and `kernelzero bench`."""
    from kernelzero.export import export_model

    quiet_libraries()
    say(f"model: {export_model(source, role, out, merge=not adapter)}")


@app.command()
def pack(
    run: Annotated[Path, typer.Argument(help="Run folder in which nobody is at work.")],
    out: Annotated[Path, typer.Argument(help="Name of the pack, or a folder for it.")],
    limit: Annotated[float, typer.Option(help="Most megabytes.", min=0.001)] = 64,
    part: Annotated[float | None, typer.Option(help="Megabytes of one part.", min=0.001)] = None,
) -> None:
    """Pack what a run needs to go on elsewhere."""
    from kernelzero.pack import pack as pack_run

    for path in pack_run(run, out, limit_mb=limit, part_mb=part):
        print(path)


@app.command()
def unpack(
    parts: Annotated[list[Path], typer.Argument(help="What pack wrote, all parts of it.")],
    run: Annotated[Path, typer.Argument(help="Run folder; empty or not there yet.")],
) -> None:
    """Unpack a run; `kernelzero coevolve` with its configuration goes on with it."""
    from kernelzero.pack import unpack as unpack_run

    quiet_libraries()
    say(f"run: {unpack_run(parts, run)}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    others: Annotated[list[Path] | None, typer.Option("--with", help="Another run to draw beside it.")] = None,
) -> None:
    """Write summary.json and report.html from a run folder."""
    _report(run, others)


def _report(folder: Path, others: list[Path] | None = None) -> None:
    from kernelzero.report import build_report

    page = build_report(folder, others or ())
    say(f"report: {page}")


# --- embedded models -------------------------------------------------------------------------------------------------


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; anything but this machine needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65535)] = 8017,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Judges, or actors with --ray.", min=1)] = None,
    store: Annotated[Path, typer.Option(help="Verdicts that are known already.")] = Path("runs/keck.sqlite"),
    fresh_timings: Annotated[bool, typer.Option(help="Take the times of known verdicts anew.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one candidate.", min=0.1)] = None,
    profile: Profile = "paper",
    policy: Policy = "strict",
    baseline: Baseline = "eager",
    ray: Annotated[bool, typer.Option(help="Judge on a Ray cluster.")] = False,
    actor_cpus: Annotated[int, typer.Option(help="Judges of one Ray actor.", min=1)] = 1,
) -> None:
    """Serve Keck over HTTP to other runs; the token is that of KERNELZERO_KECK_TOKEN."""
    from kernelzero.keck.serve.service import ServeOptions
    from kernelzero.keck.serve.service import serve as run
    from kernelzero.keck.terms import Terms

    run(
        ServeOptions(
            host=host,
            port=port,
            device=device,
            workers=workers,
            store=store,
            fresh_timings=fresh_timings,
            terms=Terms(profile, policy, baseline),
            timeout_s=timeout,
            ray=ray,
            actor_cpus=actor_cpus,
        )
    )


@nano_app.command("build")
def nano_build(
    work: Annotated[Path, typer.Option(help="Working folder; a build goes on in it.")] = Path("runs/nano"),
    draws: Annotated[int, typer.Option(help="API sets drawn for the corpus.", min=100)] = 20_000,
    workers: Annotated[int | None, typer.Option(help="Processes; one a processor if not given.")] = None,
    install: Annotated[bool, typer.Option(help="Replace the embedded models.")] = True,
) -> None:
    """Rebuild both nano models: corpus, tokenizers, fine-tuning, evaluation, card."""
    from kernelzero.coldstart.nano import build

    quiet_libraries()
    build(work, draws, workers=workers, install=install, say=say)


# --- the machine -----------------------------------------------------------------------------------------------------


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine can do, and what is missing for each command."""
    from kernelzero.doctor import examine, render

    facts = examine()
    print(json.dumps(facts, indent=2) if as_json else render(facts))


_INTERRUPTED = 130
# Typer carries its own click in newer versions and uses the installed one in older ones.
_ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _run_app() -> int:
    code = app(standalone_mode=False)
    if code == _INTERRUPTED:
        # typer turns an interrupt into a silent exit code
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point: every error that a person can act on is one line and an exit code."""
    try:
        code = _run_app()
        sys.stdout.flush()
        sys.exit(code)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except _ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted; what was done is kept")
        sys.exit(_INTERRUPTED)
    except UsageError as error:
        say(f"error: {error}")
        sys.exit(2)
    except InfrastructureError as error:
        say(f"infrastructure error: {error}")
        sys.exit(3)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        say("error: the disk is full; what was done is kept")
        sys.exit(2)


if __name__ == "__main__":
    main()
