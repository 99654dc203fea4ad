"""Weighted draws without replacement from one row of weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Urn"]


class Urn:
    """Tokens with weights, some of which have been removed.

    Draws are made by inverse CDF from the sums of an earlier state, skipping what has been
    removed since; that is a draw in proportion to what is left. The sums are made anew when
    half of them is gone, so neither the skipping nor the rounding of `left` gets out of hand.

    Parameters
    ----------
    weights_V : array of float64
        Kept, and changed.
    uniform : callable
        The i-th uniform in (0, 1) of this row's draws, i = 0, 1, 2, …

    Attributes
    ----------
    total, left : float
        Sum of all weights, and of those that have not been removed: exactly 0 when none is.
    """

    def __init__(self, weights_V: NDArray[np.float64], uniform: Callable[[int], float]) -> None:
        self._weights_V = weights_V
        self._uniform = uniform
        self._used = 0
        self._sum()
        self.total = self.left

    def remove(self, token: int) -> float:
        """Take a token out; its weight."""
        weight = float(self._weights_V[token])
        self._weights_V[token] = 0.0
        self.left -= weight
        if self.left < 0.5 * self._summed:
            self._sum()
        return weight

    def draw(self) -> int:
        """A token in proportion to what is left; it stays in. Something must be left."""
        while True:
            u = self._uniform(self._used)
            self._used += 1
            point = min(u * self._summed, self._below)
            token = int(np.searchsorted(self._cdf_V, point, side="right"))
            if self._weights_V[token] > 0:
                return token

    def _sum(self) -> None:
        self._cdf_V = np.cumsum(self._weights_V)
        self.left = self._summed = float(self._cdf_V[-1])
        self._below = float(np.nextafter(self._summed, 0.0))
