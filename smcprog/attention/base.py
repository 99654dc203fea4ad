"""The contract of a paged-attention implementation.

Once a forward: `plan` turns the batch's layout into whatever the layers need (index tensors,
masks, a kernel's schedule). Then, once a layer: `attend` writes the new keys and values into
their pages and attends over everything stored so far.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["SCRATCH_PAGE", "Layout", "PagedAttention", "StaticPlan"]

SCRATCH_PAGE = 0
"""Holds no row's tokens: padding writes its keys and values here."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the M rows of one forward keep their tokens.

    Host arrays, so that planning never waits for the device.

    Attributes
    ----------
    tables_M_W : int32 [M, W]
        Pages of each row in order, the pages of the new tokens included; entries after a row's
        last page are not read.
    stored_M : int64 [M]
        Tokens whose keys and values are in the pages already.
    counts_M : int64 [M]
        New tokens of each row, from 0 to `width`; the rest of the row is padding.
    width : int
        T, the columns of the forward.
    """

    tables_M_W: NDArray[np.int32]
    stored_M: NDArray[np.int64]
    counts_M: NDArray[np.int64]
    width: int


class StaticPlan(ABC):
    """One pass of M rows × T tokens whose shapes never change.

    Its tensors keep their addresses, so a pass can be captured once and replayed with other
    contents: `place` is part of what is captured, `schedule` goes before each launch.

    Attributes
    ----------
    positions_M_T : Tensor, int64
        Position of each token in its row; `place` fills it.
    """

    positions_M_T: Tensor

    @abstractmethod
    def place(self, tables_M_W: Tensor, begin_M: Tensor, shared_R: Tensor | None = None) -> None:
        """Say where the rows write and what they see; device work without a wait for the host.

        Parameters
        ----------
        tables_M_W : Tensor of integers
            Pages of each row in order; what a row does not need is `SCRATCH_PAGE`.
        begin_M : Tensor, int64
            Row m writes its T tokens at ``begin_M[m]`` and after, and every one sees the
            positions up to its own.
        shared_R : Tensor, int64, optional
            Leading full pages that all rows of each group hold.
        """

    def schedule(  # noqa: B027
        self, begin_M: NDArray[np.int64], shared_R: NDArray[np.int64] | None = None
    ) -> None:
        """Plan on the host, before the launch of a pass that will be placed so.

        Kernels that need no such plan leave it out.
        """


class PagedAttention(ABC):
    """Keys and values of one model in pages, and attention over them.

    Parameters
    ----------
    num_pages, page_size : int
        Pages in the pool, page 0 (scratch for padding) included; tokens a page.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size

    @abstractmethod
    def plan(self, layout: Layout) -> Any:
        """Prepare a forward; the result is passed to `attend` of every layer."""

    @abstractmethod
    def static_plan(self, rows: int, width: int, pages: int, groups: int = 0) -> StaticPlan:
        """A plan for passes of fixed shape, for `attend` as well.

        Parameters
        ----------
        rows, width : int
            M and T.
        pages : int
            W, columns of the tables.
        groups : int, default 0
            So many groups of neighbouring rows share their leading pages, which may then be
            read once a group. 0: each row for itself.
        """

    def sharing_pays(self, prefix: int, rows: int) -> bool:
        """Whether static plans gain by groups: `rows` rows that share `prefix` tokens."""
        return False

    @abstractmethod
    def attend(
        self,
        plan: Any,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """Store the new keys and values of a layer, then attend causally.

        Parameters
        ----------
        plan
            From `plan` or `static_plan`.
        layer : int
        query : Tensor, [M, Hq, T, D]
        key : Tensor, [M, Hkv, T, D]
        value : Tensor, [M, Hkv, T, Dv]
            Positions are applied already; Hq is a multiple of Hkv.
        scaling : float
            Factor of the scores.
        window : int or None
            A query sees the last `window` positions, its own included; None: all.
        softcap : float or None
            Scores s become ``softcap * tanh(s / softcap)``.

        Returns
        -------
        Tensor, [M, T, Hq, Dv]
            Rows of padding hold finite values without meaning.
        """

    @abstractmethod
    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        """Copy whole pages of every layer, ``source[i]`` to ``target[i]``."""

    @abstractmethod
    def move_pages(self, source_M: Tensor, target_M: Tensor) -> None:
        """As `copy_pages`, by int64 tensors of the device, without a wait for the host.

        Pairs of scratch pages do nothing. No page is both copied from and copied to.
        """

    @abstractmethod
    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        """Fill pages with finite values; due before a page that was free is used.

        Masked slots of a page are read too: their weight is 0, but 0 * NaN is NaN.
        """

    @abstractmethod
    def forget(self) -> None:
        """Free the memory of all pages, as if no layer had attended yet.

        Afterwards `num_pages` may be set to another number.
        """

    @property
    @abstractmethod
    def layers(self) -> frozenset[int]:
        """Layers that hold keys and values (those that attended at least once)."""

    @property
    @abstractmethod
    def bytes_per_page(self) -> int:
        """Size of one page over the layers in `layers`."""
