"""What kind of work a task is, read from the names in its source: a bar a kind says more than one number.

The first kind of the list that a module uses anywhere names the whole module, so a convolution with a bias and a ReLU
is a convolution. Names are all that is looked at: a module that builds its operators by hand may be called "other".
"""

from __future__ import annotations

import ast
import re

from kernelzero.bench.builtin import level_of

_KINDS = (
    ("recurrent", r"(LSTM|GRU|RNN)(Cell)?"),
    ("attention", r"scaled_dot_product_attention|Multihead\w*|\w*Attention|Transformer\w*"),
    ("convolution", r"conv(_?transpose)?_?[123]d"),
    ("matrix product", r"b?mm|matmul|linear|bilinear|einsum|baddbmm|addmm|addbmm|mv|dot|__matmul__"),
    ("normalisation", r"\w*(Batch|Layer|Group|Instance|RMS|Local\w*)_?norm\w*|normalize|norm"),
    ("loss", r"\w+_?loss|cross_entropy|kl_div"),
    ("pooling", r"\w*pool(ing)?_?([123]d)?"),
    ("scan", r"cum(sum|prod|max|min)|logcumsumexp"),
    ("softmax", r"\w*softm(ax|in)(2d)?"),
    ("reduction", r"sum|mean|prod|arg(max|min)|a?(max|min)|logsumexp|var|std|median"),
)
ELEMENTWISE = "elementwise"


def category(source: str) -> str:
    """The kind of a task: "convolution", "matrix product", …, "elementwise" for the rest."""
    names = _names(source)
    for kind, pattern in _KINDS:
        if any(re.fullmatch(pattern, name, re.IGNORECASE) for name in names):
            return kind
    return ELEMENTWISE


def group(name: str) -> str:
    """The group that a task belongs to by its name: its level, else its folder, else "single" or "chain"."""
    level = level_of(name)
    if level is not None:
        return f"level {level}"
    if "/" in name:
        return name.split("/")[0]
    found = re.match(r"(single|chain)_", name)
    return found[1] if found else "tasks"


def _names(source: str) -> set[str]:
    """Names that are called or reached with a dot inside the classes, and "__matmul__" where "@" is used."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = set()
    for node in (inner for cls in classes for inner in ast.walk(cls)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("__matmul__")
    return found
