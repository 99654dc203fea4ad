"""What a Lark grammar derives, straight from the definition: texts up to a length.

The languages of all names grow together from nothing until they stop growing. Terminals are
matched with Python's `re`; what is ignored may stand around and between terminals.
"""

from __future__ import annotations

import itertools
import re

from smcprog.grammars.lark.ast import (
    Alternatives,
    Expression,
    Name,
    Pattern,
    Range,
    Repeat,
    Sequence,
    Text,
)
from smcprog.grammars.lark.load import load_lark
from smcprog.grammars.lark.templates import expand_templates


def derived_texts(text: str, alphabet: str, length: int) -> set[str]:
    """All texts over an alphabet, up to a length, that the grammar derives from `start`."""
    file = load_lark(text)
    definitions = expand_templates(file.definitions)
    words = ["".join(w) for n in range(length + 1) for w in itertools.product(alphabet, repeat=n)]

    def concat(a: set[str], b: set[str]) -> set[str]:
        return {x + y for x in a for y in b if len(x) + len(y) <= length}

    def power(a: set[str], low: int, high: int | None) -> set[str]:
        out, at, k = ({""} if low == 0 else set()), {""}, 0
        while k < (high if high is not None else low + length):
            at, k = concat(at, a), k + 1
            if k >= low:
                out = out | at
        return out

    def language(node: Expression, known: dict[str, set[str]], gap: set[str]) -> set[str]:
        if isinstance(node, Sequence):
            out = {""}
            for part in node.parts:
                out = concat(out, language(part, known, gap))
            return out
        if isinstance(node, Alternatives):
            return set().union(*(language(o, known, gap) for o in node.options))
        if isinstance(node, Repeat):
            return power(language(node.inner, known, gap), node.low, node.high)
        if isinstance(node, Name) and not definitions[node.name].is_terminal:
            return known[node.name]
        if isinstance(node, Name):
            found = language(definitions[node.name].body, known, {""})
        elif isinstance(node, Text):
            found = {w for w in words if w == node.value}
            if node.ignore_case:
                found = {w for w in words if w.lower() == node.value.lower()}
        elif isinstance(node, Range):
            found = {w for w in words if len(w) == 1 and node.low <= w <= node.high}
        else:
            assert isinstance(node, Pattern)
            compiled = re.compile(f"(?{node.flags}){node.value}" if node.flags else node.value)
            found = {w for w in words if compiled.fullmatch(w)}
        return concat(found, gap)

    ignored = set().union(*(language(e, {}, {""}) for e in file.ignored))
    gap = power(ignored, 0, None)
    rules = {n: d for n, d in definitions.items() if not d.is_terminal}
    known: dict[str, set[str]] = {name: set() for name in rules}
    while True:
        new = {name: known[name] | language(d.body, known, gap) for name, d in rules.items()}
        if new == known:
            return concat(gap, known["start"])
        known = new
