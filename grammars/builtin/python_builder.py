"""The built-in grammar of Python for the mask engine: `python.lark`, copied as it says there."""

from __future__ import annotations

import functools
import re

from smcprog.grammars.builtin.files import file_text

__all__ = ["MAX_LEVELS", "mask_text"]

MAX_LEVELS = 10
"""Blocks inside each other."""

_INNER = {"_o": "_i", "_z": "_i", "_i": "_i", "_d": "_d", "_s": "_s"}


def mask_text(*, start: str, column: int, width: int) -> str:
    """Grammar for the mask engine.

    Parameters
    ----------
    start : str
        What is derived from ``start``.
    column, width : int
        Blanks before a statement of level 1, and what each further level adds.
    """
    out = f"start: {start}\n" + _shared()
    out += _copy(_level(0), "_z", only=re.compile(r"(block|stmt)_"))
    for k in range(MAX_LEVELS + 1):
        out += _copy(_level(k), "_o")
        blanks = 0 if k == 0 else column + (k - 1) * width
        out += f"NL_{k}: _NL_{min(k, 1)} / {{{blanks}}}/\n"
    return _keywords(out + _layout(column, max(80, column + MAX_LEVELS * width)))


@functools.cache
def _sections() -> dict[str, str]:
    """Parts of the file by their heading, one rule a line."""
    parts = re.split(r"^//// (.*)$", file_text("python"), flags=re.MULTILINE)
    return {
        heading: re.sub(r"\n +", " ", part)
        for heading, part in zip(parts[1::2], parts[2::2], strict=True)
    }


@functools.cache
def _shared() -> str:
    """Everything but the levels."""
    out = ""
    for heading, part in _sections().items():
        if heading == "once":
            out += part
        elif heading != "levels":
            out += "".join(_copy(part, context) for context in heading.split())
    return out


def _level(k: int) -> str:
    part = _sections()["levels"]
    if k == MAX_LEVELS:
        part = re.sub(r"\| NL\$\$ block\$\$_o|\| \"match\".*?(?= \| )", "", part)
    part = re.sub(r"(?<=\w)\$\$", f"_{k + 1}", part)
    return re.sub(r"(?<=\w)\$", f"_{k}", part)


def _copy(part: str, context: str, only: re.Pattern[str] | None = None) -> str:
    """Rules with their marks replaced; with `only`, of those that have contexts and match."""
    behind_first = "_o" if context == "_z" else context
    out = ""
    for line in part.splitlines():
        head, colon, body = line.partition(":")
        if only is not None and not (head.endswith("@") and only.match(head)):
            continue
        marks = {"@@": _INNER[context], "@": behind_first, "^": context}
        if head.isupper():  # a token has one context
            marks["@"] = context
        out += _replace(head, {"@": context}) + colon + _replace(body, marks) + "\n"
    return out


def _replace(text: str, marks: dict[str, str]) -> str:
    def suffix(found: re.Match[str]) -> str:
        name, mark = found.groups()
        return name + (
            marks[mark].upper() if name.isupper() or name.startswith('"') else marks[mark]
        )

    return re.sub(r'(\b_?[A-Za-z]\w*|"\w+")(@@|@|\^)', suffix, text)


def _keywords(text: str) -> str:
    """Turn quoted words with a context into terminals."""
    words = sorted(set(re.findall(r'"(\w+)"_([OZ])\b', text)))
    text = re.sub(r'"(\w+)"_([OZ])\b', lambda m: f"K_{m[1].upper()}_{m[2]}", text)
    return text + "".join(f'K_{w.upper()}_{c}: _W_{c} "{w}"\n' for w, c in words)


def _layout(column: int, far: int) -> str:
    """Blank lines and comments, at the top level and in blocks; no line begins beyond `far`."""
    return rf"""
_CL_0: / {{0,{far}}}/ _C /\n/
_CL_1: / {{{column},{far}}}/ _C /\n/
_NL_0: _W_O _C? /\n/ (_L{{0,2}} _CL_0)* _L{{0,2}}
_NL_1: _W_O _C? /\n/ (_L? _CL_1)* _L?
BEGIN_0: _L{{1,2}} (_CL_0 _L{{0,2}})* | (_CL_0 _L{{0,2}})+
BEGIN_1: _L{{0,2}} (_CL_1 _L?)* / {{{column}}}/
END_0: _W_O (_C | _C? /\n/ (_L{{0,2}} _CL_0)* (_L{{0,3}} | _L{{0,2}} / {{0,{far}}}/ _C))
END_1: _W_O (_C | _C? /\n/ (_L? _CL_1)* (_L{{0,3}} | _L? / {{{column},{far}}}/ _C))
"""
