r"""The terminals of ``%import common.X``, with the languages that Lark gives them.

`ESCAPED_STRING` and `C_COMMENT` are lazy there; here the delimiter is excluded instead.
"""

from __future__ import annotations

import functools

from smcprog.grammars.lark_ast import Definition, Name
from smcprog.grammars.lark_parser import parse_lark
from smcprog.grammars.lark_tree import walk

__all__ = ["common_terminals"]

_TEXT = r"""
DIGIT: "0".."9"
HEXDIGIT: /[0-9A-Fa-f]/

INT: DIGIT+
SIGNED_INT: ("+" | "-")? INT
DECIMAL: INT "." INT? | "." INT
_EXP: ("e" | "E") SIGNED_INT
FLOAT: INT _EXP | DECIMAL _EXP?
SIGNED_FLOAT: ("+" | "-")? FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ("+" | "-")? NUMBER

ESCAPED_STRING: "\"" /([^"\\\n]|\\[^\n])*/ "\""

LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: LCASE_LETTER | UCASE_LETTER
WORD: LETTER+
CNAME: ("_" | LETTER) ("_" | LETTER | DIGIT)*

WS_INLINE: /[ \t]+/
WS: /[ \t\f\r\n]+/
CR: "\r"
LF: "\n"
NEWLINE: (CR? LF)+

SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
C_COMMENT: /\/\*([^*]|\*+[^*\/])*\*+\//
SQL_COMMENT: /--[^\n]*/
"""


@functools.lru_cache(maxsize=1)
def _all() -> dict[str, Definition]:
    return parse_lark(_TEXT).definitions


def common_terminals(name: str) -> dict[str, Definition]:
    """A terminal of the `common` library and those it is made of; empty if unknown."""
    if name not in _all():
        return {}
    found: dict[str, Definition] = {}
    pending = [name]
    while pending:
        definition = _all()[pending.pop()]
        if definition.name not in found:
            found[definition.name] = definition
            pending += [n.name for n in walk(definition.body) if isinstance(n, Name)]
    return found
