"""Terminals of a Lark grammar letter by letter.

Sets of characters are bit masks: one bit for each ASCII character, and one for all others
together, set wherever one of them might be in the set. Masks are never too small.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterable

from smcprog.grammars import regex
from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Expression,
    Name,
    Not,
    Pattern,
    Place,
    Range,
    Repeat,
    Sequence,
    Text,
    fail,
)

__all__ = ["ALL", "by_letter", "letters", "pattern_tree"]

BEYOND = 1 << 128  # every character that is not ASCII
ALL = (1 << 129) - 1


def letters(text: Iterable[str]) -> int:
    """Mask of some characters."""
    mask = 0
    for c in text:
        mask |= 1 << ord(c) if c.isascii() else BEYOND
    return mask


def pattern_tree(node: Pattern) -> regex.Group:
    """Syntax tree of a terminal's regular expression; errors have its place."""
    try:
        tree = regex.parse(node.value, regex.LARK, node.flags)
        regex.write(tree)
    except regex.RegexError as error:
        shown = node.value if len(node.value) <= 60 else node.value[:60] + "…"
        fail(node.place, f"/{shown}/: {error.reason} at position {error.position}")
    return tree


def by_letter(node: Expression) -> Expression:
    """An expression of a terminal with every string and pattern taken apart into letters.

    Names stay, and so do complements and intersections (`Not`), which have no such form.
    """
    if isinstance(node, Text):
        parts = tuple(_letter(node.place, c, node.ignore_case) for c in node.value)
        return parts[0] if len(parts) == 1 else Sequence(node.place, parts)
    if isinstance(node, Range):
        low, high = regex.escape(node.low), regex.escape(node.high)
        inside = letters(chr(c) for c in range(ord(node.low), min(ord(node.high), 127) + 1))
        return Char(node.place, f"[{low}-{high}]", inside | (BEYOND if node.high > "\x7f" else 0))
    if isinstance(node, Pattern):
        return _from_tree(pattern_tree(node), node.place, "s" in node.flags, False)
    if isinstance(node, Sequence):
        return Sequence(node.place, tuple(by_letter(p) for p in node.parts))
    if isinstance(node, Alternatives):
        return Alternatives(node.place, tuple(by_letter(o) for o in node.options))
    if isinstance(node, Repeat):
        return Repeat(node.place, by_letter(node.inner), node.low, node.high)
    assert isinstance(node, (Name, Not, Char))
    return node


def _letter(place: Place, c: str, ignore_case: bool) -> Char:
    if not ignore_case:
        return Char(place, regex.escape(c), letters(c))
    return Char(place, f"(?i:{regex.escape(c)})", _mask(re.escape(c), True))


def _from_tree(group: regex.Group, place: Place, dotall: bool, ignore_case: bool) -> Expression:
    ignore_case = "i" in group.opener.partition("-")[0] or (
        ignore_case and "-i" not in group.opener
    )
    options: list[Expression] = []
    for branch in group.branches:
        parts: list[Expression] = []
        for item in branch:
            if item.group is not None:
                part = _from_tree(item.group, place, dotall, ignore_case)
            else:
                text = f"(?i:{item.text})" if ignore_case else item.text
                part = Char(place, text, _mask(item.source, ignore_case))
            parts.append(_repeated(part, item.quantifier, place))
        options.append(parts[0] if len(parts) == 1 else Sequence(place, tuple(parts)))
    return options[0] if len(options) == 1 else Alternatives(place, tuple(options))


def _repeated(part: Expression, quantifier: str, place: Place) -> Expression:
    if not quantifier:
        return part
    if quantifier in "*+?":
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[quantifier]
        return Repeat(place, part, low, high)
    first, comma, last = quantifier[1:-1].partition(",")
    if not comma:
        return Repeat(place, part, int(first), int(first))
    return Repeat(place, part, int(first), int(last) if last else None)


@functools.lru_cache(maxsize=4096)
def _mask(source: str, ignore_case: bool) -> int:
    """Characters that a set, written as one element of a pattern, may match."""
    if source == ".":
        return ALL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(source, re.IGNORECASE if ignore_case else 0)
        except re.error:  # a Unicode property, which Python does not have
            return ALL
    mask = letters(chr(c) for c in range(128) if compiled.fullmatch(chr(c)))
    # An escape may stand for any character; the other letters of one are ASCII.
    beyond = (
        ignore_case
        or not source.isascii()
        or source.startswith("[^")
        or re.search(r"\\[dDpPsSuUwWx]", source)
    )
    return mask | BEYOND if beyond else mask
