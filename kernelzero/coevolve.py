"""The alternation: two models take turns, one learning while the other stands still.

    API sets → proposed modules → gates → the frozen Coder's kernels → verdicts → rewards → a step of the Proposer
    modules at the frontier → the Coder's kernels → verdicts → rewards → a step of the Coder

Killed at any moment and started again, a run goes on from its last checkpoints and ends with the same steps, no row
twice (how: `kernelzero.runfolder`). A role trains on over all rounds: its optimizer's state is kept, and its KL term
always points at its start model.

Started by accelerate or torchrun as several processes, all of them train; the main one alone has Keck, the folder and
the frozen partner (`kernelzero.training.processes`). They need one file system.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelzero.config import Config, first_difference
from kernelzero.curriculum import pool_row, select_modules, set_solve_rates, with_training_outcomes
from kernelzero.errors import UsageError
from kernelzero.judging import Services
from kernelzero.phase import Event, OnEvent, Phase, RunState, gpus_of
from kernelzero.records import ApiSet, Role, Task
from kernelzero.runfolder import GIVEN_POOL, RunFolder, read_rows
from kernelzero.training.processes import is_main, join, on_main, several


def coevolve(config: Config, *, services: Services | None = None, on_event: OnEvent | None = None) -> Path:
    """Run the alternation to its end, from wherever its folder stands; the run folder.

    Args:
        config: The run.
        services: Models, Keck and prompts; the real ones if not given.
        on_event: Called with progress.

    Raises:
        UsageError: The folder belongs to another configuration or is in use, a model cannot be read, the disk is
            full, or no valid module was proposed.
        InfrastructureError: Keck or a model could not be reached, step after step.
    """
    folder, tell = RunFolder(config.folder), on_event if on_event and is_main() else (lambda event: None)
    if several():
        join(cpu=config.training.device == "cpu")
    try:
        with contextlib.ExitStack() as held:
            if on_main(lambda: _opened(folder, config, held)):
                tell(Event("done", f"{folder.path} is finished; nothing to do"))
                return folder.path
            _alternate(_Run(RunState(config, folder, services or _real_services(config), tell)))
    except Exception as error:
        if not _disk_is_full(error):
            raise
        raise UsageError(f"the disk is full; what was done is kept in {folder.path}") from error
    return folder.path


def _opened(folder: RunFolder, config: Config, held: contextlib.ExitStack) -> bool:
    """Lock the folder, make it this run's and bring it in order; whether the run is finished already."""
    held.enter_context(folder.locked())
    claim(folder, config)
    finished = folder.read_json("done.json") is not None
    if not finished:
        folder.recover()
    return finished


def _alternate(run: _Run) -> None:
    try:
        run.benchmark("before")
        for number in range(1, run.config.rounds.count + 1):
            run.train(Role.PROPOSER, number)
            run.train(Role.CODER, number)
        run.benchmark("after")
        run.finish()
    finally:
        run.services.close()


def claim(folder: RunFolder, config: Config) -> None:
    """Make the folder this configuration's, or raise UsageError with the key that differs."""
    ours = config.to_json()
    theirs = folder.read_json("config.json")
    if theirs is None:
        folder.write_json("config.json", ours)
        return
    for side in (ours, theirs):  # a folder may be moved
        side["run"] = {key: value for key, value in side["run"].items() if key != "folder"}
    difference = first_difference(ours, theirs)
    if difference:
        raise UsageError(f"{folder.path} belongs to another configuration: {difference}")


class _Run:
    """One run in its folder. Every method is called in all training processes."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.config, self.folder, self.services, self.tell = state.config, state.folder, state.services, state.tell

    def train(self, role: Role, number: int) -> None:
        """One phase: train a role up to its last step of this round."""
        steps = self.config.role(role).steps
        if on_main(lambda: self.folder.steps_done(role)) >= number * steps:
            return
        self.tell(Event("phase", f"round {number}: the {role.value} learns", number, role, steps=steps))
        _import_training()
        rows = on_main(lambda: [row for earlier in range(1, number + 1) for row in self.prompts(role, earlier)])
        partner = self.open_partner() if role is Role.PROPOSER and is_main() else None
        try:
            self.run_trainer(role, number, rows, partner)
        finally:
            if partner is not None:
                partner.close()

    def run_trainer(self, role: Role, number: int, rows: Sequence[dict[str, Any]], partner: Any) -> None:
        """Build the trainer, run it, and let go of its models."""
        from kernelzero.records import Prompt
        from kernelzero.training.grpo import GrpoSettings, PromptRow, build_trainer, free, run_trainer

        phase = Phase(self.state, role, number, partner, self.start_model(role))
        try:
            trainer = build_trainer(
                role,
                self.start_model(role),
                [PromptRow(Prompt.from_json(row["prompt"]), row["group_id"], row["payload"]) for row in rows],
                phase.reward,
                GrpoSettings.of(self.config, role, number * self.config.role(role).steps),
                self.folder.path / role.value,
                [phase.callback()],
                phase.on_drawn,
            )
            try:
                run_trainer(trainer, on_main(lambda: self.folder.last_checkpoint(role)))
            finally:
                free(trainer)
        finally:
            phase.close()

    def prompts(self, role: Role, number: int) -> list[dict[str, Any]]:
        """The prompts of one phase, drawn once and kept: a resumed phase goes on with the same ones."""
        name = f"prompts/{role.value}-{number}.jsonl"
        if not (self.folder.path / name).exists():
            rows = self.draw_api_sets(number) if role is Role.PROPOSER else self.draw_modules(number)
            self.write_rows(name, rows)
        return self.folder.read_rows(name)

    def draw_api_sets(self, number: int) -> list[dict[str, Any]]:
        """Distinct API sets for the Proposer; those whose modules the Coder fails come more often."""
        from kernelzero.apis.sampler import draw, reweight

        wanted, seed = self.config.proposer.steps * self.config.proposer.api_sets_per_step, self.config.run.seed
        pool = self.services.api_pool(self.config.curriculum.api_sets, seed)
        weights = reweight(pool, set_solve_rates(self.pool()))
        style = self.services.style_of(self.start_model(Role.PROPOSER))
        drawn = draw(pool, wanted, weights, f"{seed} {number}")
        return [_prompt_row(self.services.proposer_prompt(item, style), item) for item in drawn]

    def draw_modules(self, number: int) -> list[dict[str, Any]]:
        """Modules for the Coder, those at its frontier first."""
        coder, curriculum = self.config.coder, self.config.curriculum
        if curriculum.pool:
            packed = self.folder.path / GIVEN_POOL
            self.folder.append("pool.jsonl", given_pool(str(packed) if packed.is_file() else curriculum.pool))
        # A Proposer can hit on a benchmark task by itself.
        rows = [r for r in self.pool() if not self.services.is_held_out(r["task"]["source"])]
        wanted, seed = coder.steps * coder.modules_per_step, self.config.run.seed + 1000 * number
        tasks = select_modules(rows, wanted, curriculum.selection, seed)
        if not tasks:
            raise UsageError(f"round {number}: no valid module was proposed, so the Coder has nothing to learn from")
        style = self.services.style_of(self.start_model(Role.CODER))
        return [_prompt_row(self.services.coder_prompt(task, coder.backend, style), task) for task in tasks]

    def pool(self) -> list[dict[str, Any]]:
        """Every module that was ever valid, with the newest solve rate that is known."""
        return with_training_outcomes(self.folder.read_rows("pool.jsonl"), self.folder.read_rows("attempts.jsonl"))

    def write_rows(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write a JSONL file whole or not at all."""
        from kernelzero.runfolder import write_whole

        write_whole(self.folder.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def start_model(self, role: Role) -> str:
        """The folder or hub id that a role starts from."""
        return self.services.resolve_model(self.config.role(role).model)

    def newest_model(self, role: Role) -> str:
        """The role's newest checkpoint, or its start model."""
        return str(self.folder.last_checkpoint(role) or self.start_model(role))

    def open_partner(self) -> Any:
        """The frozen Coder that tries the Proposer's modules."""
        return self.services.open_sampler(self.newest_model(Role.CODER))

    def benchmark(self, label: str) -> None:
        """Measure the Coder, where a benchmark is asked for and not done yet."""
        on_main(lambda: self._benchmark(label))

    def _benchmark(self, label: str) -> None:
        if self.services.benchmark is None or self.folder.read_json(f"benchmark-{label}.json"):
            return
        self.tell(Event("benchmark", f"benchmark {label} training"))
        started = time.monotonic()
        summary = self.services.benchmark(self.newest_model(Role.CODER), label, self.folder.path)
        summary = {**summary, "seconds": round(time.monotonic() - started, 1), "gpus": gpus_of(self.config)}
        self.folder.write_json(f"benchmark-{label}.json", summary)

    def finish(self) -> None:
        """Mark the run as done."""
        on_main(self._finish)

    def _finish(self) -> None:
        steps = {role.value: self.folder.steps_done(role) for role in Role}
        models = {role.value: self.newest_model(role) for role in Role if self.config.role(role).model}
        self.folder.write_json("done.json", {"steps": steps, "models": models})
        self.tell(Event("done", f"done: {self.folder.path}"))


def given_pool(path: str) -> list[dict[str, Any]]:
    """Rows of a pool made beforehand, each with a `task` and `outcomes`.

    Raises:
        UsageError: The file is missing or a row lacks either.
    """
    if not Path(path).is_file():
        raise UsageError(f"there is no file of modules {path}")
    rows = []
    for number, row in enumerate(read_rows(path)):
        if "task" not in row or "outcomes" not in row:
            raise UsageError(f"{path}, row {number + 1}: a module has a task and outcomes")
        rows.append({"key": f"given-{number}", "round": 0, **pool_row(Task.from_json(row["task"]), row["outcomes"])})
    return rows


@functools.cache
def _import_training() -> None:
    """Import the trainer, and keep what that made out of the garbage collector's sight.

    The libraries make so many objects that each of the several collections a phase takes over a second otherwise.
    """
    import kernelzero.training.grpo

    assert kernelzero.training.grpo
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # bindings that look for leaks at the end must find none


def _prompt_row(prompt: Any, item: ApiSet | Task) -> dict[str, Any]:
    return {"prompt": prompt.to_json(), "group_id": item.id, "payload": json.dumps(item.to_json())}


def _disk_is_full(error: BaseException) -> bool:
    # safetensors and torch.save report a full disk in words of their own
    words = ("No space left on device", "PytorchStreamWriter", "inline_container.cc")
    return getattr(error, "errno", None) == errno.ENOSPC or any(text in str(error) for text in words)


def _real_services(config: Config) -> Services:
    from kernelzero.services import real_services

    return real_services(config)
