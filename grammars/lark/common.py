r"""The terminals of ``%import common.X``, with the languages that Lark gives them.

`ESCAPED_STRING` and `C_COMMENT` are lazy there; here the delimiter is excluded instead.
"""

from __future__ import annotations

__all__ = ["COMMON"]

COMMON = r"""
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
