"""Rows of different widths in one forward, without padding between them.

The model sees a single row of S tokens. Everything in it but attention works token by token,
so only attention has to know which of them belong together: the tokens of a *segment* form
rows of similar width, which one call of the underlying implementation attends over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.base import Layout, PagedAttention, StaticPlan

__all__ = ["PackedAttention", "Segment"]


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Rows that attend together, and where their tokens are among the S packed ones.

    Attributes
    ----------
    plan
        Of the underlying attention.
    rows, width : int
        M and T of its layout.
    begin, end : int
        The segment's packed tokens: all real ones, row after row.
    spread_P : Tensor or None
        int64 [M * T], which of the segment's tokens stands in each place (padding repeats
        some token); None where nothing is padded.
    real_S : Tensor or None
        int64 [end - begin], the place of each token: the inverse.
    """

    plan: Any
    rows: int
    width: int
    begin: int
    end: int
    spread_P: Tensor | None
    real_S: Tensor | None

    @classmethod
    def of(cls, attention: PagedAttention, layout: Layout, begin: int) -> Segment:
        """Segment of a layout whose tokens start at `begin`."""
        rows, width = len(layout.stored_M), layout.width
        end = begin + int(layout.counts_M.sum())
        plan = attention.plan(layout)
        if end - begin == rows * width:
            return cls(plan, rows, width, begin, end, None, None)
        device = plan.positions_M_T.device
        real_M_T = np.arange(width) < layout.counts_M[:, None]
        place_P = np.maximum(np.cumsum(real_M_T) - 1, 0)  # padding repeats the token before it
        spread_P = torch.from_numpy(place_P).to(device, non_blocking=True)
        real_S = torch.from_numpy(np.flatnonzero(real_M_T)).to(device, non_blocking=True)
        return cls(plan, rows, width, begin, end, spread_P, real_S)

    @property
    def positions_S(self) -> Tensor:
        """Position of each packed token in its row."""
        positions = self.plan.positions_M_T.reshape(-1)
        return positions if self.real_S is None else positions.index_select(0, self.real_S)

    def unpack(self, x: Tensor) -> Tensor:
        """[1, H, S, D] to [M, H, T, D]."""
        part = x[0, :, self.begin : self.end]
        if self.spread_P is not None:
            part = part.index_select(1, self.spread_P)
        return part.unflatten(1, (self.rows, self.width)).transpose(0, 1)

    def pack(self, x: Tensor) -> Tensor:
        """[M, T, H, D] to [end - begin, H, D]."""
        flat = x.flatten(0, 1)
        return flat if self.real_S is None else flat.index_select(0, self.real_S)


class PackedAttention(PagedAttention):
    """Attention over packed tokens; the plan of a forward is its list of segments.

    Parameters
    ----------
    inner : PagedAttention
        Attends within each segment, and owns the pages.
    """

    def __init__(self, inner: PagedAttention) -> None:
        super().__init__(inner.num_pages, inner.page_size)
        self._inner = inner

    def plan(self, layout: Layout) -> Sequence[Segment]:
        return [Segment.of(self._inner, layout, 0)]

    def attend(
        self,
        plan: Sequence[Segment],
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        parts = [
            segment.pack(
                self._inner.attend(
                    segment.plan,
                    layer,
                    segment.unpack(query),
                    segment.unpack(key),
                    segment.unpack(value),
                    scaling=scaling,
                    window=window,
                    softcap=softcap,
                )
            )
            for segment in plan
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)

    def static_plan(self, rows: int, width: int, pages: int, groups: int = 0) -> StaticPlan:
        return self._inner.static_plan(rows, width, pages, groups)

    def move_pages(self, source_M: Tensor, target_M: Tensor) -> None:
        self._inner.move_pages(source_M, target_M)

    def forget(self) -> None:
        self._inner.forget()

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        self._inner.copy_pages(source, target)

    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        self._inner.clear_pages(pages)

    @property
    def layers(self) -> frozenset[int]:
        return self._inner.layers

    @property
    def bytes_per_page(self) -> int:
        return self._inner.bytes_per_page
