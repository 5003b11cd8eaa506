"""GRPO for either role: one builder on TRL's `GRPOTrainer`.

What it adds to TRL: advantages from `kernelzero.credit` (groups by id, exact zeros), samples without a reward left
out of the loss altogether, the reason why each completion ended, completions told of as soon as they are drawn, whole
groups in every process while the main one alone rewards, how far the sampler is from the trainer, and the seconds that
each part of a step took. What it sets explicitly, because TRL's default is another: KL weight, a constant
learning rate, no bias correction of the KL term, no shuffling, float32 weights, no tracker.

Not covered: saving rows (coevolve), and evaluation during training.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from kernelzero.config import Config, SamplingConfig, TrainingConfig
from kernelzero.credit import group_advantages
from kernelzero.errors import UsageError
from kernelzero.policy.decode import Draw, Row, decode
from kernelzero.records import Completion, Finish, Prompt, Role
from kernelzero.training.models import adapter, check_model, load_tokenizer, weights_dtype
from kernelzero.training.processes import PATIENCE, on_main, state
from kernelzero.training.rollout_gap import rollout_gap

CLIP_EPSILON = 0.2
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class PromptRow:
    """One prompt to train on; `group` completions are drawn for it."""

    prompt: Prompt
    group_id: str
    """Id of the task; advantages are relative to the samples of the same id."""
    payload: str = ""
    """Whatever the reward needs to know, as JSON; training does not read it."""


@dataclass(frozen=True)
class Rollout:
    """One completion to be rewarded."""

    group_id: str
    payload: str
    completion: Completion


Reward = Callable[[Sequence[Rollout], int], Sequence[float | None]]
"""Rollouts of one step, of all processes, and the step's number (from 1) to one reward each; None is left out of the
loss. Called in the main process only."""

OnDrawn = Callable[[int, Rollout, int], None]
"""Called with a rollout's place among those of its step, the rollout, and the step's number, while others are still
drawn; in the main process, of its own rollouts, and where the sampler tells of them."""


@dataclass(frozen=True)
class GrpoSettings:
    """The numbers of one role's training."""

    prompts_per_step: int
    group: int
    total_steps: int
    """Steps from the role's start to the end of this phase, over all rounds so far."""
    lr: float
    kl: float
    temperature: float
    max_tokens: int
    seed: int
    training: TrainingConfig
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    @classmethod
    def of(cls, config: Config, role: Role, total_steps: int) -> GrpoSettings:
        """The settings of one role of a run."""
        section = config.role(role)
        per_step = config.proposer.api_sets_per_step if role is Role.PROPOSER else config.coder.modules_per_step
        return cls(
            prompts_per_step=per_step,
            group=section.group,
            total_steps=total_steps,
            lr=section.lr,
            kl=section.kl,
            temperature=section.temperature,
            max_tokens=section.max_tokens,
            seed=config.run.seed,
            training=config.training,
            sampling=config.sampling,
        )


_WHOLE_WEIGHTS = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)
"""Where each process holds all weights."""


class GroupTrainer(GRPOTrainer):
    """TRL's trainer with the credit of `kernelzero.credit`."""

    on_drawn: OnDrawn | None = None
    _drawn_from: list[dict[str, Any]]
    _last_logps: torch.Tensor | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        started = time.perf_counter()
        self._drawn_from = inputs
        output = super()._generate_and_score_completions(inputs)
        rewards, advantages = self._credit(inputs)
        device = output["completion_mask"].device
        output["advantages"] = torch.tensor([a or 0.0 for a in advantages], dtype=torch.float32, device=device)
        has_reward = torch.tensor([r is not None for r in rewards], dtype=torch.long, device=device)
        # TRL multiplies this mask into the loss only, so attention is as it was when the tokens were drawn.
        output["tool_mask"] = has_reward.unsqueeze(1).expand_as(output["completion_mask"]).contiguous()
        counted = (output["completion_mask"] * output["tool_mask"]).sum()
        output["num_items_in_batch"] = self.accelerator.gather(counted).sum()
        self._metrics["train"]["seconds/rollout"].append(time.perf_counter() - started)
        return output

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, fields: Any, num_generations: int, has_tool_images: bool = False
    ) -> tuple[list[list[int]], Any]:
        """Draw with our own decoder where it can; it drops finished rows and reads each prompt once."""
        if not self._can_decode():
            return super()._generate_single_turn(prompt_ids, images, fields, num_generations, has_tool_images)
        # Seeded from the global generator, whose state checkpoints keep: a resumed step draws the same completions.
        generator = torch.Generator(self.accelerator.device).manual_seed(int(torch.randint(2**62, ())))
        rows = decode(
            self.model,
            prompt_ids[::num_generations],
            num_generations,
            max_tokens=int(self.max_completion_length or 1),
            end_ids=self.eos_token_ids,
            pad_id=self._tokenizer.pad_token_id,
            draw=Draw(self.temperature, self.top_p, generator),
            on_row=self._tell,
        )
        return [self._with_end(row) for row in rows], [row.logps for row in rows]

    def _can_decode(self) -> bool:
        # The decoder does not say which of several end tokens it drew, and sharded weights have to be gathered.
        several = len(set(self.eos_token_ids)) > 1 or self.accelerator.distributed_type not in _WHOLE_WEIGHTS
        return not (several or self.use_vllm or self.generation_config.cache_implementation)

    def _with_end(self, row: Row) -> list[int]:
        return [*row.ids, *(self.eos_token_ids[:1] if row.ended else [])]

    def _tell(self, number: int, row: Row) -> None:
        """Hand on one completion; its place is its number, because the main process's rows come first."""
        if self.on_drawn is None or not self.accelerator.is_main_process:
            return
        given = self._drawn_from[number]
        rollout = Rollout(given["group_id"], given["payload"], read_completion(self, self._with_end(row)))
        self.on_drawn(number, rollout, self.state.global_step + 1)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._last_logps = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        drawn_with = inputs.get("sampling_per_token_logps")
        if drawn_with is not None and self._last_logps is not None:
            # Weights move only after the last pass of a step, so these are still the weights that drew.
            gap = rollout_gap(drawn_with, self._last_logps, inputs["completion_mask"])
            self._metrics["train"]["rollout_gap"].append(self.accelerator.gather(gap).nanmean().item())
        return loss

    def _credit(self, inputs: list[dict[str, Any]]) -> tuple[list[float | None], list[float | None]]:
        """Rewards and advantages of this process's rows; groups are formed over all processes."""
        gathered: Any = self._logs["rewards"]
        rewards = [None if math.isnan(reward) else reward for reward in gathered[self.reward_func_names[0]]]
        ids = gather_object([row["group_id"] for row in inputs])
        advantages = group_advantages(rewards, ids)
        start = self.accelerator.process_index * len(inputs)
        return rewards[start : start + len(inputs)], advantages[start : start + len(inputs)]

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """A checkpoint of a run needs no card; writing one a step costs time."""


def build_trainer(
    role: Role,
    model_path: str,
    prompts: Sequence[PromptRow],
    reward: Reward,
    settings: GrpoSettings,
    output_dir: str | Path,
    callbacks: Sequence[Any] = (),
    on_drawn: OnDrawn | None = None,
) -> GroupTrainer:
    """A trainer for one role that ends after `settings.total_steps` steps, the steps of earlier rounds included.

    Args:
        role: Which model is trained; it names the reward in logs.
        model_path: The role's start model. It is also the anchor of the KL term, so it stays the same over all
            rounds; later weights come in through `train(resume_from_checkpoint=...)`.
        prompts: In training order, those of earlier rounds first, at least `total_steps * prompts_per_step`.
        reward: Called once a step with whole groups.
        settings: The numbers.
        output_dir: Where `checkpoint-N` folders go.
        callbacks: transformers callbacks.
        on_drawn: Hears of completions before all are drawn.

    Raises:
        UsageError: The model cannot be read, or the batch sizes do not fit.
    """
    needed = settings.total_steps * settings.prompts_per_step
    if len(prompts) < needed:
        raise UsageError(f"{settings.total_steps} steps of the {role.value} need {needed} prompts, got {len(prompts)}")
    check_model(model_path)
    # Its warnings are about masked rewards, which are part of the design, and print whole prompts.
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
    adapted = _RewardAdapter(role, reward)
    trainer = GroupTrainer(
        model=model_path,
        reward_funcs=adapted,
        args=_arguments(settings, output_dir),
        train_dataset=_dataset(prompts[:needed]),
        processing_class=load_tokenizer(model_path),
        peft_config=adapter(settings.training.lora),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    adapted.trainer, trainer.on_drawn = trainer, on_drawn
    return trainer


def run_trainer(trainer: GroupTrainer, checkpoint: str | Path | None) -> int:
    """Train to the end, from a checkpoint if there is one; the number of steps reached.

    Raises:
        UsageError: TRL stopped early, which it does without an error when prompts are too few.
    """
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    reached, asked = trainer.state.global_step, trainer.args.max_steps
    if reached != asked:
        raise UsageError(f"training ended after {reached} steps where {asked} were asked for: too few prompts")
    return reached


def free(trainer: GroupTrainer) -> None:
    """Let go of the models, the optimizer and the device memory of a trainer."""
    trainer.accelerator.free_memory()
    holders: tuple[Any, ...] = (trainer, trainer.callback_handler)
    for holder in holders:
        holder.model = holder.optimizer = holder.lr_scheduler = None
    holders[0].model_wrapped = holders[0].ref_model = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rows_per_pass(settings: GrpoSettings, processes: int) -> tuple[int, int]:
    """Rows of one forward pass, and passes to a step, of each of several processes.

    Raises:
        UsageError: A group would be split between processes.
    """
    rows = settings.prompts_per_step * settings.group
    if settings.prompts_per_step % processes:
        raise UsageError(
            f"{settings.prompts_per_step} prompts a step cannot be shared by {processes} processes in whole groups"
        )
    share = rows // processes
    per_pass = max(size for size in range(1, settings.training.rows_per_device + 1) if share % size == 0)
    return per_pass, share // per_pass


def _arguments(settings: GrpoSettings, output_dir: str | Path) -> GRPOConfig:
    training, sampling = settings.training, settings.sampling
    per_pass, passes = rows_per_pass(settings, state(training.device == "cpu").num_processes)
    return GRPOConfig(
        output_dir=str(output_dir),
        # what is trained on: every prompt once, in the order given
        num_generations=settings.group,
        per_device_train_batch_size=per_pass,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_iterations=1,
        max_steps=settings.total_steps,
        shuffle_dataset=False,
        # rollouts
        temperature=settings.temperature,
        top_p=1.0,
        top_k=0,
        max_completion_length=settings.max_tokens,
        cache_implementation="static" if sampling.engine == "static" else None,
        use_vllm=sampling.engine == "vllm",
        vllm_mode="server" if sampling.server else "colocate",
        vllm_server_base_url=sampling.server or None,
        vllm_gpu_memory_utilization=sampling.gpu_memory,
        vllm_enable_sleep_mode=not sampling.server,
        # loss: "dapo" divides by the number of tokens that count in the whole batch
        loss_type="dapo",
        epsilon=CLIP_EPSILON,
        beta=settings.kl,
        use_bias_correction_kl=False,
        scale_rewards="group",
        mask_truncated_completions=training.mask_truncated,
        disable_dropout=True,
        # optimizer
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
        # machine
        model_init_kwargs={"dtype": weights_dtype(training)},
        bf16=training.precision == "mixed",
        gradient_checkpointing=training.gradient_checkpointing,
        use_cpu=training.device == "cpu",
        ddp_timeout=int(PATIENCE.total_seconds()),
        dataloader_pin_memory=False,
        seed=settings.seed,
        # files and logs
        save_strategy="steps",
        save_steps=training.save_every,
        save_total_limit=2,
        logging_strategy="steps",
        logging_steps=1,
        report_to=list(training.report_to),
        disable_tqdm=True,
    )


def _dataset(prompts: Sequence[PromptRow]) -> Dataset:
    return Dataset.from_list(
        [{"prompt": list(row.prompt.messages), "group_id": row.group_id, "payload": row.payload} for row in prompts]
    )


class _RewardAdapter:
    """TRL's signature on the outside, rollouts on the inside; the main process rewards those of all."""

    def __init__(self, role: Role, reward: Reward) -> None:
        self.__name__ = f"{role.value}_reward"
        self.reward = reward
        self.trainer: Any = None

    def __call__(
        self, *, completion_ids: list[list[int]], group_id: list[str], payload: list[str], **_: Any
    ) -> list[float | None]:
        started = time.perf_counter()
        completions = [read_completion(self.trainer, ids) for ids in completion_ids]
        rollouts = [Rollout(*row) for row in zip(group_id, payload, completions, strict=True)]
        everybodys = gather_object(rollouts)
        rewards = on_main(lambda: list(self.reward(everybodys, self.trainer.state.global_step + 1)))
        self.trainer._metrics["train"]["seconds/judge"].append(time.perf_counter() - started)
        first = self.trainer.accelerator.process_index * len(rollouts)
        return rewards[first : first + len(rollouts)]


def read_completion(trainer: Any, ids: list[int]) -> Completion:
    """What a trainer's model wrote, from its token ids."""
    # A chat model has several ids that end a turn; each is an end, none is a truncation.
    ended = bool(ids) and ids[-1] in trainer.eos_token_ids
    text = trainer.processing_class.decode(ids, skip_special_tokens=True)
    return Completion(text, len(ids) - ended, Finish.STOP if ended else Finish.LENGTH)
