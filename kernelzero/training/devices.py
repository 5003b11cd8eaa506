"""Which GPUs the trainer's processes use, and how much of the time they have nothing to do."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from kernelzero.config import TrainingConfig

_LOOK_S = 0.2


def training_gpus(training: TrainingConfig) -> range:
    """Numbers of the GPUs that the processes on this machine train on; none on a CPU."""
    import torch

    if training.device == "cpu" or not torch.cuda.is_available():
        return range(0)
    return range(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class IdleWatch:
    """Looks at the trainer's GPUs from time to time. Needs nvidia-ml-py; without it nothing is known.

    Args:
        gpus: numbers among the GPUs that this process sees.
    """

    def __init__(self, gpus: range) -> None:
        self._handles = _handles(gpus)
        self._idle: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        if self._handles:
            threading.Thread(target=self._look, name="gpu-idle", daemon=True).start()

    def idle_share(self) -> float | None:
        """Share of the time since the last call, 0 to 1, in which no kernel ran, over all GPUs; None where unknown.

        The driver's own figure: the share of its last sampling period (1/6 to 1 s) in which some kernel was running,
        of whichever process.
        """
        with self._lock:
            found, self._idle = self._idle, []
        return round(sum(found) / len(found), 4) if found else None

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()

    def _look(self) -> None:
        import pynvml

        while not self._stop.wait(_LOOK_S):
            with contextlib.suppress(pynvml.NVMLError):
                busy = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
                with self._lock:
                    self._idle.append(1 - sum(busy) / len(busy) / 100)


def _handles(gpus: range) -> list[Any]:
    if not gpus:
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        return [_handle(pynvml, number) for number in gpus]
    except Exception:  # not installed, no driver library, a GPU that it does not know: nothing is known
        return []


def _handle(pynvml: Any, number: int) -> Any:
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    name = visible[number] if visible else str(number)
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)
