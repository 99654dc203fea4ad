"""Built-in grammars, and the translation of schemas and grammars for the mask engine.

Import this package as `smcprog.grammars` only. Each built-in grammar is a ``.lark`` file in
`builtin` and an attribute of this module; `patterns` holds regular expressions.

>>> from smcprog import Grammar
>>> from smcprog.grammars import json
>>> Grammar(json).accepts('{"a": [1, 2]}')
True
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from smcprog.errors import GrammarError
from smcprog.grammars.builtin.csv_grammar import csv_grammar
from smcprog.grammars.builtin.files import file_names, file_text
from smcprog.grammars.builtin.fol_grammar import fol_grammar
from smcprog.grammars.builtin.python_grammar import PythonGrammar, python_grammar
from smcprog.grammars.builtin.smiles_grammar import smiles_grammar
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.text import GrammarText
from smcprog.grammars.vetting import VetReport, vet

__all__ = [
    "VetReport",
    "arithmetic",
    "csv",
    "fol",
    "json",
    "load",
    "names",
    "python",
    "smiles",
    "sql",
    "vet",
]

if TYPE_CHECKING:
    from smcprog.grammars.builtin.csv_grammar import CsvGrammar
    from smcprog.grammars.builtin.fol_grammar import FolGrammar
    from smcprog.grammars.builtin.sql_grammar import SqlGrammar

    arithmetic: GrammarText
    """Numbers, operators, signs and parentheses."""
    csv: CsvGrammar
    """CSV (RFC 4180); called, with columns or another delimiter."""
    fol: FolGrammar
    """Formulas of first-order logic; called, without free variables."""
    json: GrammarText
    """Any JSON value (RFC 8259), with bounded white space inside and none around it."""
    python: PythonGrammar
    """Python source code; called, with options."""
    smiles: GrammarText
    """Molecules in OpenSMILES."""
    sql: SqlGrammar
    """One statement in SQLite's SQL; called, with the names of a database."""


def _sql() -> GrammarText:
    """Apart, since not every Python has SQLite."""
    from smcprog.grammars.builtin.sql_grammar import sql_grammar

    return sql_grammar()


_BUILDERS: dict[str, Callable[[], GrammarText]] = {
    "csv": csv_grammar,
    "fol": fol_grammar,
    "python": python_grammar,
    "smiles": smiles_grammar,
    "sql": _sql,
}
"""Grammars that are more than their file: what makes each."""


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the built-in grammars."""
    return tuple(sorted({*file_names(), *_BUILDERS}))


@functools.cache
def load(name: str) -> GrammarText:
    """A built-in grammar.

    Raises
    ------
    GrammarError
        For an unknown name, listing the known ones.
    """
    if name in _BUILDERS:
        return _BUILDERS[name]()
    if name not in file_names():
        raise GrammarError(f"there is no built-in grammar {name!r}; there are {', '.join(names())}")
    return lark_grammar(file_text(name), name)


def __getattr__(name: str) -> GrammarText:
    """Read a built-in grammar when it is first asked for."""
    if name in names():
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
