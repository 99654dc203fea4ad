"""Reading Lark grammar text into a small syntax tree, with the line and column of everything.

Lark reads it, by the grammar of its own notation that it ships; `_CHANGES` adds what the mask
engine has beyond that. Constructs whose meaning the mask engine would change, or does not have,
are refused here by name and place.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken, VisitError
from lark.lark import PostLex
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive, v_args

from smcprog.grammars.lark.ast import (
    Alternatives,
    Definition,
    Expression,
    Ignore,
    Import,
    JsonSchema,
    LarkFile,
    Name,
    Not,
    Pattern,
    Place,
    Range,
    Repeat,
    Sequence,
    Template,
    Text,
    fail,
)

__all__ = ["parse_lark"]

MAX_DEPTH = 25  # nested groups and complements
MAX_JSON = 500  # nested brackets of a schema
MAX_COUNT = 100_000  # of a counted repeat

# A repeat is one terminal, so that `~` and `{` need no look-ahead of two. A rule's modifiers are
# no part of its name, so that `a?b` is a repeat. JSON is anything with matching brackets, and
# read by `json`.
_CHANGES = r"""
%override statement: "%ignore" expansions -> ignore
                   | "%import" import_path ["->" name] -> import_one
                   | "%import" import_path name_list -> import_many
                   | "%override" (rule | token) -> override
                   | "%extend" (rule | token) -> extend
                   | "%declare" name+ -> declare
                   | "%llguidance" _json -> options
%override rule: ("!" | "?")* RULE rule_params priority? ":" expansions
%override token: TOKEN token_params priority? ":" expansions
%override ?alias: conjunction ["->" RULE]
?conjunction: expansion ("&" expansion)*
%override ?expr: atom (OP | QUESTION)*
%extend atom: "~" atom -> complement
            | "%json" _json -> json
_json: "{" _json* "}" | "[" _json* "]" | STRING | NUMBER | RULE | TOKEN | ":" | "," | "."

%override _VBAR: "|"
%override RULE: /_?[a-z][_a-z0-9]*/
%override OP: /[*+]|~[ \t]*[+-]?[0-9]+([ \t]*\.\.[ \t]*[+-]?[0-9]+)?/
            | /\{\s*([+-]?[0-9]+\s*(,\s*([+-]?[0-9]+\s*)?)?|,\s*([+-]?[0-9]+\s*)?)\}/
QUESTION: "?"
REFUSED.1: /%(?!(ignore|import|override|extend|declare|json|llguidance)\b)[a-z_]+/
         | /<[^<>\s]+>/ | /@[A-Za-z0-9_\-]+/ | /_?[A-Za-z][_A-Za-z0-9]*::/
%ignore /\f|\\[ \t]*\r?\n/
"""

_REFUSED = {
    "%lark": "a nested grammar (%lark) is not supported",
    "<": "the special token {} is not supported: a grammar is about text",
    "@": "the reference {} to another grammar is not supported",
    "%": "{} is not supported",
    "": "{}…: parametric rules are not supported",
}


def parse_lark(text: str, file: str = "") -> LarkFile:
    """Parse a grammar; `file` is its name in errors, where it is imported.

    Raises
    ------
    GrammarError
        With line and column.
    """
    try:
        return _Builder(text, file).transform(_parser().parse(text))
    except VisitError as error:
        raise error.orig_exc from None
    except _Refused as error:
        fail(_place(error.token, file), str(error))
    except UnexpectedInput as error:
        _fail_unexpected(error, text, file)


@functools.cache
def _parser() -> Lark:
    notation = (pkgutil.get_data("lark", "grammars/lark.lark") or b"").decode()
    return Lark(
        notation + _CHANGES,
        parser="lalr",
        lexer="basic",
        lexer_callbacks={"REFUSED": _refuse},
        postlex=_Lines(),
        maybe_placeholders=False,
        propagate_positions=True,
    )


class _Refused(Exception):
    """A token that is not taken, whatever its place."""

    def __init__(self, message: str, token: Token) -> None:
        super().__init__(message)
        self.token = token


def _refuse(token: Token) -> NoReturn:
    message = next(m for start, m in _REFUSED.items() if token.startswith(start))
    raise _Refused(message.format(token), token)


class _Lines(PostLex):
    """Ends of lines, but for those in brackets and before a ``|``; the depth of groups."""

    always_accept = ("REFUSED",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        brackets: list[str] = []
        tildes, line_end = 0, None
        for token in stream:
            if token.type == "_NL":
                line_end = token
                continue
            if line_end and not brackets and token != "|":
                yield line_end
            line_end = None
            if token in ("(", "[", "{"):
                brackets.append(token)
            elif token in (")", "]", "}") and brackets:
                brackets.pop()
            tildes = tildes + 1 if token == "~" else 0
            limit, what = (MAX_JSON, "brackets") if "{" in brackets else (MAX_DEPTH, "groups")
            if len(brackets) + tildes > limit:
                raise _Refused(f"more than {limit} nested {what}", token)
            yield token


# What is wanted, by one of the terminals that could come.
_WANTED = {
    "REGEXP": "a name, a string or a regular expression",
    "NUMBER": "a JSON value",
    "COLON": "':'",
    "RPAR": "')'",
    "RSQB": "']'",
    "STRING": "a string",
    "TOKEN": "a rule or terminal",
    "RULE": "a rule",
}
_UNREADABLE = {
    '"': "a string that does not end",
    "'": "a string is written with double quotes",
    "/": "a regular expression that does not end",
}
_AFTER_NAME = {"[": "attributes of a rule ([…])"}


def _fail_unexpected(error: UnexpectedInput, text: str, file: str) -> NoReturn:
    place, at = Place(error.line, error.column, file), error.pos_in_stream or 0
    if not isinstance(error, UnexpectedToken):
        fail(place, _UNREADABLE.get(text[at], f"unexpected {text[at]!r}"))
    token = error.token
    if token.type == "$END":
        place = Place(text.count("\n") + 1, len(text) - text.rfind("\n"), file)
    if "COLON" in error.expected and token in _AFTER_NAME:
        name = text[:at].split()[-1].lstrip("!?")
        fail(place, f"{name}: {_AFTER_NAME[token]} are not supported")
    wanted = next((w for t, w in _WANTED.items() if t in error.expected), "the end of the line")
    ends = {"$END": "the end", "_NL": "the end of the line"}
    fail(place, f"expected {wanted}, found {ends.get(token.type, repr(str(token)))}")


def _place(where: Token | Meta, file: str) -> Place:
    return Place(where.line or 0, where.column or 0, file)  # never None where text was read


@v_args(inline=True, meta=True)
class _Builder(Transformer_NonRecursive):
    """Makes our tree of Lark's; a method for each of its rules and terminals."""

    def __init__(self, text: str, file: str) -> None:
        super().__init__()
        self.text = text
        self.file = file
        self.last = Place(1, 1, file)

    def _place(self, where: Token | Meta) -> Place:
        return _place(where, self.file)

    def _at(self, meta: Meta) -> Place:
        """The place of a construct; for an empty one, of the last that is not."""
        if not meta.empty:
            self.last = self._place(meta)
        return self.last

    def start(self, meta: Meta, *items: Any) -> LarkFile:
        definitions: list[Definition] = []
        for item in items:
            if isinstance(item, tuple):
                definitions += item
        return LarkFile(
            tuple(definitions),
            tuple(item.body for item in items if isinstance(item, Ignore)),
            tuple(item for item in items if isinstance(item, Import)),
        )

    def RULE(self, token: Token) -> Token:
        self.last = self._place(token)
        return token

    TOKEN = RULE

    # -- definitions and directives

    def rule(
        self, meta: Meta, name: str, parameters: Tree[str], *rest: Any
    ) -> tuple[Definition, ...]:
        given = tuple(str(p) for p in parameters.children)
        if given and name.lstrip("_")[:1].isupper():
            fail(self._place(parameters.meta), f"{name}: templates are for rules, not terminals")
        return (Definition(self._place(meta), str(name), rest[-1], given),)

    token = rule

    def priority(self, meta: Meta, *_: Token) -> None:
        """Chooses between parses of a text; see `smcprog.grammars.lark.translate`."""

    def override(self, meta: Meta, what: tuple[Definition]) -> tuple[Definition, ...]:
        place = self._place(meta)
        return (dataclasses.replace(what[0], how="override", place=place),)

    def extend(self, meta: Meta, what: tuple[Definition]) -> tuple[Definition, ...]:
        return (dataclasses.replace(what[0], how="extend", place=self._place(meta)),)

    def declare(self, meta: Meta, *names: Name) -> tuple[Definition, ...]:
        place = self._place(meta)
        return tuple(
            Definition(place, n.name, Alternatives(place, ()), how="declare") for n in names
        )

    def ignore(self, meta: Meta, body: Expression) -> Ignore:
        return Ignore(body)

    def options(self, meta: Meta, *_: str) -> None:
        value = self._json_value(meta)
        if value not in ({}, {"no_forcing": True}):
            fail(self._place(meta), f"the mask engine's options {value} are not supported")

    def import_path(self, meta: Meta, *parts: Any) -> tuple[bool, tuple[str, ...]]:
        names = tuple(p.name for p in parts if isinstance(p, Name))
        return not isinstance(parts[0], Name), names

    def name_list(self, meta: Meta, *names: Name) -> tuple[Name, ...]:
        return names

    def import_one(
        self, meta: Meta, path: tuple[bool, tuple[str, ...]], alias: Name | None = None
    ) -> Import:
        relative, (*module, name) = path
        place = self._place(meta)
        if not module:
            fail(place, f"%import {name}: nothing is imported from {name}; write {name}.X")
        return Import(place, tuple(module), relative, {name: alias.name if alias else name})

    def import_many(
        self, meta: Meta, path: tuple[bool, tuple[str, ...]], names: tuple[Name, ...]
    ) -> Import:
        relative, module = path
        return Import(self._place(meta), module, relative, {n.name: n.name for n in names})

    # -- expressions

    def expansions(self, meta: Meta, *options: Expression) -> Expression:
        return Alternatives(self._at(meta), options)

    def alias(self, meta: Meta, body: Expression, name: str) -> Expression:
        return body  # it shapes the parse tree only

    def conjunction(self, meta: Meta, *parts: Expression) -> Expression:
        return Not(self._at(meta), parts)

    def expansion(self, meta: Meta, *parts: Expression) -> Expression:
        return Sequence(self._at(meta), parts)

    def expr(self, meta: Meta, inner: Expression, repeat: Token, *more: Token) -> Expression:
        if more:
            fail(self._place(more[0]), "two repeats in a row; put the first in parentheses")
        place = self._place(repeat)
        if repeat in ("*", "+", "?"):
            return Repeat(place, inner, int(repeat == "+"), 1 if repeat == "?" else None)
        first, separator, last = re.split(r"(\.\.|,|$)", repeat.strip("~{} \t\r\n"), maxsplit=1)
        low = self._count(place, first or "0")
        high = None if separator == "," else low
        if last:
            high = self._count(place, last)
        if high is not None and high < low:
            fail(place, f"a repeat from {low} to {high}")
        return Repeat(place, inner, low, high)

    def _count(self, place: Place, digits: str) -> int:
        if len(digits) > 9 or not 0 <= int(digits) <= MAX_COUNT:
            fail(place, f"a repeat count must be from 0 to {MAX_COUNT}")
        return int(digits)

    def maybe(self, meta: Meta, inner: Expression) -> Expression:
        return Repeat(self._at(meta), inner, 0, 1)

    def complement(self, meta: Meta, inner: Expression) -> Expression:
        return Not(self._at(meta), (inner,))

    def json(self, meta: Meta, *_: str) -> Expression:
        return JsonSchema(self._at(meta), self._json_value(meta))

    def _json_value(self, meta: Meta) -> Any:
        word = re.compile(r"%[a-z]+\s*").match(self.text, meta.start_pos)
        assert word is not None
        try:
            return json.JSONDecoder().raw_decode(self.text, word.end())[0]
        except (ValueError, RecursionError) as error:
            fail(
                self._place(meta),
                f"{word.group().strip()} must be followed by a JSON value: {error}",
            )

    def name(self, meta: Meta, token: Token) -> Expression:
        return Name(self._at(meta), str(token))

    def template_usage(self, meta: Meta, name: Name, *arguments: Expression) -> Expression:
        return Template(self._at(meta), name.name, arguments)

    def literal(self, meta: Meta, token: Token) -> Expression:
        place = self._at(meta)
        if token.type == "STRING":
            return Text(place, self._unescape(token), token.endswith("i"))
        body, _, flags = token[1:].rpartition("/")
        return Pattern(place, body, flags)

    def literal_range(self, meta: Meta, first: Token, last: Token) -> Expression:
        place, low, high = self._at(meta), self._unescape(first), self._unescape(last)
        if first.endswith("i") or last.endswith("i"):
            fail(place, "a range cannot ignore case")
        if len(low) != 1 or len(high) != 1 or low > high:
            fail(place, "a range goes from one character to a later one")
        return Range(place, low, high)

    def _unescape(self, token: Token) -> str:
        try:
            return _unescape(token)
        except UnicodeError:
            fail(self._place(token), f"bad escape in the string {token}")


def _unescape(token: Token) -> str:
    r"""The value of a string literal.

    As in Lark, a backslash before a letter that is not one of ``Uuxnftr`` stays.
    """

    def replace(match: re.Match[str]) -> str:
        escape, what = match.group(0, 1)
        if what[0] in "Uuxnftr":
            return escape.encode().decode("unicode_escape")
        return what if what in ('"', "\\") else escape

    value = re.sub(r"\\(U\w{1,8}|u\w{1,4}|x\w{1,2}|.)", replace, token.removesuffix("i")[1:-1])
    value.encode()  # half of a surrogate pair is no character
    return value
