"""Lark grammars, written down for the mask engine so that the language stays the same.

A grammar stands for the texts that it derives: each rule any of its alternatives, each
terminal any of its texts, with what is ignored around and between terminals.
"""

from __future__ import annotations

from smcprog.errors import GrammarError
from smcprog.grammars.lark_ast import Definition, fail
from smcprog.grammars.lark_common import common_terminals
from smcprog.grammars.lark_parser import parse_lark
from smcprog.grammars.lark_tree import check_references, productive_names, reachable
from smcprog.grammars.lark_writer import START, Writer
from smcprog.grammars.text import GrammarText, require_unicode

__all__ = ["lark_grammar"]

MAX_TEXT = 500_000  # characters
MAX_DEFINITIONS = 2_000


def lark_grammar(text: str, name: str, whitespace: str = "bounded") -> GrammarText:
    """A Lark grammar with the rule ``start``.

    Parameters
    ----------
    text : str
    name : str
        How reports call it.
    whitespace : str
        What ``%json`` values may have inside, as for a schema.

    Raises
    ------
    GrammarError
        With line and column.
    """
    if len(text) > MAX_TEXT:
        raise GrammarError(f"grammar: {len(text)} characters; at most {MAX_TEXT} are taken")
    require_unicode("grammar", text)
    parsed = parse_lark(text)
    if len(parsed.definitions) > MAX_DEFINITIONS:
        raise GrammarError(
            f"grammar: {len(parsed.definitions)} definitions; at most {MAX_DEFINITIONS} are taken"
        )
    definitions = dict(parsed.definitions)
    for local, (place, source) in parsed.imports.items():
        found = common_terminals(source)
        if not found:
            fail(place, f"%import common.{source}: there is no such terminal")
        for other, definition in found.items():
            if other != source:
                definitions.setdefault(other, definition)
        definitions[local] = Definition(place, local, found[source].body)
    if START not in definitions:
        raise GrammarError("grammar: there is no rule `start`")
    check_references(definitions, parsed.ignored)
    productive = productive_names(definitions)
    for needed in reachable(definitions, START):
        if needed not in productive:
            fail(definitions[needed].place, f"{needed} derives no text: it never ends")
    writer = Writer(definitions, parsed.ignored, whitespace)
    return GrammarText(
        name=name,
        lark=writer.write(),
        covers="every text that the grammar derives",
        explain_error=writer.explain_error,
    )
