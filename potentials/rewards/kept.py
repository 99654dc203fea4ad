"""Scores that are known, as long as there is room for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["Kept"]

CACHED_TEXTS = 1 << 16
CACHED_CHARACTERS = 1 << 24

K = TypeVar("K", bound=Hashable)


class Kept(Generic[K]):
    """Scores of the last texts, so many and of so many characters (or tokens) in all.

    Parameters
    ----------
    size : callable
        Characters of a key.
    """

    def __init__(self, size: Callable[[K], int]) -> None:
        self._size = size
        self._scores: OrderedDict[K, float] = OrderedDict()
        self.characters = 0

    def __iter__(self) -> Iterator[K]:
        return iter(self._scores)

    def get(self, key: K) -> float | None:
        """The score, if it is known; it is then the last one used."""
        score = self._scores.get(key)
        if score is not None:
            self._scores.move_to_end(key)
        return score

    def put(self, key: K, score: float) -> None:
        """Keep a score, and forget the longest unused ones beyond the bounds."""
        if key not in self._scores:
            self.characters += self._size(key)
        self._scores[key] = score
        while len(self._scores) > CACHED_TEXTS or (
            self.characters > CACHED_CHARACTERS and len(self._scores) > 1
        ):
            old, _ = self._scores.popitem(last=False)
            self.characters -= self._size(old)
