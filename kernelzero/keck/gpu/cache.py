"""Where Keck keeps what it built for this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where built extensions are kept: KERNELZERO_CACHE, else under the home folder."""
    return Path(os.environ.get("KERNELZERO_CACHE") or Path.home() / ".cache" / "kernelzero") / "keck"
