"""What this machine can do, and what is missing for each command. Looks, changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "transformers", "trl", "accelerate", "peft", "datasets", "numpy")
OPTIONAL = ("vllm", "ray", "fastapi")


def examine() -> dict[str, Any]:
    """Facts about the machine, as plain JSON values."""
    gpus = _gpus()
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "packages": {name: _version(name) for name in PACKAGES},
        "optional": {name: _version(name) for name in OPTIONAL},
        "gpus": gpus,
        "nvcc": _nvcc(),
        "models": _models(),
    }
    facts["triton_mode"] = _triton_mode(facts)
    facts["commands"] = _commands(facts)
    return facts


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _first_line(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in result.stdout.splitlines() if line.strip()]
    return lines[-1].strip() if result.returncode == 0 and lines else None


def _gpus() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return []
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()] if result.returncode == 0 else []


def _nvcc() -> str | None:
    return _first_line(["nvcc", "--version"])


def _models() -> dict[str, str | None]:
    from kernelzero.errors import UsageError
    from kernelzero.policy.profile import nano_path

    found: dict[str, str | None] = {}
    for role in ("proposer", "coder"):
        try:
            found[f"nano:{role}"] = "embedded" if Path(nano_path(role)).is_dir() else None
        except UsageError:
            found[f"nano:{role}"] = None
    return found


def _triton_mode(facts: dict[str, Any]) -> str:
    if facts["packages"]["triton"] is None:
        return "none: triton is not installed" if sys.platform == "linux" else "none: Triton needs Linux"
    return "interpreter (kernels are judged on the CPU, speed is modelled)"


def _commands(facts: dict[str, Any]) -> dict[str, str]:
    judge = "" if sys.platform == "linux" and facts["packages"]["triton"] else "needs Linux with triton"
    missing = [name for name in ("torch", "transformers", "trl", "datasets") if not facts["packages"][name]]
    train = f"{missing[0]} is not installed" if missing else ""
    nano = next((f"{name} is missing (make nano)" for name, where in facts["models"].items() if where is None), "")
    cuda = "a CUDA candidate is compiled, then 'unsupported'" if facts["nvcc"] else "CUDA candidates need nvcc"
    return {
        "check": judge or f"ready; {cuda}",
        "propose-check": judge or "ready",
        "extract": "ready",
        "apis": "ready",
        "bench": judge or nano or "ready",
        "coldstart": judge or train or ("ready" if facts["gpus"] else "ready; CUDA kernels cannot be verified here"),
        "coevolve": judge or train or nano or "ready",
        "report": "ready",
        "nano build": judge or train or ("ready" if facts["gpus"] else "ready; hours without a GPU"),
    }


def render(facts: dict[str, Any]) -> str:
    """The facts for a person."""
    packages = ", ".join(f"{name} {version or 'MISSING'}" for name, version in facts["packages"].items())
    optional = ", ".join(name for name, version in facts["optional"].items() if version) or "none"
    lines = [
        f"machine   {facts['platform']}, Python {facts['python']}, {facts['processors']} processors, "
        f"{facts['memory_gib']} GiB",
        f"GPU       {'; '.join(facts['gpus']) or 'none'}",
        f"nvcc      {facts['nvcc'] or 'none'}",
        f"Triton    {facts['triton_mode']}",
        f"packages  {packages}",
        f"optional  {optional}",
        f"models    {', '.join(name + ': ' + (where or 'missing') for name, where in facts['models'].items())}",
        "",
        *(f"{name:<14}{state}" for name, state in facts["commands"].items()),
    ]
    return "\n".join(lines)
