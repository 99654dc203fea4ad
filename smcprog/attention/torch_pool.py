"""Memory for the keys or values of one layer, in the type in which they are stored."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from smcprog.attention.kv_dtype import to_stored
from smcprog.errors import PagesExhaustedError

__all__ = ["ACCELERATOR_ERRORS", "Pool", "PoolMemoryError"]

ACCELERATOR_ERRORS: tuple[type[RuntimeError], ...] = (
    (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
)
"""What a device reports of itself, other than a lack of memory; none in older versions of torch."""


class Pool:
    """Keys or values of one layer, [H, pages, page_size, D].

    Heads are outermost so that the gathered pages of one head are one matrix. Types of one
    byte are kept as uint8, since few operations exist for them; what is read is of the type
    that was written.

    Parameters
    ----------
    data : Tensor
        From `empty`, or some heads of it.
    stored : torch.dtype
        What its bytes mean.
    dtype : torch.dtype
        Type of what is read.
    """

    def __init__(self, data: Tensor, stored: torch.dtype, dtype: torch.dtype) -> None:
        self.data = data
        self.stored = stored
        self.dtype = dtype

    @classmethod
    def empty(
        cls, heads: int, pages: int, page_size: int, like: Tensor, stored: torch.dtype | None
    ) -> Pool:
        """A pool whose contents mean nothing yet, for vectors such as those in `like`."""
        stored = like.dtype if stored is None else stored
        raw = torch.uint8 if stored.itemsize == 1 else stored
        shape = (heads, pages, page_size, like.shape[-1])
        return cls(torch.empty(shape, dtype=raw, device=like.device), stored, like.dtype)

    def heads_of(self, begin: int, end: int) -> Pool:
        """Some of the heads, in the same memory."""
        return Pool(self.data[begin:end], self.stored, self.dtype)

    @property
    def heads(self) -> int:
        return self.data.shape[0]

    @property
    def dim(self) -> int:
        return self.data.shape[3]

    @property
    def bytes_per_page(self) -> int:
        return self.data.element_size() * self.data.numel() // self.data.shape[1]

    @cached_property
    def pages(self) -> Tensor:
        """Bytes of one page of one head in a row."""
        heads, pages, page_size, dim = self.data.shape
        return self.data.view(heads * pages, page_size * dim)

    @cached_property
    def slots(self) -> Tensor:
        """Bytes of one token of one head in a row."""
        heads, pages, page_size, dim = self.data.shape
        return self.data.view(heads * pages * page_size, dim)

    def store(self, slots: Tensor, x_M_H_T_D: Tensor) -> None:
        """Write tokens into their slots, [M * T * H]."""
        x = x_M_H_T_D.transpose(1, 2).reshape(-1, self.dim)
        self.slots.index_copy_(0, slots, to_stored(x, self.stored).view(self.data.dtype))

    def gather(self, pages_M_W: Tensor) -> Tensor:
        """Whole rows by their pages, [H, M, W * page_size, D]."""
        rows, width = pages_M_W.shape
        heads, _, page_size, dim = self.data.shape
        data = self.data.index_select(1, pages_M_W.reshape(-1))
        return self._read(data).view(heads, rows, width * page_size, dim)

    def take(self, index: Tensor) -> Tensor:
        """Rows of `pages`, as numbers."""
        return self._read(self.pages.index_select(0, index))

    def run(self, first: int, count: int) -> Tensor:
        """Neighbouring pages as one matrix a head, [H, count * page_size, D].

        Nothing moves, unless the numbers are stored in another type.
        """
        heads, _, page_size, dim = self.data.shape
        data = self._read(self.data[:, first : first + count])
        return data.view(heads, count * page_size, dim)

    def _read(self, raw: Tensor) -> Tensor:
        return raw.view(self.stored).to(self.dtype)


class PoolMemoryError(PagesExhaustedError):
    """The memory of a pool is not to be had.

    Raised inside of a forward; the engine says it again with the number of pages that fit.
    """

    def __init__(self, num_pages: int, page_size: int, layer: int) -> None:
        super().__init__(
            f"no memory for {num_pages - 1} pages of {page_size} tokens, layer {layer}: lower "
            "kv_pages"
        )
        self.layer = layer
