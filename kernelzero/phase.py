"""One phase of a run: a role's training steps, joined with judging and with the run folder.

Of several processes all take part in the training; the main one alone judges, writes and tells. Not covered: the order
of the phases (coevolve), the trainer itself (training).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelzero.answers import AnswerJudge
from kernelzero.config import Config
from kernelzero.errors import InfrastructureError
from kernelzero.judging import Judged, Services, answer_judge, judge_kernels, judge_proposals
from kernelzero.policy.profile import PROFILE_FILE
from kernelzero.records import Role, Task, content_id
from kernelzero.runfolder import RunFolder
from kernelzero.training.processes import on_main, wait_for_all

MAX_UNREWARDED_STEPS = 3
"""So many steps in a row without a single reward end the run: the judge is broken, and nothing is being learnt."""
MAX_STALE_STEPS = 3
"""So many steps in a row whose rollouts came from other weights than the trainer's end it, too."""


@dataclass(frozen=True)
class Event:
    """Progress of a run, for people to look at."""

    kind: str
    """"phase", "judge", "step", "benchmark", "warning" or "done"."""
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


@dataclass
class RunState:
    """What the phases of one run share."""

    config: Config
    folder: RunFolder
    services: Services
    tell: OnEvent
    unrewarded_steps: int = 0
    """Steps in a row."""
    stale_steps: int = 0

    def __post_init__(self) -> None:
        self.clock = Clock(self.config, self.folder)


class Phase:
    """The hooks of one phase's trainer.

    Args:
        state: the run.
        role: who learns.
        number: of the round, from 1.
        partner: the frozen Coder, for the Proposer's phase, in the main process.
        start_model: where the role starts from.
    """

    def __init__(self, state: RunState, role: Role, number: int, partner: Any, start_model: str) -> None:
        self.state, self.role, self.number, self.partner, self.start_model = state, role, number, partner, start_model
        self.judged: Judged | None = None
        self.tokens: list[int] = []
        self.truncated = 0
        self.early: tuple[int, AnswerJudge] | None = None
        """A step, and the judge of those of its kernels that are drawn already."""
        self.watch = _idle_watch(state.config)

    @property
    def on_drawn(self) -> Callable[[int, Any, int], None] | None:
        """Hears of kernels while others are drawn, where judging them at once disturbs nobody."""
        return self._drawn if self.role is Role.CODER and judges_elsewhere(self.state.config) else None

    def reward(self, rollouts: Sequence[Any], step: int) -> list[float | None]:
        """Rewards of one step; the judge's own failure rewards nothing, and does not end the training."""
        completions = [rollout.completion for rollout in rollouts]
        self.tokens = [completion.tokens for completion in completions]
        self.truncated = sum(completion.finish.value == "length" for completion in completions)
        try:
            self.judged = self._judge([rollout.payload for rollout in rollouts], completions, step)
        except InfrastructureError as error:
            self.judged = Judged([None] * len(rollouts), {}, {"unrewarded": len(rollouts)})
            self.state.tell(Event("judge", f"step {step} is not rewarded: {error}", self.number, self.role))
        finally:
            self.early = None
        self._count_unrewarded()
        return self.judged.rewards

    def callback(self) -> Any:
        """A transformers callback: rows are staged before the checkpoint and committed after it."""
        from transformers import TrainerCallback

        phase = self

        class StepCallback(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if "loss" in logs:
                    on_main(lambda: phase.stage(state.global_step, logs))

            def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                wait_for_all()  # each process writes a part of the checkpoint
                on_main(lambda: phase.commit(state.global_step))

        return StepCallback()

    def stage(self, step: int, logs: dict[str, Any]) -> None:
        """Put the step's rows aside and tell its numbers."""
        judged = self.judged or Judged([], {})
        summary = {"round": self.number, **judged.metrics, **self._numbers(logs)}
        rows = {file: [{"round": self.number, **row} for row in rows] for file, rows in judged.rows.items()}
        self.state.folder.stage(self.role, step, {**rows, "steps.jsonl": [summary]})
        self.state.clock.tick(self.role, summary["step_s"])
        reward, eta_s = judged.metrics.get("reward"), self.state.clock.left(self.role, step)
        at = self._in_phase(step)
        message = f"round {self.number}, {self.role.value}, step {at[0]} of {at[1]}"
        self.state.tell(
            Event("step", message, self.number, self.role, *at, reward=reward, eta_s=eta_s, metrics=summary)
        )
        self._count_stale(step, summary["rollout_gap"])

    def commit(self, step: int) -> None:
        """The checkpoint is written: it is prompted like its start model from now on, and its rows are durable."""
        profile = Path(self.start_model) / PROFILE_FILE
        if profile.is_file():
            shutil.copy(profile, self.state.folder.checkpoint_path(self.role, step))
        self.state.folder.commit(self.role, step)

    def close(self) -> None:
        """End what runs in the background."""
        self.watch.close()
        if self.early is not None:
            self.early[1].give_up()

    # --- judging ---

    def _drawn(self, place: int, rollout: Any, step: int) -> None:
        if self.early is None or self.early[0] != step:
            judge = answer_judge(self.state.services, self.state.config, timed=True, on_verdict=self._progress(step))
            self.early = (step, judge)
        self.early[1].add(place, Task.from_json(json.loads(rollout.payload)), rollout.completion)

    def _judge(self, payloads: Sequence[str], completions: Sequence[Any], step: int) -> Judged:
        services, config, progress = self.state.services, self.state.config, self._progress(step)
        if self.role is Role.CODER:
            early = self.early[1] if self.early is not None and self.early[0] == step else None
            return judge_kernels(payloads, completions, services, config, progress, early)
        seed = int(content_id(str(config.run.seed), str(step)), 16) % 2**31
        return judge_proposals(payloads, completions, services, config, self.partner, seed, progress)

    def _progress(self, step: int) -> Callable[[int, int], None]:
        """Tell how many candidates of a step are judged."""
        at = self._in_phase(step)
        return lambda done, total: self.state.tell(
            Event("judge", f"judged {done} of {total}", self.number, self.role, *at, done=done, total=total)
        )

    def _in_phase(self, step: int) -> tuple[int, int]:
        """The step's number in this phase, and how many there are."""
        steps = self.state.config.role(self.role).steps
        return step - (self.number - 1) * steps, steps

    def _count_unrewarded(self) -> None:
        """End a run whose judge is broken for good."""
        judged = self.judged
        rewarded = judged is not None and any(reward is not None for reward in judged.rewards)
        self.state.unrewarded_steps = 0 if rewarded else self.state.unrewarded_steps + 1
        if self.state.unrewarded_steps >= MAX_UNREWARDED_STEPS:
            raise InfrastructureError(f"{MAX_UNREWARDED_STEPS} steps in a row without any verdict: nothing is learnt")

    def _count_stale(self, step: int, gap: float | None) -> None:
        """End a run whose sampler does not hold the weights that are trained."""
        from kernelzero.training.rollout_gap import WORRYING

        stale = gap is not None and gap > WORRYING
        self.state.stale_steps = self.state.stale_steps + 1 if stale else 0
        if not stale:
            return
        found = f"the sampler is {gap:.3f} nats a token from the trainer, more than {WORRYING}"
        self.state.tell(Event("warning", f"step {step}: {found}", self.number, self.role))
        if self.state.stale_steps >= MAX_STALE_STEPS:
            raise InfrastructureError(f"{found}, {MAX_STALE_STEPS} steps in a row: its weights are not the trainer's")

    # --- numbers ---

    def _numbers(self, logs: dict[str, Any]) -> dict[str, Any]:
        """What the trainer measured; seconds by part."""
        total, rollout = logs.get("step_time") or 0.0, logs.get("seconds/rollout") or 0.0
        judge = logs.get("seconds/judge") or 0.0
        seconds = {"generate": rollout - judge, "judge": judge, "train": total - rollout}
        names = ("loss", "kl", "entropy", "grad_norm", "learning_rate", "rollout_gap")
        plain = {key: _finite(logs.get(key)) for key in names}
        return {
            **plain,
            "tokens": sum(self.tokens),
            "mean_tokens": sum(self.tokens) / max(1, len(self.tokens)),
            "truncated": self.truncated / max(1, len(self.tokens)),
            "step_s": round(total, 3),
            "seconds": {part: round(value, 3) for part, value in seconds.items()},
            "gpu_idle": self.watch.idle_share(),
            "gpus": gpus_of(self.state.config),
            "time": time.time(),
        }


class Clock:
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


def judges_elsewhere(config: Config) -> bool:
    """Whether kernels may be judged while the trainer works: what is timed must have its GPU to itself."""
    from kernelzero.training.devices import training_gpus

    if config.keck.url or config.keck.device == "cpu":
        return True
    return keck_gpu(config) not in training_gpus(config.training)


def gpus_of(config: Config) -> int:
    """GPUs that the run holds on this machine: the trainer's, and Keck's where that is another one."""
    from kernelzero.training.devices import training_gpus

    held = set(training_gpus(config.training))
    if not config.keck.url and config.keck.device != "cpu":
        held.add(keck_gpu(config))
    return len(held)


def keck_gpu(config: Config) -> int:
    """The number of the GPU that Keck judges on."""
    return int(config.keck.device.partition(":")[2] or 0)


def _idle_watch(config: Config) -> Any:
    from kernelzero.training.devices import IdleWatch, training_gpus

    return IdleWatch(training_gpus(config.training))


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and float("-inf") < float(value) < float("inf") else None
