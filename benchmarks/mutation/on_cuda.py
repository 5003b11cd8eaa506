"""Mutation operators for CUDA candidates, on the tokens of the C++ text inside the Python file.

Operands are found as primary expressions (a name or number with its brackets, calls and members), which is enough for
kernels and needs no C++ parser. Not covered: faults in templates, precision, and launches through other interfaces.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mutation.edit import Edit

_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\w*'
    r"|<<<|>>>|<<=|>>=|<<|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%&|^]=|->|::|\S",
    re.DOTALL,
)
_TWINS = {
    "fmaxf": ("max_to_min", "fminf"),
    "fminf": ("max_to_min", "fmaxf"),
    "max": ("max_to_min", "min"),
    "min": ("max_to_min", "max"),
    "expf": ("function_replaced", "exp2f"),
    "__expf": ("function_replaced", "exp2f"),
    "logf": ("function_replaced", "log2f"),
    "tanhf": ("function_replaced", "sinf"),
    "sqrtf": ("function_replaced", "rsqrtf"),
    "rsqrtf": ("function_replaced", "sqrtf"),
    "fabsf": ("function_replaced", "expf"),
    "normcdff": ("function_replaced", "expf"),
}
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NAMED_MINIMA = ("INFINITY", "FLT_MAX", "CUDART_INF_F", "1e30f")
_TYPES = {"float", "int", "double", "unsigned", "bool", "size_t", "int64_t", "long", "T", "scalar_t", "short", "char"}


@dataclass(frozen=True)
class _Tok:
    text: str
    start: int
    end: int

    @property
    def is_word(self) -> bool:
        return self.text[0].isalnum() or self.text[0] in "_."


def edits(source: str) -> Iterator[Edit]:
    """All edits of the device code and of the launches in a CUDA candidate."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "__global__" in node.value:
            start = source.find(node.value)
            if start >= 0:
                yield from _Text(source, start, start + len(node.value)).edits()


def normal_form(source: str) -> str:
    """Equal for sources that differ in layout and comments only."""
    return " ".join(m.group() for m in _TOKEN.finditer(source) if not m.group().startswith(("//", "/*")))


class _Text:
    """The tokens of one C++ text, comments and preprocessor lines left out."""

    def __init__(self, source: str, start: int, end: int) -> None:
        self.source = source
        self.tokens = [_Tok(m.group(), m.start(), m.end()) for m in _TOKEN.finditer(source, start, end)]
        self.tokens = [t for t in self.tokens if not t.text.startswith(("//", "/*")) and not self._preprocessor(t)]
        self.device = self._device_tokens()

    def _preprocessor(self, token: _Tok) -> bool:
        line = self.source[self.source.rfind("\n", 0, token.start) + 1 : token.start + 1]
        return line.lstrip().startswith("#")

    def _device_tokens(self) -> set[int]:
        """Positions of tokens in bodies of __global__ and __device__ functions."""
        found: set[int] = set()
        for i, token in enumerate(self.tokens):
            if token.text in ("__global__", "__device__") and i not in found:
                opening = next((j for j in range(i, len(self.tokens)) if self.tokens[j].text in ("{", ";")), None)
                if opening is not None and self.tokens[opening].text == "{":
                    found |= set(range(opening, self._match(opening) + 1))
        return found

    def _match(self, i: int) -> int:
        """Position of the bracket that closes the one at `i`."""
        closing, depth = {"(": ")", "[": "]", "{": "}"}[self.tokens[i].text], 0
        for j in range(i, len(self.tokens)):
            depth += (self.tokens[j].text == self.tokens[i].text) - (self.tokens[j].text == closing)
            if depth == 0:
                return j
        return len(self.tokens) - 1

    def _match_back(self, i: int) -> int:
        opening, depth = {")": "(", "]": "["}[self.tokens[i].text], 0
        for j in range(i, -1, -1):
            depth += (self.tokens[j].text == self.tokens[i].text) - (self.tokens[j].text == opening)
            if depth == 0:
                return j
        return 0

    def _operand_after(self, i: int) -> int | None:
        """Last token of the primary expression that starts at `i`."""
        if not (self.tokens[i].is_word or self.tokens[i].text == "("):
            return None
        j = self._match(i) if self.tokens[i].text == "(" else i
        while j + 1 < len(self.tokens):
            following = self.tokens[j + 1].text
            if following in ("[", "("):
                j = self._match(j + 1)
            elif following in (".", "->", "::"):
                j += 2
            elif self.tokens[j].text == ")" and self.tokens[j + 1].is_word and self._is_cast(j):
                j += 1
            else:
                return j
        return j

    def _is_cast(self, i: int) -> bool:
        return self.tokens[i - 1].text in _TYPES

    def _operand_before(self, i: int) -> int | None:
        """First token of the primary expression that ends at `i`."""
        while True:
            if self.tokens[i].text in (")", "]"):
                i = self._match_back(i)
                before = self.tokens[i - 1]
                if self.tokens[i].text == "(" and not (before.is_word and before.text not in ("return", "if", "for")):
                    return i
                i -= 1
            elif not self.tokens[i].is_word:
                return None
            elif self.tokens[i - 1].text in (".", "->", "::"):
                i -= 2
            else:
                return i

    def _code(self, first: int, last: int) -> str:
        return self.source[self.tokens[first].start : self.tokens[last].end]

    def _edit(self, operator: str, first: int, last: int, text: str) -> Edit:
        return Edit(operator, self.tokens[first].start, self.tokens[last].end, text)

    def _spaced(self, i: int) -> bool:
        """A binary operator is written with spaces around it; brackets of templates are not."""
        token = self.tokens[i]
        return self.source[token.start - 1 : token.start] == " " and self.source[token.end : token.end + 1] in (
            " ",
            "\n",
        )

    # --- operators ---

    def edits(self) -> Iterator[Edit]:
        for i, token in enumerate(self.tokens[:-2]):
            if i in self.device:
                yield from self._device(i, token.text)
            else:
                yield from self._host(i, token.text)

    def _device(self, i: int, text: str) -> Iterator[Edit]:
        if text in _TWINS and self.tokens[i + 1].text == "(":
            operator, twin = _TWINS[text]
            yield self._edit(operator, i, i, twin)
        elif text in _BOUNDARY and self._spaced(i):
            yield from self._comparison(i, text)
        elif text in ("+", "-", "*", "/", "%") and self._spaced(i):
            yield from self._arithmetic(i, text)
        elif text == "+=" and not self._in_for_header(i):
            yield self._edit("overwritten_sum", i, i, "=")
            yield self._edit("sign_flipped", i, i, "-=")
        elif text == "__syncthreads" and self.tokens[i + 3].text == ";":
            yield self._edit("missing_sync", i, i + 2, "")
        elif text == "atomicAdd":
            yield from self._race(i)
        elif text == "[":
            yield from self._subscript(i)
        elif text == "if" and self.tokens[i + 1].text == "(":
            yield from self._condition(i)
        elif text in ("threadIdx", "blockIdx"):
            yield from self._axis(i)
        elif text[0].isdigit():
            yield from self._number(i, text)
        elif text == "-" and self.tokens[i + 1].text in _NAMED_MINIMA and self.tokens[i - 1].text in ("=", ":"):
            yield self._edit("reduction_start", i, i + 1, "0.5f")

    def _comparison(self, i: int, text: str) -> Iterator[Edit]:
        if not (self._in_for_header(i) and self.tokens[i + 1].text == "0"):
            yield self._edit("comparison_boundary", i, i, _BOUNDARY[text])
        last = self._operand_after(i + 1)
        if text == "<" and last is not None and not self.tokens[i + 1].text[0].isdigit():
            yield self._edit("mask_off_by_one", i + 1, last, f"{self._code(i + 1, last)} - 1")
        if not self._in_for(i):
            yield self._edit("comparison_flipped", i, i, _FLIPPED[text])

    def _in_for(self, i: int) -> bool:
        return "for (" in self.source[self.source.rfind("\n", 0, self.tokens[i].start) : self.tokens[i].start]

    def _in_for_header(self, i: int) -> bool:
        """Faults of a loop's own step do not end: they cost a time limit each and say little."""
        line = self.source[self.source.rfind("\n", 0, self.tokens[i].start) + 1 : self.tokens[i].start]
        head = line[line.rfind("for (") :]
        return "for (" in line and head.count("(") > head.count(")")

    def _arithmetic(self, i: int, text: str) -> Iterator[Edit]:
        first, last = self._operand_before(i - 1), self._operand_after(i + 1)
        if first is None or last is None:
            return
        left, right = self._code(first, i - 1), self._code(i + 1, last)
        index = self._in_subscript(i)
        if text in "+-":
            flipped = "-" if text == "+" else "+"
            yield self._edit("sign_flipped", i, i, flipped)
            yield self._edit("index_term_dropped" if index else "term_dropped", i, last, "")
        if text in "-/":
            yield self._edit("operands_swapped", first, last, f"{right} {text} {left}")
        if text == "/" and re.fullmatch(r"[A-Za-z_]\w*", right):
            yield self._edit("wrong_divisor", i + 1, last, f"({right} - 1)")
        if text == "*":
            yield self._edit(
                "wrong_stride" if index else "factor_dropped", i, last, f"* ({right} - 1)" if index else ""
            )
        if text == "*" and self.tokens[last + 1].text == "+" and not index:
            after = self._operand_after(last + 2)
            if after is not None:
                yield self._edit("order_of_operations", i + 1, after, f"({self._code(i + 1, after)})")
        if text in "%/" and index:
            yield self._edit("division_for_remainder", i, i, "/" if text == "%" else "%")

    def _in_subscript(self, i: int) -> bool:
        depth = 0
        for j in range(i - 1, -1, -1):
            text = self.tokens[j].text
            if text in (";", "{", "}"):
                return False
            depth += (text in ("]",)) - (text == "[")
            if depth < 0:
                return True
        return False

    def _subscript(self, i: int) -> Iterator[Edit]:
        if self.tokens[i - 1].text in ("=", ",", "(") or self._is_declaration(i):
            return
        close = self._match(i)
        if close > i + 1:
            inside = self._code(i + 1, close - 1)
            yield self._edit("index_off_by_one", i + 1, close - 1, f"{inside} + 1")
        if self.tokens[close + 1].text == "=" and "\n" in self.source[: self.tokens[i].start]:
            first = self._operand_before(close)
            if first is not None and self.tokens[first - 1].text in (";", "{", "}", ")"):
                end = next(j for j in range(close, len(self.tokens)) if self.tokens[j].text == ";")
                statement = self._code(first, end)
                yield self._edit("part_not_written", first, end, f"if (threadIdx.x % 7 != 3) {{ {statement} }}")
                yield self._edit("store_dropped", first, end, ";")

    def _is_declaration(self, i: int) -> bool:
        line = self.source[self.source.rfind("\n", 0, self.tokens[i].start) + 1 : self.tokens[i].start]
        return bool(re.match(r"\s*(extern )?(__shared__|(const )?(float|int|double|half|unsigned)\b[^=]*$)", line))

    def _condition(self, i: int) -> Iterator[Edit]:
        close = self._match(i + 1)
        yield self._edit(
            "mask_dropped", i + 2, close - 1, "false" if self.tokens[close + 1].text == "return" else "true"
        )

    def _axis(self, i: int) -> Iterator[Edit]:
        axis = self.tokens[i + 2].text
        both = {t.text for t in (self.tokens[j + 2] for j in self.device if self.tokens[j].text == self.tokens[i].text)}
        if axis in "xy" and both >= {"x", "y"}:
            yield self._edit("wrong_axis", i + 2, i + 2, "y" if axis == "x" else "x")

    def _number(self, i: int, text: str) -> Iterator[Edit]:
        if re.fullmatch(r"\d*\.\d*(e-?\d+)?f?", text):
            value = float(text.rstrip("f"))
            if value == 0.0 and self.tokens[i - 1].text == "=" and self.tokens[i + 1].text in (";", ","):
                yield self._edit("reduction_start", i, i, "1.0f")
            elif 1e-6 < value < 1e6:
                yield self._edit("wrong_constant", i, i, f"{value * 1.05!r}f")
        elif text == "0" and self.tokens[i - 1].text == "=" and self._in_for(i):
            yield self._edit("loop_late", i, i, "1")
        elif text == "16" and self.tokens[i - 1].text == "=":
            yield self._edit("shuffle_width", i, i, "8")
        elif text == "2" and self.tokens[i - 1].text == "/" and self._in_for(i):
            yield self._edit("shuffle_width", i, i, "4")

    def _race(self, i: int) -> Iterator[Edit]:
        close = self._match(i + 1)
        arguments = self._code(i + 2, close - 1)
        depth = 0
        for position, letter in enumerate(arguments):
            depth += (letter in "([") - (letter in ")]")
            if letter == "," and depth == 0:
                target, value = arguments[:position], arguments[position + 1 :].strip()
                if self.tokens[close + 1].text == ";":
                    yield self._edit("race", i, close, f"*({target}) += {value}")
                return

    # --- launches ---

    def _host(self, i: int, text: str) -> Iterator[Edit]:
        if text == "zeros":
            yield self._edit("not_zeroed", i, i, "empty")
        elif text == "<<<":
            yield from self._launch(i)
        elif text == "dim3" and self.tokens[i + 1].text not in ("(",) and "block" not in self.tokens[i + 1].text:
            yield from self._dim3(i + 2)
        elif text == "/" and self._spaced(i) and self.tokens[i - 1].text == ")":
            yield from self._rounding(i)

    def _rounding(self, i: int) -> Iterator[Edit]:
        """(n + 255) / 256 without the addition."""
        opening = self._match_back(i - 1)
        plus = next((j for j in range(opening, i) if self.tokens[j].text == "+"), None)
        if plus is not None and self.tokens[opening - 1].text not in ("size",):
            yield self._edit("missing_tail", opening, i - 1, f"({self._code(opening + 1, plus - 1)})")

    def _launch(self, i: int) -> Iterator[Edit]:
        comma = self._top_level_comma(i + 1)
        grid = self._code(i + 1, comma - 1)
        if "dim3" not in grid and f"dim3 {grid}" not in self.source and f" {grid}(" not in self.source:
            yield self._edit("grid_one_smaller", i + 1, comma - 1, f"({grid}) - 1")
        closing = next(j for j in range(i, len(self.tokens)) if self.tokens[j].text == ">>>")
        yield from self._swapped_arguments(closing + 1)

    def _dim3(self, i: int) -> Iterator[Edit]:
        if self.tokens[i].text == "(":
            comma = self._top_level_comma(i + 1)
            yield self._edit("grid_one_smaller", i + 1, comma - 1, f"({self._code(i + 1, comma - 1)}) - 1")

    def _top_level_comma(self, i: int) -> int:
        depth = 0
        for j in range(i, len(self.tokens)):
            text = self.tokens[j].text
            if depth == 0 and text in (",", ")"):
                return j
            depth += (text in ("(", "[")) - (text in (")", "]"))
        return len(self.tokens) - 1

    def _swapped_arguments(self, i: int) -> Iterator[Edit]:
        close, bounds, at = self._match(i), [], i + 1
        while at < close:
            comma = self._top_level_comma(at)
            bounds.append((at, comma - 1))
            at = comma + 1
        for (a, b), (c, d) in itertools.pairwise(bounds):
            first, second = self._code(a, b), self._code(c, d)
            if ("data_ptr" in first) == ("data_ptr" in second):
                yield self._edit("arguments_swapped", a, d, f"{second}, {first}")
