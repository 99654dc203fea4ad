"""Which implementation of paged attention a model gets."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from smcprog.attention.base import PagedAttention
from smcprog.attention.kv_dtype import resolve_kv_dtype
from smcprog.attention.torch_paged import TorchPagedAttention
from smcprog.errors import SettingError, SlowAttentionWarning

__all__ = ["KINDS", "checked_kind", "default_page_size", "make_attention"]

KINDS = ("auto", "flashinfer", "torch")
PAGE_SIZES = {"cuda": 16}
PAGE_SIZE = 8

_warned: set[str] = set()


def default_page_size(device: torch.device) -> int:
    """Tokens a page where the user does not say: 16 on CUDA, else 8."""
    return PAGE_SIZES.get(device.type, PAGE_SIZE)


def checked_kind(kind: str) -> str:
    """The kind, if it is one.

    Raises
    ------
    SettingError
    """
    if kind not in KINDS:
        wanted = ", ".join(map(repr, KINDS))
        raise SettingError(f"attention must be one of {wanted}, got {kind!r}")
    return kind


def make_attention(
    config: Any,
    num_pages: int,
    page_size: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    name: str,
    kind: str = "auto",
    kv_dtype: str | torch.dtype | None = None,
) -> PagedAttention:
    """FlashInfer on CUDA where it can run the model, PyTorch otherwise.

    Where a CUDA device could do better, a warning says once for each reason why it does not.
    Devices for which there is no FlashInfer (CPU, ROCm, MPS) are no such case.

    Parameters
    ----------
    config
        Of the model.
    num_pages, page_size : int
        As for `PagedAttention`.
    device : torch.device
    dtype : torch.dtype
        Of the model.
    name : str
        How messages call the model.
    kind : {"auto", "flashinfer", "torch"}
    kv_dtype : str or torch.dtype, optional
        Type of what is stored; default: `dtype`.

    Raises
    ------
    SettingError
        If `kind` or `kv_dtype` is unknown, or FlashInfer was asked for by name and cannot run.
    """
    checked_kind(kind)
    stored = resolve_kv_dtype(kv_dtype)
    reason = None
    if kind != "torch":
        reason = why_not_flashinfer(config, page_size, device, dtype, stored)
        if reason is None:
            from smcprog.attention.flashinfer import FlashInferAttention

            layers = int(config.get_text_config().num_hidden_layers)
            return FlashInferAttention(num_pages, page_size, device, layers=layers, kv_dtype=stored)
    if kind == "flashinfer":
        raise SettingError(
            f"attention='flashinfer' is not possible for {name}: {reason}. Leave it out, or use "
            "attention='torch'"
        )
    if reason is not None and _is_cuda(device) and reason not in _warned:
        _warned.add(reason)
        warnings.warn(
            f"{name} on {device} runs PyTorch's attention, which is slower than FlashInfer's: "
            f"{reason}. attention='torch' accepts that without a warning",
            SlowAttentionWarning,
            stacklevel=2,
        )
    return TorchPagedAttention(num_pages, page_size, device, stored)


def why_not_flashinfer(
    config: Any,
    page_size: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None = None,
) -> str | None:
    """Why FlashInfer cannot run a model on a device; None if it can, which was tried out then."""
    if torch.version.hip is not None:
        return "there is no FlashInfer for ROCm"
    if device.type != "cuda":
        return f"FlashInfer needs a CUDA device, and the model is on {str(device)!r}"
    # The rest of FlashInfer's side is loaded only where it may be used.
    from smcprog.attention.flashinfer import support
    from smcprog.attention.flashinfer.trial import try_out

    return (
        support.why_not_model(config, dtype, kv_dtype)
        or support.why_not_here(device)
        or try_out(config, page_size, device, dtype, kv_dtype)
    )


def _is_cuda(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None
