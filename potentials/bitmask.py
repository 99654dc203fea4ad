"""The packed token mask of the mask engines: token v is bit ``v % 32`` of word ``v // 32``."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["pack_bitmask", "restrict", "unpack_bitmask", "unpack_words"]


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
        allowed_N_V = unpack_words(mask)[:, :size]
    missing = size - allowed_N_V.shape[1]
    if missing > 0:
        pad = allowed_N_V.new_zeros((allowed_N_V.shape[0], missing))
        allowed_N_V = torch.cat([allowed_N_V, pad], dim=1)
    return allowed_N_V


def unpack_words(words_N_W: Tensor) -> Tensor:
    """Bool mask [N, 32 W] of packed words, by operations of the device they are on."""
    shifts = torch.arange(32, device=words_N_W.device, dtype=torch.int32)
    return ((words_N_W.unsqueeze(-1) >> shifts) & 1).bool().flatten(1)


def pack_bitmask(mask: Tensor) -> NDArray[np.int32]:
    """Packed mask [N, ceil(V / 32)] of a boolean [N, V] or already packed one, on the host."""
    values = mask.cpu().numpy()
    if mask.dtype != torch.bool:
        return np.ascontiguousarray(values)
    missing = -values.shape[1] % 32
    bits = np.pad(values, ((0, 0), (0, missing)))
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)
