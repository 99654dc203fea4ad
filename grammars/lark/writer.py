"""Writing a Lark grammar in the mask engine's syntax."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from smcprog.errors import GrammarError
from smcprog.grammars import regex
from smcprog.grammars.engine import error_reason
from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Definition,
    Expression,
    JsonSchema,
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
from smcprog.grammars.lark.chars import pattern_tree
from smcprog.grammars.lark.lexing import take_apart
from smcprog.grammars.lark.tree import map_leaves, reachable, regular_names, walk
from smcprog.grammars.schema.translate import schema_text

__all__ = ["Writer", "quote"]

START = "start"

_ALTERNATIVES, _SEQUENCE, _ATOM = range(3)
_EMPTY = '""'


def quote(text: str) -> str:
    """A string literal of the mask engine."""
    return json.dumps(text).replace("\x7f", "\\u007f")


@dataclasses.dataclass(frozen=True)
class _Written:
    """A piece of grammar text and how tightly it binds."""

    text: str
    binds: int

    def at(self, least: int) -> str:
        """The text, in parentheses where something that binds as `least` must stand."""
        return self.text if self.binds >= least else f"({self.text})"


class Writer:
    """Definitions in the mask engine's syntax, one a line.

    A grammar without recursion and ``%json`` becomes one terminal, in which the engine is
    exact. Any other becomes rules over terminals that its lexer cannot confuse.

    Parameters
    ----------
    definitions : dict of name to Definition
    ignored : tuple of Expression
        What may stand around and between terminals.
    whitespace : str
        What ``%json`` values may have inside.
    apart : set of pairs of terminals, optional
        As for `take_apart`.
    """

    def __init__(
        self,
        definitions: dict[str, Definition],
        ignored: tuple[Expression, ...],
        whitespace: str,
        apart: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self._definitions = definitions
        self._ignored = ignored
        self._whitespace = whitespace
        self._apart = apart
        self._lines: list[str] = []
        self._places: list[Place] = []
        self._used = set(definitions)
        self._as_terminal: dict[str, str] = {}  # regular rule → the terminal made of it
        self._json_rules: dict[str, str] = {}
        self._skip = ""
        if ignored:
            place = ignored[0].place
            self._skip = self._fresh("IGNORED")
            body = Repeat(place, Alternatives(place, ignored), 1, None)
            self._definitions = {
                **definitions, self._skip: Definition(place, self._skip, body)
            }  # fmt: skip

    def write(self) -> str:
        """The grammar text."""
        if START in regular_names(self._definitions):
            self._write_regular()
        else:
            self._write_rules()
        return "\n".join(self._lines) + "\n"

    def explain_error(self, message: str) -> str:
        """What a compile error of the engine says about the user's text."""
        reason, line, _ = error_reason(message)
        if line is not None and 1 <= line <= len(self._places):
            return f"grammar, line {self._places[line - 1].line}: {reason}"
        return f"grammar: {reason}"

    # -- names and lines

    def _fresh(self, name: str) -> str:
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name

    def _emit(self, name: str, body: _Written, place: Place) -> None:
        self._lines.append(f"{name}: {body.text}")
        self._places.append(place)

    def _emit_terminals(self, names: list[str]) -> None:
        for name in names:
            definition = self._definitions[name]
            if definition.is_terminal:
                self._emit(name, self._terminal(definition.body), definition.place)

    # -- one terminal

    def _write_regular(self) -> None:
        place = self._definitions[START].place
        names = reachable(self._definitions, START)
        if self._skip:
            names += [n for n in reachable(self._definitions, self._skip) if n not in names]
        self._emit_terminals(names)
        for name in names:
            definition = self._definitions[name]
            if not definition.is_terminal:
                body = self._joined(definition.body)
                self._emit(self._terminal_name(name), body, definition.place)
        whole = self._fresh("TEXT")
        around = [f"{self._skip}?"] if self._skip else []
        self._emit(whole, _sequence([*around, self._terminal_name(START), *around], ""), place)
        self._emit(START, _Written(whole, _ATOM), place)

    def _terminal_name(self, name: str) -> str:
        if self._definitions[name].is_terminal:
            return name
        if name not in self._as_terminal:
            self._as_terminal[name] = self._fresh(name.upper())
        return self._as_terminal[name]

    def _terminal(self, node: Expression) -> _Written:
        """Inside a terminal, where nothing is ignored."""
        return self._regular_text(node, self._terminal, "")

    def _joined(self, node: Expression) -> _Written:
        """A rule as part of a terminal, with what may be ignored in between."""
        return self._regular_text(node, self._joined, f"{self._skip}?" if self._skip else "")

    def _regular_text(
        self, node: Expression, inside: Callable[[Expression], _Written], between: str
    ) -> _Written:
        if isinstance(node, Sequence):
            return _sequence([inside(p).at(_SEQUENCE) for p in node.parts], between)
        if isinstance(node, Alternatives):
            return _alternatives([inside(o) for o in node.options])
        if isinstance(node, Repeat):
            inner = inside(node.inner)
            if between and node.high != 1:
                inner = _sequence([inner.at(_SEQUENCE), between], "")
            return _repeat(inner, node)
        return self._leaf(node)

    # -- rules

    def _write_rules(self) -> None:
        names = reachable(self._definitions, START)
        rules = {n: d.body for n in names if not (d := self._definitions[n]).is_terminal}
        places = {n: self._definitions[n].place for n in rules}
        start = START
        if self._skip:
            rules = {n: map_leaves(body, self._and_ignored) for n, body in rules.items()}
            start = self._fresh("text")
            place = places[START]
            skip = Repeat(place, Name(place, self._skip), 0, 1)
            rules[start] = Sequence(place, (skip, Name(place, START)))
        terminals = {n: d for n, d in self._definitions.items() if d.is_terminal}
        rules = take_apart(rules, terminals, start, self._fresh, self._apart)
        if start != START:
            # The engine begins at `start`; the user's rule of that name makes room.
            moved = self._fresh("start_")
            rules = {
                moved if name == START else name: map_leaves(
                    body,
                    lambda leaf: (
                        Name(leaf.place, moved)
                        if isinstance(leaf, Name) and leaf.name == START
                        else leaf
                    ),
                )
                for name, body in rules.items()
            }
            rules = {START if name == start else name: body for name, body in rules.items()}
        used: dict[str, None] = {}
        for name, body in rules.items():
            self._emit(name, self._rule(body), places.get(name, body.place))
            for leaf in walk(body):
                if isinstance(leaf, Name) and leaf.name in terminals:
                    used.update(dict.fromkeys(reachable(self._definitions, leaf.name)))
        self._emit_terminals(list(used))

    def _and_ignored(self, leaf: Expression) -> Expression:
        """A terminal, and what may be ignored after it."""
        if isinstance(leaf, Name) and not self._definitions[leaf.name].is_terminal:
            return leaf
        skip = Repeat(leaf.place, Name(leaf.place, self._skip), 0, 1)
        return Sequence(leaf.place, (leaf, skip))

    def _rule(self, node: Expression) -> _Written:
        if isinstance(node, Sequence):
            return _sequence([self._rule(p).at(_SEQUENCE) for p in node.parts], "")
        if isinstance(node, Alternatives):
            return _alternatives([self._rule(o) for o in node.options])
        if isinstance(node, Repeat):
            return _repeat(self._rule(node.inner), node)
        if isinstance(node, JsonSchema):
            return _Written(self._json(node), _ATOM)
        if isinstance(node, Name):
            return _Written(node.name, _ATOM)
        return self._leaf(node)

    def _json(self, node: JsonSchema) -> str:
        try:
            text, _ = schema_text(node.schema, self._whitespace, embedded=True)
        except GrammarError as error:
            fail(node.place, f"%json: {error}")
        if text not in self._json_rules:
            self._json_rules[text] = self._fresh("json")
            self._emit(self._json_rules[text], _Written(f"%json {text}", _ATOM), node.place)
        return self._json_rules[text]

    # -- leaves

    def _leaf(self, node: Expression) -> _Written:
        if isinstance(node, Text):
            return _Written(quote(node.value) + ("i" if node.ignore_case else ""), _ATOM)
        if isinstance(node, Range):
            return _Written(f"{quote(node.low)}..{quote(node.high)}", _ATOM)
        if isinstance(node, Pattern):
            body = regex.write(pattern_tree(node))
            return _Written(f"/{body}/" if body else _EMPTY, _ATOM)
        if isinstance(node, Char):
            return _Written(f"/{node.text}/", _ATOM)
        if isinstance(node, Name):
            return _Written(self._terminal_name(node.name), _ATOM)
        assert isinstance(node, Not)
        parts = [self._terminal(p).at(_SEQUENCE) for p in node.parts]
        if len(parts) == 1:
            # A complement alone would hold bytes that are not UTF-8.
            parts = ["/(?s:.*)/", f"~{self._terminal(node.parts[0]).at(_ATOM)}"]
        return _Written(" & ".join(parts), _ALTERNATIVES)


def _sequence(parts: list[str], between: str) -> _Written:
    parts = [p for p in parts if p != _EMPTY]
    if not parts:
        return _Written(_EMPTY, _ATOM)
    text = (f" {between} " if between else " ").join(parts)
    return _Written(text, _SEQUENCE)


def _alternatives(options: list[_Written]) -> _Written:
    return _Written(" | ".join(o.at(_ALTERNATIVES) for o in options), _ALTERNATIVES)


def _repeat(inner: _Written, node: Repeat) -> _Written:
    if node.high == 0:
        return _Written(_EMPTY, _ATOM)
    op = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((node.low, node.high))
    if op == "":
        return inner
    if op is None:
        op = f"{{{node.low},{'' if node.high is None else node.high}}}"
    return _Written(inner.at(_ATOM) + op, _SEQUENCE)
