"""`lark.Lark` objects: a mask of every text their rules derive, and a check by Lark itself.

What an object means is what its own parser takes: with ``parser="lalr"`` its lexer's choice of
tokens and its parse table, with Earley what its (dynamic or basic) lexer finds. The mask is
made of the rules and terminals that Lark has compiled, look-around and the like left out, with
terminals of any length and in any order of priority: a superset of each of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from lark import Lark
from lark.exceptions import LarkError
from lark.lexer import TerminalDef

from smcprog.errors import GrammarError
from smcprog.grammars.lark.ast import (
    Alternatives,
    Char,
    Definition,
    Expression,
    Name,
    Place,
    Repeat,
    Sequence,
    fail,
)
from smcprog.grammars.lark.chars import ALL
from smcprog.grammars.lark.check import LalrCheck, basic_lexers, is_plain_indenter
from smcprog.grammars.lark.earley import earley_check, parse_verdict
from smcprog.grammars.lark.munch import never_cut_short
from smcprog.grammars.lark.sre import Unreadable, loose_expression, needs_lark, parse_pattern
from smcprog.grammars.lark.tree import productive_names
from smcprog.grammars.lark.writer import START, Writer
from smcprog.grammars.text import Check, FinalCheck, GrammarText

__all__ = ["build_lark", "object_grammar"]

MAX_RULES = 20_000  # rules as Lark compiles them
NOWHERE = Place(0, 0)


def object_grammar(lark: Lark, name: str, start: str | None = None) -> GrammarText:
    """The language of a `lark.Lark` object.

    Parameters
    ----------
    lark : lark.Lark
    name : str
        How reports call it.
    start : str, optional
        Start rule; needed where the object has several.

    Raises
    ------
    GrammarError
        For what the parser cannot be followed in: bytes, lexer classes, lexing only, a rule
        that derives nothing, a declared terminal without a post-lexer.
    """
    start = _start_of(lark, start)
    conf, options = lark.lexer_conf, lark.options
    parser, lexer = lark.parser.parser_conf.parser_type, conf.lexer_type
    _try_lexers(lark)
    how = f'lark.Lark with parser="{parser}", lexer="{lexer}"'
    opaque = _opaque(lark)
    check: Check
    if opaque:
        check = FinalCheck(f"{how} parses the text; {opaque}", _verdict_on_bytes(lark, start))
        definitions = _soup(lark)
        covers = "every sequence of the terminals of the grammar"
        ignored: tuple[Expression, ...] = ()
        apart: frozenset[tuple[str, str]] = frozenset()
    else:
        description = f"{how} parses the text"
        if options.postlex is not None:
            description += f" behind the post-lexer {type(options.postlex).__name__}"
        rules = _Rules(lark, start)
        definitions, ignored = rules.definitions()
        apart = rules.apart()
        covers = (
            "every text that the grammar's rules derive, whatever the lexer, priorities and "
            "look-around say"
        )
        if parser == "lalr":
            check = LalrCheck(lark, description, start)
        else:
            check = earley_check(lark, description, start)
    writer = Writer(definitions, ignored, "bounded", apart)
    return GrammarText(
        name=name,
        lark=writer.write(),
        covers=covers,
        checks=(check,),
        explain_error=writer.explain_error,
    )


def _start_of(lark: Lark, start: str | None) -> str:
    options = lark.options
    if not options.parser:
        raise GrammarError("the lark.Lark object has no parser: it was made for lexing only")
    if options.use_bytes:
        raise GrammarError("the lark.Lark object parses bytes (use_bytes=True), not text")
    if not isinstance(lark.lexer_conf.lexer_type, str) or options._plugins:
        raise GrammarError(
            "the lark.Lark object has a lexer class or plugins of its own, which cannot be "
            'followed; lexer="basic", "contextual", "dynamic" and "dynamic_complete" can'
        )
    starts = list(options.start)
    if start is None and len(starts) > 1:
        raise GrammarError(f"the lark.Lark object has the start rules {starts}; say which: start=…")
    if start is not None and start not in starts:
        raise GrammarError(f"start={start!r}: the lark.Lark object has the start rules {starts}")
    if len(lark.rules) > MAX_RULES:
        raise GrammarError(
            f"the grammar has {len(lark.rules)} rules; at most {MAX_RULES} are taken"
        )
    return start or str(starts[0])


def _try_lexers(lark: Lark) -> None:
    """Let Lark build what it would build at the first text, where that may fail.

    It numbers the groups of all terminals together, which back-references may not survive.
    """
    for terminal in lark.terminals if basic_lexers(lark) else ():
        with contextlib.suppress(Unreadable):
            tree = parse_pattern(terminal.pattern.to_regexp(), lark.lexer_conf.g_regex_flags)
            if needs_lark(tree, "GROUPREF") is None:
                continue
            try:
                for lexer in basic_lexers(lark):
                    _ = lexer.scanner
            except re.error as error:
                raise GrammarError(
                    f"grammar: {terminal.name} has a back-reference, which Lark's lexer cannot "
                    f"combine with other terminals: {error}"
                ) from None


def _opaque(lark: Lark) -> str:
    """Why tokens cannot be followed one by one; empty if they can."""
    if lark.lexer_conf.callbacks:
        return "its lexer callbacks are followed no closer"
    postlex = lark.lexer_conf.postlex
    if postlex is not None and not is_plain_indenter(postlex):
        return f"its post-lexer {type(postlex).__name__} is followed no closer"
    return ""


def _verdict_on_bytes(lark: Lark, start: str) -> Callable[[bytes], bool]:
    holds = parse_verdict(lark, start)
    return lambda data: holds(data.decode())


def _soup(lark: Lark) -> dict[str, Definition]:
    """Any sequence of terminals."""
    bodies = tuple(_terminal(lark, t) for t in lark.terminals)
    body = Repeat(NOWHERE, Alternatives(NOWHERE, bodies), 0, None)
    return {START: Definition(NOWHERE, START, body)}


# `common.ESCAPED_STRING` and `C_COMMENT`, and what their first match is: one that ends as soon
# as it can, which a mask of any match would not know.
_FIRST_MATCH = {
    r'".*?(?<!\\)(\\\\)*?"': r'"([^"\\\n]|\\[^\n])*"',
    "/\\*(.|\n)*?\\*/": r"/\*([^*]|\*+[^*/])*\*+/",
}


def _terminal(lark: Lark, terminal: TerminalDef) -> Expression:
    """Every text that a terminal may match, and more."""
    pattern, flags = terminal.pattern.to_regexp(), lark.lexer_conf.g_regex_flags
    if not flags:
        pattern = _FIRST_MATCH.get(pattern, pattern)
    try:
        return loose_expression(parse_pattern(pattern, flags), flags, NOWHERE)
    except (Unreadable, RecursionError):  # with the module `regex`, which has more than `re`
        return Repeat(NOWHERE, Char(NOWHERE, "(?s:.)", ALL), 1, None)


def _with_one_parse(bodies: list[Expression]) -> tuple[list[Expression], list[Char]]:
    """Ignored terminals without what only lets their texts be divided in many ways.

    Where any number of ignored terminals may follow, ``x+`` is the same as x; and ``x[ ]*`` is the
    same as x where blanks are ignored, too.

    Returns
    -------
    bodies : list of Expression
    more : list of Char
        To be ignored in addition: what was taken off the ends.
    """
    bodies = [_once(body) for body in bodies]
    blank = 0
    for body in bodies:
        blank |= body.chars if isinstance(body, Char) else 0
    out, more = [], []
    for body in bodies:
        if isinstance(body, Sequence) and len(body.parts) > 1:
            end = body.parts[-1]
            tail = end.inner if isinstance(end, Repeat) and end.low == 0 else None
            if isinstance(tail, Char) and not tail.chars & ~blank:
                body = Sequence(body.place, body.parts[:-1])
                more.append(tail)
        out.append(body)
    return out, more


def _once(body: Expression) -> Expression:
    while isinstance(body, Repeat) and body.low == 1 and body.high is None:
        body = body.inner
    return body


class _Rules:
    """The rules and terminals of a Lark object, as definitions with names of ours."""

    def __init__(self, lark: Lark, start: str) -> None:
        self._lark = lark
        self._start = start
        self._expansions: dict[str, list[tuple[tuple[bool, str], ...]]] = {}
        for rule in lark.rules:
            symbols = tuple((s.is_term, s.name) for s in rule.expansion)
            self._expansions.setdefault(rule.origin.name, []).append(symbols)
        self._terminals = {t.name: t for t in lark.terminals}
        postlex = lark.lexer_conf.postlex
        self._indenter = postlex if is_plain_indenter(postlex) else None
        self._names: dict[tuple[bool, str], str] = {(False, start): START}

    def definitions(self) -> tuple[dict[str, Definition], tuple[Expression, ...]]:
        """Definitions by name, and what is ignored."""
        if self._start not in self._expansions:
            raise GrammarError(f"grammar: there is no rule `{self._start}`")
        found = {}
        for terminal in self._lark.terminals:
            name = self._name(True, terminal.name)
            found[name] = Definition(NOWHERE, name, _terminal(self._lark, terminal))
        for origin, expansions in self._expansions.items():
            name = self._name(False, origin)
            place = self._place(origin)
            found[name] = Definition(place, name, self._body(origin, expansions, place))
        productive = productive_names(found)
        for origin in self._reachable():
            if self._name(False, origin) not in productive:
                self._refuse(origin, "derives no text: it never ends")
        ignored = [Name(NOWHERE, self._name(True, n)) for n in self._lark.ignore_tokens]
        if self._indenter is not None and self._indenter.NL_type in self._terminals:
            # Between brackets the indenter drops line ends.
            ignored.append(Name(NOWHERE, self._name(True, self._indenter.NL_type)))
            names = [name.name for name in ignored]
            bodies, more = _with_one_parse([found[name].body for name in names])
            for name, body in zip(names, bodies, strict=True):
                found[name] = dataclasses.replace(found[name], body=body)
            return found, (*ignored, *more)
        return found, tuple(ignored)

    def apart(self) -> frozenset[tuple[str, str]]:
        """Pairs of terminals of which the first never ends where the second could go on."""
        pairs = never_cut_short(self._lark, basic_lexers(self._lark))
        return frozenset((self._name(True, a), self._name(True, b)) for a, b in pairs)

    def _name(self, terminal: bool, name: str) -> str:
        key = terminal, name
        if key not in self._names:
            plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "x"
            number = len(self._names)
            self._names[key] = (
                f"T{number}_{plain.upper()}" if terminal else f"r{number}_{plain.lower()}"
            )
        return self._names[key]

    def _body(
        self, origin: str, expansions: list[tuple[tuple[bool, str], ...]], place: Place
    ) -> Expression:
        """A rule's alternatives; Lark's own rules for ``+`` become repeats again."""
        me = (False, origin)
        first = [e for e in expansions if me not in e]
        again = [e[1:] for e in expansions if e[:1] == (me,) and me not in e[1:]]
        if (
            origin.startswith("__")
            and set(first) == set(again)
            and (len(first) + len(again) == len(expansions))
        ):
            return Repeat(place, self._options(first, place), 1, None)
        return self._options(expansions, place)

    def _options(
        self, expansions: Iterable[tuple[tuple[bool, str], ...]], place: Place
    ) -> Expression:
        options: list[Expression] = []
        for expansion in expansions:
            parts = tuple(p for s in expansion if (p := self._symbol(*s, place)) is not None)
            options.append(parts[0] if len(parts) == 1 else Sequence(place, parts))
        return options[0] if len(options) == 1 else Alternatives(place, tuple(options))

    def _symbol(self, terminal: bool, name: str, place: Place) -> Expression | None:
        """A symbol's reference; None where it has no text of its own."""
        if not terminal or name in self._terminals:
            return Name(place, self._name(terminal, name))
        if self._indenter is None:
            self._refuse(name, "is declared, and the parser has no post-lexer that makes it")
        if name in (self._indenter.INDENT_type, self._indenter.DEDENT_type):
            return None
        return Alternatives(place, ())  # never made

    def _reachable(self) -> list[str]:
        found: dict[str, None] = {}
        pending = [self._start]
        while pending:
            origin = pending.pop()
            if origin not in found:
                found[origin] = None
                for expansion in self._expansions.get(origin, ()):
                    pending.extend(name for terminal, name in expansion if not terminal)
        return list(found)

    def _refuse(self, name: str, reason: str) -> NoReturn:
        place = self._place(name)
        if place.line:
            fail(place, f"{name} {reason}")
        raise GrammarError(f"grammar: {name} {reason}")

    def _place(self, name: str) -> Place:
        """Where a rule is defined, or a terminal declared, in the object's grammar."""
        source = getattr(self._lark, "source_grammar", "")
        before, after = r"^(?:%\w+[^\n]*\s)?[?!]*", r"\b(?=\s*[:.{]|[^\n:]*$)"
        match = re.search(
            before + re.escape(name) + after,
            source,
            re.MULTILINE,
        )
        if not match:
            return NOWHERE
        return Place(source.count("\n", 0, match.start()) + 1, 1)


def build_lark(text: str, options: Mapping[str, Any], places: Mapping[str, Place]) -> Lark:
    """A `lark.Lark` object of a text.

    Parameters
    ----------
    text : str
    options : mapping
        Of `lark.Lark`.
    places : mapping of name to Place
        Where rules and terminals are defined.

    Raises
    ------
    GrammarError
        Where Lark refuses the grammar, at the first line that its message names.
    """
    try:
        return Lark(text, **options)
    except (LarkError, AssertionError, RecursionError, re.error) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        message = f'lark.Lark(parser="{options["parser"]}") refuses it: {reason}'
        named = re.findall(r"(?:<|'|\()(\w+)(?= :|'|:)", reason)
        known = [places[name] for name in named if name in places]
        if known:
            fail(min(known, key=lambda place: (place.file, place.line)), message)
        raise GrammarError(f"grammar: {message}") from None
