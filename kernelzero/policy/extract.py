"""Find the program in a model's raw answer: code fences, broken or not, and plain code. Shared by both roles.

What counts is the last block that parses as Python and defines the needed names. A fence ends at the first line of
back-ticks at which that holds, so back-ticks inside the program's own strings do not end it. An answer that was cut
off by length counts only where its fence is closed; where the model was cut off while it rewrote an earlier complete
block, that earlier block counts. Whether the program does anything sensible is not looked at: nothing is run here.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelzero.policy.reasoning import strip_reasoning
from kernelzero.records import Extraction, Finish

_MARKER = re.compile(r"`{3,}|~{3,}|(?<!`)``(?=[ \t]*(?:\n|\Z))")
_LANGUAGE = re.compile(r"(?:python3?|py3?|triton|cuda|cu|c\+\+|cpp|c)(?![\w.=+])[ \t]*", re.IGNORECASE)
_GLUED = re.compile(r"(?:python3?|py|triton|cuda|cpp)(?=(?:import|from|class|def)[ \t])", re.IGNORECASE)
_CODE_LINE = re.compile(r"^(?:import |from \w|@\w|class \w|def \w)", re.MULTILINE)
_CODE_AFTER_FENCE = re.compile(r"import |from \w|@\w|class \w|def \w|try:|if |#|[ru]?[\"']")
_END_TOKENS = re.compile(r"(?:\s*(?:<\|(?:im_end|endoftext|eot_id|return|end)\|>|</s>))+\s*\Z")
_TILDES = re.compile(r"^([ \t]*)~~~", re.MULTILINE)
_LONGEST_BLOCK_MARKERS = 40
"""How many markers a block may run over; bounds the work on an answer that is nothing but fences."""


@dataclass(frozen=True)
class _Marker:
    """A run of back-ticks or tildes."""

    start: int
    end: int
    opens: bool
    """At least three: two only ever close."""
    starts_line: bool


@dataclass(frozen=True)
class _Block:
    code: str
    end: int
    closed: bool


def extract(text: str, *, defines: Sequence[str], finish: Finish = Finish.STOP) -> Extraction:
    """The last block of `text` that parses and defines every name in `defines` at its top level.

    Capitalised names must be classes, others functions or assignments. A block that was cut off by length is not
    taken. Without such a block the reason says in one line what is wrong with the block that came closest.
    """
    answer = strip_reasoning(text.replace("\r\n", "\n").replace("\r", "\n"))
    body = _END_TOKENS.sub("\n", answer.text)
    blocks = list(_usable_blocks(body, defines, allow_open=finish is Finish.STOP))
    if not blocks:
        return Extraction(None, _why_not(body, defines, finish, answer.unfinished))
    notes = ["the reasoning was left out"] * answer.removed
    notes += [f"the last of {len(blocks)} blocks"] * (len(blocks) > 1)
    notes += ["the fence was never closed"] * (not blocks[-1].closed and bool(_markers(body)))
    return Extraction(blocks[-1].code, "", tuple(notes))


def _usable_blocks(text: str, defines: Sequence[str], *, allow_open: bool) -> Iterator[_Block]:
    """The blocks that parse and define, in order and never one inside another."""
    markers = _markers(text)
    position = -1
    for bodies, first_closer in _openings(text, markers):
        if bodies[0] < position:
            continue
        for start in bodies:
            block = _close(text, start, markers[first_closer:], defines, allow_open)
            if block:
                position = block.end
                yield block
                break


def _markers(text: str) -> list[_Marker]:
    found = []
    for match in _MARKER.finditer(text):
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        found.append(_Marker(match.start(), match.end(), len(match[0]) > 2, not before.strip()))
    return found


def _openings(text: str, markers: list[_Marker]) -> Iterator[tuple[list[int], int]]:
    """Where a program may begin: (starts to try in order, index of the first marker that may close it)."""
    before_first = text[: markers[0].start] if markers else text
    first_code_line = _CODE_LINE.search(before_first)
    yield [0, *([first_code_line.start()] if first_code_line else [])], 0
    for index, marker in enumerate(markers):
        if marker.opens:
            yield _starts_after(text, marker.end), index + 1


def _starts_after(text: str, end: int) -> list[int]:
    """Starts of the code behind an opening marker: behind its language where code follows on the line, then below."""
    newline = text.find("\n", end)
    below = len(text) if newline < 0 else newline + 1
    begin = end + len(text[end:below]) - len(text[end:below].lstrip(" \t"))
    prefix = _LANGUAGE.match(text, begin, below) or _GLUED.match(text, begin, below)
    same_line = prefix.end() if prefix else begin
    return [same_line, below] if _CODE_AFTER_FENCE.match(text, same_line, below) else [below]


def _close(text: str, start: int, closers: list[_Marker], defines: Sequence[str], allow_open: bool) -> _Block | None:
    """The shortest block from `start` that parses and defines; markers on their own line are tried first."""
    near = closers[:_LONGEST_BLOCK_MARKERS]
    for marker in [m for m in near if m.starts_line] + [m for m in near if not m.starts_line]:
        code = _clean(text[start : marker.start])
        if _mentions(code, defines) and _problem(code, defines) is None:
            return _Block(code, marker.end if _is_bare(text, marker) else marker.start, closed=True)
    code = _clean(text[start:])
    if allow_open and _mentions(code, defines) and _problem(code, defines) is None:
        return _Block(code, len(text), closed=False)
    return None


def _is_bare(text: str, marker: _Marker) -> bool:
    """Whether nothing follows on the line: otherwise the marker may open the next block as well."""
    newline = text.find("\n", marker.end)
    return not text[marker.end : len(text) if newline < 0 else newline].strip()


def _clean(code: str) -> str:
    code = code.strip("\n").rstrip()
    return (textwrap.dedent(code) if code[:1] in " \t" else code) + "\n"


def _mentions(code: str, defines: Sequence[str]) -> bool:
    """A cheap necessary condition, so that prose is never parsed."""
    return all(name in code for name in defines)


def _problem(code: str, defines: Sequence[str]) -> str | None:
    """What keeps the code from being used, in one line; None where nothing does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            # A line of tildes is valid Python (three inversions); as back-ticks it is none, as a fence should be.
            tree = ast.parse(_TILDES.sub(r"\1```", code))
    except SyntaxError as error:
        return f"the code does not parse: line {error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        # ast.parse raises these for characters that cannot be encoded and for nesting beyond its stack.
        return f"the code does not parse: {type(error).__name__}"
    defined = set(_defined(tree.body))
    missing = [f"no class {n}" if n[:1].isupper() else f"no function {n}" for n in defines if n not in defined]
    return ", ".join(missing) or None


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that a module defines: classes, functions, and assigned names that are not capitalised."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name) and not t.id[:1].isupper())
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _defined(node.body)
            yield from _defined(getattr(node, "orelse", []))


def _why_not(text: str, defines: Sequence[str], finish: Finish, unfinished_reasoning: bool) -> str:
    blocks = _plain_blocks(text)
    cut_off = finish is Finish.LENGTH
    if unfinished_reasoning and not blocks:
        return "truncated inside its reasoning" if cut_off else "the answer never left its reasoning"
    if cut_off and not unfinished_reasoning and (not blocks or not blocks[-1].closed):
        return "truncated" if blocks else "truncated before any complete code block"
    if not blocks:
        return "no code block" if text.strip() else "no code block: the answer is empty"
    closest = [b for b in blocks if _mentions(b.code, defines)] or blocks
    return _problem(closest[-1].code, defines) or "truncated"


def _plain_blocks(text: str) -> list[_Block]:
    """Blocks by pairing markers as they come, only to explain a failure."""
    markers = [m for m in _markers(text) if m.starts_line or m.opens]
    blocks = []
    start = 0 if _CODE_LINE.search(text[: markers[0].start] if markers else text) else None
    for marker in markers:
        if start is None:
            start = _starts_after(text, marker.end)[0] if marker.opens else None
        else:
            blocks.append(_Block(_clean(text[start : marker.start]), marker.end, closed=True))
            start = None
    if start is not None:
        blocks.append(_Block(_clean(text[start:]), len(text), closed=False))
    return [block for block in blocks if block.code.strip()]
