"""Paged attention on CUDA: the contract of `smcprog.attention.base` over FlashInfer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.base import Layout, PagedAttention
from smcprog.attention.flashinfer.cost import Machine, cascade_pays
from smcprog.attention.flashinfer.kernels import Kernels, Kind, load_library
from smcprog.attention.flashinfer.plan import FlashInferPlan
from smcprog.attention.flashinfer.pool import Slab
from smcprog.attention.flashinfer.static import FlashInferStaticPlan
from smcprog.attention.flashinfer.support import fits_block
from smcprog.attention.flashinfer.workspace import Wrappers
from smcprog.attention.torch_pool import ACCELERATOR_ERRORS, PoolMemoryError
from smcprog.errors import ModelError

__all__ = ["FlashInferAttention"]


class FlashInferAttention(PagedAttention):
    """Paged attention out of FlashInfer's kernels.

    All forwards of a device have to run on one stream, since they share its workspace.

    Parameters
    ----------
    num_pages, page_size : int
    device : torch.device
    layers : int, default 1
        Layers that are stored together; the number of the model's, where they are alike.
    kv_dtype : torch.dtype, optional
        Type of what is stored; default: that of the keys and values.
    library : optional
        What has FlashInfer's names; default: the package.

    Attributes
    ----------
    machine : Machine
        What the choice of kernels is based on.
    cascade : bool
        Whether shared pages may be read once a group of rows.
    kinds : dict
        Kinds of kernels that the layers have asked for so far, in order.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        device: torch.device,
        *,
        layers: int = 1,
        kv_dtype: torch.dtype | None = None,
        library: Any = None,
    ) -> None:
        super().__init__(num_pages, page_size)
        self.device = device
        self.kv_dtype = kv_dtype
        self.machine = Machine.of(device)
        self.cascade = True
        self.kinds: dict[Kind, None] = {}
        self.kernels = Kernels(load_library() if library is None else library)
        self.wrappers = Wrappers(device)
        self._together = layers
        self._slabs: list[Slab] = []
        self._caches: dict[int, tuple[Slab, Tensor]] = {}

    @property
    def layers(self) -> frozenset[int]:
        return frozenset(self._caches)

    @property
    def bytes_per_page(self) -> int:
        return sum(slab.bytes_per_page for slab in self._slabs)

    def plan(self, layout: Layout) -> FlashInferPlan:
        return FlashInferPlan(self, layout)

    def static_plan(
        self, rows: int, width: int, pages: int, groups: int = 0
    ) -> FlashInferStaticPlan:
        return FlashInferStaticPlan(self, rows, width, pages, groups)

    def attend(
        self,
        plan: FlashInferPlan | FlashInferStaticPlan,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        if plan.count == 0:
            return query.new_zeros(query.transpose(1, 2).shape)
        slab, cache = self._caches.get(layer) or self._new_cache(layer, key, value)
        kind = Kind(
            query.shape[1],
            key.shape[1],
            key.shape[-1],
            query.dtype,
            cache.dtype,
            scaling,
            window,
            softcap,
        )
        self.kinds.setdefault(kind)
        plan.append(slab.as_stored(plan.real(key)), slab.as_stored(plan.real(value)), cache)
        return plan.spread(plan.program(kind).run(plan.real(query), cache))

    def can_cascade(self, kind: Kind) -> bool:
        """Whether shared pages may be read apart: not under a window, nor with too many heads.

        A window counts from the end of a row, which the shared part alone does not know.
        """
        return self.cascade and kind.window is None and fits_block(kind.query_heads, kind.dim, 2)

    def sharing_pays(self, prefix: int, rows: int) -> bool:
        """As the cost model tells for captured passes of rows with little else than the prefix."""
        kind = next((kind for kind in self.kinds if self.can_cascade(kind)), None)
        if kind is None or rows == 1:
            return False
        page = self.page_size * kind.token_bytes
        shared, own = prefix // self.page_size * page, rows * page
        return cascade_pays(self.machine, own, shared, own + rows * shared, captured=True)

    def copy_pages(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None:
        pairs = torch.from_numpy(np.stack([source, target]).astype(np.int64))
        source_M, target_M = pairs.to(self.device, non_blocking=True)
        self.move_pages(source_M, target_M)

    def move_pages(self, source_M: Tensor, target_M: Tensor) -> None:
        for slab in self._slabs:
            slab.move(source_M, target_M)

    def clear_pages(self, pages: NDArray[np.int32]) -> None:
        """Nothing to do: the kernels put zeros in the place of what is beyond a row's end."""

    def forget(self) -> None:
        self._caches.clear()
        self._slabs.clear()

    def _new_cache(self, layer: int, key: Tensor, value: Tensor) -> tuple[Slab, Tensor]:
        if key.shape != value.shape or key.dtype != value.dtype:
            raise ModelError(
                f"layer {layer} has keys {tuple(key.shape)} and values {tuple(value.shape)}, and "
                "FlashInfer's paged attention takes both in one shape; use attention='torch'"
            )
        stored = key.dtype if self.kv_dtype is None else self.kv_dtype
        shape = (key.shape[1], key.shape[-1], stored)
        slab = next((s for s in self._slabs if s.shape == shape and s.used < s.layers), None)
        if slab is None:
            count = 1 if self._slabs else self._together
            try:
                slab = Slab(count, self.num_pages, self.page_size, *shape, key.device)
            except ACCELERATOR_ERRORS:  # out-of-memory is none
                raise
            except (RuntimeError, MemoryError) as error:
                if not self._caches:  # nothing was stored yet
                    self.forget()
                raise PoolMemoryError(self.num_pages, self.page_size, layer) from error
            self._slabs.append(slab)
        self._caches[layer] = (slab, slab.take())
        return self._caches[layer]
