"""Regular expressions and lists of choices as grammars."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars import regex
from smcprog.grammars.engine import error_reason
from smcprog.grammars.lark.writer import quote
from smcprog.grammars.text import GrammarText, require_unicode

__all__ = ["choice_grammar", "regex_grammar"]

MAX_TEXT = 1_000_000  # characters of a pattern, or of all choices


def regex_grammar(pattern: Any) -> GrammarText:
    """Texts that match a regular expression as a whole.

    Parameters
    ----------
    pattern : str or re.Pattern
        In the syntax of `re`, without back-references, look-around and word boundaries.

    Raises
    ------
    GrammarError
        With the position.
    """
    flags = ""
    if isinstance(pattern, re.Pattern):
        flags = _flags(pattern)
        pattern = pattern.pattern
    if not isinstance(pattern, str):
        raise GrammarError(f"a regex is a str, got {type(pattern).__name__}")
    if len(pattern) > MAX_TEXT:
        raise GrammarError(f"regex of {len(pattern)} characters; at most {MAX_TEXT} are taken")
    require_unicode("regex", pattern)
    shown = repr(pattern if len(pattern) <= 60 else pattern[:60] + "…")
    try:
        body = regex.full_match(pattern, regex.PYTHON, flags)
    except regex.RegexError as error:
        raise GrammarError(f"regex {shown}, position {error.position}: {error.reason}") from None
    return GrammarText(
        name=f"regex {shown}",
        lark=f"start: /{body}/\n" if body else 'start: ""\n',
        covers="every text that matches the regex as a whole",
        explain_error=lambda message: f"regex {shown}: {_regex_reason(message)}",
    )


def _regex_reason(message: str) -> str:
    """The engine quotes its own form of the pattern; only what is wrong with it is of use."""
    reason, _, _ = error_reason(message)
    return reason.rpartition("error: ")[2] if "regex parse error" in reason else reason


def _flags(pattern: re.Pattern[Any]) -> str:
    names = {re.IGNORECASE: "i", re.DOTALL: "s", re.MULTILINE: "m", re.VERBOSE: "x",
             re.ASCII: "a", re.LOCALE: "L"}  # fmt: skip
    return "".join(letter for flag, letter in names.items() if pattern.flags & flag)


def choice_grammar(choices: Any) -> GrammarText:
    """One of some strings, exactly; repeated strings count once.

    Raises
    ------
    GrammarError
    """
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Iterable):
        raise GrammarError(f"choices are a list of str, got {type(choices).__name__}")
    distinct = list(dict.fromkeys(choices))
    if not distinct:
        raise GrammarError("the list of choices is empty")
    for i, choice in enumerate(distinct):
        if not isinstance(choice, str):
            raise GrammarError(f"choices are str, got {type(choice).__name__}: {choice!r}")
        if any("\ud800" <= c <= "\udfff" for c in choice):
            raise GrammarError(f"choice {i} has half a surrogate pair: {choice!r}")
    if sum(map(len, distinct)) > MAX_TEXT:
        raise GrammarError(f"choices of more than {MAX_TEXT} characters together")
    shown = ", ".join(repr(c[:20]) for c in distinct[:3]) + (", …" if len(distinct) > 3 else "")
    return GrammarText(
        name=f"choice of {shown}",
        lark="start: CHOICE\nCHOICE: " + " | ".join(map(quote, distinct)) + "\n",
        covers=f"the {len(distinct)} strings, exactly",
        explain_error=lambda message: f"choices: {error_reason(message)[0]}",
    )
