"""Keys and values of all layers in pages, as FlashInfer reads them."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from smcprog.attention.kv_dtype import to_stored

__all__ = ["Slab"]


class Slab:
    """Layers with keys and values of one shape, in one piece of memory.

    One layer is ``[pages, 2, page_size, H, D]``: keys, then values, in FlashInfer's layout NHD.

    Parameters
    ----------
    layers, pages, page_size, heads, dim : int
    stored : torch.dtype
    device : torch.device

    Attributes
    ----------
    used : int
        Layers that were given out.
    """

    @torch.inference_mode(False)  # to be written in whatever mode
    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        heads: int,
        dim: int,
        stored: torch.dtype,
        device: torch.device,
    ) -> None:
        self.shape = (heads, dim, stored)
        self.layers, self.pages = layers, pages
        self.used = 0
        # Types of one byte are kept as uint8, since few operations exist for them.
        raw = torch.uint8 if stored.itemsize == 1 else stored
        size = (layers, pages, 2, page_size, heads, dim)
        self._raw = torch.zeros(size, dtype=raw, device=device)

    @property
    def bytes_per_page(self) -> int:
        """Of all layers."""
        return self._raw.element_size() * self._raw.numel() // self.pages

    @torch.inference_mode(False)
    def take(self) -> Tensor:
        """The next layer."""
        self.used += 1
        return self._raw[self.used - 1].view(self.shape[2])

    def as_stored(self, x_S_H_D: Tensor) -> Tensor:
        """Keys or values in the type of the pages."""
        return to_stored(x_S_H_D, self.shape[2])

    @cached_property
    def _rows(self) -> Tensor:
        """Page p of layer l is row ``l * pages + p``, in the widest numbers that divide it."""
        with torch.inference_mode(False):
            rows = self._raw.view(self.layers * self.pages, -1)
            width = rows.shape[1] * rows.element_size()
            return rows.view(torch.int64) if width % 8 == 0 else rows

    @cached_property
    def _begin_L_1(self) -> Tensor:
        return (torch.arange(self.layers, device=self._raw.device) * self.pages).unsqueeze(1)

    def move(self, source_M: Tensor, target_M: Tensor) -> None:
        """Copy pages of all layers, int64 page numbers on the device."""
        source, target = (
            (self._begin_L_1 + source_M).view(-1),
            (self._begin_L_1 + target_M).view(-1),
        )
        self._rows.index_copy_(0, target, self._rows.index_select(0, source))
