"""The words around the code in a model's answer."""

from __future__ import annotations

import re

from kernelzero.policy.reasoning import strip_reasoning

_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"(?:`{3,}|~{3,})[ \t]*[\w+]*\s*\Z")
_THOUGHTS = re.compile(r"<think(?:ing)?>(.*?)</think(?:ing)?>", re.DOTALL)


def prose_before(text: str, code: str) -> str:
    """What an answer says before its code: no thoughts, no other code blocks."""
    body = strip_reasoning(text.replace("\r\n", "\n")).text
    at = body.rfind(code.strip())
    before = body[:at] if at >= 0 else body.split("```")[0]
    return re.sub(r"\n{3,}", "\n\n", _FENCED.sub("", _OPENING.sub("", before))).strip()


def thoughts_in(text: str) -> str:
    """What an answer says between tags of thought; "" where there are none."""
    found = _THOUGHTS.search(text)
    return found[1].strip() if found else ""
