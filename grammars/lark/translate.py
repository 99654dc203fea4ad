"""Lark grammars, written down for the mask engine so that the language stays the same.

A grammar text stands for the texts that it derives: each rule any of its alternatives, each
terminal any of its texts, with what is ignored around and between terminals. Priorities choose
between parses of one text, so they change nothing. Where a terminal's texts depend on what is
around them (look-around, anchors, lazy quantifiers), or a parser is named, the language is what
Lark's parser takes; see `smcprog.grammars.lark.object`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from smcprog.errors import GrammarError
from smcprog.grammars.lark.ast import Definition, Expression, Not, Pattern, Place, fail
from smcprog.grammars.lark.load import load_lark
from smcprog.grammars.lark.object import build_lark, object_grammar
from smcprog.grammars.lark.sre import Unreadable, loose_expression, needs_lark, parse_pattern
from smcprog.grammars.lark.templates import expand_templates
from smcprog.grammars.lark.tree import (
    check_references,
    expansions,
    map_leaves,
    productive_names,
    reachable,
)
from smcprog.grammars.lark.writer import START, Writer
from smcprog.grammars.text import GrammarText

__all__ = ["lark_grammar"]

MAX_EXPANSIONS = 20_000  # alternatives of one rule as Lark writes them out

_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "u": re.UNICODE}


def lark_grammar(
    text: str,
    name: str,
    whitespace: str = "bounded",
    *,
    start: str = START,
    parser: str | None = None,
    lexer: str = "auto",
    path: str | None = None,
    import_paths: Iterable[str] = (),
) -> GrammarText:
    """The language of a Lark grammar.

    Parameters
    ----------
    text : str
    name : str
        How reports call it.
    whitespace : str
        What ``%json`` values may have inside, as for a schema.
    start : str
        The start rule.
    parser : {"lalr", "earley", "cyk"}, optional
        Take what ``lark.Lark(text, parser=…, lexer=…)`` parses, instead of every text that
        the grammar derives.
    lexer : str
        Lark's, where a parser is given.
    path : str, optional
        File of the text, beside which relative imports are looked up.
    import_paths : iterable of str
        Folders where imports are looked up first.

    Raises
    ------
    GrammarError
        With line and column.
    """
    import_paths = tuple(import_paths)
    loaded = load_lark(text, path, import_paths)
    definitions = expand_templates(loaded.definitions)
    if start not in definitions or definitions[start].is_terminal:
        raise GrammarError(f"grammar: there is no rule `{start}`")
    check_references(definitions, loaded.ignored)
    needed = reachable(definitions, start, loaded.ignored)
    for name_needed in needed:
        definition = definitions[name_needed]
        if definition.how == "declare":
            fail(
                definition.place,
                f"%declare {definition.name}: what makes it is a post-lexer, which only a "
                "lark.Lark object has (postlex=…)",
            )
    productive = productive_names(definitions)
    for name_needed in needed:
        if name_needed not in productive:
            fail(definitions[name_needed].place, f"{name_needed} derives no text: it never ends")
    bodies = [*(definitions[n].body for n in needed), *loaded.ignored]
    context = _Patterns()
    plain = [context.plain(body) for body in bodies]
    if context.reason is not None or parser is not None:
        options = {
            "start": start,
            "parser": parser or "earley",
            "lexer": lexer if parser else "auto",
            "import_paths": list(import_paths),
            "source_path": path,
        }
        places = {n: d.place for n, d in definitions.items()}
        for name_needed in needed:
            definition = definitions[name_needed]
            if not definition.is_terminal and expansions(definition.body) > MAX_EXPANSIONS:
                fail(
                    definition.place,
                    f"{name_needed}: Lark, which is needed here, would write out more than "
                    f"{MAX_EXPANSIONS} alternatives of it; make rules of its parts",
                )
        try:
            lark = build_lark(text, options, places)
        except GrammarError as error:
            if parser is not None or context.reason is None:
                raise
            place, what = context.reason
            fail(place, f"{what} is left to Lark, which does not take the grammar: {error}")
        return object_grammar(lark, name, start)
    for name_needed, body in zip(needed, plain, strict=False):
        definitions[name_needed] = dataclasses.replace(definitions[name_needed], body=body)
    ignored = tuple(plain[len(needed) :])
    if start != START:
        definitions = _start_at(start, definitions)
    writer = Writer(definitions, ignored, whitespace)
    return GrammarText(
        name=name,
        lark=writer.write(),
        covers="every text that the grammar derives",
        explain_error=writer.explain_error,
    )


def _start_at(start: str, definitions: dict[str, Definition]) -> dict[str, Definition]:
    """The definitions with the names of a rule and of ``start`` exchanged."""
    exchanged = {start: START, START: start}

    def change(leaf: Expression) -> Expression:
        name = getattr(leaf, "name", None)
        return dataclasses.replace(leaf, name=exchanged[name]) if name in exchanged else leaf  # type: ignore[type-var]

    return {
        (new := exchanged.get(name, name)): dataclasses.replace(
            d, name=new, body=map_leaves(d.body, change)
        )
        for name, d in definitions.items()
    }


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 60 else pattern[:60] + "…"


class _Patterns:
    """Patterns made plain for the mask engine, and the first that needs Lark.

    Attributes
    ----------
    reason : (Place, str) or None
        The first construct whose meaning depends on what is around a terminal's text.
    """

    def __init__(self) -> None:
        self.reason: tuple[Place, str] | None = None

    def plain(self, body: Expression) -> Expression:
        return map_leaves(body, self._leaf)

    def _leaf(self, leaf: Expression) -> Expression:
        if isinstance(leaf, Not):
            return Not(leaf.place, tuple(self.plain(p) for p in leaf.parts))
        if not isinstance(leaf, Pattern):
            return leaf
        flags = 0
        for flag in leaf.flags:
            if flag not in _FLAGS:
                fail(
                    leaf.place,
                    f"/{_short(leaf.value)}/{leaf.flags}: the flag {flag} is for bytes only",
                )
            flags |= _FLAGS[flag]
        try:
            tree = parse_pattern(leaf.value, flags)
        except Unreadable:
            return leaf  # the engine may have it, and says where if not
        what = needs_lark(tree)
        if what is not None:
            self.reason = self.reason or (leaf.place, f"/{_short(leaf.value)}/: {what}")
            return leaf
        if set(leaf.flags) & {"m", "x"}:
            return loose_expression(tree, flags, leaf.place)
        return leaf
