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

__all__ = ["SCRATCH_PAGE", "Layout", "PagedAttention"]

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
            From `plan`.
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
    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        """Fill pages with finite values; due before a page that was free is used.

        Masked slots of a page are read too: their weight is 0, but 0 * NaN is NaN.
        """

    @property
    @abstractmethod
    def layers(self) -> frozenset[int]:
        """Layers that hold keys and values (those that attended at least once)."""

    @property
    @abstractmethod
    def bytes_per_page(self) -> int:
        """Size of one page over the layers in `layers`."""
