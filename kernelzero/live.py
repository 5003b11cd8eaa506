"""What a person sees while a run goes on: phase, step, time left, the last rewards; plain lines off a terminal."""

from __future__ import annotations

import sys
from typing import Any

from kernelzero.config import Config
from kernelzero.records import Role


class Live:
    """Shows the events of `coevolve`. A context manager."""

    def __init__(self, config: Config) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"), console=self.console,
            disable=not self.console.is_terminal, transient=True,
        )  # fmt: skip
        total = config.rounds.count * sum(config.role(role).steps for role in Role)
        self.task = self.bar.add_task("starting", total=total, note="")

    def __enter__(self) -> Live:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def on_event(self, event: Any) -> None:
        """Show one event."""
        if event.kind == "judge" and event.total:
            self.bar.update(self.task, note=f"judging {event.done}/{event.total}")
            return
        if event.kind == "step":
            self._step(event)
            return
        self.bar.update(self.task, description=event.message, note="")
        self.console.print(f"[bold]{event.message}[/bold]", highlight=False, soft_wrap=True)

    def _step(self, event: Any) -> None:
        left = f"about {event.eta_s / 60:.1f} min left" if event.eta_s else ""
        role = event.role.value if event.role else ""
        parts = [f"  round {event.round} {role} step {event.step}/{event.steps}"]
        if event.reward is not None:
            parts.append(f"reward {event.reward:+.3f}")
        for name in ("validity", "frontier", "solve_rate", "accuracy", "speedup"):
            value = (event.metrics or {}).get(name)
            if value is not None:
                parts.append(f"{name.replace('_', ' ')} {value:.2f}")
        self.console.print("  ".join([*parts, left]).rstrip(), highlight=False, soft_wrap=True)
        self.bar.update(self.task, advance=1, note=left)
        sys.stderr.flush()
