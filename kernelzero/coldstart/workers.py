"""Processes for trusted work that needs torch: composing modules, the rulebook.

They end with the process that started them, also when that is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor


def open_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of fresh processes: the parent has threads, which do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # A killed parent closes nothing that its children could notice: siblings hold the same pipes.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
