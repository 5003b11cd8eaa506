"""The alternation: two models take turns, one learning while the other stands still.

    API sets → proposed modules → gates → the frozen Coder's kernels → verdicts → rewards → a step of the Proposer
    modules at the frontier → the Coder's kernels → verdicts → rewards → a step of the Coder

Killed at any moment and started again, a run goes on from its last checkpoints and ends with the same steps, no row
twice (how: `kernelzero.runfolder`). A role trains on over all rounds: its optimizer's state is kept, and its KL term
always points at its start model. Not covered: several training processes.
"""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.config import Config, first_difference
from kernelzero.curriculum import pool_row, select_modules, set_solve_rates
from kernelzero.errors import InfrastructureError, UsageError
from kernelzero.judging import Judged, Services, judge_kernels, judge_proposals
from kernelzero.policy.profile import PROFILE_FILE
from kernelzero.records import ApiSet, Role, Task, content_id
from kernelzero.runfolder import RunFolder, read_rows

MAX_UNREWARDED_STEPS = 3
"""So many steps in a row without a single reward end the run: the judge is broken, and nothing is being learnt."""


@dataclass(frozen=True)
class Event:
    """Progress of a run, for people to look at."""

    kind: str
    """"phase", "judge", "step", "benchmark" or "done"."""
    message: str
    round: int = 0
    role: Role | None = None
    step: int = 0
    """Of the phase, from 1."""
    steps: int = 0
    done: int = 0
    """Verdicts of the step in work."""
    total: int = 0
    reward: float | None = None
    """Mean of the last step."""
    eta_s: float | None = None
    """Seconds until the last step of the run, by the steps so far."""
    metrics: dict[str, Any] | None = None


OnEvent = Callable[[Event], None]


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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("coevolve runs as one process; several training processes are not supported")
    folder, tell = RunFolder(config.folder), on_event or (lambda event: None)
    try:
        with folder.locked():
            claim(folder, config)
            if folder.read_json("done.json"):
                tell(Event("done", f"{folder.path} is finished; nothing to do"))
                return folder.path
            folder.recover()
            _alternate(_Run(config, folder, services or _real_services(config), tell))
    except Exception as error:
        if not _disk_is_full(error):
            raise
        raise UsageError(f"the disk is full; what was done is kept in {folder.path}") from error
    return folder.path


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
    """One run in its folder."""

    def __init__(self, config: Config, folder: RunFolder, services: Services, tell: OnEvent) -> None:
        self.config, self.folder, self.services, self.tell = config, folder, services, tell
        self.clock = _Clock(config, folder)
        self.unrewarded_steps = 0

    def train(self, role: Role, number: int) -> None:
        """One phase: train a role up to its last step of this round."""
        steps = self.config.role(role).steps
        if self.folder.steps_done(role) >= number * steps:
            return
        self.tell(Event("phase", f"round {number}: the {role.value} learns", number, role, steps=steps))
        _import_training()
        rows = [row for earlier in range(1, number + 1) for row in self.prompts(role, earlier)]
        partner = self.open_partner() if role is Role.PROPOSER else None
        try:
            self.run_trainer(role, number, rows, partner)
        finally:
            if partner is not None:
                partner.close()

    def run_trainer(self, role: Role, number: int, rows: Sequence[dict[str, Any]], partner: Any) -> None:
        """Build the trainer, run it, and let go of its models."""
        from kernelzero.records import Prompt
        from kernelzero.training.grpo import GrpoSettings, PromptRow, build_trainer, free, run_trainer

        step_log = _StepLog(self, role, number, partner)
        trainer = build_trainer(
            role,
            self.start_model(role),
            [PromptRow(Prompt.from_json(row["prompt"]), row["group_id"], row["payload"]) for row in rows],
            step_log.reward,
            GrpoSettings.of(self.config, role, number * self.config.role(role).steps),
            self.folder.path / role.value,
            [step_log.callback()],
        )
        try:
            run_trainer(trainer, self.folder.last_checkpoint(role))
        finally:
            free(trainer)

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
        weights = reweight(pool, set_solve_rates(self.folder.read_rows("pool.jsonl")))
        style = self.services.style_of(self.start_model(Role.PROPOSER))
        drawn = draw(pool, wanted, weights, f"{seed} {number}")
        return [_prompt_row(self.services.proposer_prompt(item, style), item) for item in drawn]

    def draw_modules(self, number: int) -> list[dict[str, Any]]:
        """Modules for the Coder, those at its frontier first."""
        coder, curriculum = self.config.coder, self.config.curriculum
        if curriculum.pool:
            self.folder.append("pool.jsonl", given_pool(curriculum.pool))
        # A Proposer can hit on a benchmark task by itself.
        rows = [r for r in self.folder.read_rows("pool.jsonl") if not self.services.is_held_out(r["task"]["source"])]
        wanted, seed = coder.steps * coder.modules_per_step, self.config.run.seed + 1000 * number
        tasks = select_modules(rows, wanted, curriculum.selection, seed)
        if not tasks:
            raise UsageError(f"round {number}: no valid module was proposed, so the Coder has nothing to learn from")
        style = self.services.style_of(self.start_model(Role.CODER))
        return [_prompt_row(self.services.coder_prompt(task, coder.backend, style), task) for task in tasks]

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
        if self.services.benchmark is None or self.folder.read_json(f"benchmark-{label}.json"):
            return
        self.tell(Event("benchmark", f"benchmark {label} training"))
        summary = self.services.benchmark(self.newest_model(Role.CODER), label, self.folder.path)
        self.folder.write_json(f"benchmark-{label}.json", summary)

    def finish(self) -> None:
        """Mark the run as done."""
        steps = {role.value: self.folder.steps_done(role) for role in Role}
        models = {role.value: self.newest_model(role) for role in Role if self.config.role(role).model}
        self.folder.write_json("done.json", {"steps": steps, "models": models})
        self.tell(Event("done", f"done: {self.folder.path}"))


class _StepLog:
    """Joins one phase's trainer with judging and the run folder, step by step."""

    def __init__(self, run: _Run, role: Role, number: int, partner: Any) -> None:
        self.run, self.role, self.number, self.partner = run, role, number, partner
        self.judged: Judged | None = None
        self.tokens: list[int] = []
        self.truncated = 0

    def reward(self, rollouts: Sequence[Any], step: int) -> list[float | None]:
        """Rewards of one step; the judge's own failure rewards nothing, and does not end the training."""
        completions = [rollout.completion for rollout in rollouts]
        self.tokens = [completion.tokens for completion in completions]
        self.truncated = sum(completion.finish.value == "length" for completion in completions)
        try:
            self.judged = self.judge([rollout.payload for rollout in rollouts], completions, step)
        except InfrastructureError as error:
            self.judged = Judged([None] * len(rollouts), {}, {"unrewarded": len(rollouts)})
            self.run.tell(Event("judge", f"step {step} is not rewarded: {error}", self.number, self.role))
        self.count_unrewarded()
        return self.judged.rewards

    def judge(self, payloads: Sequence[str], completions: Sequence[Any], step: int) -> Judged:
        """By role."""
        run = self.run
        if self.role is Role.CODER:
            return judge_kernels(payloads, completions, run.services, run.config, self.progress(step))
        seed = int(content_id(str(run.config.run.seed), str(step)), 16) % 2**31
        return judge_proposals(payloads, completions, run.services, run.config, self.partner, seed, self.progress(step))

    def progress(self, step: int) -> Callable[[int, int], None]:
        """Tell how many candidates of a step are judged."""
        at = self.in_phase(step)
        return lambda done, total: self.run.tell(
            Event("judge", f"judged {done} of {total}", self.number, self.role, *at, done=done, total=total)
        )

    def in_phase(self, step: int) -> tuple[int, int]:
        """The step's number in this phase, and how many there are."""
        steps = self.run.config.role(self.role).steps
        return step - (self.number - 1) * steps, steps

    def count_unrewarded(self) -> None:
        """End a run whose judge is broken for good."""
        judged = self.judged
        rewarded = judged is not None and any(reward is not None for reward in judged.rewards)
        self.run.unrewarded_steps = 0 if rewarded else self.run.unrewarded_steps + 1
        if self.run.unrewarded_steps >= MAX_UNREWARDED_STEPS:
            raise InfrastructureError(f"{MAX_UNREWARDED_STEPS} steps in a row without any verdict: nothing is learnt")

    def callback(self) -> Any:
        """A transformers callback: rows are staged before the checkpoint and committed after it."""
        from transformers import TrainerCallback

        log = self

        class StepCallback(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if "loss" in logs:
                    log.stage(state.global_step, logs)

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                log.commit(state.global_step)

        return StepCallback()

    def stage(self, step: int, logs: dict[str, Any]) -> None:
        """Put the step's rows aside and tell its numbers."""
        judged = self.judged or Judged([], {})
        summary = {"round": self.number, **judged.metrics, **self.numbers(logs)}
        rows = {file: [{"round": self.number, **row} for row in rows] for file, rows in judged.rows.items()}
        self.run.folder.stage(self.role, step, {**rows, "steps.jsonl": [summary]})
        self.run.clock.tick(self.role, summary["step_s"])
        reward, eta_s = judged.metrics.get("reward"), self.run.clock.left(self.role, step)
        at = self.in_phase(step)
        message = f"round {self.number}, {self.role.value}, step {at[0]} of {at[1]}"
        self.run.tell(Event("step", message, self.number, self.role, *at, reward=reward, eta_s=eta_s, metrics=summary))

    def commit(self, step: int) -> None:
        """The checkpoint is written: it is prompted like its start model from now on, and its rows are durable."""
        profile = Path(self.run.start_model(self.role)) / PROFILE_FILE
        if profile.is_file():
            shutil.copy(profile, self.run.folder.checkpoint_path(self.role, step))
        self.run.folder.commit(self.role, step)

    def numbers(self, logs: dict[str, Any]) -> dict[str, Any]:
        """What the trainer measured; seconds by part."""
        total, rollout = logs.get("step_time") or 0.0, logs.get("seconds/rollout") or 0.0
        judge = logs.get("seconds/judge") or 0.0
        seconds = {"generate": rollout - judge, "judge": judge, "train": total - rollout}
        plain = {key: _finite(logs.get(key)) for key in ("loss", "kl", "entropy", "grad_norm", "learning_rate")}
        return {
            **plain,
            "tokens": sum(self.tokens),
            "mean_tokens": sum(self.tokens) / max(1, len(self.tokens)),
            "truncated": self.truncated / max(1, len(self.tokens)),
            "step_s": round(total, 3),
            "seconds": {part: round(value, 3) for part, value in seconds.items()},
            "time": time.time(),
        }


class _Clock:
    """Time left, from the mean length of each role's steps so far."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.seconds: dict[Role, list[float]] = {role: [] for role in Role}
        self.done = {role: folder.steps_done(role) for role in Role}
        for row in folder.read_rows("steps.jsonl"):
            self.seconds[Role(row["role"])].append(row["step_s"])

    def tick(self, role: Role, seconds: float) -> None:
        """One more step."""
        self.seconds[role].append(seconds)

    def left(self, role: Role, step: int) -> float:
        """Seconds to the last step of both roles; a role not yet seen is taken to be as fast as the other."""
        self.done[role] = step
        every = [s for several in self.seconds.values() for s in several]
        total = 0.0
        for each in Role:
            known = self.seconds[each] or every
            wanted = self.config.role(each).steps * self.config.rounds.count
            total += (wanted - self.done[each]) * sum(known) / len(known)
        return total


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


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and float("-inf") < float(value) < float("inf") else None


def _disk_is_full(error: BaseException) -> bool:
    # safetensors and torch.save report a full disk in words of their own
    words = ("No space left on device", "PytorchStreamWriter", "inline_container.cc")
    return getattr(error, "errno", None) == errno.ENOSPC or any(text in str(error) for text in words)


def _real_services(config: Config) -> Services:
    from kernelzero.services import real_services

    return real_services(config)
