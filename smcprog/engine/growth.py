"""Pages for rows that grow: which are new, which are copied, and the tables that come of it."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from smcprog.engine.pages import PageAllocator

__all__ = ["Growth", "grow"]


@dataclasses.dataclass(frozen=True, eq=False)
class Growth:
    """Pages taken for rows that are about to grow, until that is done or given up.

    Attributes
    ----------
    tables_M_W : int32 [M, W]
        The grown tables.
    fresh, target : int32
        New pages: empty ones, and copies of the tail pages in `source`.
    source : int32
        Tail pages whose reference goes back once the growth is done.
    """

    tables_M_W: NDArray[np.int32]
    fresh: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]


def grow(
    pages: PageAllocator,
    tables_M_W: NDArray[np.int32],
    stored_M: NDArray[np.int64],
    counts_M: NDArray[np.int64],
) -> Growth:
    """Take the pages that rows need for `counts_M` more tokens.

    Raises
    ------
    PagesExhaustedError
        Nothing is taken then.
    """
    size, rows = pages.page_size, len(stored_M)
    used_M = -(-stored_M // size)
    needed_M = -(-(stored_M + counts_M) // size)

    # A partial tail page that somebody else holds too is copied before it is written;
    # if all its holders are rows of this batch, the first of them keeps it.
    writes = np.flatnonzero((stored_M % size != 0) & (counts_M > 0))
    tails = tables_M_W[writes, used_M[writes] - 1]
    page_U, first_U, which, count_U = np.unique(
        tails, return_index=True, return_inverse=True, return_counts=True
    )
    copies = (pages.refs[page_U] > 1)[which.reshape(-1)]
    copies[first_U[pages.refs[page_U] == count_U]] = False
    copying, source = writes[copies], tails[copies]

    more_M = needed_M - used_M
    total = int(more_M.sum())
    taken = pages.alloc(total + len(copying))
    fresh, target = taken[:total], taken[total:]
    width = max(int(needed_M.max()), tables_M_W.shape[1])
    grown = np.zeros((rows, width), dtype=np.int32)
    grown[:, : tables_M_W.shape[1]] = tables_M_W
    row = np.repeat(np.arange(rows), more_M)
    column = np.arange(total) - np.repeat(np.cumsum(more_M) - more_M - used_M, more_M)
    grown[row, column] = fresh
    grown[copying, used_M[copying] - 1] = target
    return Growth(grown, fresh, source, target)
