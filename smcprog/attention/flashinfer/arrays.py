"""The index arrays that FlashInfer reads, made on the host from a `Layout`.

FlashInfer's page table of B rows is in compressed form: row b has the pages
``indices[indptr[b] : indptr[b + 1]]``, the last of which holds ``last_page_len[b]`` tokens (1 to
page_size; 0 where a row has no page). Its queries are ``qo_indptr[b]`` to ``qo_indptr[b + 1]``
of all, and they are the last tokens of the row: query i of n sees keys up to position
``length - n + i``. All of it is int32.

`device_arrays` makes the same on the device for passes of fixed shape.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smcprog.attention.base import Layout

__all__ = ["Groups", "PageTable", "Tokens", "groups_of", "indptr_of", "page_counts", "page_table"]

Ints = NDArray[np.int32]


@dataclasses.dataclass(frozen=True, eq=False)
class PageTable:
    """Pages of B rows in compressed form.

    Attributes
    ----------
    indptr : int32 [B + 1]
    indices : int32 [indptr[B]]
    last_page_len : int32 [B]
    """

    indptr: Ints
    indices: Ints
    last_page_len: Ints


def indptr_of(count_B: NDArray[Any]) -> Ints:
    """Where each of B parts begins, and the end of the last, [B + 1]."""
    indptr = np.zeros(len(count_B) + 1, dtype=np.int32)
    np.cumsum(count_B, out=indptr[1:])
    return indptr


def page_counts(first_B: NDArray[Any], end_B: NDArray[Any], page_size: int) -> tuple[Ints, Ints]:
    """How many pages a row has from page `first` to its token `end`, and how full the last is.

    Parameters
    ----------
    first_B : int [B]
        Pages of each row that are left out at its beginning.
    end_B : int [B]
        Tokens of each row, those of the left-out pages included.

    Returns
    -------
    indptr_B1, last_page_len_B
    """
    need_B = -(-end_B // page_size)
    count_B = np.maximum(need_B - first_B, 0)
    last_B = np.where(count_B > 0, end_B - (need_B - 1) * page_size, 0)
    return indptr_of(count_B), last_B.astype(np.int32)


def page_table(
    tables_B_W: Ints, first_B: NDArray[Any], end_B: NDArray[Any], page_size: int
) -> PageTable:
    """Pages `first` and after of rows that hold `end` tokens; see `page_counts`."""
    indptr, last = page_counts(first_B, end_B, page_size)
    column = np.arange(tables_B_W.shape[1])
    need_B = first_B + np.diff(indptr)
    inside = (column >= first_B[:, None]) & (column < need_B[:, None])
    return PageTable(indptr, tables_B_W[inside].astype(np.int32, copy=False), last)


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
    """The new tokens of a layout, row after row; rows without new tokens are left out.

    Attributes
    ----------
    row_B : int64 [B]
        Rows of the layout that have new tokens.
    qo_indptr : int32 [B + 1]
    batch_indices : int32 [S]
        The row (0 to B - 1) of each new token.
    positions : int32 [S]
        Its position in that row.
    positions_M_T : int64 [M, T]
        Of all places of the layout; padding repeats the row's last position.
    real_S : int32 [S] or None
        Place (of the M * T) of each new token; None where nothing is padded.
    spread_P : int32 [M * T] or None
        The inverse: which new token stands in each place. Padding repeats some token.
    """

    row_B: NDArray[np.int64]
    qo_indptr: Ints
    batch_indices: Ints
    positions: Ints
    positions_M_T: NDArray[np.int64]
    real_S: Ints | None
    spread_P: Ints | None

    @classmethod
    def of(cls, layout: Layout) -> Tokens:
        stored, counts = layout.stored_M[:, None], layout.counts_M[:, None]
        column = np.arange(layout.width)
        real_M_T = column < counts
        positions_M_T = np.maximum(stored + np.minimum(column, counts - 1), 0)
        row_B = np.flatnonzero(layout.counts_M)
        count_B = layout.counts_M[row_B]
        real_S = spread_P = None
        if not real_M_T.all():
            real_S = np.flatnonzero(real_M_T).astype(np.int32)
            spread_P = np.maximum(np.cumsum(real_M_T) - 1, 0).astype(np.int32)
        return cls(
            row_B,
            indptr_of(count_B),
            np.repeat(np.arange(len(row_B), dtype=np.int32), count_B),
            positions_M_T[real_M_T].astype(np.int32),
            positions_M_T,
            real_S,
            spread_P,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Runs of neighbouring rows that begin with the same pages.

    Attributes
    ----------
    first_R1 : int64 [R + 1]
        First row of each group, and B.
    shared_R : int64 [R]
        Leading full pages that all rows of a group hold; 0 for a lone row.
    """

    first_R1: NDArray[np.int64]
    shared_R: NDArray[np.int64]

    @property
    def shared_B(self) -> NDArray[np.int64]:
        """The same for each row."""
        return np.repeat(self.shared_R, np.diff(self.first_R1))

    @property
    def saved(self) -> int:
        """Reads of pages that are saved when shared ones are read once a group."""
        return int(((np.diff(self.first_R1) - 1) * self.shared_R).sum())


def groups_of(tables_B_W: Ints, full_B: NDArray[Any]) -> Groups:
    """Neighbours with the same first page form a group.

    Parameters
    ----------
    tables_B_W : int32 [B, W]
    full_B : int [B]
        Leading pages of each row that are completely stored: only those can be shared.
    """
    rows = len(tables_B_W)
    lead_B = np.where(full_B > 0, tables_B_W[:, 0], -1 - np.arange(rows))
    first_R = np.flatnonzero(np.concatenate([[True], lead_B[1:] != lead_B[:-1]]))
    first_R1 = np.append(first_R, rows)
    size_R = np.diff(first_R1)
    most = max(int(full_B.max(initial=0)), 1)
    leader_B = np.repeat(first_R, size_R)
    same = tables_B_W[:, :most] == tables_B_W[leader_B, :most]
    same &= np.arange(most) < full_B[:, None]
    run_B = np.where(same.all(1), most, same.argmin(1))
    shared_R = np.minimum.reduceat(run_B, first_R)
    return Groups(first_R1, np.where(size_R > 1, shared_R, 0))
