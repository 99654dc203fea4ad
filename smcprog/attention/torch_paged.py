"""Paged attention in plain PyTorch: the CPU implementation, and the reference elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.base import SCRATCH_PAGE, Layout, PagedAttention
from smcprog.attention.sharing import Sharing, find_sharing
from smcprog.attention.torch_pool import ACCELERATOR_ERRORS, Pool, PoolMemoryError
from smcprog.attention.torch_static import TorchStaticPlan

__all__ = ["TorchPagedAttention"]

FUSED_WIDTH = 32
"""From this many columns on (prefill) the fused kernel beats explicit scores."""
MOST_SCORES = 1 << 26
"""Scores held at a time outside the fused kernel."""
WORTH_SHARING = 768
"""Fewest tokens that reading a prefix once a group must save, in all, to pay for itself."""


class _View:
    """The keys that the queries of one forward look at, under one window.

    The leading full pages that all rows of a group share form the prefix, which is gathered
    and multiplied once a group; the rest are each row's own pages.
    """

    def __init__(self, plan: _Plan, window: int | None) -> None:
        self.plan = plan
        layout, size = plan.layout, plan.page_size
        stored, tables = layout.stored_M, layout.tables_M_W
        # One position early: padding in a row without new tokens asks from its last stored one.
        first = 0 if window is None else max(0, int(stored.min()) - window) // size
        ends = -(-(stored + layout.counts_M) // size)
        self.sharing: Sharing | None = None
        if layout.width < FUSED_WIDTH:
            self.sharing = find_sharing(
                tables, first, stored // size, min_saved=plan.min_saved, device=plan.device
            )
        begins = np.full(len(stored), first)
        if self.sharing is not None:
            begins = begins + self.sharing.length_M
        own_W = max(1, int((ends - begins).max()))
        columns = begins[:, None] + np.arange(own_W)
        # Past its end a row repeats its last page: masked, and certain to hold finite values.
        self.own_pages = np.take_along_axis(
            tables, np.minimum(columns, np.maximum(ends, 1)[:, None] - 1), axis=1
        )
        # Neighbouring pages are read where they lie; only then for one row, or one group.
        self.own_run = _first_of_run(self.own_pages)
        self.shared_run = None if self.sharing is None else _first_of_run(self.sharing.pages_R_W)
        positions = (columns[:, :, None] * size + np.arange(size)).reshape(len(stored), -1)
        if self.sharing is not None:
            shared_W = self.sharing.pages_R_W.shape[1]
            shared = first * size + np.arange(shared_W * size)
            absent = shared >= (begins * size)[:, None]
            positions = np.concatenate(
                [np.where(absent, np.iinfo(np.int64).max, shared), positions], axis=1
            )
        key_M_L = plan.to_device(positions)
        query_M_T = plan.positions_M_T
        seen = key_M_L[:, None, :] <= query_M_T[:, :, None]
        if window is not None:
            seen &= key_M_L[:, None, :] > query_M_T[:, :, None] - window
        self._hidden_M_T_L = ~seen
        self._bias: dict[torch.dtype, Tensor] = {}
        self._row_bias: dict[tuple[int, int, torch.dtype], Tensor] = {}
        self._own: dict[int, Tensor] = {}
        self._shared: dict[int, Tensor] = {}

    def bias_M_T_L(self, dtype: torch.dtype) -> Tensor:
        """0 where a query sees a key, -inf elsewhere."""
        if dtype not in self._bias:
            zeros = torch.zeros_like(self._hidden_M_T_L, dtype=dtype)
            self._bias[dtype] = zeros.masked_fill_(self._hidden_M_T_L, float("-inf"))
        return self._bias[dtype]

    def row_bias(self, heads: int, per_head: int, dtype: torch.dtype) -> Tensor:
        """The same for `per_head` query heads of each key head, [B, per_head * T, L].

        The B = H * M matrices of a batch are ordered by row, and by head where rows share
        prefixes: then the rows of a group are neighbours.
        """
        key = (heads, per_head, dtype)
        if key not in self._row_bias:
            bias = self.bias_M_T_L(dtype)
            rows, width, length = bias.shape
            bias = bias[:, None].expand(rows, per_head, width, length)
            bias = bias.reshape(rows, per_head * width, length)
            if self.sharing is None:
                self._row_bias[key] = bias.repeat_interleave(heads, 0, output_size=heads * rows)
            else:
                self._row_bias[key] = bias.repeat(heads, 1, 1)
        return self._row_bias[key]

    def own_index(self, heads: int) -> Tensor:
        """Rows of `Pool.pages` with each row's own pages, [B * W]; order as in `row_bias`."""
        if heads not in self._own:
            head, stride = np.arange(heads)[:, None], self.plan.num_pages
            if self.sharing is None:
                index = self.own_pages[:, None] + head * stride
            else:
                index = self.own_pages + head[:, :, None] * stride
            self._own[heads] = self.plan.to_device(index).view(-1)
        return self._own[heads]

    def shared_index(self, heads: int) -> Tensor:
        """Rows of `Pool.pages` with each group's prefix, [H * R * W]."""
        assert self.sharing is not None
        if heads not in self._shared:
            head, stride = np.arange(heads)[:, None, None], self.plan.num_pages
            index = self.sharing.pages_R_W + head * stride
            self._shared[heads] = self.plan.to_device(index).view(-1)
        return self._shared[heads]


def _first_of_run(pages_R_W: NDArray[np.int32]) -> int | None:
    """The first page, where there is one row of neighbouring pages in order."""
    if len(pages_R_W) != 1 or (np.diff(pages_R_W[0]) != 1).any():
        return None
    return int(pages_R_W[0, 0])


class _Plan:
    """Index tensors of one forward, made once and used by every layer."""

    def __init__(self, attention: TorchPagedAttention, layout: Layout) -> None:
        self.layout = layout
        self.device = attention.device
        self.page_size = size = attention.page_size
        self.num_pages = attention.num_pages
        self.first_of_all = not attention.layers
        self.min_saved = attention.min_saved
        stored, counts = layout.stored_M[:, None], layout.counts_M[:, None]
        column = np.arange(layout.width)
        real = column < counts
        # Padding columns repeat the position of the row's last token: always a valid one.
        position = np.maximum(stored + np.minimum(column, counts - 1), 0)
        page = np.take_along_axis(layout.tables_M_W, position // size, axis=1).astype(np.int64)
        self._slots_M_T = np.where(real, page * size + position % size, 0)
        self.positions_M_T = self.to_device(position)
        self._slots: dict[int, Tensor] = {}
        self._views: dict[int | None, _View] = {}
        self.longest = int((layout.stored_M + layout.counts_M).max())

    def to_device(self, array: NDArray[Any]) -> Tensor:
        return _to_device(array, self.device)

    def slots(self, heads: int) -> Tensor:
        """Where the new keys go: rows of `Pool.slots`, [M * T * H], as projections lie."""
        if heads not in self._slots:
            head = np.arange(heads) * (self.num_pages * self.page_size)
            self._slots[heads] = self.to_device(self._slots_M_T.reshape(-1, 1) + head).view(-1)
        return self._slots[heads]

    def view(self, window: int | None) -> _View:
        if window is not None and window >= self.longest:
            window = None
        if window not in self._views:
            self._views[window] = _View(self, window)
        return self._views[window]


def _to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
    return tensor.to(device, non_blocking=True)


class TorchPagedAttention(PagedAttention):
    """Paged attention out of gathers and matrix products.

    The pool of a layer is allocated when that layer first attends, in the shape and type of
    its keys. On the CPU under Linux the memory of a page is committed when it is first used.

    Parameters
    ----------
    num_pages, page_size : int
    device : torch.device
    kv_dtype : torch.dtype, optional
        Type of what is stored; default: that of the keys and values.

    Attributes
    ----------
    min_saved : int
        A shared prefix is used when it saves at least this many page reads a layer.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        device: torch.device,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_pages, page_size)
        self.device = device
        self.kv_dtype = kv_dtype
        self.min_saved = -(-WORTH_SHARING // page_size)
        self._pools: dict[int, tuple[Pool, Pool]] = {}
        self._whole: list[Pool] = []  # the same memory, in the largest pieces there are

    @property
    def layers(self) -> frozenset[int]:
        return frozenset(self._pools)

    @property
    def bytes_per_page(self) -> int:
        return sum(pool.bytes_per_page for pair in self._pools.values() for pool in pair)

    def plan(self, layout: Layout) -> _Plan:
        return _Plan(self, layout)

    def static_plan(self, rows: int, width: int, pages: int, groups: int = 0) -> TorchStaticPlan:
        return TorchStaticPlan(self.num_pages, self.page_size, self.device, rows, width, pages)

    def move_pages(self, source_M: Tensor, target_M: Tensor) -> None:
        for pool in self._whole:
            pool.data.index_copy_(1, target_M, pool.data.index_select(1, source_M))

    def attend(
        self,
        plan: _Plan | TorchStaticPlan,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        if isinstance(plan, TorchStaticPlan):
            keys, values = self._pools[layer]
            return plan.attend(
                keys, values, query, key, value, scaling=scaling, window=window, softcap=softcap
            )
        heads, width = key.shape[1], query.shape[2]
        keys, values = self._pools.get(layer) or self._new_pools(plan, layer, key, value)
        slots = plan.slots(heads)
        keys.store(slots, key)
        values.store(slots, value)
        view = plan.view(window)
        if view.sharing is not None:
            return _shared(view, view.sharing, query, keys, values, scaling, softcap)
        if softcap is None and width >= FUSED_WIDTH:
            return _fused(view, query, keys, values, scaling)
        return _plain(view, query, keys, values, scaling, softcap)

    def _new_pools(self, plan: _Plan, layer: int, key: Tensor, value: Tensor) -> tuple[Pool, Pool]:
        heads = key.shape[1]
        alike = key.shape[-1] == value.shape[-1] and key.dtype == value.dtype
        try:
            # Keys and values in one piece of memory are copied and cleared together.
            whole = (
                [self._empty(2 * heads, key)]
                if alike
                else [self._empty(heads, key), self._empty(heads, value)]
            )
        except ACCELERATOR_ERRORS:  # out-of-memory is none
            raise
        except (RuntimeError, MemoryError) as error:
            if plan.first_of_all:  # nothing was stored before this forward
                self.forget()
            raise PoolMemoryError(self.num_pages, self.page_size, layer) from error
        pages = plan.to_device(np.union1d(plan.layout.tables_M_W, [SCRATCH_PAGE]))
        for pool in whole:
            pool.data.index_fill_(1, pages, 0)
        if alike:
            pools = (whole[0].heads_of(0, heads), whole[0].heads_of(heads, 2 * heads))
        else:
            pools = (whole[0], whole[1])
        self._whole += whole
        self._pools[layer] = pools
        return pools

    def _empty(self, heads: int, like: Tensor) -> Pool:
        return Pool.empty(heads, self.num_pages, self.page_size, like, self.kv_dtype)

    def forget(self) -> None:
        self._pools.clear()
        self._whole.clear()

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        for pools, (src, dst) in self._page_rows(source, target):
            for pool in pools:
                pool.pages.index_copy_(0, dst, pool.pages.index_select(0, src))

    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        for pools, (index,) in self._page_rows(pages):
            for pool in pools:
                pool.pages.index_fill_(0, index, 0)

    def _page_rows(
        self, *pages: NDArray[np.int32]
    ) -> Iterator[tuple[list[Pool], tuple[Tensor, ...]]]:
        """Pools with the same number of heads, and the rows of `Pool.pages` of some pages."""
        by_heads: dict[int, list[Pool]] = {}
        for pool in self._whole:
            by_heads.setdefault(pool.heads, []).append(pool)
        for heads, pools in by_heads.items():
            head = np.arange(heads)[:, None] * self.num_pages
            yield pools, tuple(_to_device(p + head, self.device).view(-1) for p in pages)


def _own(view: _View, pool: Pool) -> Tensor:
    """What each row has to itself, [B, L, D]; order as in `_View.row_bias`."""
    rows, pages = view.own_pages.shape
    if view.own_run is not None:
        return pool.run(view.own_run, pages)
    data = pool.take(view.own_index(pool.heads))
    return data.view(rows * pool.heads, -1, pool.dim)


def _prefix(view: _View, pool: Pool, length: int) -> Tensor:
    """What the rows of each group share, [H * R, L, D]."""
    if view.shared_run is not None:
        return pool.run(view.shared_run, length // view.plan.page_size)
    return pool.take(view.shared_index(pool.heads)).view(-1, length, pool.dim)


def _fused(view: _View, query: Tensor, keys: Pool, values: Pool, scaling: float) -> Tensor:
    """One call of the framework's kernel; for long blocks, where scores would be large."""
    rows, heads = query.shape[0], keys.heads
    out = F.scaled_dot_product_attention(
        query,
        _own(view, keys).view(rows, heads, -1, keys.dim),
        _own(view, values).view(rows, heads, -1, values.dim),
        attn_mask=view.bias_M_T_L(query.dtype)[:, None],
        scale=scaling,
        enable_gqa=heads != query.shape[1],
    )
    return out.transpose(1, 2)


def _plain(
    view: _View,
    query: Tensor,
    keys: Pool,
    values: Pool,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Scores, softmax, product, for every row and key head.

    The `J = G * T` query vectors of one row that meet one key head form a matrix. Where the
    scores of all would take too much memory (wide blocks under a cap), a few are done at a time.
    """
    rows, query_heads, width, _ = query.shape
    batch, per_head = rows * keys.heads, query_heads // keys.heads
    bias = view.row_bias(keys.heads, per_head, query.dtype)
    q = query.reshape(batch, per_head * width, keys.dim)
    k, v = _own(view, keys), _own(view, values)
    step = max(1, MOST_SCORES // (q.shape[1] * k.shape[1]))
    if step >= batch:
        out = _attend(bias, q, k, v, scaling, softcap)
    else:
        parts = zip(*(x.split(step) for x in (bias, q, k, v)), strict=True)
        out = torch.cat([_attend(b, x, y, z, scaling, softcap) for b, x, y, z in parts])
    out = out.view(rows, query_heads, width, values.dim)
    return out.transpose(1, 2)


def _shared(
    view: _View,
    sharing: Sharing,
    query: Tensor,
    keys: Pool,
    values: Pool,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """As `_plain`, with all rows of a group meeting their prefix in one product.

    Scores over the prefix and over a row's own pages stand side by side under one softmax.
    """
    rows, query_heads, width, dim = query.shape
    heads, per_head = keys.heads, query_heads // keys.heads
    batch, per_row = rows * heads, per_head * width
    bias = view.row_bias(heads, per_head, query.dtype)
    length = sharing.pages_R_W.shape[1] * view.plan.page_size

    q = query.reshape(rows, heads, per_row, dim).transpose(0, 1).reshape(batch, per_row, dim)
    k_own, k_pre = _own(view, keys), _prefix(view, keys, length)
    s_own = _scores(bias[..., length:], q, k_own, scaling, softcap)
    s_pre = _scores(
        sharing.to_groups(bias[..., :length], heads),
        sharing.to_groups(q, heads),
        k_pre,
        scaling,
        softcap,
    )
    scores = torch.cat([sharing.to_rows(s_pre, heads, rows), s_own], dim=-1)
    weights = _weights(scores, bias, softcap)

    v_own, v_pre = _own(view, values), _prefix(view, values, length)
    o_pre = torch.bmm(sharing.to_groups(weights[..., :length], heads), v_pre)
    out = torch.baddbmm(sharing.to_rows(o_pre, heads, rows), weights[..., length:], v_own)
    out = out.view(heads, rows, per_head, width, values.dim)
    return out.permute(1, 3, 0, 2, 4).reshape(rows, width, query_heads, values.dim)


def _attend(
    bias: Tensor, q: Tensor, k: Tensor, v: Tensor, scaling: float, softcap: float | None
) -> Tensor:
    scores = _scores(bias, q, k, scaling, softcap)
    return torch.bmm(_weights(scores, bias, softcap), v)


def _scores(bias: Tensor, q: Tensor, k: Tensor, scaling: float, softcap: float | None) -> Tensor:
    """Scaled scores; without a cap the mask rides along with the product."""
    beta = 1 if softcap is None else 0
    return torch.baddbmm(bias, q, k.transpose(1, 2), beta=beta, alpha=scaling)


def _weights(scores: Tensor, bias: Tensor, softcap: float | None) -> Tensor:
    """Probabilities, computed in float32 at least."""
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap + bias
    if scores.dtype.itemsize >= 4:
        return torch.softmax(scores, dim=-1)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
