"""FlashInfer's functions and wrappers in PyTorch, as its documentation describes them.

They stand where the package's kernels would, which need a GPU. Every call is bound first to the
signature of the installed package (if there is one), and then against what FlashInfer demands:
int32 arrays on the right side, capacities of buffers, fixed sizes in graph mode. In graph mode
`run` reads the buffers, as the kernels do, and insists that page counts are those of the plan.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .flashinfer_signatures import as_in_package

MADE: list[Any] = []
"""Wrappers in the order in which they were made."""


def is_int32(*arrays: Tensor) -> None:
    for array in arrays:
        assert array.dtype == torch.int32 and array.ndim == 1 and array.is_contiguous()


@as_in_package("append_paged_kv_cache")
def append_paged_kv_cache(
    append_key,
    append_value,
    batch_indices,
    positions,
    paged_kv_cache,
    kv_indices,
    kv_indptr,
    kv_last_page_len,
    kv_layout="NHD",
):
    assert kv_layout == "NHD"
    is_int32(batch_indices, positions, kv_indices, kv_indptr, kv_last_page_len)
    keys, values = paged_kv_cache[:, 0], paged_kv_cache[:, 1]
    # The kernel does not convert: it would read other types as if they were the cache's.
    assert append_key.dtype == append_value.dtype == paged_kv_cache.dtype
    assert append_key.shape == append_value.shape
    assert append_key.shape[0] == len(batch_indices) == len(positions) > 0
    assert append_key.stride(-1) == append_value.stride(-1) == 1
    size = keys.shape[1]
    slots = set()
    rows, places = batch_indices.tolist(), positions.tolist()
    for i, (row, position) in enumerate(zip(rows, places, strict=True)):
        at = int(kv_indptr[row]) + position // size
        assert at < int(kv_indptr[row + 1])
        page = int(kv_indices[at])
        assert page == 0 or (page, position % size) not in slots
        slots.add((page, position % size))
        keys[page, position % size] = append_key[i]
        values[page, position % size] = append_value[i]


@as_in_package("merge_state_in_place")
def merge_state_in_place(v, s, v_other, s_other, mask=None):
    assert mask is None and s.dtype == s_other.dtype == torch.float32
    assert all(x.is_contiguous() for x in (v, s, v_other, s_other))
    s, s_other = s.double(), s_other.double()
    most = torch.maximum(s, s_other)
    mine, other = torch.exp2(s - most), torch.exp2(s_other - most)
    total = mine + other
    v.copy_((mine / total)[..., None] * v + (other / total)[..., None] * v_other)


def attention(q, cache, qo_indptr, indptr, indices, last_page_len, plan, causal):
    """Output, and log-sum-exp in base 2, of every query."""
    keys, values = cache[:, 0], cache[:, 1]
    size, heads, dim = keys.shape[1:]
    group = q.shape[1] // heads
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full(q.shape[:2], -5e4)  # what the kernels call infinity
    for row in range(len(last_page_len)):
        begin, end = int(qo_indptr[row]), int(qo_indptr[row + 1])
        pages = indices[int(indptr[row]) : int(indptr[row + 1])].long()
        if not len(pages) or begin == end:
            continue
        assert 1 <= int(last_page_len[row]) <= size
        length = (len(pages) - 1) * size + int(last_page_len[row])
        k, v = (x[pages].double().reshape(-1, heads, dim)[:length] for x in (keys, values))
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,lhd->hql", q[begin:end].double(), k) * plan["sm_scale"]
        cap = plan["logits_soft_cap"]
        if cap:
            scores = cap * torch.tanh(scores / cap)
        # The queries are the last tokens of the row.
        at = length - (end - begin) + torch.arange(end - begin)[:, None]
        key = torch.arange(length)
        hidden = torch.zeros(end - begin, length, dtype=torch.bool)
        if causal:
            hidden |= key > at
        if plan["window_left"] >= 0:
            hidden |= key < at - plan["window_left"]
        scores = scores.masked_fill(hidden, -math.inf)
        out[begin:end] = torch.einsum("hql,lhd->qhd", torch.softmax(scores, -1), v)
        lse[begin:end] = (torch.logsumexp(scores, -1) / math.log(2)).T.float()
    return out.to(q.dtype), lse


class Wrapper:
    """What both wrappers have in common."""

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer):
        assert float_workspace_buffer.dtype == int_workspace_buffer.dtype == torch.uint8
        assert self.plans == 0
        self.room = int_workspace_buffer.numel()

    def _start(self, float_workspace_buffer, kv_layout, use_cuda_graph, buffers):
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"
        self.graph = use_cuda_graph
        self.buffers = buffers
        if use_cuda_graph:
            is_int32(*buffers.values())
            self.rows = len(buffers["last_page_len"])
            assert len(buffers["indptr"]) == self.rows + 1
            self.most_queries = None
        self.plans = 0
        self.room = 8 << 20
        MADE.append(self)

    def _keep(self, arrays, seq_lens, options):
        is_int32(*arrays.values())
        self.plans += 1
        self.options = options
        assert options["q_data_type"] == options["o_data_type"]
        rows = len(arrays["last_page_len"])
        assert len(arrays["indptr"]) == rows + 1 and int(arrays["indptr"][0]) == 0
        count = arrays["indptr"].diff()
        length = (count - 1).clamp_min(0) * options["page_size"] + arrays["last_page_len"]
        if seq_lens is not None:
            is_int32(seq_lens)
            assert torch.equal(seq_lens, length)
        if not self.graph:
            assert int(arrays["indptr"][-1]) == len(arrays["indices"])
            self.arrays = arrays
            return
        assert rows == self.rows and len(arrays["indices"]) <= len(self.buffers["indices"])
        self.planned = {name: array.clone() for name, array in arrays.items()}
        for name, array in arrays.items():
            self.buffers[name][: len(array)].copy_(array)
        self.arrays = self.buffers

    def _attend(self, q, paged_kv_cache, out, lse, return_lse, scales, causal):
        options = self.options
        assert q.dtype == options["q_data_type"] and paged_kv_cache.dtype == options["kv_data_type"]
        assert q.shape[1:] == (options["num_qo_heads"], options["head_dim"])
        assert paged_kv_cache.shape[2:] == (
            options["page_size"],
            options["num_kv_heads"],
            options["head_dim"],
        )
        assert set(scales) <= {1.0, None} and q.stride(-1) == 1
        if self.graph:
            for name in set(self.planned) - {"indices"}:
                assert torch.equal(self.planned[name], self.buffers[name]), name
        arrays = self.arrays
        assert q.shape[0] == int(arrays["qo_indptr"][-1])
        result, sums = attention(
            q,
            paged_kv_cache,
            arrays["qo_indptr"],
            arrays["indptr"],
            arrays["indices"],
            arrays["last_page_len"],
            options,
            causal,
        )
        assert out.is_contiguous() and out.shape == q.shape and out.dtype == q.dtype
        out.copy_(result)
        if not return_lse:
            return out
        assert lse.is_contiguous() and lse.dtype == torch.float32
        lse.copy_(sums)
        return out, lse


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    @as_in_package("BatchDecodeWithPagedKVCacheWrapper.__init__")
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
    ):
        self.tensor_cores = use_tensor_cores
        buffers = {}
        if use_cuda_graph:
            buffers = {
                "indptr": paged_kv_indptr_buffer,
                "indices": paged_kv_indices_buffer,
                "last_page_len": paged_kv_last_page_len_buffer,
            }
        self._start(float_workspace_buffer, kv_layout, use_cuda_graph, buffers)

    reset_workspace_buffer = as_in_package(
        "BatchDecodeWithPagedKVCacheWrapper.reset_workspace_buffer"
    )(Wrapper.reset_workspace_buffer)

    @as_in_package("BatchDecodeWithPagedKVCacheWrapper.plan")
    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        sm_scale=None,
        seq_lens=None,
    ):
        options = {
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
            "page_size": page_size,
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "o_data_type": o_data_type,
            "sm_scale": sm_scale,
        }
        # Groups for which there is a kernel without tensor cores.
        assert self.tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8)
        arrays = {"indptr": indptr, "indices": indices, "last_page_len": last_page_len}
        self._keep(arrays, seq_lens, options)
        one_each = torch.arange(len(last_page_len) + 1, dtype=torch.int32)
        self.arrays = {**self.arrays, "qo_indptr": one_each}

    @as_in_package("BatchDecodeWithPagedKVCacheWrapper.run")
    def run(
        self,
        q,
        paged_kv_cache,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
    ):
        scales = (k_scale, v_scale)
        return self._attend(q, paged_kv_cache, out, lse, return_lse, scales, causal=False)


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    @as_in_package("BatchPrefillWithPagedKVCacheWrapper.__init__")
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        backend="auto",
    ):
        self.backend = backend
        buffers = {}
        if use_cuda_graph:
            buffers = {
                "qo_indptr": qo_indptr_buf,
                "indptr": paged_kv_indptr_buf,
                "indices": paged_kv_indices_buf,
                "last_page_len": paged_kv_last_page_len_buf,
            }
        self._start(float_workspace_buffer, kv_layout, use_cuda_graph, buffers)

    reset_workspace_buffer = as_in_package(
        "BatchPrefillWithPagedKVCacheWrapper.reset_workspace_buffer"
    )(Wrapper.reset_workspace_buffer)

    @as_in_package("BatchPrefillWithPagedKVCacheWrapper.plan")
    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        causal=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        seq_lens=None,
        max_token_per_sequence=None,
    ):
        assert max_token_per_sequence == int(qo_indptr.diff().max())
        options = {
            "num_qo_heads": num_qo_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim_qk,
            "page_size": page_size,
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "o_data_type": o_data_type,
            "sm_scale": sm_scale,
        }
        self.causal = causal
        # Positions before the window are told from the end of a row, so it needs the whole end.
        assert causal or window_left == -1
        queries = int(qo_indptr[-1])
        if self.graph:
            self.most_queries = self.most_queries or queries
            assert queries <= self.most_queries
        arrays = {
            "qo_indptr": qo_indptr,
            "indptr": paged_kv_indptr,
            "indices": paged_kv_indices,
            "last_page_len": paged_kv_last_page_len,
        }
        assert len(qo_indptr) == len(paged_kv_indptr)
        self._keep(arrays, seq_lens, options)

    @as_in_package("BatchPrefillWithPagedKVCacheWrapper.run")
    def run(
        self,
        q,
        paged_kv_cache,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
    ):
        scales = (k_scale, v_scale)
        return self._attend(q, paged_kv_cache, out, lse, return_lse, scales, self.causal)
