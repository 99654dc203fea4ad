"""First-order logic: the file, and the check that no variable is free."""

from __future__ import annotations

import dataclasses
import re

from smcprog.grammars.builtin.files import file_text
from smcprog.grammars.lark.translate import lark_grammar
from smcprog.grammars.text import Check, CheckState, GrammarText

__all__ = ["FolGrammar", "fol_grammar"]

_LEXEME = re.compile("forall|exists|[A-Za-z_][A-Za-z0-9_]*|[^A-Za-z0-9_ .]")
_VARIABLE = re.compile("[u-z][0-9]*")
_WORD = re.compile("[A-Za-z0-9_]")
_QUANTIFIERS = {"∀", "∃", "forall", "exists"}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FolGrammar(GrammarText):
    """The grammar of first-order logic; called, with options."""

    def __call__(self, *, closed: bool = True) -> GrammarText:
        """Formulas, by default those without free variables.

        Parameters
        ----------
        closed : bool
            Whether every variable must be in reach of a quantifier that binds it.

        Examples
        --------
        >>> from smcprog import Grammar
        >>> from smcprog.grammars import fol
        >>> sentence = Grammar(fol(closed=True))
        >>> sentence.accepts("∀x P(x)"), sentence.accepts("P(x)")
        (True, False)
        """
        if not closed:
            return self
        return dataclasses.replace(
            self,
            name="fol, closed",
            covers="formulas of first-order logic, whatever their variables",
            checks=(*self.checks, ClosedCheck()),
        )


def fol_grammar() -> FolGrammar:
    """The formulas of the file, with or without free variables."""
    made = lark_grammar(file_text("fol"), "fol")
    fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(GrammarText)}
    return FolGrammar(**{**fields, "covers": "formulas of first-order logic"})


class ClosedCheck(Check):
    """That no variable is free; a free one ends a particle at once."""

    description = "every variable is bound by a quantifier"
    when = "at every variable"

    def begin(self) -> CheckState:
        return _Scopes()


@dataclasses.dataclass(frozen=True)
class _Scopes(CheckState):
    """Where in a formula a text is.

    Attributes
    ----------
    rest : bytes
        What is not read yet: a word that may go on, or a part of a character.
    open : tuple of str
        What is not closed: ``"("`` of a formula, ``"["`` of arguments, and bound variables.
    last : str
        The lexeme before.
    """

    rest: bytes = b""
    open: tuple[str, ...] = ()
    last: str = ""

    def feed(self, data: bytes) -> CheckState | None:
        text, cut = _whole_characters(self.rest + data)
        # A word is read when it cannot go on.
        end = len(text)
        while end and _WORD.fullmatch(text[end - 1]):
            end -= 1
        state = self._read(text[:end])
        if state is None:
            return None
        return dataclasses.replace(state, rest=text[end:].encode() + cut)

    def complete(self) -> bool:
        return self._read(self.rest.decode()) is not None

    def _read(self, text: str) -> _Scopes | None:
        scopes, last = list(self.open), self.last
        for lexeme in _LEXEME.findall(text):
            if last in _QUANTIFIERS:
                scopes.append(lexeme)
            elif lexeme == "(":
                # After a name it holds arguments, after a bound variable a formula.
                is_name = _WORD.match(last) is not None and not _VARIABLE.fullmatch(last)
                scopes.append("[" if is_name else "(")
            elif lexeme == ")":
                while scopes.pop() not in ("(", "["):
                    pass
            elif _VARIABLE.fullmatch(lexeme) and lexeme not in scopes:
                return None
            if lexeme in _CONNECTIVES:
                _close_quantifiers(scopes)
            last = lexeme
        return _Scopes(b"", tuple(scopes), last)


_CONNECTIVES = {"∧", "∨", "→", "↔", "&", "|", "-", "<"}


def _close_quantifiers(scopes: list[str]) -> None:
    """A connective ends the units before it, up to the open parenthesis."""
    while scopes and scopes[-1] not in ("(", "["):
        scopes.pop()


def _whole_characters(data: bytes) -> tuple[str, bytes]:
    """A text, and the bytes of a character that is not all there."""
    for keep in range(min(4, len(data)) + 1):
        try:
            return data[: len(data) - keep].decode(), data[len(data) - keep :]
        except UnicodeDecodeError:
            continue
    raise AssertionError("the mask lets only UTF-8 through")
