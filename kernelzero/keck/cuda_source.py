"""CUDA C++ inside a candidate: found by the syntax tree, checked on tokens, compiled where nvcc exists.

A CPU can say that a CUDA candidate breaks a rule or does not compile; everything else is "unsupported" here. Sources
of NVRTC and CuPy are device code alone: torch's headers are no part of them.
Not covered: running it, and sources that are put together at run time (they are unsupported as well).
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from kernelzero.keck.rules import RuleBroken
from kernelzero.keck.words import words
from kernelzero.records import Status

_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|::|\S""",
    re.DOTALL,
)
_LIBRARIES = ("cublas", "cudnn", "cusparse", "cutlass", "cufft", "cusolver")
_SYSTEM = words("system popen fork execve execvp dlopen dlsym pthread_create ptrace socket")
_TIMEOUT_S = 240
_EXTENSIONS = words("load_inline load")
_BARE = words("_compile_kernel RawKernel RawModule")
"""What takes device code alone, in its first argument or one of these."""
_BARE_KEYWORDS = words("kernel_source code")


def check(source: str) -> None:
    """Raise RuleBroken with what a CPU can say about a CUDA candidate; never returns a pass."""
    sources = cuda_strings(source)
    if not sources:
        raise RuleBroken("there is no CUDA source: no __global__ function in a string")
    for text in sources:
        check_tokens(text)
    if shutil.which("nvcc") is None:
        raise RuleBroken("CUDA candidates need a GPU; nvcc is not installed here", status=Status.UNSUPPORTED)
    bare = bare_strings(source)
    for text in sources:
        error = compile_error(text, device_only=text in bare)
        if error:
            raise RuleBroken(error, status=Status.COMPILE_ERROR)
    raise RuleBroken("the CUDA source compiles; running it needs a GPU", status=Status.UNSUPPORTED)


def cuda_strings(source: str) -> list[str]:
    """String constants of the candidate that hold device code."""
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in tokens(node.value)
    ]


def bare_strings(source: str) -> set[str]:
    """Those that are compiled as device code alone: all of them where no extension is built at all."""
    tree = ast.parse(source)
    calls = [(_last_name(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bare = [node for name, node in calls if name in _BARE]
    if bare and not any(name in _EXTENSIONS for name, _ in calls):
        return set(cuda_strings(source))
    values = [
        *(n.args[0] for n in bare if n.args),
        *(k.value for n in bare for k in n.keywords if k.arg in _BARE_KEYWORDS),
    ]
    named = {v.id for v in values if isinstance(v, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in named for t in node.targets):
            values.append(node.value)
    return {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def tokens(text: str) -> list[str]:
    """C++ tokens without comments; string and character literals are left out."""
    found = (match.group(0) for match in _TOKEN.finditer(text))
    return [t for t in found if not t.startswith(("//", "/*", '"', "'", 'R"'))]


def check_tokens(text: str) -> None:
    """Raise RuleBroken where host code calls PyTorch operators, vendor libraries or the system."""
    found = tokens(text)
    for index, token in enumerate(found):
        if token.lower().startswith(_LIBRARIES):
            raise RuleBroken(f"a vendor library is used: {token}")
        if token in _SYSTEM and found[index + 1 : index + 2] == ["("]:
            raise RuleBroken(f"the source reaches outside of its kernel: {token}")
        if (
            token in ("at", "torch")
            and found[index + 1 : index + 2] == ["::"]
            and found[index + 3 : index + 4] == ["("]
            and is_compute(found[index + 2])
        ):
            raise RuleBroken(f"PyTorch computes in C++: {token}::{found[index + 2]}")


def is_compute(name: str) -> bool:
    """Whether `at::name` is a PyTorch operator that computes."""
    import torch

    from kernelzero.keck.guard import ALLOCATIONS, COPIES, METADATA, is_view

    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name in ALLOCATIONS | COPIES | METADATA:
        return False
    return not all(is_view(getattr(packet, overload)) for overload in packet.overloads())


def compile_error(text: str, device_only: bool = False) -> str | None:
    """nvcc's first error on one source, None where it compiles."""
    from torch.utils.cpp_extension import include_paths

    if not device_only and "torch/extension.h" not in text:
        text = "#include <torch/extension.h>\n" + text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "candidate.cu"
        path.write_text(text, encoding="utf-8")
        command = ["nvcc", f"-std=c++{17 if device_only else 20}", "-arch=sm_90", "-ptx", str(path)]
        command += ["-o", f"{folder}/out.ptx"]
        if not device_only:
            command += [f"-I{p}" for p in include_paths()] + _python_include()
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=folder)
        except subprocess.TimeoutExpired:
            return f"nvcc did not finish in {_TIMEOUT_S} s"
    return None if result.returncode == 0 else _first_error(result.stderr + result.stdout)


def _python_include() -> list[str]:
    import sysconfig

    return [f"-I{sysconfig.get_paths()['include']}"]


def _first_error(output: str) -> str:
    for line in output.splitlines():
        if "error" in line:
            return re.sub(r"^\S*candidate\.cu", "candidate.cu", line.strip())[:300]
    return (output.strip().splitlines() or ["nvcc failed"])[-1][:300]
