"""Take a model's reasoning out of its answer, so that only what it really answers counts.

Understood are XML-like tags (<think>, <thinking>, <thought>, <reasoning>, <analysis>, also in square brackets) and the
channels of gpt-oss, raw or with their special tokens stripped. Not covered: reasoning in plain prose, which is
harmless, because prose holds no code block that counts more than the answer's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAMES = r"(?:seed:)?(?:think|thinking|thought|reasoning|reflection|analysis)"
_TAG = re.compile(rf"<\s*(?P<close>/?)\s*{_NAMES}\s*>|\[(?P<bracket>/?)THINK\]", re.IGNORECASE)
_FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]*<\|message\|>")
_CHANNEL_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
_STRIPPED_CHANNELS = re.compile(r"\Aanalysis.*assistantfinal", re.DOTALL)


class Answer(NamedTuple):
    """An answer without its reasoning."""

    text: str
    removed: bool
    """Whether there was reasoning."""
    unfinished: bool
    """Whether the reasoning was never closed: everything after its opening tag is gone."""


def strip_reasoning(text: str) -> Answer:
    """Remove every closed reasoning block, and everything after one that was opened and never closed.

    A closing tag without an opening one ends reasoning that began in the prompt (chat templates of reasoning models
    open the block themselves): everything before it goes. Opening tags inside a code fence are the code's own.
    """
    if _CHANNEL.search(text):
        return _final_channel(text)
    if stripped := _STRIPPED_CHANNELS.match(text):
        return Answer(text[stripped.end() :], removed=True, unfinished=False)
    return _outside_tags(text)


def _outside_tags(text: str) -> Answer:
    kept: list[str] = []
    position, removed, inside = 0, False, False
    for tag in _TAG.finditer(text):
        if tag["close"] or tag["bracket"]:
            if not inside and _in_code(text, position, tag.start()):
                continue
            if not inside:
                kept.clear()
            position, removed, inside = tag.end(), True, False
        elif not inside and not _in_code(text, position, tag.start()):
            kept.append(text[position : tag.start()])
            inside = True
    if inside:
        return Answer("\n".join(kept), removed=True, unfinished=True)
    return Answer("\n".join([*kept, text[position:]]), removed, unfinished=False)


def _in_code(text: str, start: int, tag: int) -> bool:
    """Whether the tag stands in the middle of a line inside a fence: a string or a comment of the answer's code."""
    line_so_far = text[text.rfind("\n", 0, tag) + 1 : tag]
    return bool(line_so_far.strip()) and len(_FENCE_LINE.findall(text[start:tag])) % 2 == 1


def _final_channel(text: str) -> Answer:
    """The text of the last channel called "final"; none: the answer is still in its analysis."""
    final = None
    for channel in _CHANNEL.finditer(text):
        end = _CHANNEL_END.search(text, channel.end())
        if channel[1] == "final":
            final = text[channel.end() : end.start() if end else len(text)]
    return Answer(final or "", removed=True, unfinished=final is None)
