"""Whether what a lexer matches at a place can still change when the text goes on.

Patterns are followed as Python's matcher tries them: all ways at once, in the order in which
it prefers them (Pike's machine). A way that has matched ends those that would be tried after
it; as soon as no way is left, whatever follows in the text changes nothing. Look-around,
anchors and word boundaries are decided where the text so far decides them, and waited for
where it does not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from smcprog.grammars.lark.sre import (
    Unreadable,
    char_test,
    frozen,
    parse_pattern,
    sre_parse,
)

__all__ = ["Threads", "Ways"]

MAX_STEPS = 5_000  # of one pattern's program
MAX_KNOWN = 4_096  # moves that are remembered

Threads = tuple[int, ...]
"""Where ways stand, the preferred first: numbers of steps that read a character."""

_MATCH, _CHAR, _SPLIT, _ASSERT = range(4)


class _TooLong(Exception):
    pass


@dataclasses.dataclass
class _Program:
    """Steps: (kind, argument). `_SPLIT` has where to go on, the preferred first.

    Attributes
    ----------
    steps : list
    loose : set of int
        Numbers of `_MATCH` steps that may be reached where the pattern does not match.
    """

    steps: list[tuple[int, Any]] = dataclasses.field(default_factory=list)
    loose: set[int] = dataclasses.field(default_factory=set)
    exact: bool = True
    limit: int = MAX_STEPS

    def pattern(self, tree: Any, flags: int) -> int:
        """Add a whole pattern; number of its first step."""
        begin = len(self.steps)
        self.exact, self.limit = True, begin + MAX_STEPS
        try:
            self._sequence(tree, flags)
        except (_TooLong, RecursionError):
            return self.anything(begin)
        if not self.exact:
            self.loose.add(len(self.steps))
        self._add(_MATCH)
        return begin

    def anything(self, begin: int) -> int:
        """A pattern that may match anything, from a step on."""
        del self.steps[begin:]
        self.steps += [(_SPLIT, (begin + 1, begin + 2)), (_CHAR, lambda c: True)]
        self.steps += [(_SPLIT, (begin,)), (_MATCH, None)]
        self.steps[begin] = _SPLIT, (begin + 1, begin + 3)
        self.loose.add(begin + 3)
        return begin

    def _add(self, kind: int, argument: Any = None) -> int:
        if len(self.steps) > self.limit:
            raise _TooLong
        self.steps.append((kind, argument))
        return len(self.steps) - 1

    def _sequence(self, tree: Any, flags: int) -> None:
        for op, value in tree:
            self._one(str(op), value, flags)

    def _one(self, op: str, value: Any, flags: int) -> None:
        if op in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
            self._add(_CHAR, char_test(op, frozen(value), flags))
        elif op == "BRANCH":
            self._branch(value[1], flags)
        elif op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            self.exact = self.exact and op != "POSSESSIVE_REPEAT"
            self._repeat(value, op == "MIN_REPEAT", flags)
        elif op == "SUBPATTERN":
            _, add, remove, inner = value
            self._sequence(inner, (flags | add) & ~remove)
        elif op == "ATOMIC_GROUP":
            self.exact = False  # it tries fewer ways
            self._sequence(value, flags)
        elif op == "AT":
            self._add(_ASSERT, _anchor(str(value), flags))
        elif op in ("ASSERT", "ASSERT_NOT"):
            self._add(_ASSERT, _look(value[0], value[1], op == "ASSERT", flags))
        elif op == "FAILURE":
            self._add(_SPLIT, ())
        else:  # a back-reference
            raise _TooLong

    def _branch(self, branches: Any, flags: int) -> None:
        fork = self._add(_SPLIT)
        begins, ends = [], []
        for branch in branches:
            begins.append(len(self.steps))
            self._sequence(branch, flags)
            ends.append(self._add(_SPLIT))
        self.steps[fork] = _SPLIT, tuple(begins)
        for end in ends:
            self.steps[end] = _SPLIT, (len(self.steps),)

    def _repeat(self, value: Any, lazy: bool, flags: int) -> None:
        low, high, inner = value
        endless = high is sre_parse.MAXREPEAT
        if inner.getwidth()[0] == 0:
            self.exact = False  # when an empty round ends a repeat is a matter of its own
        for _ in range(low):
            self._sequence(inner, flags)
        forks = []
        if endless:
            again = self._add(_SPLIT)
            forks.append(again)
            self._sequence(inner, flags)
            self._add(_SPLIT, (again,))
        else:
            for _ in range(high - low):
                forks.append(self._add(_SPLIT))
                self._sequence(inner, flags)
        for fork in forks:
            ways = (fork + 1, len(self.steps))
            self.steps[fork] = _SPLIT, ways[::-1] if lazy else ways


class Ways:
    """All ways through some patterns, of which earlier ones are preferred.

    Parameters
    ----------
    patterns : iterable of str
        In Python's syntax, in the order in which they are tried.
    flags : int
        Of `re`, for all of them.
    """

    def __init__(self, patterns: Iterable[str], flags: int) -> None:
        program = _Program()
        self._begins = []
        for pattern in patterns:
            try:
                tree = parse_pattern(pattern, flags)
                self._begins.append(program.pattern(tree, flags | tree.state.flags))
            except Unreadable:
                self._begins.append(program.anything(len(program.steps)))
        self._machine = _Machine(program)

    def begin(self, text: str, at: int) -> Threads | None:
        """Ways that begin at a place; None where that hangs on text that is not there."""
        return self._machine.closure(self._begins, text, at)

    def follow(self, threads: Threads, text: str, at: int) -> tuple[Threads, int]:
        """Ways after more of a text, and how far it could be followed."""
        while at < len(text) and threads:
            after = self._machine.move(threads, text, at)
            if after is None:
                break
            threads, at = after, at + 1
        return threads, at

    def may_grow(self, text: str, at: int) -> bool:
        """Whether what matches at a place may change as the text grows."""
        threads = self.begin(text, at)
        return threads is None or bool(self.follow(threads, text, at)[0])


class _Machine:
    """Runs a program. `decide` tells whether it matches at a place, without preferences."""

    def __init__(self, program: _Program) -> None:
        self._steps = program.steps
        self._loose = program.loose
        self._asserts = any(kind == _ASSERT for kind, _ in program.steps)
        self._known: dict[Any, Threads] = {}
        self.matched = False  # whether the last closure met a match

    def move(self, threads: Threads, text: str, at: int) -> Threads | None:
        """Threads after the character at a place."""
        c = text[at]
        if not self._asserts:
            found = self._known.get((threads, c))
            if found is not None:
                return found
        steps = self._steps
        targets = [pc + 1 for pc in threads if steps[pc][1](c)]
        after = self.closure(targets, text, at + 1) if targets else ()
        if not self._asserts and after is not None and len(self._known) < MAX_KNOWN:
            self._known[threads, c] = after
        return after

    def closure(
        self, targets: Iterable[int], text: str, at: int, cut: bool = True
    ) -> Threads | None:
        """Steps that read a character next; None where the text so far does not decide."""
        seen: set[int] = set()
        out: list[int] = []
        self.matched = False
        pending = list(targets)[::-1]
        while pending:
            pc = pending.pop()
            if pc in seen:
                continue
            seen.add(pc)
            kind, argument = self._steps[pc]
            if kind == _CHAR:
                out.append(pc)
            elif kind == _SPLIT:
                pending.extend(argument[::-1])
            elif kind == _ASSERT:
                holds = argument(text, at)
                if holds is None:
                    return None
                if holds:
                    pending.append(pc + 1)
            else:
                self.matched = True
                if cut and pc not in self._loose:
                    break
        return tuple(out)

    def decide(self, begin: int, text: str, at: int, end: int | None) -> bool | None:
        """Whether the text at a place begins with a match (that ends at `end`); None: open."""
        threads = self.closure([begin], text, at, cut=False)
        while threads is not None:
            if self.matched and (end is None or at == end):
                return None if self._loose else True
            if not threads or at == end:
                return False
            if at >= len(text):
                return None
            steps, c = self._steps, text[at]
            at += 1
            threads = self.closure(
                [pc + 1 for pc in threads if steps[pc][1](c)], text, at, cut=False
            )
        return None


Assertion = Callable[[str, int], "bool | None"]
"""From a text so far and a place to whether something holds there; None: not decided yet."""


def _look(direction: int, inner: Any, wanted: bool, flags: int) -> Assertion:
    """Look-ahead or look-behind."""
    program = _Program()
    begin = program.pattern(inner, flags)
    machine = _Machine(program)
    width = inner.getwidth()[0]

    def holds(text: str, at: int) -> bool | None:
        if direction > 0:
            found = machine.decide(begin, text, at, None)
        elif at < width:
            found = False
        else:
            found = machine.decide(begin, text, at - width, at)
        return None if found is None else found == wanted

    return holds


def _anchor(kind: str, flags: int) -> Assertion:
    r"""``^``, ``$``, ``\A``, ``\Z``, ``\b`` or ``\B``, by Python's name for it."""
    many_lines = bool(flags & re.MULTILINE)
    ascii_only = bool(flags & re.ASCII)

    def is_word(c: str) -> bool:
        return (c.isalnum() or c == "_") and (c.isascii() or not ascii_only)

    def holds(text: str, at: int) -> bool | None:
        if kind.startswith("AT_BEGINNING"):
            line = many_lines and kind == "AT_BEGINNING"
            return at == 0 or (line and text[at - 1] == "\n")
        if at >= len(text):
            return None
        if "BOUNDARY" in kind:
            edge = (at > 0 and is_word(text[at - 1])) != is_word(text[at])
            return edge != ("NON" in kind)
        if kind == "AT_END_STRING" or text[at] != "\n":
            return False
        if many_lines:
            return True
        return None if at + 1 == len(text) else False

    return holds
