"""Exact checks by Lark's own lexers and parse tables, which follow a text as it grows.

A lexer's token at the end of the text so far may still become another one, so only settled
tokens reach the parser (see `lark_settled`). What the parser knows is immutable and shared by
particles.
"""

from __future__ import annotations

import codecs
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeGuard

from lark import Lark, Token
from lark.indenter import Indenter
from lark.lexer import BasicLexer, ContextualLexer
from lark.parsers.lalr_analysis import Shift

from smcprog.errors import GrammarError
from smcprog.grammars.lark.settled import Threads, Ways
from smcprog.grammars.text import Check, CheckState

__all__ = [
    "LalrCheck",
    "TokenCheck",
    "TokenParser",
    "basic_lexers",
    "is_plain_indenter",
    "lexer_of",
]

END = "$END"


class TokenParser(ABC):
    """A parser of token types whose states are immutable."""

    @abstractmethod
    def begin(self) -> Any:
        """State before the first token."""

    @abstractmethod
    def shift(self, state: Any, token_type: str) -> Any:
        """State after one more token, or None where no text goes on with it."""

    @abstractmethod
    def accepts(self, state: Any) -> bool:
        """Whether the tokens so far are a whole text."""

    @abstractmethod
    def lexer(self, state: Any) -> BasicLexer:
        """The lexer that reads the next token."""


class LalrParser(TokenParser):
    """The parse table of a `lark.Lark` object; a state is a linked list, its top first."""

    def __init__(self, lark: Lark, start: str | None) -> None:
        table = lark.parse_interactive(start=start).parser_state.parse_conf
        self._actions = table.states
        self._begin, self._end = table.start_state, table.end_state
        self._lexers = lexer_of(lark)

    def begin(self) -> Any:
        return self._begin, None

    def shift(self, state: Any, token_type: str) -> Any:
        return self._feed(state, token_type)

    def accepts(self, state: Any) -> bool:
        return self._feed(state, END) is not None

    def _feed(self, stack: Any, token_type: str) -> Any:
        while True:
            found = self._actions[stack[0]].get(token_type)
            if found is None:
                return None
            action, to = found
            if action is Shift:
                return to, stack
            for _ in to.expansion:
                stack = stack[1]
            _, after = self._actions[stack[0]][to.origin.name]
            stack = (after, stack)
            if token_type == END and after == self._end:
                return stack

    def lexer(self, state: Any) -> BasicLexer:
        contextual = isinstance(self._lexers, ContextualLexer)
        return self._lexers.lexers[state[0]] if contextual else self._lexers


def lexer_of(lark: Lark) -> Any:
    """The lexer of a parser, without what is connected behind it."""
    lexer = lark.parser.lexer
    return lexer.lexer if hasattr(lexer, "postlexer") else lexer


def basic_lexers(lark: Lark) -> list[BasicLexer]:
    """All lexers that may read a token; none where the parser finds terminals by itself."""
    if lark.lexer_conf.lexer_type not in ("basic", "contextual"):
        return []
    lexer = lexer_of(lark)
    if isinstance(lexer, ContextualLexer):
        distinct: dict[int, Any] = {id(one): one for one in lexer.lexers.values()}
        return list(distinct.values())
    return [lexer]


def is_plain_indenter(postlex: Any) -> TypeGuard[Indenter]:
    """Whether a post-lexer is Lark's `Indenter` with nothing but its settings changed."""
    return isinstance(postlex, Indenter) and all(
        getattr(type(postlex), name) is getattr(Indenter, name)
        for name in ("process", "_process", "handle_NL")
    )


@dataclasses.dataclass(frozen=True)
class _Indentation:
    """What an `Indenter` knows: depth of brackets, and the columns of the open blocks."""

    brackets: int = 0
    columns: tuple[int, ...] = (0,)

    def after(self, token: Token, rules: Indenter) -> tuple[_Indentation | None, list[str]]:
        """What follows a token, and the types that come out; None where it is an error."""
        if token.type == rules.NL_type:
            return (self, []) if self.brackets > 0 else self._line(token, rules)
        if token.type in rules.OPEN_PAREN_types:
            return dataclasses.replace(self, brackets=self.brackets + 1), [token.type]
        if token.type in rules.CLOSE_PAREN_types:
            if self.brackets == 0:
                return None, []
            return dataclasses.replace(self, brackets=self.brackets - 1), [token.type]
        return self, [token.type]

    def _line(self, token: Token, rules: Indenter) -> tuple[_Indentation | None, list[str]]:
        _, newline, blanks = token.rpartition("\n")
        if not newline:
            return None, []
        column = blanks.count(" ") + blanks.count("\t") * rules.tab_len
        columns, out = self.columns, [token.type]
        if column > columns[-1]:
            return dataclasses.replace(self, columns=(*columns, column)), [*out, rules.INDENT_type]
        while column < columns[-1]:
            columns = columns[:-1]
            out.append(rules.DEDENT_type)
        if column != columns[-1]:
            return None, []
        return dataclasses.replace(self, columns=columns), out


class TokenCheck(Check):
    """Texts that a lexer of Lark cuts into tokens which a parser takes.

    Parameters
    ----------
    lark : lark.Lark
        Where the terminals, and the post-lexer if any, come from. A post-lexer must be an
        `lark.indenter.Indenter` whose methods are Lark's.
    parser : TokenParser
    description : str
    verdict : callable, optional
        Says of a finished text whether it is in the language, instead of the parser.

    Raises
    ------
    GrammarError
        For any other post-lexer.
    """

    when = "token by token"

    def __init__(
        self,
        lark: Lark,
        parser: TokenParser,
        description: str,
        verdict: Callable[[str], bool] | None = None,
    ) -> None:
        self.description = description
        self.parser = parser
        self.verdict = verdict
        conf = lark.lexer_conf
        self._flags = conf.g_regex_flags
        self.indenter: Indenter | None = None
        if conf.postlex is not None:
            if not is_plain_indenter(conf.postlex):
                raise GrammarError(
                    f"the post-lexer {type(conf.postlex).__name__} cannot be followed token by "
                    "token; only lark.indenter.Indenter with its own methods can"
                )
            self.indenter = conf.postlex
        self._ways: dict[int, tuple[BasicLexer, Ways]] = {}
        self._by_terminals: dict[tuple[str, ...], Ways] = {}

    def begin(self) -> CheckState:
        return _Lexed(self, self.parser.begin())

    def ways(self, lexer: BasicLexer) -> Ways:
        """Ways through the patterns of a lexer."""
        found = self._ways.get(id(lexer))
        if found is None:
            # Keywords that a pattern covers are told apart by the whole token only.
            patterns = tuple(t.pattern.to_regexp() for t in lexer.scanner.terminals)
            if patterns not in self._by_terminals:
                self._by_terminals[patterns] = Ways(patterns, self._flags)
            found = self._ways[id(lexer)] = lexer, self._by_terminals[patterns]
        return found[1]


class LalrCheck(TokenCheck):
    """Texts that a `lark.Lark` object with ``parser="lalr"`` parses.

    Its own lexer (basic or contextual), parse table and indenter decide. A transformer and
    the callbacks of rules are not called.

    Parameters
    ----------
    lark : lark.Lark
    description : str
    start : str, optional
        Start rule, where the object has several.

    Raises
    ------
    GrammarError
        For a post-lexer that is not an `Indenter` with Lark's methods.
    """

    def __init__(self, lark: Lark, description: str, start: str | None = None) -> None:
        super().__init__(lark, LalrParser(lark, start), description)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Lexed(CheckState):
    """A text, tokens of which up to `at` have reached the parser.

    Attributes
    ----------
    rest : bytes
        Of a character that is not whole yet.
    parsed
        State of the parser.
    threads : tuple of int, or None
        Ways on which the token at `at` may still grow; None before that is known.
    seen : int
        How far they have been followed.
    """

    check: TokenCheck
    parsed: Any
    text: str = ""
    rest: bytes = b""
    at: int = 0
    threads: Threads | None = None
    seen: int = 0
    indentation: _Indentation = _Indentation()

    def feed(self, data: bytes) -> _Lexed | None:
        try:
            more, used = codecs.utf_8_decode(self.rest + data, "strict", False)
        except UnicodeDecodeError:
            return None
        rest = (self.rest + data)[used:]
        return dataclasses.replace(self, text=self.text + more, rest=rest)._lex(finished=False)

    def complete(self) -> bool:
        if self.rest:
            return False
        if self.check.verdict is not None:
            return self.check.verdict(self.text)
        end = self._lex(finished=True)
        if end is None:
            return False
        parsed = end.parsed
        if self.check.indenter is not None:
            for _ in end.indentation.columns[1:]:
                parsed = self.check.parser.shift(parsed, self.check.indenter.DEDENT_type)
                if parsed is None:
                    return False
        return self.check.parser.accepts(parsed)

    def _lex(self, finished: bool) -> _Lexed | None:
        """Pass on the tokens that are settled (if finished, all); None at a dead end."""
        parser, text = self.check.parser, self.text
        parsed, at, indentation = self.parsed, self.at, self.indentation
        threads, seen = self.threads, self.seen
        while at < len(text):
            lexer = parser.lexer(parsed)
            if not finished:
                ways = self.check.ways(lexer)
                if threads is None:
                    threads, seen = ways.begin(text, at), at
                    if threads is None:
                        break
                threads, seen = ways.follow(threads, text, seen)
                if threads:
                    break
                threads = None
            found = _match(lexer, text, at)
            if found is None:
                return None
            value, token_type = found
            if token_type not in lexer.ignore_types:
                token = Token(token_type, value, at)
                if token_type in lexer.callback:
                    token = lexer.callback[token_type](token)
                types = [token.type]
                if self.check.indenter is not None:
                    after, types = indentation.after(token, self.check.indenter)
                    if after is None:
                        return None
                    indentation = after
                for one in types:
                    parsed = parser.shift(parsed, one)
                    if parsed is None:
                        return None
            at += len(value)
        return dataclasses.replace(
            self, parsed=parsed, at=at, indentation=indentation, threads=threads, seen=seen
        )


def _match(lexer: BasicLexer, text: str, at: int) -> tuple[str, str] | None:
    """Text and type of the lexer's next token."""
    for pattern in lexer.scanner._mres:
        match = pattern.match(text, at)
        if match:
            return match.group(0), match.lastgroup
    return None
