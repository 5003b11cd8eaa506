"""Who may use the GPU: any number of children check at once, or one is timed and nobody else is at work.

Three locked files a GPU, shared by all judges of the machine. The kernel lets go of the locks of a process that dies.
Whoever wants to time closes the door first, so that newcomers wait and those inside finish: checks, which are many and
short, cannot starve a timing. Who stays inside for long (a kernel that never ends) says that he is late: while somebody
is, the door stays open, so that others compute meanwhile. Trusted side only; a child knows nothing of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_S, _OPEN_S, _LOOK_S = 0.5, 0.1, 0.0005
"""How long the door stays closed for nothing, how long it is open then, and how often the room is looked into."""
_LATE_S, _LATE_LOOK_S, _LATE_PATIENCE_S = 0.4, 0.01, 3.0
"""Who is inside longer than this is late; how often whoever wants to time asks for that, and for how long at most."""


def lease_folder() -> Path:
    """Where this user's lock files are, for every Keck of the machine."""
    folder = Path(tempfile.gettempdir()) / f"keck-leases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class Lease:
    """Leases on one GPU.

    Args:
        folder: where the lock files are.
        gpu: name of the GPU, the same for all judges that share it.
    """

    def __init__(self, folder: Path, gpu: str) -> None:
        self._door = self._open(folder / f"keck-{gpu}.door")
        self._room = self._open(folder / f"keck-{gpu}.room")
        self._late = self._open(folder / f"keck-{gpu}.late")

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU beside others; waits while somebody times or is about to."""
        fcntl.flock(self._door, fcntl.LOCK_SH)
        fcntl.flock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        clock = threading.Timer(_LATE_S, fcntl.flock, (self._late, fcntl.LOCK_SH))
        clock.daemon = True
        clock.start()
        try:
            yield
        finally:
            clock.cancel()
            clock.join()
            fcntl.flock(self._late, fcntl.LOCK_UN)
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the GPU alone."""
        while not self._emptied():
            time.sleep(_OPEN_S)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def _emptied(self) -> bool:
        """Close the door and wait for the room to be empty: whether it is, and taken; else the door is open again."""
        give_up = time.monotonic() + _LATE_PATIENCE_S
        while self._somebody_is_late() and time.monotonic() < give_up:
            time.sleep(_LATE_LOOK_S)
        fcntl.flock(self._door, fcntl.LOCK_EX)
        deadline, ask_again = time.monotonic() + _PATIENCE_S, time.monotonic() + _LATE_LOOK_S
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._room, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if give_up > time.monotonic() > ask_again:
                if self._somebody_is_late():
                    break
                ask_again = time.monotonic() + _LATE_LOOK_S
            time.sleep(_LOOK_S)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        return False

    def _somebody_is_late(self) -> bool:
        try:
            fcntl.flock(self._late, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._late, fcntl.LOCK_UN)
        return False
