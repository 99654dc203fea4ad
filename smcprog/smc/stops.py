"""Stop strings: which token completes one.

The search is over bytes, so a stop string may begin in the middle of a token, span
several, or split characters.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from smcprog.engine.vocab import Vocabulary

__all__ = ["StopStrings"]


class StopStrings:
    """The last bytes of every row, as many as could begin a stop string."""

    def __init__(self, stop: Sequence[str], vocab: Vocabulary, rows: int) -> None:
        self._needles = [s.encode() for s in stop]
        self._keep = max(len(n) for n in self._needles) - 1
        self._token_bytes = vocab.token_bytes
        self._tails: list[bytes] = [b""] * rows

    def take(self, tokens: Sequence[int], running: Sequence[bool]) -> list[bool]:
        """Append one token to each running row; whether it completed a stop string."""
        hit = [False] * len(tokens)
        for i, token in enumerate(tokens):
            if running[i]:
                text = self._tails[i] + self._token_bytes[token]
                hit[i] = any(n in text for n in self._needles)
                self._tails[i] = text[len(text) - self._keep :] if self._keep else b""
        return hit

    def hits(self, rows: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        """Whether each of some rows would complete a stop string with its token."""
        return [
            any(n in self._tails[row] + self._token_bytes[token] for n in self._needles)
            for row, token in zip(rows, tokens, strict=True)
        ]

    def copy(self, paths: int = 1) -> StopStrings:
        """The same rows again, `paths` neighbours for each."""
        twin = copy.copy(self)
        twin._tails = [tail for tail in self._tails for _ in range(paths)]
        return twin

    def fork(self, ancestors: Sequence[int]) -> None:
        """Rows become copies of their ancestors."""
        self._tails = [self._tails[a] for a in ancestors]

    def merge(self, other: StopStrings, index: Sequence[int]) -> None:
        """Row i goes on from row ``index[i]`` of these rows followed by the other's."""
        both = self._tails + other._tails
        self._tails = [both[i] for i in index]
