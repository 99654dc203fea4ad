"""The syntax tree of a Lark grammar, each node with its place in the user's text."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from smcprog.errors import GrammarError

__all__ = [
    "Alternatives", "Char", "Definition", "Expression", "Ignore", "Import", "JsonSchema",
    "LarkFile", "Name", "Not", "Pattern", "Place", "Range", "Repeat", "Sequence", "Template",
    "Text", "fail",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Place:
    """Line and column in the user's text, from 1; `file` names an imported file."""

    line: int
    column: int
    file: str = ""


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

    Never in a parsed grammar; see `smcprog.grammars.lark.chars`.
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
class Template(Expression):
    """A template with arguments; none is left in a loaded grammar."""

    place: Place
    name: str
    arguments: tuple[Expression, ...]


@dataclasses.dataclass(frozen=True)
class Definition:
    """A rule (lower case) or terminal (upper case).

    Attributes
    ----------
    place : Place
    name : str
    body : Expression
    parameters : tuple of str
        Of a template.
    how : {"define", "override", "extend", "declare"}
        A declared one has no text.
    """

    place: Place
    name: str
    body: Expression
    parameters: tuple[str, ...] = ()
    how: str = "define"

    @property
    def is_terminal(self) -> bool:
        return self.name.lstrip("_")[:1].isupper()


@dataclasses.dataclass(frozen=True)
class Import:
    """``%import``: names of another grammar, and what they are called here."""

    place: Place
    path: tuple[str, ...]
    relative: bool
    names: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Ignore:
    """``%ignore``."""

    body: Expression


@dataclasses.dataclass(frozen=True)
class LarkFile:
    """What stands in one grammar text, in its order."""

    definitions: tuple[Definition, ...]
    ignored: tuple[Expression, ...]
    imports: tuple[Import, ...]


def fail(place: Place, message: str) -> NoReturn:
    """Raise, with the place in the user's text."""
    where = f"grammar {place.file}" if place.file else "grammar"
    raise GrammarError(f"{where}, line {place.line}, column {place.column}: {message}")
