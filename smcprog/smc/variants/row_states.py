"""The states of some rows of a wave, apart from the wave's own: for blocks played on the side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.smc.draft import AnyDraft, Draft
from smcprog.smc.factors import Factor
from smcprog.smc.fed_draft import FedDraftRows
from smcprog.smc.stops import StopStrings

if TYPE_CHECKING:
    from smcprog.smc.wave import Wave

__all__ = ["RowStates"]


@dataclasses.dataclass
class RowStates:
    """Factors, draft and stop strings of some rows, which move together."""

    factors: Sequence[Factor]
    draft: AnyDraft | None
    stops: StopStrings | None

    def select(self, wave: Wave, rows_S: Tensor, index_S: Tensor, lengths_S: Tensor) -> RowStates:
        """States of their own for rows that continue rows ``index_S`` of these.

        Parameters
        ----------
        wave : Wave
        rows_S : Tensor, int64
            Rows of the wave they stand for, request after request.
        index_S : Tensor, int64
        lengths_S : Tensor, int64
            Tokens that the rows have by now, all of which the wave has on its books.
        """
        sizes_R = torch.bincount(
            rows_S // wave.settings.particles, minlength=len(wave.requests)
        ).tolist()
        chosen = RowStates([], None, None)
        try:
            chosen.factors = factors = []
            for factor in self.factors:
                factors.append(factor.select(index_S, sizes_R))
            if isinstance(self.draft, FedDraftRows):
                chosen.draft = self.draft.beside(
                    factors[wave._lead], lambda count: wave.recent(count, rows_S, lengths_S)
                )
            elif isinstance(self.draft, Draft):
                chosen.draft = self.draft.select(index_S)
            if self.stops is not None:
                chosen.stops = self.stops.copy()
                chosen.stops.fork(index_S.tolist())
        except BaseException:
            chosen.release()
            raise
        return chosen

    def release(self) -> None:
        """Give back pages and states; twice does nothing."""
        for factor in self.factors:
            factor.release()
        if self.draft is not None:
            self.draft.release()

    def keep(self, wave: Wave, rows_S: Tensor, index_S: Tensor) -> None:
        """Go on with some of the rows, which stand for rows of the wave."""
        sizes_R = torch.bincount(
            rows_S // wave.settings.particles, minlength=len(wave.requests)
        ).tolist()
        for factor in self.factors:
            factor.fork(index_S, sizes_R)
        if self.draft is not None:
            self.draft.fork(index_S)
        if self.stops is not None:
            self.stops.fork(index_S.tolist())
