"""The packed token mask of the mask engines: token v is bit ``v % 32`` of word ``v // 32``."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["restrict", "unpack_bitmask"]


def restrict(logw_M_V: Tensor, allowed_M_V: Tensor) -> Tensor:
    """Log-weights [M, V] with −∞ wherever a bool mask [M, V] is False, in one pass.

    On the CPU this takes half the time of `masked_fill` with the negated mask.
    """
    return torch.where(allowed_M_V, logw_M_V, -torch.inf)


def unpack_bitmask(mask: Tensor, size: int) -> Tensor:
    """Bool mask [N, size] of a packed int32 [N, ceil(size / 32)] or already boolean mask.

    Tokens beyond a mask that is narrower than `size` are not allowed.
    """
    if mask.dtype == torch.bool:
        allowed_N_V = mask[:, :size]
    elif mask.device.type == "cpu":
        words = np.ascontiguousarray(mask.numpy())
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        allowed_N_V = torch.from_numpy(bits[:, :size].view(np.bool_))
    else:
        shifts = torch.arange(32, device=mask.device, dtype=torch.int32)
        allowed_N_V = ((mask.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)[:, :size]
    missing = size - allowed_N_V.shape[1]
    if missing > 0:
        pad = allowed_N_V.new_zeros((allowed_N_V.shape[0], missing))
        allowed_N_V = torch.cat([allowed_N_V, pad], dim=1)
    return allowed_N_V
