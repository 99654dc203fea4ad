"""The plan of one forward of any shape."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.base import Layout
from smcprog.attention.flashinfer.arrays import (
    Groups,
    PageTable,
    Tokens,
    groups_of,
    page_table,
)
from smcprog.attention.flashinfer.cost import cascade_pays, workspace_bytes
from smcprog.attention.flashinfer.kernels import Kind, Table
from smcprog.attention.flashinfer.programs import Cascade, Program, Single, by_token
from smcprog.attention.flashinfer.workspace import float_workspace

if TYPE_CHECKING:
    from smcprog.attention.flashinfer.paged import FlashInferAttention

__all__ = ["FlashInferPlan"]

WIDE = 64
"""From so many columns on FlashInfer chooses the kernels (FA3 on Hopper).

Below, FA2: it packs the query heads of a key head into one tile and splits long rows between
multiprocessors, without which few short rows leave most of them idle.
"""


class FlashInferPlan:
    """What the layers of one forward need: made once, each kind of kernel planned when asked for.

    Parameters
    ----------
    attention : FlashInferAttention
    layout : Layout

    Attributes
    ----------
    positions_M_T : Tensor, int64
        Padding repeats the position of the row's last token.
    """

    def __init__(self, attention: FlashInferAttention, layout: Layout) -> None:
        self._attention = attention
        self._width = layout.width
        self._tokens = tokens = Tokens.of(layout)
        rows = tokens.row_B
        self._tables_B_W = layout.tables_M_W[rows]
        self._stored_B = layout.stored_M[rows]
        self._end_B = self._stored_B + layout.counts_M[rows]
        self.positions_M_T = torch.from_numpy(tokens.positions_M_T).to(
            attention.device, non_blocking=True
        )
        self._programs: dict[Kind, Program] = {}
        self._whole: PageTable | None = None
        self._groups: Groups | None = None
        self._on_device: dict[str, Tensor] | None = None

    @property
    def count(self) -> int:
        """New tokens."""
        return len(self._tokens.positions)

    @property
    def whole(self) -> PageTable:
        """All pages of every row."""
        if self._whole is None:
            self._whole = page_table(
                self._tables_B_W,
                np.zeros_like(self._end_B),
                self._end_B,
                self._attention.page_size,
            )
        return self._whole

    def device_arrays(self) -> dict[str, Tensor]:
        """What is read on the device outside of planned kernels, sent there in one piece."""
        if self._on_device is None:
            whole, tokens = self.whole, self._tokens
            arrays = {
                "indices": whole.indices,
                "indptr": whole.indptr,
                "last_page_len": whole.last_page_len,
                "batch_indices": tokens.batch_indices,
                "positions": tokens.positions,
            }
            if tokens.real_S is not None and tokens.spread_P is not None:
                arrays |= {"real_S": tokens.real_S, "spread_P": tokens.spread_P}
            sizes = [len(a) for a in arrays.values()]
            packed = torch.from_numpy(np.concatenate(list(arrays.values())))
            parts = packed.to(self._attention.device, non_blocking=True).split(sizes)
            self._on_device = dict(zip(arrays, parts, strict=True))
        return self._on_device

    def real(self, x_M_H_T_D: Tensor) -> Tensor:
        """The new tokens of the rows, [S, H, D]."""
        x = by_token(x_M_H_T_D)
        if self._tokens.real_S is None:
            return x
        return x.index_select(0, self.device_arrays()["real_S"])

    def spread(self, out_S_H_D: Tensor) -> Tensor:
        """Results of tokens in the places of the layout, [M, T, H, D]."""
        if self._tokens.spread_P is not None:
            out_S_H_D = out_S_H_D.index_select(0, self.device_arrays()["spread_P"])
        return out_S_H_D.unflatten(0, (-1, self._width))

    def append(self, key_S_H_D: Tensor, value_S_H_D: Tensor, cache: Tensor) -> None:
        on = self.device_arrays()
        self._attention.kernels.append(
            key_S_H_D,
            value_S_H_D,
            on["batch_indices"],
            on["positions"],
            cache,
            on["indices"],
            on["indptr"],
            on["last_page_len"],
        )

    def program(self, kind: Kind) -> Program:
        """The kernels for layers of a kind."""
        if kind.window is not None and kind.window >= int(self._end_B.max()):
            kind = dataclasses.replace(kind, window=None)
        if kind not in self._programs:
            self._programs[kind] = self._make(kind)
        return self._programs[kind]

    def _make(self, kind: Kind) -> Program:
        if kind.window is not None:
            # Pages that no query of the row sees are left out; masks count from the end.
            first_B = np.maximum(self._stored_B + 1 - kind.window, 0) // self._attention.page_size
            table = page_table(self._tables_B_W, first_B, self._end_B, self._attention.page_size)
            return self._single(kind, table)
        groups = self._sharing(kind)
        return self._single(kind, self.whole) if groups is None else self._cascade(kind, groups)

    def _sharing(self, kind: Kind) -> Groups | None:
        """Groups of rows, where reading their pages together pays."""
        attention = self._attention
        if not attention.can_cascade(kind) or len(self._tables_B_W) == 1:
            return None
        if self._groups is None:
            self._groups = groups_of(self._tables_B_W, self._stored_B // attention.page_size)
        groups = self._groups
        if not groups.saved:
            return None
        page = attention.page_size * kind.token_bytes
        separate = len(self.whole.indices) * page
        shared = int(groups.shared_R.sum()) * page
        own = separate - (shared + groups.saved * page)
        return groups if cascade_pays(attention.machine, own, shared, separate) else None

    def _single(self, kind: Kind, pages: PageTable) -> Single:
        if self._width > 1:
            backend = "auto" if self._width >= WIDE else "fa2"
            wrapper = self._prefill(kind, self._tokens.qo_indptr, pages, True, backend)
            return Single(self._attention.kernels, kind, wrapper)
        attention, kernels = self._attention, self._attention.kernels
        sort = ("decode", kind.tensor_cores)
        wrapper = attention.wrappers.take(
            sort, self, lambda: kernels.decode(self._workspace(kind), kind.tensor_cores)
        )
        table = _as_tensors(self._tokens.qo_indptr, pages)
        kernels.plan_decode(wrapper, kind, table, attention.page_size)
        attention.wrappers.planned(sort, wrapper)
        return Single(kernels, kind, wrapper)

    def _cascade(self, kind: Kind, groups: Groups) -> Cascade:
        size, qo_indptr = self._attention.page_size, self._tokens.qo_indptr
        first_R = groups.first_R1[:-1]
        shared = page_table(
            self._tables_B_W[first_R],
            np.zeros_like(groups.shared_R),
            groups.shared_R * size,
            size,
        )
        own = page_table(self._tables_B_W, groups.shared_B, self._end_B, size)
        return Cascade(
            self._attention.kernels,
            kind,
            shared=self._prefill(kind, qo_indptr[groups.first_R1], shared, False, "fa2"),
            own=self._prefill(kind, qo_indptr, own, True, "fa2"),
        )

    def _prefill(
        self,
        kind: Kind,
        qo_indptr: NDArray[np.int32],
        pages: PageTable,
        causal: bool,
        backend: str,
    ) -> Any:
        attention, kernels = self._attention, self._attention.kernels
        # A wrapper chooses its kernels once, by the types it is planned for first.
        sort = ("prefill", backend, kind.dtype, kind.kv_dtype)
        wrapper = attention.wrappers.take(
            sort, self, lambda: kernels.prefill(self._workspace(kind), backend)
        )
        table = _as_tensors(qo_indptr, pages)
        kernels.plan_prefill(wrapper, kind, table, attention.page_size, causal)
        attention.wrappers.planned(sort, wrapper)
        return wrapper

    def _workspace(self, kind: Kind) -> Tensor:
        size = workspace_bytes(self._attention.machine, kind.query_heads, kind.kv_heads, kind.dim)
        return float_workspace(self._attention.device, size)


def _as_tensors(qo_indptr: NDArray[np.int32], pages: PageTable) -> Table:
    return Table(
        torch.from_numpy(np.ascontiguousarray(qo_indptr)),
        torch.from_numpy(pages.indptr),
        torch.from_numpy(pages.indices),
        torch.from_numpy(pages.last_page_len),
        int(np.diff(qo_indptr).max()),
    )
