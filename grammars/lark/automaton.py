"""Terminals as automata over positions (Glushkov's construction)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Definition,
    Expression,
    JsonSchema,
    Name,
    Not,
    Repeat,
    Sequence,
)
from smcprog.grammars.lark.chars import ALL, by_letter, letters

__all__ = ["Lexeme", "automaton"]


@dataclasses.dataclass
class Lexeme:
    """A terminal as an automaton over positions.

    Attributes
    ----------
    nullable : bool
    chars : list of int
        Mask of each position.
    first, last : sets of positions
    after : list of sets of positions
        Which positions may come after each.
    """

    nullable: bool = False
    chars: list[int] = dataclasses.field(default_factory=list)
    first: set[int] = dataclasses.field(default_factory=set)
    last: set[int] = dataclasses.field(default_factory=set)
    after: list[set[int]] = dataclasses.field(default_factory=list)
    json: bool = False
    tail: int = 0  # what may lengthen a complete JSON value: digits of a number

    def begins_with(self) -> int:
        """Mask of the first characters."""
        mask = 0
        for position in self.first:
            mask |= self.chars[position]
        return mask


def automaton(leaf: Expression, terminals: Mapping[str, Definition]) -> Lexeme:
    """The automaton of a terminal's expression; counted repeats are taken for any number."""
    lexeme = Lexeme()
    if isinstance(leaf, JsonSchema):
        lexeme.json = True
        lexeme.chars, lexeme.after = [letters('"[{-0123456789tfn')], [set()]
        lexeme.first, lexeme.last = {0}, {0}
        lexeme.tail = letters("0123456789.eE+-")
        return lexeme
    lexeme.nullable, lexeme.first, lexeme.last = _positions(leaf, lexeme, terminals)
    return lexeme


def _positions(
    node: Expression, into: Lexeme, terminals: Mapping[str, Definition]
) -> tuple[bool, set[int], set[int]]:
    """Add an expression's positions; whether it is nullable, its first and last ones."""
    if isinstance(node, Name):
        return _positions(terminals[node.name].body, into, terminals)
    if isinstance(node, Not):
        if len(node.parts) > 1:  # an intersection is part of its first part
            return _positions(node.parts[0], into, terminals)
        position = _position(ALL, into)
        into.after[position].add(position)
        return True, {position}, {position}
    if isinstance(node, Char):
        position = _position(node.chars, into)
        return False, {position}, {position}
    if isinstance(node, Sequence):
        nullable, first, last = True, set[int](), set[int]()
        for part in node.parts:
            empty, begin, end = _positions(part, into, terminals)
            for position in last:
                into.after[position] |= begin
            first |= begin if nullable else set()
            last = end | last if empty else end
            nullable = nullable and empty
        return nullable, first, last
    if isinstance(node, Alternatives):
        parts = [_positions(o, into, terminals) for o in node.options]
        return (
            any(p[0] for p in parts),
            set().union(*(p[1] for p in parts)),
            set().union(*(p[2] for p in parts)),
        )
    if isinstance(node, Repeat):
        if node.high == 0:
            return True, set(), set()
        nullable, first, last = _positions(node.inner, into, terminals)
        if node.high != 1:
            for position in last:
                into.after[position] |= first
        return nullable or node.low == 0, first, last
    return _positions(by_letter(node), into, terminals)


def _position(chars: int, into: Lexeme) -> int:
    into.chars.append(chars)
    into.after.append(set())
    return len(into.chars) - 1
