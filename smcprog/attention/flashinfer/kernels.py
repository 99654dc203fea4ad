"""Every call that is made of FlashInfer, with its arguments; nothing else calls it.

`library` is the package, or what stands for it: an object with the names used here.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import torch
from torch import Tensor

from smcprog.attention.flashinfer.device_arrays import PageBuffers

__all__ = ["Kernels", "Kind", "Table", "load_library"]

LAYOUT = "NHD"
CUDA_CORE_GROUPS = (1, 2, 3)
"""Query heads a key head for which decoding without tensor cores is the faster one.

FlashInfer advises tensor cores for larger groups, and has no other kernel for some of them.
"""


def load_library() -> Any:
    """The package; its first import takes seconds, so it happens when it is needed."""
    return importlib.import_module("flashinfer")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one kernel schedule is for; layers that agree in it share the schedule.

    Attributes
    ----------
    query_heads, kv_heads, dim : int
        Hq, Hkv, D.
    dtype, kv_dtype : torch.dtype
        Of queries and results, and of what is stored.
    scaling : float
    window : int or None
        A query sees so many positions, its own included.
    softcap : float or None
    """

    query_heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    scaling: float
    window: int | None
    softcap: float | None

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.query_heads // self.kv_heads

    @property
    def tensor_cores(self) -> bool:
        """Whether decoding is faster on tensor cores."""
        return self.group not in CUDA_CORE_GROUPS or self.kv_dtype.itemsize == 1

    @property
    def token_bytes(self) -> int:
        """What one token takes in a layer, key and value."""
        return 2 * self.kv_heads * self.dim * self.kv_dtype.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A page table as tensors, to be planned with: int32.

    Attributes
    ----------
    qo_indptr, indptr, indices, last_page_len : Tensor
        On the host; in a pass of fixed shape the pages are those on the device, where they are
        found at run time, so that planning copies none.
    most_queries : int
        Of one row.
    length : Tensor or None
        Tokens of each row. None: FlashInfer works it out.
    """

    qo_indptr: Tensor
    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor
    most_queries: int
    length: Tensor | None = None

    @classmethod
    def of_buffers(cls, buffers: PageBuffers) -> Table:
        return cls(
            buffers.host_qo_indptr,
            buffers.host_indptr,
            buffers.indices,
            buffers.host_last_page_len,
            buffers.most_queries,
            buffers.host_length,
        )


class Kernels:
    """FlashInfer's entry points.

    Parameters
    ----------
    library : module or object
    """

    def __init__(self, library: Any) -> None:
        self._library = library

    @torch.inference_mode(False)  # planning writes to a wrapper's tensors, in whatever mode
    def decode(
        self, workspace: Tensor, tensor_cores: bool, buffers: PageBuffers | None = None
    ) -> Any:
        """A wrapper for one query a row; with `buffers`, for passes of fixed shape."""
        fixed: dict[str, Any] = {}
        if buffers is not None:
            fixed = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": buffers.indptr,
                "paged_kv_indices_buffer": buffers.indices,
                "paged_kv_last_page_len_buffer": buffers.last_page_len,
            }
        return self._library.BatchDecodeWithPagedKVCacheWrapper(
            float_workspace_buffer=workspace,
            kv_layout=LAYOUT,
            use_tensor_cores=tensor_cores,
            backend="fa2",
            **fixed,
        )

    def plan_decode(self, wrapper: Any, kind: Kind, table: Table, page_size: int) -> None:
        """Schedule one query a row, the last token of the row."""
        wrapper.plan(
            indptr=table.indptr,
            indices=table.indices,
            last_page_len=table.last_page_len,
            num_qo_heads=kind.query_heads,
            num_kv_heads=kind.kv_heads,
            head_dim=kind.dim,
            seq_lens=table.length,
            **_common(kind, page_size),
        )

    @torch.inference_mode(False)
    def prefill(self, workspace: Tensor, backend: str, buffers: PageBuffers | None = None) -> Any:
        """A wrapper for several queries a row; with `buffers`, for passes of fixed shape."""
        fixed: dict[str, Any] = {}
        if buffers is not None:
            fixed = {
                "use_cuda_graph": True,
                "qo_indptr_buf": buffers.qo_indptr,
                "paged_kv_indptr_buf": buffers.indptr,
                "paged_kv_indices_buf": buffers.indices,
                "paged_kv_last_page_len_buf": buffers.last_page_len,
            }
        return self._library.BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer=workspace, kv_layout=LAYOUT, backend=backend, **fixed
        )

    @torch.inference_mode(False)
    def shrink(self, wrapper: Any, workspace: Tensor, size: int) -> None:
        """Give a wrapper less room for schedules than the 8 MB that it takes, here and there."""
        wrapper.reset_workspace_buffer(
            float_workspace_buffer=workspace,
            int_workspace_buffer=torch.empty(size, dtype=torch.uint8, device=workspace.device),
        )

    def plan_prefill(
        self, wrapper: Any, kind: Kind, table: Table, page_size: int, causal: bool = True
    ) -> None:
        """Schedule the queries of each row, which are its last tokens if `causal`."""
        wrapper.plan(
            qo_indptr=table.qo_indptr,
            paged_kv_indptr=table.indptr,
            paged_kv_indices=table.indices,
            paged_kv_last_page_len=table.last_page_len,
            num_qo_heads=kind.query_heads,
            num_kv_heads=kind.kv_heads,
            head_dim_qk=kind.dim,
            causal=causal,
            max_token_per_sequence=table.most_queries,
            seq_lens=table.length,
            **_common(kind, page_size),
        )

    def run(
        self,
        wrapper: Any,
        kind: Kind,
        query_S_H_D: Tensor,
        cache: Tensor,
        out_S_H_D: Tensor,
        lse_S_H: Tensor | None = None,
    ) -> None:
        """Attend as planned; the log-sum-exp of the scores (base 2) on demand."""
        scales = {} if kind.kv_dtype == kind.dtype else {"k_scale": 1.0, "v_scale": 1.0}
        wrapper.run(
            q=query_S_H_D,
            paged_kv_cache=cache,
            out=out_S_H_D,
            lse=lse_S_H,
            return_lse=lse_S_H is not None,
            **scales,
        )

    def append(
        self,
        key_S_H_D: Tensor,
        value_S_H_D: Tensor,
        batch_indices: Tensor,
        positions: Tensor,
        cache: Tensor,
        indices: Tensor,
        indptr: Tensor,
        last_page_len: Tensor,
    ) -> None:
        """Write tokens at their positions; all on the device, keys and values as stored."""
        self._library.append_paged_kv_cache(
            append_key=key_S_H_D,
            append_value=value_S_H_D,
            batch_indices=batch_indices,
            positions=positions,
            paged_kv_cache=cache,
            kv_indices=indices,
            kv_indptr=indptr,
            kv_last_page_len=last_page_len,
            kv_layout=LAYOUT,
        )

    def merge(self, out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
        """Attention over two sets of keys from that over each; into the first."""
        self._library.merge_state_in_place(v=out, s=lse, v_other=other, s_other=other_lse)


def _common(kind: Kind, page_size: int) -> dict[str, Any]:
    return {
        "page_size": page_size,
        "window_left": -1 if kind.window is None else kind.window - 1,
        "logits_soft_cap": kind.softcap,
        "sm_scale": kind.scaling,
        "q_data_type": kind.dtype,
        "kv_data_type": kind.kv_dtype,
        "o_data_type": kind.dtype,
    }
