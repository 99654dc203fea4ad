"""What FlashInfer can run: the model's shapes and types, the device, and what is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import torch

__all__ = ["INSTALL", "MINIMUM", "fits_block", "why_not_here", "why_not_model"]

MINIMUM = (0, 6, 13)
INSTALL = 'pip install "smcprog[flashinfer]"'
HEAD_DIMS = (64, 128, 256)
"""Head sizes for which all kernels that are used exist."""
DTYPES = (torch.float16, torch.bfloat16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
CAPABILITY = (8, 0)
"""Compute capability from which on its kernels know bfloat16."""
MOST_THREADS = 1024
"""Of a block: FlashInfer's append and merge kernels put all heads of a token into one."""


def fits_block(heads: int, dim: int, itemsize: int) -> bool:
    """Whether all heads of a token fit in one block of FlashInfer's elementwise kernels."""
    vector = max(16 // itemsize, dim // 32)
    return heads * (dim // vector) <= MOST_THREADS


def why_not_here(device: torch.device) -> str | None:
    """Why FlashInfer cannot run on a CUDA device; None if nothing speaks against it."""
    capability = torch.cuda.get_device_capability(device)
    if capability < CAPABILITY:
        have, need = (".".join(map(str, c)) for c in (capability, CAPABILITY))
        return f"it needs compute capability {need}, and {device} has {have}"
    if importlib.util.find_spec("flashinfer") is None:
        return f"it is not installed; {INSTALL}"
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return None  # built by hand; the trial will tell
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdigit())
    if numbers < MINIMUM:
        need = ".".join(map(str, MINIMUM))
        return f"it needs to be {need} or newer, and {version} is installed; {INSTALL}"
    return None


def why_not_model(config: Any, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> str | None:
    """Why FlashInfer cannot run a model; None if nothing speaks against it.

    Parameters
    ----------
    config
        Of the model.
    dtype, kv_dtype : torch.dtype
        Of the model, and of what is stored (None: the same).
    """
    if dtype not in DTYPES:
        return f"it computes in float16 or bfloat16, and the model in {_name(dtype)}"
    if kv_dtype not in (None, dtype, *FP8):
        return (
            f"it stores keys and values in the model's type or in 8 bits, and kv_dtype is "
            f"{_name(kv_dtype)}"
        )
    heads, kv_heads, dim = head_shape(config)
    if dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        return f"it has heads of size {sizes}, and those of the model have size {dim}"
    if any(getattr(config.get_text_config(), n, None) not in (None, dim) for n in VALUE_DIMS):
        return "keys and values of the model differ in size"
    if heads % kv_heads:
        return f"{heads} query heads cannot share {kv_heads} key heads evenly"
    if not fits_block(kv_heads, dim, (kv_dtype or dtype).itemsize):
        return f"{kv_heads} key heads of size {dim} are more than one of its blocks holds"
    return None


VALUE_DIMS = ("v_head_dim", "value_head_dim")


def head_shape(config: Any) -> tuple[int, int, int]:
    """Query heads, key heads and head size of a model."""
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    return heads, kv_heads, int(getattr(text, "head_dim", None) or text.hidden_size // heads)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
