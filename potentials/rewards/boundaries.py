"""Where in a text a reward looks at it: after a string, a match of a pattern, or a token.

A boundary is a place in a text, counted in characters, greater than 0: the text *up to* it is
what is judged. Which places a text has depends on the output alone, not on how it was cut into
blocks.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Any

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError
from smcprog.potentials.texts import whole_characters
from smcprog.validate import whole

__all__ = ["Boundary", "boundary_of"]

NO_BOUNDARIES = (
    *("always", "begin", "boundary", "line", "lines", "never", "prefix", "prefixes", "rounds"),
    *("sentence", "sentences", "start", "step", "steps", "token", "tokens", "word", "words"),
)
"""Words that are more likely meant as a moment than as a text to look for."""


class Boundary(ABC):
    """A rule for the places of a text.

    Attributes
    ----------
    stable : bool
        Whether a place stays one, whatever text comes after it.
    """

    stable = True

    @abstractmethod
    def places(self, text: str, marks: Sequence[int]) -> list[int]:
        """Places of a text, ascending.

        Parameters
        ----------
        text : str
        marks : sequence of int
            What `mark` returned for the output's tokens so far; some may lie beyond the text.
        """

    def check(self, vocab: Vocabulary) -> None:  # noqa: B027 - optional hook
        """Raise SettingError unless it has a meaning for the vocabulary."""

    def mark(self, token: int, data: bytes) -> int | None:
        """The place after a token, if it is one by the token; `data` ends in it."""
        return None


class _String(Boundary):
    def __init__(self, string: str) -> None:
        self._string = string

    def __repr__(self) -> str:
        return repr(self._string)

    def places(self, text: str, marks: Sequence[int]) -> list[int]:
        places, at, size = [], 0, len(self._string)
        while (at := text.find(self._string, at)) >= 0:
            at += size
            places.append(at)
        return places


class _Pattern(Boundary):
    stable = False  # a match may grow, or depend on what follows

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __repr__(self) -> str:
        return repr(self._pattern)

    def places(self, text: str, marks: Sequence[int]) -> list[int]:
        return sorted({m.end() for m in self._pattern.finditer(text)} - {0})


class _Tokens(Boundary):
    def __init__(self, ids: frozenset[int]) -> None:
        self._ids = ids

    def __repr__(self) -> str:
        return repr(sorted(self._ids))

    def check(self, vocab: Vocabulary) -> None:
        if max(self._ids) >= vocab.size:
            raise SettingError(
                f"Reward(at=...): {max(self._ids)} is no token id of the model, which has ids 0 "
                f"to {vocab.size - 1}"
            )

    def mark(self, token: int, data: bytes) -> int | None:
        return len(whole_characters(data)) if token in self._ids else None

    def places(self, text: str, marks: Sequence[int]) -> list[int]:
        return sorted({m for m in marks if 0 < m <= len(text)})


def boundary_of(at: Any) -> Boundary:
    """The boundary that `at` of a `Reward` means, "end" and "round" apart.

    Raises
    ------
    SettingError
        It means none.
    """
    if isinstance(at, re.Pattern):
        if isinstance(at.pattern, bytes):
            raise SettingError("Reward(at=...) takes a pattern of text, got one of bytes")
        return _Pattern(at)
    if isinstance(at, str) and at:
        if at in NO_BOUNDARIES:
            raise SettingError(
                f'Reward(at={at!r}) is not supported: at is "end", "round", a boundary string '
                f"such as '\\n', a compiled pattern, or a set of token ids (for the text {at!r} "
                f"as a boundary write re.compile({at!r}))"
            )
        try:
            at.encode()
        except UnicodeEncodeError:
            raise SettingError(f"Reward(at={at!r}) is no text that an output can hold") from None
        return _String(at)
    if hasattr(at, "tolist"):
        at = at.tolist()
    if isinstance(at, (Set, list, tuple)) and at:
        return _Tokens(frozenset(whole("a token id of Reward(at=...)", i, 0, 1 << 40) for i in at))
    raise SettingError(
        'at must be "end", "round", a boundary string such as \'\\n\', a compiled pattern, or a '
        f"non-empty set or list of token ids, got {at!r}"
    )
