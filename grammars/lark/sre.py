r"""Python's regular expressions as trees of ours, for what Python's `re` alone can say exactly.

The pattern is parsed by Python itself. What a terminal's text cannot tell (look-around,
anchors, word boundaries, back-references, which of two matches is taken) is left out, so that
the result matches every text that Python's `re` may match, and more.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from smcprog.grammars import regex
from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Expression,
    Place,
    Repeat,
    Sequence,
    Text,
)
from smcprog.grammars.lark.chars import ALL, BEYOND

if sys.version_info >= (3, 11):
    from re import _parser as sre_parse
else:
    import sre_parse

__all__ = [
    "Unreadable", "char_set", "char_test", "frozen", "is_plain", "loose_expression",
    "needs_lark", "parse_pattern", "sre_parse",
]  # fmt: skip

MAX_DEPTH = 150

# What is no matter of the text that a pattern matches as a whole, by Python's name for it.
_REASONS = {
    "ASSERT": "look-around",
    "ASSERT_NOT": "look-around",
    "GROUPREF": "a back-reference",
    "GROUPREF_IGNORE": "a back-reference",
    "GROUPREF_EXISTS": "a conditional group",
    "MIN_REPEAT": "a lazy quantifier",
    "POSSESSIVE_REPEAT": "a possessive quantifier",
    "ATOMIC_GROUP": "an atomic group",
}


class Unreadable(ValueError):
    """A pattern that Python's `re` does not take."""


def parse_pattern(pattern: str, flags: int = 0) -> Any:
    """Python's own syntax tree of a pattern.

    Raises
    ------
    Unreadable
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = sre_parse.parse(pattern, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise Unreadable(str(error) or "too deeply nested") from None
    level, inner = 0, [tree]
    while inner:
        level, inner = level + 1, [t for one in inner for _, v in one for t in _inside(v)]
        if level > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} constructs inside each other")
    return tree


def needs_lark(tree: Any, only: str = "") -> str | None:
    """A construct whose meaning depends on more than the text matched; None without one.

    Parameters
    ----------
    tree
        Of `parse_pattern`.
    only : str
        How Python's name for the construct must begin.
    """
    for op, value in _walk(tree):
        if not op.startswith(only):
            continue
        if op == "AT":
            return "a word boundary" if "BOUNDARY" in str(value) else "an anchor"
        if op in _REASONS:
            return _REASONS[op]
    return None


def _walk(tree: Any) -> Iterator[tuple[str, Any]]:
    pending = [tree]
    while pending:
        for op, value in pending.pop():
            yield str(op), value
            pending.extend(_inside(value))


def _inside(value: Any) -> list[Any]:
    """Trees inside the value of one of Python's nodes."""
    if isinstance(value, sre_parse.SubPattern):
        return [value]
    if isinstance(value, tuple):
        branches = [b for v in value if isinstance(v, list) for b in v]
        return [t for t in (*value, *branches) if isinstance(t, sre_parse.SubPattern)]
    return []


def is_plain(tree: Any) -> bool:
    """Whether a pattern has no repeats but ``*``, ``+``, ``?`` and no empty alternatives."""
    for op, value in _walk(tree):
        if op == "BRANCH" and any(branch.getwidth()[0] == 0 for branch in value[1]):
            return False
        if op == "MAX_REPEAT":
            low, high = value[0], value[1]
            if low > 1 or (high is not sre_parse.MAXREPEAT and high > 1):
                return False
    return needs_lark(tree) is None


def loose_expression(tree: Any, flags: int, place: Place) -> Expression:
    """An expression over single characters that matches what a pattern may match, and more.

    Parameters
    ----------
    tree
        Of `parse_pattern`.
    flags : int
        Of the pattern as a whole.
    place : Place
    """
    return _Loose(place).sequence(tree, flags | tree.state.flags)


@dataclasses.dataclass(frozen=True)
class _Loose:
    place: Place

    def sequence(self, tree: Any, flags: int) -> Expression:
        parts: list[Expression] = []
        for op, value in tree:
            part = self.one(str(op), value, flags)
            if isinstance(part, Sequence) and not part.parts:
                continue
            if isinstance(part, Text) and parts and isinstance(parts[-1], Text):
                part = Text(self.place, parts.pop().value + part.value)  # type: ignore[attr-defined]
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(self.place, tuple(parts))

    def one(self, op: str, value: Any, flags: int) -> Expression:
        place = self.place
        if op == "LITERAL" and not flags & re.IGNORECASE:
            return Text(place, chr(value))
        if op in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            return Char(place, *char_set(op, frozen(value), flags))
        if op == "BRANCH":
            return Alternatives(place, tuple(self.sequence(b, flags) for b in value[1]))
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, inner = value
            last = None if high is sre_parse.MAXREPEAT else int(high)
            return Repeat(place, self.sequence(inner, flags), int(low), last)
        if op == "SUBPATTERN":
            _, add, remove, inner = value
            return self.sequence(inner, (flags | add) & ~remove)
        if op == "ATOMIC_GROUP":
            return self.sequence(value, flags)
        if op in ("AT", "ASSERT", "ASSERT_NOT"):
            return Sequence(place, ())
        if op == "FAILURE":
            return Alternatives(place, ())
        return Repeat(place, Char(place, "(?s:.)", ALL), 0, None)  # a back-reference


def frozen(value: Any) -> Any:
    """A value of Python's tree that can be a key."""
    if isinstance(value, list):
        return tuple((str(op), v if isinstance(v, (int, tuple)) else str(v)) for op, v in value)
    return value


Items = tuple[tuple[str, Any], ...]


@functools.lru_cache(maxsize=4096)
def _items(op: str, value: Any, flags: int) -> tuple[Items, bool]:
    """Members of a set of characters, those of other case among them; whether it is negated."""
    items = value if op == "IN" else (("LITERAL", value),)
    negated = op == "NOT_LITERAL"
    if items and items[0][0] == "NEGATE":
        negated, items = True, items[1:]
    if flags & re.IGNORECASE:
        items = items + _other_cases(items, bool(flags & re.ASCII))
    return items, negated


@functools.lru_cache(maxsize=4096)
def char_set(op: str, value: Any, flags: int) -> tuple[str, int]:
    """A set of characters in the mask engine's regex syntax, and as a mask of `lark_chars`.

    Parameters
    ----------
    op, value
        Python's; a list made a tuple by `frozen`.
    flags : int
    """
    if op == "ANY":
        if flags & re.DOTALL:
            return "(?s:.)", ALL
        return r"[^\n]", ALL & ~(1 << 10)
    ascii_only = bool(flags & re.ASCII)
    items, negated = _items(op, value, flags)
    text = "".join(_item_text(kind, v, ascii_only) for kind, v in items)
    mask, beyond = 0, False
    for code in range(128):
        if _holds(items, code, ascii_only):
            mask |= 1 << code
    for kind, v in items:
        beyond = beyond or kind == "CATEGORY" or (v if kind == "LITERAL" else v[1]) > 127
    if negated:
        return f"[^{text}]", (ALL & ~BEYOND & ~mask) | BEYOND
    return f"[{text}]", mask | (BEYOND if beyond else 0)


def char_test(op: str, value: Any, flags: int) -> Callable[[str], bool]:
    """Whether a character is in a set, as for `char_set`."""
    if op == "ANY":
        return (lambda c: True) if flags & re.DOTALL else (lambda c: c != "\n")
    items, negated = _items(op, value, flags)
    ascii_only = bool(flags & re.ASCII)
    return lambda c: _holds(items, ord(c), ascii_only) != negated


def _item_text(kind: str, value: Any, ascii_only: bool) -> str:
    if kind == "LITERAL":
        return regex.escape(chr(value))
    if kind == "RANGE":
        # Half a surrogate pair is no character of a text.
        low, high = value
        spans = [(low, min(high, 0xD7FF)), (max(low, 0xE000), high)]
        return "".join(f"{regex.escape(chr(a))}-{regex.escape(chr(b))}" for a, b in spans if a <= b)
    name = str(value).rpartition("_")[2].lower()
    contents = {
        "digit": "0-9" if ascii_only else regex.PYTHON.digit,
        "word": "0-9A-Za-z_" if ascii_only else regex.PYTHON.word,
        "space": r"\t-\r\x20" if ascii_only else regex.PYTHON.space,
    }[name]
    return f"[^{contents}]" if "_NOT_" in str(value) else contents


def _holds(items: Items, code: int, ascii_only: bool) -> bool:
    return any(_holds_one(kind, value, code, ascii_only) for kind, value in items)


def _holds_one(kind: str, value: Any, code: int, ascii_only: bool) -> bool:
    if kind == "LITERAL":
        return bool(code == value)
    if kind == "RANGE":
        return bool(value[0] <= code <= value[1])
    c = chr(code)
    name = str(value).rpartition("_")[2].lower()
    if name == "digit":
        inside = c.isdecimal()
    elif name == "word":
        inside = c.isalnum() or c == "_"
    else:
        inside = c.isspace()
    if ascii_only and (not c.isascii() or (name == "space" and c in "\x1c\x1d\x1e\x1f")):
        inside = False
    return inside != ("_NOT_" in str(value))


def _other_cases(items: Items, ascii_only: bool) -> Items:
    """Characters that are not in a set, but equal to one that is when case is ignored."""
    out = []
    for code, others in _cases().items():
        if ascii_only and code > 127:
            continue
        if not _holds(items, code, ascii_only) and any(
            _holds(items, other, ascii_only) for other in others if not ascii_only or other < 128
        ):
            out.append(("LITERAL", code))
    return tuple(out)


@functools.cache
def _cases() -> dict[int, tuple[int, ...]]:
    """For each character with case, those that Python's `re` takes for it if case is ignored."""
    family: dict[str, set[str]] = {}

    def join(a: str, b: str) -> None:
        both = family.setdefault(a, {a}) | family.setdefault(b, {b})
        for c in both:
            family[c] = both

    join("i", "\u0130")  # its lower case has two characters, which `re` does not see
    for code in range(0x20000):
        c = chr(code)
        for other in (c.lower(), c.upper(), c.title()):
            if len(other) == 1 and other != c:
                join(c, other)
    out = {}
    for c, members in family.items():
        others = members - {c}
        if len(members) > 2:
            others = {d for d in others if re.match(re.escape(d), c, re.IGNORECASE)}
        out[ord(c)] = tuple(ord(d) for d in others)
    return out
