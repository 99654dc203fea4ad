"""Built-in grammars, and the translation of schemas and grammars for the mask engine.

Import this package as `smcprog.grammars` only. Each built-in grammar is a ``.lark`` file in
this folder and an attribute of this module:

>>> from smcprog import Grammar
>>> from smcprog.grammars import json
>>> Grammar(json).accepts('{"a": [1, 2]}')
True
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TYPE_CHECKING

from smcprog.errors import GrammarError
from smcprog.grammars.lark import lark_grammar
from smcprog.grammars.text import GrammarText

__all__ = ["json", "load", "names"]

if TYPE_CHECKING:
    json: GrammarText
    """Any JSON value (RFC 8259), with bounded white space inside and none around it."""


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the built-in grammars."""
    found = (f.name for f in files(__name__).iterdir())
    return tuple(sorted(f.removesuffix(".lark") for f in found if f.endswith(".lark")))


@functools.cache
def load(name: str) -> GrammarText:
    """A built-in grammar.

    Raises
    ------
    GrammarError
        For an unknown name, listing the known ones.
    """
    if name not in names():
        raise GrammarError(f"there is no built-in grammar {name!r}; there are {', '.join(names())}")
    text = files(__name__).joinpath(f"{name}.lark").read_text(encoding="utf-8")
    return lark_grammar(text, name)


def __getattr__(name: str) -> GrammarText:
    """Read a built-in grammar when it is first asked for."""
    if name in names():
        return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
