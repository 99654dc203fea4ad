"""A pass of the model cut in two, for when there is no memory for all of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention import Layout

__all__ = ["in_halves", "some_columns"]

Pass = Callable[[Layout, Tensor, NDArray[np.int64]], Tensor]


def some_columns(layout: Layout, begin: int, end: int) -> Layout:
    """The layout of the columns `begin` to `end`, those before being stored by then."""
    return Layout(
        layout.tables_M_W,
        layout.stored_M + np.minimum(layout.counts_M, begin),
        np.clip(layout.counts_M - begin, 0, end - begin),
        end - begin,
    )


def in_halves(run: Pass, layout: Layout, tokens_M_T: Tensor, columns: NDArray[np.int64]) -> Tensor:
    """What `run` gives for all, out of two calls of it: of half the rows, or half the columns.

    Parameters
    ----------
    run : callable
        Logits [M, C, V] of the columns given, or of any one column if none are.
    layout : Layout
    tokens_M_T : Tensor, int64, [M, T]
        More than one token.
    columns : int64 [C]
        Ascending.
    """
    rows, width = tokens_M_T.shape
    if rows > 1:
        parts = [slice(0, rows // 2), slice(rows // 2, rows)]
        tables, stored, counts = layout.tables_M_W, layout.stored_M, layout.counts_M
        return torch.cat(
            [
                run(Layout(tables[p], stored[p], counts[p], width), tokens_M_T[p], columns)
                for p in parts
            ]
        )
    kept = []
    for begin, end in ((0, width // 2), (width // 2, width)):
        wanted = columns[(columns >= begin) & (columns < end)] - begin
        logits = run(some_columns(layout, begin, end), tokens_M_T[:, begin:end], wanted)
        if len(wanted) or (end == width and not len(columns)):
            kept.append(logits)
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)
