"""What a model folder says about itself beyond its weights: `kernelzero.json`, and where the embedded models lie.

The file is optional: {"prompt": "compact", "role": "coder"}. Without it a model gets full prompts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from kernelzero.errors import UsageError
from kernelzero.policy.base import Style
from kernelzero.records import Role

PROFILE_FILE = "kernelzero.json"
NANO_FOLDER = Path(__file__).parent.parent / "nano"


def read_profile(model: str | Path) -> dict[str, Any]:
    """The model folder's `kernelzero.json`; empty for a hub id or a folder without one."""
    file = Path(model).expanduser() / PROFILE_FILE
    if not file.is_file():
        return {}
    try:
        profile = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(profile, dict):
        raise UsageError(f"{file} has to hold a JSON object")
    return profile


def write_profile(folder: str | Path, style: Style, role: Role) -> None:
    """Write `kernelzero.json`, so that the folder is prompted as it was trained."""
    text = json.dumps({"prompt": style, "role": role.value})
    (Path(folder) / PROFILE_FILE).write_text(text + "\n", encoding="utf-8")


def prompt_style(model: str | Path) -> Style:
    """The prompts that the model was trained on; "full" where it does not say. Takes "nano:coder" too."""
    if str(model).startswith("nano:"):
        model = nano_path(str(model).removeprefix("nano:"))
    style = read_profile(model).get("prompt", "full")
    if style not in get_args(Style):
        raise UsageError(
            f"{Path(model) / PROFILE_FILE}: prompt is {style!r}, expected one of {', '.join(get_args(Style))}"
        )
    return style


def nano_path(role: Role | str) -> Path:
    """Folder of the embedded nano model of a role."""
    try:
        folder = NANO_FOLDER / Role(role).value
    except ValueError:
        raise UsageError(
            f"no nano model {str(role)!r}: there are {', '.join(f'nano:{r.value}' for r in Role)}"
        ) from None
    if not (folder / "config.json").is_file():
        raise UsageError(f"the embedded model nano:{Role(role).value} is missing from this installation")
    return folder
