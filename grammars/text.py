"""What every kind of grammar is turned into before it meets the mask engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from smcprog.errors import GrammarError

__all__ = ["GrammarText", "TextCheck", "require_unicode"]


def require_unicode(what: str, text: str) -> None:
    """Raise `GrammarError` where a text has half a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"{what}: character {error.start} is half a surrogate pair "
            f"(U+{ord(text[error.start]):04X}), which is no Unicode text"
        ) from None


@dataclasses.dataclass(frozen=True)
class TextCheck:
    """Something the mask does not cover, checked on the finished text.

    Attributes
    ----------
    description : str
    holds : callable
        From the bytes of a finished text to whether it is in the language.
    """

    description: str
    holds: Callable[[bytes], bool]


@dataclasses.dataclass(frozen=True, eq=False)
class GrammarText:
    """A language, as a text for the mask engine and what has to be checked besides.

    Attributes
    ----------
    name : str
        How reports call it.
    lark : str
        Grammar in the mask engine's variant of Lark, without its options line.
    covers : str
        What the mask covers, in words.
    checks : tuple of TextCheck
        Empty where the mask is the whole constraint.
    explain_error : callable
        From an error message of the engine to one about the user's source.
    """

    name: str
    lark: str
    covers: str
    checks: tuple[TextCheck, ...] = ()
    explain_error: Callable[[str], str] = lambda message: message

    def __repr__(self) -> str:
        return f"<grammar {self.name}>"
