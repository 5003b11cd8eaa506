"""Who may use the GPU: any number of children check at once, or one is timed and nobody else is at work.

Two locked files a GPU, shared by all judges of the machine. The kernel lets go of the locks of a process that dies.
Whoever wants to time closes the door first, so that newcomers wait and those inside finish: checks, which are many and
short, cannot starve a timing. Trusted side only; a child knows nothing of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


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

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU beside others; waits while somebody times or is about to."""
        fcntl.flock(self._door, fcntl.LOCK_SH)
        fcntl.flock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have the GPU alone."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._room, fcntl.LOCK_UN)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
