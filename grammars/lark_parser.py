"""Reading Lark grammar text into a small syntax tree, with the line and column of everything.

Lark reads it, by the grammar of its own notation that it ships; `_CHANGES` adds what the mask
engine has beyond that. Constructs whose meaning the mask engine would change, or does not have,
are refused here by name and place.
"""

from __future__ import annotations

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

from smcprog.grammars.lark_ast import (
    Alternatives,
    Definition,
    Expression,
    JsonSchema,
    LarkFile,
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
                   | "%llguidance" _json -> options
%override rule: ("!" | "?")* RULE rule_params ":" expansions
%override token: TOKEN token_params ":" expansions
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
REFUSED.1: /%(?!(ignore|import|json|llguidance)\b)[a-z_]+/ | /<[^<>\s]+>/ | /@[A-Za-z0-9_\-]+/
         | /_?[A-Za-z][_A-Za-z0-9]*::/
%ignore /\f|\\[ \t]*\r?\n/
"""

_REFUSED = {
    "%declare": "%declare (terminals made by a post-lexer) is not supported",
    "%lark": "a nested grammar (%lark) is not supported",
    "<": "the special token {} is not supported: a grammar is about text",
    "@": "the reference {} to another grammar is not supported",
    "%": "{} is not supported",
    "": "{}…: parametric rules are not supported",
}


def parse_lark(text: str) -> LarkFile:
    """Parse a grammar.

    Raises
    ------
    GrammarError
        With line and column.
    """
    try:
        return _Builder(text).transform(_parser().parse(text))
    except VisitError as error:
        raise error.orig_exc from None
    except UnexpectedInput as error:
        _fail_unexpected(error, text)


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


def _refuse(token: Token) -> NoReturn:
    message = next(m for start, m in _REFUSED.items() if token.startswith(start))
    fail(_place(token), message.format(token))


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
                fail(_place(token), f"more than {limit} nested {what}")
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
_AFTER_NAME = {".": "priorities", "[": "attributes of a rule ([…])"}


def _fail_unexpected(error: UnexpectedInput, text: str) -> NoReturn:
    place, at = Place(error.line, error.column), error.pos_in_stream or 0
    if not isinstance(error, UnexpectedToken):
        fail(place, _UNREADABLE.get(text[at], f"unexpected {text[at]!r}"))
    token = error.token
    if token.type == "$END":
        place = Place(text.count("\n") + 1, len(text) - text.rfind("\n"))
    if "COLON" in error.expected and token in _AFTER_NAME:
        name = text[:at].split()[-1].lstrip("!?")
        fail(place, f"{name}: {_AFTER_NAME[token]} are not supported")
    wanted = next((w for t, w in _WANTED.items() if t in error.expected), "the end of the line")
    ends = {"$END": "the end", "_NL": "the end of the line"}
    fail(place, f"expected {wanted}, found {ends.get(token.type, repr(str(token)))}")


def _place(where: Token | Meta) -> Place:
    return Place(where.line or 0, where.column or 0)  # never None where text was read


@v_args(inline=True, meta=True)
class _Builder(Transformer_NonRecursive):
    """Makes our tree of Lark's; a method for each of its rules and terminals."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.definitions: dict[str, Definition] = {}
        self.ignored: list[Expression] = []
        self.imports: dict[str, tuple[Place, str]] = {}
        self.last = Place(1, 1)

    def _at(self, meta: Meta) -> Place:
        """The place of a construct; for an empty one, of the last that is not."""
        if not meta.empty:
            self.last = _place(meta)
        return self.last

    def start(self, meta: Meta, *items: Any) -> LarkFile:
        return LarkFile(self.definitions, tuple(self.ignored), self.imports)

    def RULE(self, token: Token) -> Token:
        self.last = _place(token)
        return token

    TOKEN = RULE

    # -- definitions and directives

    def _declare(self, name: str, place: Place) -> None:
        if name in self.definitions or name in self.imports:
            fail(place, f"{name} is defined twice")

    def rule(self, meta: Meta, name: str, parameters: Tree[str], body: Expression) -> None:
        if parameters.children:
            fail(_place(parameters.meta), f"{name}: templates are not supported")
        self._declare(name, _place(meta))
        self.definitions[str(name)] = Definition(_place(meta), str(name), body)

    token = rule

    def ignore(self, meta: Meta, body: Expression) -> None:
        self.ignored.append(body)

    def options(self, meta: Meta, *_: str) -> None:
        value = self._json_value(meta)
        if value not in ({}, {"no_forcing": True}):
            fail(_place(meta), f"the mask engine's options {value} are not supported")

    def import_path(self, meta: Meta, *parts: Any) -> str:
        return "".join(p.name if isinstance(p, Name) else p for p in parts)

    def name_list(self, meta: Meta, *names: Name) -> tuple[Name, ...]:
        return names

    def import_one(self, meta: Meta, path: str, alias: Name | None = None) -> None:
        base = path.rpartition(".")[2]
        self._import(_place(meta), alias.name if alias else base, path)

    def import_many(self, meta: Meta, path: str, names: tuple[Name, ...]) -> None:
        for name in names:
            self._import(_place(meta), name.name, f"{path}.{name.name}")

    def _import(self, place: Place, name: str, source: str) -> None:
        module, _, common_name = source.rpartition(".")
        if module != "common":
            fail(place, f"%import {source}: only imports from `common` are supported")
        self._declare(name, place)
        self.imports[name] = (place, common_name)

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
            fail(_place(more[0]), "two repeats in a row; put the first in parentheses")
        place = _place(repeat)
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
            fail(_place(meta), f"{word.group().strip()} must be followed by a JSON value: {error}")

    def name(self, meta: Meta, token: Token) -> Expression:
        return Name(self._at(meta), str(token))

    def template_usage(self, meta: Meta, name: Name, *arguments: Expression) -> NoReturn:
        fail(_place(meta), f"{name.name}{{…}}: templates are not supported")

    def literal(self, meta: Meta, token: Token) -> Expression:
        place = self._at(meta)
        if token.type == "STRING":
            return Text(place, _unescape(token), token.endswith("i"))
        body, _, flags = token[1:].rpartition("/")
        return Pattern(place, body, flags)

    def literal_range(self, meta: Meta, first: Token, last: Token) -> Expression:
        place, low, high = self._at(meta), _unescape(first), _unescape(last)
        if first.endswith("i") or last.endswith("i"):
            fail(place, "a range cannot ignore case")
        if len(low) != 1 or len(high) != 1 or low > high:
            fail(place, "a range goes from one character to a later one")
        return Range(place, low, high)


def _unescape(token: Token) -> str:
    r"""The value of a string literal.

    As in Lark, a backslash before a letter that is not one of ``Uuxnftr`` stays.
    """

    def replace(match: re.Match[str]) -> str:
        escape, what = match.group(0, 1)
        if what[0] in "Uuxnftr":
            return escape.encode().decode("unicode_escape")
        return what if what in ('"', "\\") else escape

    try:
        value = re.sub(r"\\(U\w{1,8}|u\w{1,4}|x\w{1,2}|.)", replace, token.removesuffix("i")[1:-1])
        value.encode()  # half of a surrogate pair is no character
    except UnicodeError:
        fail(_place(token), f"bad escape in the string {token}")
    return value
