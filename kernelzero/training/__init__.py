"""Training on TRL: one GRPO builder for both roles, and a thin one for SFT.

Importing the submodules takes seconds; do it late. Not covered: where prompts come from and what a reward is.
"""

from __future__ import annotations

import os

# Read at import by the libraries, so it has to stand before they are imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
