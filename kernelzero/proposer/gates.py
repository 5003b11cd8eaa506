"""The gates: what a proposed module has to pass before it may become a task.

Text first, because it is cheap: the module calls every API of its set, through whatever aliases and imports, and what
it builds it uses. Then Keck runs it in a child: finite, deterministic, every input and every API changes the output,
bounded in time and memory, and no answer that knows nothing passes (keck/probe.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kernelzero.apis.names import called_apis
from kernelzero.apis.usage import constructed_modules_unused
from kernelzero.keck import Keck
from kernelzero.records import ApiSet, GateReport, Task

MAX_SOURCE_CHARS = 20_000


def check_text(source: str, api_set: ApiSet) -> GateReport | None:
    """The gates that need no execution; None where the text passes them."""
    if len(source) > MAX_SOURCE_CHARS:
        return _refused("parse", f"the module has {len(source)} characters, more than {MAX_SOURCE_CHARS}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        return _refused("parse", f"the code does not parse: {where}{getattr(error, 'msg', None) or error}")
    missing = {"Model", "get_inputs", "get_init_inputs"} - _defined(tree)
    if missing:
        return _refused("parse", f"the module does not define {', '.join(sorted(missing))}")
    called = called_apis(tree)
    uncalled = [api for api in api_set.apis if api not in called]
    if uncalled:
        return _refused("calls", f"the module does not call {', '.join(uncalled)}")
    unused = [api for api in api_set.apis if api in constructed_modules_unused(tree)]
    if unused:
        return _refused("calls", f"the module builds {', '.join(unused)} but never uses it in forward")
    return None


def _defined(tree: ast.Module) -> set[str]:
    return {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def _refused(gate: str, reason: str) -> GateReport:
    return GateReport(valid=False, gate=gate, reason=" ".join(reason.split()))


def dotted(api: str) -> str:
    """An API's name as a path from `torch`, e.g. "nn.ReLU" → "torch.nn.ReLU"."""
    return api if api.startswith("torch.") else f"torch.{api}"


def check(keck: Keck, jobs: Sequence[tuple[ApiSet, str]]) -> Iterator[tuple[int, GateReport]]:
    """All gates on modules, each with its API set; reports come as they are finished, with the index of their job."""
    runnable: list[int] = []
    for index, (api_set, source) in enumerate(jobs):
        report = check_text(source, api_set)
        if report is not None:
            yield index, report
        else:
            runnable.append(index)
    questions = [(Task(jobs[i][1], jobs[i][0].apis), [dotted(a) for a in jobs[i][0].apis]) for i in runnable]
    for position, report in keck.examine(questions):
        yield runnable[position], report
