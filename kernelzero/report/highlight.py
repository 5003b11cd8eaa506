"""Python source as HTML with simple colours. Every character of the source is escaped: it is a model's output."""

from __future__ import annotations

import html
import keyword
import re

_TOKEN = re.compile(
    r"(?P<com>\#[^\n]*)"
    r"|(?P<str>[rbuf]{0,2}(?:\"\"\"[\s\S]*?(?:\"\"\"|\Z)|'''[\s\S]*?(?:'''|\Z)|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?))"
    r"|(?P<dec>@[A-Za-z_][\w.]*)"
    r"|(?P<num>\b\d[\w.]*)"
    r"|(?P<word>[A-Za-z_]\w*)"
)
_KEYWORDS = frozenset(keyword.kwlist)
_NAMES = frozenset({"torch", "nn", "F", "tl", "triton", "self"})


def highlight(source: str, limit: int = 20_000) -> str:
    """Escaped HTML of the source, spans of class com, str, dec, num, kw, name; cut after `limit` characters."""
    shown = source if len(source) <= limit else source[:limit] + "\n# … cut here by the report"
    parts, end = [], 0
    for match in _TOKEN.finditer(shown):
        parts += [html.escape(shown[end : match.start()]), _span(match.lastgroup or "", match.group())]
        end = match.end()
    return "".join([*parts, html.escape(shown[end:])])


def _span(kind: str, text: str) -> str:
    if kind == "word":
        kind = "kw" if text in _KEYWORDS else "name" if text in _NAMES else ""
    escaped = html.escape(text)
    return f'<span class="{kind}">{escaped}</span>' if kind else escaped
