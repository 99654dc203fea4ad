"""Reading a JSON text piece by piece, and looking at each value as soon as it is closed.

The mask has gone before: every text is a prefix of a JSON text in UTF-8 with nothing
around the value. So the reader only follows strings, brackets and the ends of scalars, and
each byte is looked at once, by whoever holds the state: states are immutable, and particles
share them.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from typing import Any

from smcprog.grammars.schema.values import is_plain_key, scalar_value, string_value
from smcprog.grammars.text import Check, CheckState

__all__ = ["MAX_NESTING", "Container", "KeyCheck", "Watcher", "begin_reading"]

MAX_NESTING = 500  # arrays and objects inside one another; the validator recurses

_QUOTE_OR_ESCAPE = re.compile(rb'["\\]')
_PLAIN = re.compile(rb'[^"{}\[\],: \t\r\n]*')
_SPACE = b" \t\r\n,:"
_NOTHING: Any = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """An array or object that is open.

    Attributes
    ----------
    outer : Container or None
    is_object : bool
    place : object
        What the watcher knows of it.
    depth : int
        1 for the outermost.
    key : str or None
        Of the value to come; None where a key comes first.
    count : int
        Values so far.
    keys : frozenset of str
        Keys so far.
    closed : tuple or None
        The values so far, last first, as pairs of a value (or a key and a value) and the rest.
    memory : object
        What the watcher remembers of the values so far.
    """

    outer: Container | None
    is_object: bool
    place: Any
    depth: int = 1
    key: str | None = None
    count: int = 0
    keys: frozenset[str] = frozenset()
    closed: Any = None
    memory: Any = None


class Watcher(ABC):
    """What looks at the values. Each method may end the text: no continuation is good."""

    keeps_values = True
    """Whether values are put together; else `close` is called with None."""

    @abstractmethod
    def root(self) -> Any:
        """The place of the whole value."""

    @abstractmethod
    def inside(self, container: Container) -> Any:
        """The place of the next value of a container."""

    @abstractmethod
    def opens_key(self, container: Container, key: str) -> bool:
        """Whether a key may be added to an object."""

    @abstractmethod
    def closes(self, place: Any, value: Any) -> bool:
        """Whether a value may be at a place, now that all of it is known."""

    @abstractmethod
    def remember(self, container: Container, value: Any) -> tuple[bool, Any]:
        """Whether a value may join those of its container, and what to remember from it."""


class _Keys(Watcher):
    """Looks at nothing but keys."""

    keeps_values = False

    def root(self) -> None:
        return None

    def inside(self, container: Container) -> None:
        return None

    def opens_key(self, container: Container, key: str) -> bool:
        return True

    def closes(self, place: Any, value: Any) -> bool:
        return True

    def remember(self, container: Container, value: Any) -> tuple[bool, Any]:
        return True, None


class KeyCheck(Check):
    """That keys are spelled in one way and occur once in their object."""

    description = "no object repeats a key; keys are spelled without needless \\u escapes"
    when = "as soon as a key is closed"
    rejects = False

    def begin(self) -> CheckState:
        return begin_reading(_Keys())


def begin_reading(watcher: Watcher) -> CheckState:
    """State of the empty text."""
    return _Reader(watcher, None, b"", False, False, _NOTHING)


@dataclasses.dataclass(frozen=True, slots=True)
class _Reader(CheckState):
    """What is known of a text.

    Attributes
    ----------
    watcher : Watcher
    container : Container or None
        The innermost open one.
    pending : bytes
        A string or scalar that has begun.
    in_string, escaped : bool
        Whether `pending` is a string, and whether it ends with an open escape.
    value : object
        The whole value, once it is closed by a bracket or quote.
    """

    watcher: Watcher
    container: Container | None
    pending: bytes
    in_string: bool
    escaped: bool
    value: Any

    def feed(self, data: bytes) -> CheckState | None:
        return _Run(self).read(data)

    def complete(self) -> bool:
        if self.value is not _NOTHING:
            return True  # looked at when it was closed
        if self.container is not None or self.in_string or not self.pending:
            return False
        try:
            value = scalar_value(self.pending)
        except ValueError:
            return False
        return self.watcher.closes(self.watcher.root(), value)


class _Run:
    """One piece of text, read from a state on."""

    def __init__(self, state: _Reader) -> None:
        self.watcher = state.watcher
        self.container = state.container
        self.pending = state.pending
        self.in_string = state.in_string
        self.escaped = state.escaped
        self.value = state.value

    def read(self, data: bytes) -> _Reader | None:
        at, end = 0, len(data)
        while at < end:
            if self.in_string:
                start, at = at, self._end_of_string(data, at)
                self.pending += data[start:at]
                if self.in_string:
                    break
                if not self._string_closed():
                    return None
                continue
            c = data[at]
            if c in _SPACE:
                at += 1
                if self.pending and not self._scalar_closed():
                    return None
            elif c == 0x22:  # "
                at += 1
                self.in_string, self.pending = True, b'"'
            elif c in b"{[":
                at += 1
                if not self._open(c == 0x7B):
                    return None
            elif c in b"}]":
                at += 1
                if (self.pending and not self._scalar_closed()) or not self._close():
                    return None
            else:
                match = _PLAIN.match(data, at)
                assert match is not None
                self.pending += match.group()
                at = match.end()
        return _Reader(
            self.watcher, self.container, self.pending, self.in_string, self.escaped, self.value
        )

    def _end_of_string(self, data: bytes, at: int) -> int:
        """Index after the string's last byte in `data`; clears `in_string` at its end."""
        if self.escaped and at < len(data):
            self.escaped = False
            at += 1
        while True:
            found = _QUOTE_OR_ESCAPE.search(data, at)
            if found is None:
                return len(data)
            if found.group() == b'"':
                self.in_string = False
                return found.end()
            if found.end() == len(data):
                self.escaped = True
                return len(data)
            at = found.end() + 1

    def _string_closed(self) -> bool:
        text, self.pending = self.pending, b""
        around = self.container
        if around is not None and around.is_object and around.key is None:
            return self._key(around, text)
        wanted = self.watcher.keeps_values
        return self._closed(string_value(text) if wanted else None)

    def _scalar_closed(self) -> bool:
        text, self.pending = self.pending, b""
        return self._closed(scalar_value(text) if self.watcher.keeps_values else None)

    def _key(self, around: Container, text: bytes) -> bool:
        if b"\\" in text and not is_plain_key(text):
            return False
        key = string_value(text)
        if key in around.keys or not self.watcher.opens_key(around, key):
            return False
        self.container = Container(
            around.outer,
            True,
            around.place,
            around.depth,
            key,
            around.count,
            around.keys | {key},
            around.closed,
            around.memory,
        )
        return True

    def _open(self, is_object: bool) -> bool:
        around = self.container
        if around is None:
            place, depth = self.watcher.root(), 1
        else:
            place, depth = self.watcher.inside(around), around.depth + 1
        self.container = Container(around, is_object, place, depth)
        return depth <= MAX_NESTING or not self.watcher.keeps_values

    def _close(self) -> bool:
        inner = self.container
        assert inner is not None
        self.container = inner.outer
        if not self.watcher.keeps_values:
            return self._closed(None)
        values = []
        rest = inner.closed
        while rest is not None:
            value, rest = rest
            values.append(value)
        values.reverse()
        return self._closed(dict(values) if inner.is_object else values, inner.place)

    def _closed(self, value: Any, place: Any = _NOTHING) -> bool:
        """Put a value that is complete where it belongs."""
        around = self.container
        if place is _NOTHING:
            place = self.watcher.root() if around is None else self.watcher.inside(around)
        if not self.watcher.closes(place, value):
            return False
        if around is None:
            self.value = value
            return True
        good, memory = self.watcher.remember(around, value)
        closed = None
        if self.watcher.keeps_values:
            closed = ((around.key, value) if around.is_object else value, around.closed)
        self.container = Container(
            around.outer,
            around.is_object,
            around.place,
            around.depth,
            None,
            around.count + 1,
            around.keys,
            closed,
            memory,
        )
        return good
