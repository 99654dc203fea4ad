"""What every kind of grammar is turned into before it meets the mask engine."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from smcprog.errors import GrammarError

__all__ = ["Check", "CheckState", "FinalCheck", "GrammarText", "require_unicode"]


def require_unicode(what: str, text: str) -> None:
    """Raise `GrammarError` where a text has half a surrogate pair, which is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            f"{what}: character {error.start} is half a surrogate pair "
            f"(U+{ord(text[error.start]):04X}), which is no Unicode text"
        ) from None


class CheckState(ABC):
    """What a check knows of one text so far. Immutable, since particles share it."""

    @abstractmethod
    def feed(self, data: bytes) -> CheckState | None:
        """State after more bytes, at least one; a character may be split between calls.

        Returns
        -------
        CheckState or None
            None only if no continuation of the text is in the language. It may come late: a
            state that never sees a dead end before the text is finished is exact, too.
        """

    @abstractmethod
    def complete(self) -> bool:
        """Whether the text so far, as a finished text, passes the check."""


class Check(ABC):
    """The part of a language that the mask does not cover, checked on the text itself.

    The mask has gone before: a check sees only texts, and prefixes of texts, of the mask's
    language.
    """

    description: str
    """What it checks, in words, for reports."""

    when: str = "on the finished text"
    """When it can end a particle, in words."""

    rejects: bool = True
    """Whether tokens are drawn by rejection under it. False where it hardly ever fails, so that
    a rare death costs less than asking about every token."""

    @abstractmethod
    def begin(self) -> CheckState:
        """State of the empty text."""


@dataclasses.dataclass(frozen=True)
class FinalCheck(Check):
    """A check that only looks at the finished text.

    Attributes
    ----------
    description : str
    holds : callable
        From the bytes of a finished text to whether it is in the language.
    """

    description: str
    holds: Callable[[bytes], bool]

    def begin(self) -> CheckState:
        return _TextSoFar(self.holds, b"")


@dataclasses.dataclass(frozen=True)
class _TextSoFar(CheckState):
    holds: Callable[[bytes], bool]
    text: bytes

    def feed(self, data: bytes) -> CheckState:
        return _TextSoFar(self.holds, self.text + data)

    def complete(self) -> bool:
        return self.holds(self.text)


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
    checks : tuple of Check
        Empty where the mask is the whole constraint; else the mask is a superset.
    explain_error : callable
        From an error message of the engine to one about the user's source.
    """

    name: str
    lark: str
    covers: str
    checks: tuple[Check, ...] = ()
    explain_error: Callable[[str], str] = lambda message: message

    follows_prompt: ClassVar[bool] = False
    """Whether `after` depends on the prompt."""

    def after(self, prompt: str | None) -> GrammarText:
        """The language of what may follow a prompt; None stands for a conversation."""
        return self

    def __repr__(self) -> str:
        return f"<grammar {self.name}>"
