"""Passes of fixed shape in plain PyTorch: every row sees a full table, masked by position.

It reads as many pages as the tables have columns, used or not. That is the price of shapes that
never change; kernels that read what is there only are in other implementations.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from smcprog.attention.base import StaticPlan

__all__ = ["StaticPool", "TorchStaticPlan"]


class StaticPool(Protocol):
    """Keys or values of one layer, as far as it matters here."""

    @property
    def heads(self) -> int:
        """H."""

    @property
    def dim(self) -> int:
        """D."""

    def store(self, slots: Tensor, x_M_H_T_D: Tensor) -> None:
        """Write tokens into their slots."""

    def gather(self, pages_M_W: Tensor) -> Tensor:
        """Whole rows by their pages, [H, M, W * page_size, D]."""


class TorchStaticPlan(StaticPlan):
    """Where M rows of T tokens write and what they see.

    Parameters
    ----------
    num_pages, page_size : int
        Of the pool.
    device : torch.device
    rows, width, pages : int
        M, T and W.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        device: torch.device,
        rows: int,
        width: int,
        pages: int,
    ) -> None:
        self._page_size = page_size
        self._head_stride = num_pages * page_size
        self.positions_M_T = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self._slots_M_T = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self._pages_M_W = torch.zeros((rows, pages), dtype=torch.int64, device=device)
        self._column_T = torch.arange(width, device=device)
        self._key_L = torch.arange(pages * page_size, device=device)

    def place(self, tables_M_W: Tensor, begin_M: Tensor, shared_R: Tensor | None = None) -> None:
        size = self._page_size
        position_M_T = begin_M.unsqueeze(1) + self._column_T
        self._pages_M_W.copy_(tables_M_W)
        page_M_T = self._pages_M_W.gather(1, position_M_T // size)
        self._slots_M_T.copy_(page_M_T * size + position_M_T % size)
        self.positions_M_T.copy_(position_M_T)

    def attend(
        self,
        keys: StaticPool,
        values: StaticPool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """As `PagedAttention.attend`, given the pools of the layer."""
        rows, query_heads, width, dim = query.shape
        heads, per_head = keys.heads, query_heads // keys.heads
        head_H = torch.arange(heads, device=query.device) * self._head_stride
        slots = (self._slots_M_T.unsqueeze(2) + head_H).view(-1)
        keys.store(slots, key)
        values.store(slots, value)
        k_H_M_L_D, v_H_M_L_D = keys.gather(self._pages_M_W), values.gather(self._pages_M_W)

        at_M_T_1 = self.positions_M_T.unsqueeze(2)
        seen_M_T_L = self._key_L <= at_M_T_1
        if window is not None:
            seen_M_T_L = seen_M_T_L & (self._key_L > at_M_T_1 - window)
        q = query.reshape(rows, heads, per_head * width, dim).transpose(0, 1)
        scores = torch.matmul(q, k_H_M_L_D.transpose(2, 3)) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.view(heads, rows, per_head, width, -1)
        scores = scores.masked_fill(~seen_M_T_L.unsqueeze(1), float("-inf"))
        wide = scores.dtype if scores.dtype.itemsize >= 4 else torch.float32
        weights = torch.softmax(scores, dim=-1, dtype=wide).to(v_H_M_L_D.dtype)
        out = torch.matmul(weights.flatten(2, 3), v_H_M_L_D)
        out = out.view(heads, rows, per_head, width, values.dim)
        return out.permute(1, 3, 0, 2, 4).reshape(rows, width, query_heads, values.dim)
