"""Which leading pages the rows of a batch have in common.

Rows of one population share their prompt's pages, and after resampling often more. Found from
the block tables alone, so it needs no bookkeeping elsewhere.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Sharing", "find_sharing"]


@dataclasses.dataclass(frozen=True, eq=False)
class Sharing:
    """Rows in R groups, each with a prefix of pages that all its rows hold.

    Attributes
    ----------
    pages_R_W : int32 [R, W]
        Prefix of each group, short ones padded by repeating a page.
    length_M : int64 [M]
        Pages of each row's prefix.
    most : int
        n, rows of the largest group.
    into : Tensor or None
        int64 [R * n], the row that fills each of the n places of a group; None where rows are
        in order already and groups of one size.
    back : Tensor or None
        int64 [M], the place of each row.
    """

    pages_R_W: NDArray[np.int32]
    length_M: NDArray[np.int64]
    most: int
    into: Tensor | None
    back: Tensor | None

    @property
    def groups(self) -> int:
        return len(self.pages_R_W)

    def to_groups(self, x: Tensor, heads: int) -> Tensor:
        """[H * M, J, ...] to [H * R, n * J, ...]: all vectors of a group in one matrix."""
        if self.into is not None:
            x = x.unflatten(0, (heads, -1)).index_select(1, self.into).flatten(0, 1)
        return x.reshape(heads * self.groups, -1, x.shape[-1])

    def to_rows(self, x: Tensor, heads: int, rows: int) -> Tensor:
        """[H * R, n * J, ...] to [H * M, J, ...], the inverse."""
        if self.back is None:
            return x.view(heads * rows, -1, x.shape[-1])
        places = heads * (self.most * self.groups)
        x = x.view(places, -1, x.shape[-1]).unflatten(0, (heads, -1))
        return x.index_select(1, self.back).flatten(0, 1)


def find_sharing(
    tables_M_W: NDArray[np.int32],
    first: int,
    full_M: NDArray[np.int64],
    *,
    min_saved: int,
    device: torch.device | str = "cpu",
) -> Sharing | None:
    """Group rows whose tables agree at column `first`, and find each group's common pages.

    Parameters
    ----------
    tables_M_W : int32 [M, W]
    first : int
        Columns before this one are out of sight.
    full_M : int64 [M]
        Leading pages of each row that are completely stored: only those can be in a prefix.
    min_saved : int
        Fewest page reads that a prefix must save to be worth the extra work.
    device : torch.device
        Where the index tensors go.

    Returns
    -------
    Sharing or None
    """
    rows = len(tables_M_W)
    if rows == 1 or int(full_M.max()) <= first:
        return None
    # Rows without a full page in sight share nothing; a negative key of their own says so.
    lead = np.where(full_M > first, tables_M_W[:, first], -1 - np.arange(rows))
    _, leader_R, group_M = np.unique(lead, return_index=True, return_inverse=True)
    order_R = np.argsort(leader_R, kind="stable")  # groups in order of their first row
    rank_R = np.empty_like(order_R)
    rank_R[order_R] = np.arange(len(order_R))
    group_M, leader_R = rank_R[group_M.reshape(-1)], leader_R[order_R]
    groups = len(leader_R)
    if groups == rows:
        return None

    columns = np.arange(first, int(full_M.max()))
    same = tables_M_W[:, columns] == tables_M_W[leader_R][group_M][:, columns]
    same &= columns < full_M[:, None]
    run_M = np.where(same.all(1), same.shape[1], same.argmin(1))
    length_R = np.full(groups, np.iinfo(np.int64).max)
    np.minimum.at(length_R, group_M, run_M)
    size_R = np.bincount(group_M, minlength=groups)
    if int(((size_R - 1) * length_R).sum()) < min_saved:
        return None

    take = np.minimum(np.arange(int(length_R.max())), np.maximum(length_R, 1)[:, None] - 1)
    pages_R_W = np.take_along_axis(tables_M_W[leader_R][:, first:], take, axis=1)
    most = int(size_R.max())
    into = back = None
    if (size_R != most).any() or (np.diff(group_M) < 0).any():
        sorted_M = np.argsort(group_M, kind="stable")
        begin_R = np.cumsum(size_R) - size_R
        place = np.minimum(np.arange(most), size_R[:, None] - 1)
        into_P = sorted_M[begin_R[:, None] + place].reshape(-1)
        back_M = np.empty(rows, dtype=np.int64)
        back_M[sorted_M] = group_M[sorted_M] * most + np.arange(rows) - begin_R[group_M[sorted_M]]
        into = torch.from_numpy(into_P.astype(np.int64)).to(device, non_blocking=True)
        back = torch.from_numpy(back_M).to(device, non_blocking=True)
    return Sharing(pages_R_W, length_R[group_M], most, into, back)
