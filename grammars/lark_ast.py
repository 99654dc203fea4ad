"""The syntax tree of a Lark grammar, each node with its place in the user's text."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from smcprog.errors import GrammarError

__all__ = [
    "Alternatives", "Char", "Definition", "Expression", "JsonSchema", "LarkFile", "Name", "Not",
    "Pattern", "Place", "Range", "Repeat", "Sequence", "Text", "fail",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    """Line and column in the user's text, from 1."""

    line: int
    column: int


class Expression:
    """Base of the tree's nodes."""

    place: Place


@dataclasses.dataclass(frozen=True)
class Text(Expression):
    """A string literal."""

    place: Place
    value: str
    ignore_case: bool = False


@dataclasses.dataclass(frozen=True)
class Range(Expression):
    """One character between two, both included."""

    place: Place
    low: str
    high: str


@dataclasses.dataclass(frozen=True)
class Pattern(Expression):
    """A regular expression as it is written between the slashes."""

    place: Place
    value: str
    flags: str = ""


@dataclasses.dataclass(frozen=True)
class Char(Expression):
    """One character of a set: `text` in the mask engine's regex syntax, `chars` as a mask.

    Never in a parsed grammar; see `smcprog.grammars.lark_chars`.
    """

    place: Place
    text: str
    chars: int


@dataclasses.dataclass(frozen=True)
class Name(Expression):
    """A rule or terminal."""

    place: Place
    name: str


@dataclasses.dataclass(frozen=True)
class JsonSchema(Expression):
    """``%json {…}``: any JSON text of a schema."""

    place: Place
    schema: Any


@dataclasses.dataclass(frozen=True)
class Repeat(Expression):
    """`low` to `high` times (None: any number)."""

    place: Place
    inner: Expression
    low: int
    high: int | None


@dataclasses.dataclass(frozen=True)
class Sequence(Expression):
    """One part after the other; none is the empty text."""

    place: Place
    parts: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Alternatives(Expression):
    """Any one of some options."""

    place: Place
    options: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Not(Expression):
    """Terminals only: every text but these (``~X``), or texts of all parts (``A & B``)."""

    place: Place
    parts: tuple[Expression, ...]  # one part: complement; more: intersection


@dataclasses.dataclass(frozen=True)
class Definition:
    """A rule (lower case) or terminal (upper case)."""

    place: Place
    name: str
    body: Expression

    @property
    def is_terminal(self) -> bool:
        return self.name.lstrip("_")[:1].isupper()


@dataclasses.dataclass(frozen=True)
class LarkFile:
    """Definitions by name, ignored expressions, imported names (local name → common name)."""

    definitions: dict[str, Definition]
    ignored: tuple[Expression, ...]
    imports: dict[str, tuple[Place, str]]


def fail(place: Place, message: str) -> NoReturn:
    """Raise, with the place in the user's text."""
    raise GrammarError(f"grammar, line {place.line}, column {place.column}: {message}")
