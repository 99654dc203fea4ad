"""Hidden states of the tokens of a pass: what the output head was given at each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Hidden"]


class Hidden:
    """Last hidden states of M rows at consecutive positions, as far as one pass computed them.

    Parameters
    ----------
    states_M_C_D : Tensor
        `states`. Column c of row m belongs to position ``first_M[m] + c``.
    first_M : int64 [M]
    last_M : int64 [M]
        Position of each row's last stored token.
    """

    def __init__(
        self, states_M_C_D: Tensor, first_M: NDArray[np.int64], last_M: NDArray[np.int64]
    ) -> None:
        self.states = states_M_C_D
        self._first = first_M
        self._last = last_M

    @property
    def last(self) -> Tensor:
        """Of each row's last stored token, [M, D]."""
        column_M = self._last - self._first
        if (column_M == self.states.shape[1] - 1).all():
            return self.states[:, -1]
        place = torch.from_numpy(column_M).to(self.states.device)
        return self.states[torch.arange(len(place), device=place.device), place]

    def at(self, last_M: NDArray[np.int64]) -> Hidden | None:
        """The same, where rows end earlier; None where that is before the pass."""
        if (last_M < self._first).any() or (last_M > self._last).any():
            return None
        return Hidden(self.states, self._first, last_M)

    def after(self, before: Hidden) -> Hidden:
        """The same, together with the last of `before`, to which the first column is next."""
        states = torch.cat([before.last[:, None], self.states], dim=1)
        return Hidden(states, self._first - 1, self._last)

    def rows(self, index_K: NDArray[np.int64]) -> Hidden:
        """Copies of some rows."""
        place = torch.from_numpy(index_K).to(self.states.device)
        states = self.states.index_select(0, place)
        return Hidden(states, self._first[index_K], self._last[index_K])

    @staticmethod
    def join(parts: Sequence[Hidden | None]) -> Hidden | None:
        """The rows of several, in order, at their last tokens; None where one has none."""
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        last_M = np.concatenate([p._last for p in known])
        return Hidden(torch.cat([p.last for p in known])[:, None], last_M, last_M)
