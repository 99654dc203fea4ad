"""The type in which keys and values are stored, where it is not the model's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smcprog.errors import SettingError

__all__ = ["KV_DTYPES", "resolve_kv_dtype", "to_stored"]

KV_DTYPES = ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32")


def resolve_kv_dtype(kv_dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The type of the given name; None: that of the model.

    Raises
    ------
    SettingError
    """
    if kv_dtype is None:
        return None
    name = str(kv_dtype).removeprefix("torch.")
    if name not in KV_DTYPES or not isinstance(kv_dtype, (str, torch.dtype)):
        wanted: Any = ", ".join(map(repr, KV_DTYPES))
        raise SettingError(
            f"kv_dtype must be one of {wanted} or None (the model's type), got {kv_dtype!r}"
        )
    return getattr(torch, name)


def to_stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to the type of the pages; what lies outside of its range becomes its largest number.

    A plain cast to a narrower range may give NaN or infinity, which one value of a head would
    spread over all that attend to it.
    """
    if x.dtype == dtype:
        return x
    limit = torch.finfo(dtype).max
    if limit < torch.finfo(x.dtype).max:
        x = x.clamp(-limit, limit)
    return x.to(dtype)
