"""The arrays of `arrays`, made on the device: fixed shapes, no wait for the host.

Whatever is ragged lies at the front of a buffer that is large enough for the worst case; what
comes after is not read, since ``indptr`` ends before it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.flashinfer.arrays import page_counts

__all__ = ["PageBuffers"]


class PageBuffers:
    """A page table of B rows on the device, and the host's copy of all but the pages.

    Parameters
    ----------
    tokens_B1 : int32 [B + 1]
        ``qo_indptr`` of the rows, which never changes.
    width : int
        Columns of the tables.
    page_size : int
    device : torch.device

    Attributes
    ----------
    qo_indptr, indptr : Tensor, int32, [B + 1]
    indices : Tensor, int32, [B * width]
    last_page_len : Tensor, int32, [B]
    most_queries : int
        Of one row.
    host_qo_indptr, host_indptr, host_last_page_len, host_length
        On the host, pinned where the device is CUDA, so that copies to the device do not wait;
        the last one holds the tokens of each row's pages.
    """

    @torch.inference_mode(False)  # to be written in whatever mode
    def __init__(
        self, tokens_B1: NDArray[np.int32], width: int, page_size: int, device: torch.device
    ) -> None:
        rows = len(tokens_B1) - 1
        self.page_size = page_size
        self.most_queries = int(np.diff(tokens_B1).max())

        def make(size: int, on: torch.device | str) -> Tensor:
            pin = on == "cpu" and device.type == "cuda"
            return torch.zeros(size, dtype=torch.int32, device=on, pin_memory=pin)

        self.qo_indptr, self.indptr = make(rows + 1, device), make(rows + 1, device)
        self._indices = make(rows * width + 1, device)  # the last entry takes what is not needed
        self.indices = self._indices[:-1]
        self.last_page_len = make(rows, device)
        self.host_qo_indptr, self.host_indptr = make(rows + 1, "cpu"), make(rows + 1, "cpu")
        self.host_last_page_len, self.host_length = make(rows, "cpu"), make(rows, "cpu")
        self.host_qo_indptr.numpy()[:] = tokens_B1
        self.qo_indptr.copy_(self.host_qo_indptr)
        self._column_W = torch.arange(width, device=device)

    def place(self, tables_B_W: Tensor, first_B: Tensor, end_B: Tensor) -> None:
        """Fill the table as `page_table` does, with int64 tensors `first` and `end`."""
        size = self.page_size
        need_B = (end_B + (size - 1)) // size
        count_B = (need_B - first_B).clamp_min(0)
        self.indptr[1:].copy_(count_B.cumsum(0))
        last_B = end_B - (need_B - 1) * size
        self.last_page_len.copy_(torch.where(count_B > 0, last_B, torch.zeros_like(last_B)))
        column, first_B_1 = self._column_W, first_B.unsqueeze(1)
        inside = (column >= first_B_1) & (column < need_B.unsqueeze(1))
        place_B_W = self.indptr[:-1].unsqueeze(1) - first_B_1 + column
        place_B_W = place_B_W.masked_fill(~inside, len(self.indices))
        pages_B_W = tables_B_W.to(torch.int32)
        self._indices.scatter_(0, place_B_W.view(-1), pages_B_W.reshape(-1))

    def schedule(self, first_B: NDArray[np.int64], end_B: NDArray[np.int64]) -> None:
        """The host's copy, for the same `first` and `end`."""
        indptr, last = page_counts(first_B, end_B, self.page_size)
        self.host_indptr.numpy()[:] = indptr
        self.host_last_page_len.numpy()[:] = last
        length = np.where(last > 0, (np.diff(indptr) - 1) * self.page_size + last, 0)
        self.host_length.numpy()[:] = length
