"""`kernelzero bench …`: a benchmark run, and comparisons of runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelzero.errors import UsageError
from kernelzero.records import Backend, Sampling

_INFRASTRUCTURE, _INTERRUPTED = 3, 130


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bench_app(writers: Mapping[str, Any]) -> typer.Typer:
    """The commands. writers: models that are functions, name → `baselines.Write`; the command line hands them in."""
    app = typer.Typer(invoke_without_command=True, help="Benchmark a Coder, one shot; compare runs.")

    @app.callback()
    def bench(
        context: typer.Context,
        model: Annotated[
            str,
            typer.Option(
                help="Folder, hub id, nano:coder, or http(s)://host/v1#model; rulebook: rules alone (runs the tasks' "
                "modules: trusted ones); reference: a check of the harness."
            ),
        ] = "nano:coder",
        tasks: Annotated[
            str, typer.Option(help="builtin, a checkout of KernelBench, or a folder of tasks in its format.")
        ] = "builtin",
        level: Annotated[str, typer.Option(help="Of a KernelBench folder, as 1,2,3; those three if not given.")] = "",
        backend: Annotated[Backend, typer.Option(help="Language of the kernels.")] = Backend.TRITON,
        n: Annotated[
            int | None, typer.Option("-n", help="Samples a task; 10, or as many as --samples has.", min=1)
        ] = None,
        temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.6,
        top_p: Annotated[float, typer.Option(help="Nucleus.", min=0.01, max=1)] = 0.95,
        max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 1024,
        seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
        run: Annotated[
            Path, typer.Option("--run", "--out", help="Run folder; a killed benchmark goes on in it.")
        ] = Path("runs/bench"),
        samples: Annotated[
            Path | None, typer.Option(help="Judge these instead: JSONL, or a run folder of KernelBench's scripts.")
        ] = None,
        device: Annotated[str, typer.Option(help="Where Keck judges: cpu, cuda or cuda:N.")] = "cpu",
        model_device: Annotated[
            str | None, typer.Option(help="Where a local model runs; on Keck's own GPU it comes first.")
        ] = None,
        workers: Annotated[int | None, typer.Option(help="Judges; one a processor if not given.", min=1)] = None,
        timeout: Annotated[float | None, typer.Option(help="Seconds for one candidate.", min=0.1)] = None,
        profile: Annotated[str, typer.Option(help="Tolerances: paper, kernelbench, or both side by side.")] = "paper",
        policy: Annotated[str, typer.Option(help="Rules: strict or hybrid; hybrid for reference.")] = "",
        baseline: Annotated[str, typer.Option(help="eager, or eager,torch.compile (on a GPU).")] = "eager",
        concurrency: Annotated[int, typer.Option(help="Requests to an endpoint side by side.", min=1)] = 8,
        price_in: Annotated[float | None, typer.Option(help="Of a million prompt tokens.", min=0)] = None,
        price_out: Annotated[float | None, typer.Option(help="Of a million output tokens.", min=0)] = None,
    ) -> None:
        """Benchmark a Coder, one shot; metrics with intervals as JSON on standard output, tables on standard error."""
        if context.invoked_subcommand is not None:
            return
        from kernelzero.bench.session import Options, run_session
        from kernelzero.runfolder import RunFolder

        options = Options(
            model=model,
            samples=samples,
            tasks=_tasks(tasks, level),
            backend=backend,
            n=n,
            sampling=Sampling(temperature, top_p, max_tokens, seed),
            run=run,
            device=device,
            workers=workers,
            timeout_s=timeout,
            profile=profile,
            policy=policy or ("hybrid" if model == "reference" and samples is None else "strict"),
            baselines=tuple(part.strip() for part in baseline.split(",")),
            concurrency=concurrency,
            prices=_prices(price_in, price_out),
            model_device=model_device,
        )
        _quiet_libraries()
        try:
            with RunFolder(run).locked():
                summary = run_session(options, writers, _say, shlex.join(["kernelzero", *sys.argv[1:]]))
        except KeyboardInterrupt:
            _leave_if_drawing()
            raise
        print(json.dumps(summary, indent=2))
        if summary["infra_errors"]:
            raise typer.Exit(_INFRASTRUCTURE)

    app.command("compare")(compare)
    return app


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="Folder for compare.md, compare.json and three SVG plots.")] = Path(
        "runs/compare"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Put runs beside one another and beside published figures; tables on standard output, plots in a folder."""
    from kernelzero.bench.compare import markdown, read_runs, write_comparison

    data = write_comparison(read_runs(runs), out)
    print(json.dumps(data, indent=2) if as_json else markdown(data))
    _say(f"tables and plots: {out}")


def _leave_if_drawing() -> None:
    """A thread inside a model's native code cannot be ended, and would abort the interpreter's own farewell."""
    from kernelzero.bench.drawing import under_way

    if under_way():
        _say("interrupted; what was done is kept")
        os._exit(_INTERRUPTED)


def _tasks(name: str, level: str) -> Any:
    from kernelzero.bench.builtin import level_of, named_tasks

    if level:
        return named_tasks(name, _levels(level))
    found = named_tasks(name)
    usual = [task for task in found if (level_of(task.name) or 1) <= 3]
    if len(usual) < len(found):
        _say(f"{len(found) - len(usual)} tasks above level 3 are left out; --level names them")
    return usual


def _levels(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"--level {text!r}: numbers separated by commas, as in 1,2")
    return sorted({int(part) for part in parts})


def _prices(price_in: float | None, price_out: float | None) -> tuple[float, float] | None:
    if price_in is None and price_out is None:
        return None
    return price_in or 0.0, price_out or 0.0


def _quiet_libraries() -> None:
    import warnings

    from transformers.utils import logging

    logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)
