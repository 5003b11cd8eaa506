"""Measures a training at intervals, keeps the best weights, and says when to stop."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from kernelzero.coldstart.rates import Questions, measure
from kernelzero.keck import Keck
from kernelzero.runfolder import COMPLETE, read_rows, repair

Row = dict[str, Any]


def complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end."""
    found = [p for p in folder.glob("checkpoint-*") if (p / COMPLETE).exists()]
    return max(found, key=lambda p: int(p.name.rsplit("-", 1)[1]), default=None)


def best_of(rows: Sequence[Row]) -> Row | None:
    """The row with the highest rate, then the lowest loss, then the earliest."""
    return max(rows, key=lambda row: (row.get("rate") or 0.0, -row["loss"], -row["step"]), default=None)


def measurements_since_best(rows: Sequence[Row]) -> int:
    """Rows after the first with the highest rate (without rates: the lowest loss); 0 while no rate is above 0."""
    if not rows or any("rate" in row for row in rows):
        rates = [row.get("rate") or 0.0 for row in rows]
        top = max(rates, default=0.0)
        return len(rates) - 1 - rates.index(top) if top > 0 else 0
    losses = [row["loss"] for row in rows]
    return len(losses) - 1 - losses.index(min(losses))


class Watch(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """The callback; it runs in every process and writes in the first."""

    def __init__(
        self,
        trainer: Any,
        out: Path,
        questions: Questions | None,
        open_keck: Callable[[], Keck],
        patience: int,
        checkpoint: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._trainer, self._out, self._questions, self._open_keck = trainer, out, questions, open_keck
        self._patience, self._say, self.stopped = patience, say, False
        self._begun: tuple[float, int] | None = None
        start = int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else -1
        # Rows after the checkpoint belong to steps that are taken again.
        written = {row["step"]: row for row in read_rows(out / "evals.jsonl") if row["step"] <= start}
        self.rows: list[Row] = [row for _, row in sorted(written.items())]

    @property
    def best(self) -> Row | None:
        """The row of the best weights."""
        return best_of(self.rows)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Row | None = None, model: Any = None, **_: Any
    ) -> None:
        """Measure the rate, keep the weights if they are the best so far, stop if there is no progress."""
        if any(row["step"] == state.global_step for row in self.rows):
            return
        row: Row = {"step": state.global_step, "loss": round((metrics or {})["eval_loss"], 6)}
        started = time.monotonic()
        if self._questions is not None:
            rate = self._rate(model)
            row |= {"rate": round(rate.value, 4), **rate.to_json()}
        row["seconds"] = round(time.monotonic() - started, 2)
        self.rows.append(row)
        if self.best is row:
            self._keep()
        if state.is_world_process_zero:
            self._write()
        self._say(_line(row))
        if state.global_step and measurements_since_best(self.rows) >= self._patience:
            self.stopped = control.should_training_stop = True
            self._say(f"no progress in {self._patience} measurements: stopped")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark a checkpoint as complete."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            (folder / COMPLETE).touch()

    def on_log(self, args: Any, state: Any, control: Any, logs: Row | None = None, **_: Any) -> None:
        """Show the loss, and the time left."""
        if "loss" not in (logs or {}):
            return
        now = time.monotonic()
        self._begun = self._begun or (now, state.global_step)
        steps, left = state.global_step - self._begun[1], ""
        if steps:
            seconds = (now - self._begun[0]) / steps * (state.max_steps - state.global_step)
            left = f", about {seconds / 60:.1f} min left"
        self._say(f"step {state.global_step}/{state.max_steps}, loss {(logs or {})['loss']:.4f}{left}")

    def _rate(self, model: Any) -> Any:
        import torch

        from kernelzero.policy.hf import TransformersSampler

        assert self._questions is not None
        sampler = TransformersSampler((model, self._trainer.processing_class), style=self._questions.style)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bool(self._trainer.args.bf16)):
            return measure(self._questions, sampler, self._open_keck)

    def _keep(self) -> None:
        new, best = self._out / "best.new", self._out / "best"
        self._trainer.save_model(str(new))
        self._trainer.accelerator.wait_for_everyone()
        if self._trainer.is_world_process_zero():
            shutil.rmtree(best, ignore_errors=True)
            os.replace(new, best)

    def _write(self) -> None:
        path = self._out / "evals.jsonl"
        repair(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")


def _line(row: Row) -> str:
    text = f"step {row['step']}: held-out loss {row['loss']:.4f}"
    if "rate" in row:
        text += f", rate {100 * row['rate']:.1f} % of {row['judged']}"
        text += f" ({100 * row['low']:.0f} to {100 * row['high']:.0f})"
        text += ", " + ", ".join(f"{how} {n}" for how, n in row["outcomes"].items())
    return text
