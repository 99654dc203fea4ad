"""Exact checks by Lark's Earley parser, with dead ends seen as the text grows.

The verdict on a finished text is Lark's own. On the way, an Earley recogniser over Lark's
rules and terminals keeps what may still become a text. With a dynamic lexer a terminal is
matched wherever it may stand, and what may still grow is waited for.
"""

from __future__ import annotations

import codecs
import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from lark import Lark
from lark.exceptions import LarkError
from lark.lexer import BasicLexer

from smcprog.errors import PotentialError
from smcprog.grammars.lark.check import TokenCheck, TokenParser, lexer_of
from smcprog.grammars.lark.settled import Ways
from smcprog.grammars.text import Check, CheckState

__all__ = ["DynamicCheck", "earley_check"]


class Column:
    """What may stand at one place: items by what they wait for.

    An item is a rule's number, how much of it has been read, and the column where it began.
    """

    __slots__ = ("done", "scans", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, list[Item]] = {}
        self.scans: dict[str, list[Item]] = {}
        self.done = False  # whether the start rule may end here


Item = tuple[int, int, Column]


class Recogniser:
    """Rules of a `lark.Lark` object, for recognising texts from left to right."""

    def __init__(self, lark: Lark, start: str) -> None:
        self._start = start
        self._origins = [r.origin.name for r in lark.rules]
        self._expansions = [tuple((s.is_term, s.name) for s in r.expansion) for r in lark.rules]
        self._of: dict[str, list[int]] = {}
        for number, origin in enumerate(self._origins):
            self._of.setdefault(origin, []).append(number)
        self._nullable: set[str] = set()
        while True:
            before = len(self._nullable)
            for origin, expansion in zip(self._origins, self._expansions, strict=True):
                if all(not t and name in self._nullable for t, name in expansion):
                    self._nullable.add(origin)
            if len(self._nullable) == before:
                break

    def first(self) -> Column:
        """The column before the first terminal."""
        column = Column()
        return self._close(column, [(n, 0, column) for n in self._of[self._start]], column)

    def column(self, items: Iterable[Item], first: Column) -> Column:
        """The column where some items have got to; `first` is that of the start."""
        return self._close(Column(), list(items), first)

    @staticmethod
    def advance(item: Item) -> Item:
        """An item after what it waited for."""
        return item[0], item[1] + 1, item[2]

    def _close(self, column: Column, pending: list[Item], first: Column) -> Column:
        seen: set[Item] = set()
        predicted: set[str] = set()
        while pending:
            item = pending.pop()
            if item in seen:
                continue
            seen.add(item)
            rule, dot, origin = item
            expansion = self._expansions[rule]
            if dot == len(expansion):
                name = self._origins[rule]
                if name == self._start and origin is first:
                    column.done = True
                # Empty rules, which end where they begin, are stepped over below.
                if origin is not column:
                    pending.extend(map(self.advance, origin.waiting.get(name, ())))
                continue
            terminal, name = expansion[dot]
            if terminal:
                column.scans.setdefault(name, []).append(item)
                continue
            column.waiting.setdefault(name, []).append(item)
            if name not in predicted:
                predicted.add(name)
                pending.extend((n, 0, column) for n in self._of.get(name, ()))
            if name in self._nullable:
                pending.append(self.advance(item))
        return column


class EarleyParser(TokenParser):
    """A recogniser fed with the tokens of a basic lexer."""

    def __init__(self, lark: Lark, start: str) -> None:
        self._rules = Recogniser(lark, start)
        self._lexer = lexer_of(lark)
        self._first = self._rules.first()

    def begin(self) -> Any:
        return self._first

    def shift(self, state: Any, token_type: str) -> Any:
        items = state.scans.get(token_type)
        if not items:
            return None
        return self._rules.column(map(self._rules.advance, items), self._first)

    def accepts(self, state: Any) -> bool:
        return bool(state.done)

    def lexer(self, state: Any) -> BasicLexer:
        return self._lexer


def earley_check(lark: Lark, description: str, start: str) -> Check:
    """Texts that a `lark.Lark` object with an Earley (or CYK) parser parses."""
    verdict = parse_verdict(lark, start)
    if lark.lexer_conf.lexer_type in ("dynamic", "dynamic_complete"):
        return DynamicCheck(lark, start, description, verdict)
    return TokenCheck(lark, EarleyParser(lark, start), description, verdict)


def parse_verdict(lark: Lark, start: str) -> Callable[[str], bool]:
    """Whether a `lark.Lark` object parses a text."""
    frontend = lark.parser
    if hasattr(frontend.parser, "Tree"):
        # A tree of an ambiguous text may be large, and is not wanted.
        frontend = copy.copy(frontend)
        frontend.parser = copy.copy(frontend.parser)
        frontend.parser.Tree = None

    def holds(text: str) -> bool:
        try:
            frontend.parse(text, start)
        except RecursionError:
            raise PotentialError(
                "Lark's parser gave up: the text is nested too deeply", potential="Grammar"
            ) from None
        except (LarkError, AssertionError, RuntimeError):
            return False  # also where Lark says that it met a mistake of its own
        return True

    return holds


class DynamicCheck(Check):
    """Texts that Lark's Earley parser with a dynamic lexer parses.

    Parameters
    ----------
    lark : lark.Lark
    start : str
    description : str
    verdict : callable
        Lark's own verdict on a finished text.
    """

    when = "terminal by terminal"

    def __init__(
        self, lark: Lark, start: str, description: str, verdict: Callable[[str], bool]
    ) -> None:
        self.description = description
        self.verdict = verdict
        self.rules = Recogniser(lark, start)
        self.every_length = lark.lexer_conf.lexer_type == "dynamic_complete"
        self.ignored = tuple(lark.ignore_tokens)
        flags, module = lark.lexer_conf.g_regex_flags, lark.lexer_conf.re_module
        self._sources = {t.name: t.pattern.to_regexp() for t in lark.terminals}
        self._flags = flags
        self.patterns = {n: module.compile(p, flags) for n, p in self._sources.items()}
        self._ways: dict[str, Ways] = {}

    def begin(self) -> CheckState:
        first = self.rules.first()
        return _Scanned(self, first, first)

    def may_grow(self, names: Iterable[str], text: str, at: int) -> bool:
        """Whether a match of one of some terminals at a place may change as the text grows."""
        return any(self.ways(name).may_grow(text, at) for name in names)

    def ways(self, name: str) -> Ways:
        """Ways through the pattern of a terminal."""
        if name not in self._ways:
            self._ways[name] = Ways([self._sources[name]], self._flags)
        return self._ways[name]

    def ends(self, name: str, text: str, at: int) -> list[int]:
        """Where Lark lets a terminal end that begins at a place."""
        pattern = self.patterns[name]
        match = pattern.match(text, at)
        if match is None:
            return []
        out = {match.end()}
        if self.every_length:
            whole = match.group()
            for length in range(1, len(whole)):
                shorter = pattern.match(whole[:length])
                if shorter is not None:
                    out.add(at + shorter.end())
        return [end for end in out if end > at]


Arrivals = dict[int, tuple[tuple[Item, ...], bool]]
"""Items that have got to a place still to come, and whether a whole text, then ignored, has."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Scanned(CheckState):
    """A text whose columns before `at` are settled.

    Attributes
    ----------
    first, here : Column
        That of the start; that of `at`.
    later : dict
        What arrives after `at`. Never changed.
    """

    check: DynamicCheck
    first: Column
    here: Column | None
    text: str = ""
    rest: bytes = b""
    at: int = 0
    later: Arrivals = dataclasses.field(default_factory=dict)

    def feed(self, data: bytes) -> _Scanned | None:
        try:
            more, used = codecs.utf_8_decode(self.rest + data, "strict", False)
        except UnicodeDecodeError:
            return None
        rest = (self.rest + data)[used:]
        return self._scan(self.text + more, rest)

    def complete(self) -> bool:
        return not self.rest and self.check.verdict(self.text)

    def _scan(self, text: str, rest: bytes) -> _Scanned | None:
        check, first, here, at, later = self.check, self.first, self.here, self.at, self.later
        while at < len(text):
            if here is not None:
                names = [n for n in (*here.scans, *check.ignored) if n in check.patterns]
                if check.may_grow(names, text, at):
                    break
                later = self._arrive(later, here, text, at)
            at += 1
            items, done = later.get(at, ((), False))
            here = None
            if items or done:
                here = check.rules.column(items, first)
                here.done = here.done or done
            if at in later:
                later = {end: what for end, what in later.items() if end != at}
            if here is None and not later:
                return None
        return dataclasses.replace(self, here=here, text=text, rest=rest, at=at, later=later)

    def _arrive(self, later: Arrivals, here: Column, text: str, at: int) -> Arrivals:
        """What arrives later, with that from a settled place."""
        check, out = self.check, dict(later)

        def add(end: int, items: Iterable[Item], done: bool = False) -> None:
            before, done_before = out.get(end, ((), False))
            out[end] = (*before, *items), done or done_before

        for name, items in here.scans.items():
            if name in check.patterns:
                for end in check.ends(name, text, at):
                    add(end, map(check.rules.advance, items))
        for name in check.ignored:
            match = check.patterns[name].match(text, at)
            if match is not None and match.end() > at:
                waiting = [item for items in here.scans.values() for item in items]
                add(match.end(), waiting, here.done)
        return out
