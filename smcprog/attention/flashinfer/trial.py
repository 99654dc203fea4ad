"""A few tokens through FlashInfer and through PyTorch, in the shapes of a model.

It shows on the spot what no list of conditions can: whether the kernels can be built on this
machine, and whether they give what they should.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.attention.base import Layout, PagedAttention
from smcprog.attention.flashinfer.paged import FlashInferAttention
from smcprog.attention.flashinfer.support import head_shape
from smcprog.attention.torch_paged import TorchPagedAttention

__all__ = ["try_out"]

PROMPT, ROWS, MORE = 72, 3, 8
TOLERANCE = 0.1
"""What two ways of rounding to 16 bits may differ by; results are of size 1."""
FINE = 1e-5
"""The same for wider types."""


def try_out(
    config: Any,
    page_size: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
    library: Any = None,
) -> str | None:
    """Why FlashInfer is of no use for a model here; None if it works.

    A prompt, a step of three rows that share it, and several ragged tokens of each, with and
    without reading the shared pages once, and once in a pass of fixed shape.
    """
    try:
        pages = 1 + PROMPT // page_size + ROWS * _own_pages(page_size)
        flash = FlashInferAttention(pages, page_size, device, kv_dtype=kv_dtype, library=library)
        plain = TorchPagedAttention(pages, page_size, device, kv_dtype)
        for layer, options in enumerate(_options(config)):
            off = _compare(flash, plain, layer, head_shape(config), dtype, options)
            if not off <= (TOLERANCE if dtype.itemsize == 2 else FINE):
                return f"its results differ from PyTorch's by {off:.1e} on this device"
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()
        return f"its kernels do not run here: {type(error).__name__}: {text[0]}"
    return None


def _options(config: Any) -> Iterator[dict[str, Any]]:
    """How the layers of a model attend."""
    text = config.get_text_config()
    scaling = head_shape(config)[2] ** -0.5
    softcap = getattr(text, "attn_logit_softcapping", None)
    window = getattr(text, "sliding_window", None)
    yield {"scaling": scaling, "softcap": softcap, "window": None}
    if window is not None:
        yield {"scaling": scaling, "softcap": softcap, "window": min(int(window), PROMPT // 2)}


def _compare(
    flash: FlashInferAttention,
    plain: TorchPagedAttention,
    layer: int,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    options: dict[str, Any],
) -> float:
    """The largest difference of the results."""
    size = flash.page_size
    generator = torch.Generator().manual_seed(0)
    query_heads, heads, dim = shape
    whole, own = PROMPT // size, _own_pages(size)
    first = np.arange(1, 1 + whole + own, dtype=np.int32)[None]
    tables = np.repeat(first, ROWS, axis=0)
    tables[:, whole:] = 1 + whole + np.arange(ROWS * own).reshape(ROWS, own)

    def run(attention: PagedAttention, plan: Any, tensors: list[Tensor]) -> Tensor:
        return attention.attend(plan, layer, *tensors, **options).float()

    def both(layout: Layout) -> float:
        count = len(layout.stored_M)
        tensors = [
            torch.randn((count, h, layout.width, dim), generator=generator).to(plain.device, dtype)
            for h in (query_heads, heads, heads)
        ]
        real = torch.from_numpy(np.arange(layout.width) < layout.counts_M[:, None])
        real = real.to(plain.device)[:, :, None, None]
        expected = run(plain, plain.plan(layout), tensors)
        got = []
        for flash.cascade in (True, False):
            got.append(run(flash, flash.plan(layout), tensors))
            if (layout.counts_M == layout.width).all():
                groups, columns = int(flash.cascade), layout.tables_M_W.shape[1]
                static = flash.static_plan(count, layout.width, columns, groups)
                begin, shared = layout.stored_M, np.array([whole if count > 1 else 0])
                static.schedule(begin, shared)
                arrays = (layout.tables_M_W, begin, shared)
                static.place(*(torch.from_numpy(a).to(plain.device) for a in arrays))
                got.append(run(flash, static, tensors))
        return max(float(((g - expected) * real).abs().max()) for g in got)

    def layout(tables: Any, stored: list[int], counts: list[int]) -> Layout:
        return Layout(tables, np.array(stored), np.array(counts), max(counts))

    flash.machine = dataclasses.replace(flash.machine, launch=0.0)  # cascade wherever it can be
    off = [both(layout(first, [0], [PROMPT]))]
    for row in tables[1:]:
        for attention in (flash, plain):
            attention.copy_pages(first[0, whole:], row[whole:])
    off.append(both(layout(tables, [PROMPT] * ROWS, [1] * ROWS)))
    off.append(both(layout(tables, [PROMPT + 1] * ROWS, [5, 0, 3])))
    off.append(both(layout(tables, [PROMPT + 1] * ROWS, [5] * ROWS)))
    return max(off)


def _own_pages(page_size: int) -> int:
    """Pages that each row has to itself."""
    return -(-(PROMPT + MORE) // page_size) - PROMPT // page_size
