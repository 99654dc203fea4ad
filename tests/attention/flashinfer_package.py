"""The installed FlashInfer with nothing but its compiled kernels replaced.

All of its Python runs: what its wrappers demand of arguments, what they copy into which buffer,
and what they hand to the kernels. Those are the attention of `flashinfer_reference`, fed with
the arrays that the package hands over at run time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from . import flashinfer_reference as reference

CAUSAL = 1  # MaskMode.CAUSAL


def use_reference_kernels(monkeypatch: Any) -> Any:
    """The package, with its kernels replaced while a test runs."""
    import flashinfer

    real_empty = torch.empty
    pageable = lambda *a, pin_memory=False, **k: real_empty(*a, **k)  # noqa: E731
    monkeypatch.setattr(torch, "empty", pageable)
    modules = [flashinfer.decode, flashinfer.prefill]
    for module in modules:
        monkeypatch.setattr(module, "get_batch_prefill_module", lambda backend, *types: PREFILL)
        monkeypatch.setattr(module, "device_support_pdl", lambda device: False)
        monkeypatch.setattr(module, "determine_attention_backend", lambda *a: "fa2")
    monkeypatch.setattr(flashinfer.decode, "get_batch_decode_module", lambda *types: DECODE)
    monkeypatch.setattr(flashinfer.page, "get_page_module", lambda: PAGE)
    monkeypatch.setattr(flashinfer.cascade, "get_cascade_module", lambda: CASCADE)
    return flashinfer


def plan_prefill(*args):
    qo_indptr, kv_indptr, kv_len = args[3:6]
    reference.is_int32(qo_indptr, kv_indptr, kv_len)
    total, rows = args[6:8]
    assert rows == len(kv_len) == len(qo_indptr) - 1 and int(qo_indptr[-1]) <= total
    return [qo_indptr.clone(), kv_indptr.clone()]


def plan_decode(*args):
    reference.is_int32(args[3])
    return [torch.arange(args[4] + 1, dtype=torch.int32), args[3].clone()]


def run_prefill(*args):
    plan, q, keys, values, qo_indptr, indptr, indices, last, out, lse, mask, layout, window = args[
        2:15
    ]
    softcap, scaling = args[22:24]
    attend(
        plan, q, keys, values, qo_indptr, indptr, indices, last, out, lse, layout, window,
        softcap, scaling, mask == CAUSAL,
    )  # fmt: skip


def run_decode(*args):
    plan, q, keys, values, indptr, indices, last, out, lse, layout, window = args[2:13]
    softcap, scaling = args[15:17]
    attend(
        plan, q, keys, values, plan[0], indptr, indices, last, out, lse, layout, window,
        softcap, scaling, False,
    )  # fmt: skip


def attend(
    plan, q, keys, values, qo_indptr, indptr, indices, last, out, lse, layout, window, softcap,
    scaling, causal,
):  # fmt: skip
    assert layout == 0  # NHD
    assert torch.equal(plan[0], qo_indptr) and torch.equal(plan[1], indptr)
    assert keys.stride() == values.stride()
    options = {"sm_scale": scaling, "logits_soft_cap": softcap, "window_left": window}
    cache = torch.stack([keys, values], dim=1)
    result, sums = reference.attention(q, cache, qo_indptr, indptr, indices, last, options, causal)
    out.copy_(result)
    if lse is not None:
        lse.copy_(sums)


def append(key, value, rows, positions, keys, values, indices, indptr, last, layout):
    assert layout == 0 and keys.dtype == key.dtype == value.dtype
    cache = keys.as_strided(
        (keys.shape[0], 2, *keys.shape[1:]),
        (keys.stride(0), keys.stride(0) // 2, *keys.stride()[1:]),
    )
    assert cache[:, 1].data_ptr() == values.data_ptr() and cache[:, 1].stride() == values.stride()
    reference.append_paged_kv_cache(key, value, rows, positions, cache, indices, indptr, last)


PREFILL = SimpleNamespace(plan=plan_prefill, paged_run=run_prefill)
DECODE = SimpleNamespace(plan=plan_decode, run=run_decode)
PAGE = SimpleNamespace(append_paged_kv_cache=append)
CASCADE = SimpleNamespace(merge_state_in_place=lambda *args: reference.merge_state_in_place(*args))
