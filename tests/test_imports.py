"""The import table of the design: stages exchange records and never import one another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "kernelzero"

# May be imported by everything: plain data, pure functions on it, errors.
COMMON = {"records", "errors", "normalise", "metrics", "runfolder"}
ABOVE_COLDSTART = {"config", "keck", "apis", "policy", "proposer", "coder", "training", "coldstart", "bench"}
TABLE: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "normalise": set(),
    "metrics": {"records"},
    "runfolder": {"errors", "records"},
    "config": set(),
    "keck": {"config"},
    "apis": set(),
    "policy": set(),
    "proposer": {"config", "keck", "policy", "apis"},
    "coder": {"config", "policy"},
    "credit": set(),
    "curriculum": {"credit"},
    "answers": {"keck"},
    "diversity": {"apis"},
    "judging": {"answers", "config", "credit", "curriculum", "diversity", "policy"},
    "training": {"config", "credit", "policy"},
    "coldstart": ABOVE_COLDSTART,
    "coevolve": (ABOVE_COLDSTART - {"coldstart", "bench"}) | {"credit", "curriculum", "judging", "phase", "services"},
    "phase": {"answers", "config", "judging", "policy", "training"},
    "services": {"config", "judging", "keck", "apis", "policy", "proposer", "coder", "bench"},
    "bench": {"config", "keck", "policy", "coder"},
    "report": set(),
    "live": {"config"},
    "doctor": {"policy"},
    "export": {"policy", "services", "training"},
    "pack": {"export", "policy"},
}  # fmt: skip


def _files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "tasks" not in p.parts and p.name not in ("cli.py",))


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = node.module != "kernelzero"
            names = [node.module] if whole else [f"kernelzero.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("kernelzero.")}
    return found


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_imports_what_the_table_allows(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    allowed = TABLE[part] | COMMON | {part}
    assert _imports(path) <= allowed, f"{part} may not import {sorted(_imports(path) - allowed)}"


def test_base_modules_import_nothing_heavy() -> None:
    for name in ("records", "errors", "credit", "metrics", "normalise", "curriculum", "diversity"):
        text = (ROOT / f"{name}.py").read_text(encoding="utf-8")
        assert not {"torch", "transformers", "triton", "numpy"} & {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
