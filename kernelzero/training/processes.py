"""Several training processes: what only the main one may do, and how the others hear of it.

Keck, the run folder and the frozen partner belong to the main process alone. Not covered: how processes are started,
which is accelerate's or torchrun's.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

_RESULT = TypeVar("_RESULT")
PATIENCE = timedelta(hours=4)
"""How long a process waits for the others: the main one may judge, or measure a benchmark, for very long."""


def several() -> bool:
    """Whether this process is one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def join(cpu: bool) -> None:
    """Meet the other processes, before anything is asked of them."""
    state(cpu)


def state(cpu: bool = False) -> Any:
    """accelerate's state of this process; the first call joins the others."""
    from accelerate import PartialState

    if not several():
        return PartialState(cpu=cpu)
    joined = PartialState(cpu=cpu, timeout=PATIENCE)
    _leave_at_exit()
    return joined


@functools.cache
def _leave_at_exit() -> None:
    from accelerate import PartialState

    # An interpreter that ends inside of a process group waits for its threads for ever.
    atexit.register(lambda: PartialState().destroy_process_group())


def is_main() -> bool:
    """Whether this is the main process."""
    return int(os.environ.get("RANK", "0")) == 0


def on_main(work: Callable[[], _RESULT]) -> _RESULT:
    """`work()` of the main process, its result or its error in all of them. Results have to be picklable."""
    if not several():
        return work()
    from accelerate.utils import broadcast_object_list

    answer: list[Any] = [None, None]
    if is_main():
        try:
            answer = [work(), None]
        except BaseException as error:
            broadcast_object_list([None, _portable(error)])
            raise
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def wait_for_all() -> None:
    """Go on when all processes are here."""
    if several():
        state().wait_for_everyone()


def _portable(error: BaseException) -> BaseException:
    """The error in a form that surely can be pickled and read again."""
    import pickle

    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__} in the main process: {error}")
    return again if isinstance(again, BaseException) else RuntimeError(str(error))
