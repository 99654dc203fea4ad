r"""Which terminals Lark's basic lexer never cuts short.

A name such as ``/[a-z_]\w*/`` that the lexer reads is as long as it can be: the pattern leaves
no choice, and once it matches it matches as long as it goes on at all. A keyword that the
pattern covers is such a name first, and told apart by the whole of it. So neither ever ends
where the name, or another keyword, could go on, and a mask need not provide for it.
"""

from __future__ import annotations

from typing import Any

from lark import Lark
from lark.lexer import BasicLexer, UnlessCallback

from smcprog.grammars.lark.ast import Place
from smcprog.grammars.lark.automaton import automaton
from smcprog.grammars.lark.sre import Unreadable, is_plain, loose_expression, parse_pattern

__all__ = ["never_cut_short"]


def never_cut_short(lark: Lark, lexers: list[BasicLexer]) -> set[tuple[str, str]]:
    """Pairs of terminals of which the first never ends where the second could go on.

    Parameters
    ----------
    lark : lark.Lark
    lexers : list of BasicLexer
        All that read its texts.
    """
    if not lexers:  # terminals are found by the parser, wherever they match
        return set()
    names = {t.name for t in lark.terminals if _leaves_no_choice(lark, t)}
    found = set()
    strings = {t.name: t for t in lark.terminals if t.pattern.type == "str"}
    for name in names:
        covered = set()
        ends = {name} | set(strings)
        for lexer in lexers:
            read = {t.name for t in lexer.scanner.terminals}
            callback = lexer.callback.get(name)
            keywords: set[str] = set()
            if name in read and isinstance(callback, UnlessCallback):
                keywords = callback.scanner.allowed_types
                covered |= keywords
            others = {
                keyword
                for other, unless in lexer.callback.items()
                if other != name and isinstance(unless, UnlessCallback)
                for keyword in unless.scanner.allowed_types
            }
            here = {t.name for t in lexer.terminals}
            ends -= {s for s in here - {name} if s not in keywords or s in read or s in others}
        ends &= covered | {name}
        found |= {(end, goes_on) for end in ends for goes_on in covered | {name}}
    return found


def _leaves_no_choice(lark: Lark, terminal: Any) -> bool:
    """Whether a pattern's match is its longest, and every longer way is a match, too."""
    flags = lark.lexer_conf.g_regex_flags
    if terminal.pattern.type == "str":
        return False
    try:
        tree = parse_pattern(terminal.pattern.to_regexp(), flags)
    except Unreadable:
        return False
    if not is_plain(tree):
        return False
    lexeme = automaton(loose_expression(tree, flags, Place(0, 0)), {})
    for together in (lexeme.first, *lexeme.after):
        seen = 0
        for position in together:
            if seen & lexeme.chars[position]:
                return False
            seen |= lexeme.chars[position]
    return all(lexeme.after[position] <= lexeme.last for position in lexeme.last)
