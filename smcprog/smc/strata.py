"""Joint draws: particles that share one history split the unit interval among them.

n rows with one history would draw n independent tokens from one distribution. They draw
with less variance if their uniforms are u_i = (U + i/n) mod 1 with one U: each u_i alone is
still uniform, whatever the row's weight, so every estimate stays unbiased, and each token v
is drawn ⌊n p_v⌋ or ⌈n p_v⌉ times (up to rounding at the ends). This is systematic sampling with a
random rotation; strata in index order without one would tie a token to an index, and are
biased.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["extend_keys", "spread"]

_MULTIPLIER = -7046029254386353131  # 0x9E3779B97F4A7C15, as a signed word


def extend_keys(keys_M: Tensor, tokens_M: Tensor) -> Tensor:
    """Keys of histories that are one token longer, int64 [M].

    A key is a hash of a history. Two histories with one key would merely be drawn jointly
    too, which is unbiased as well.
    """
    mixed_M = (keys_M ^ (tokens_M + 1)) * _MULTIPLIER
    return mixed_M ^ (mixed_M >> 29)


def spread(u_M: Tensor, keys_M: Tensor) -> Tensor:
    """Uniforms of joint draws, float64 [M]: row i of n with one key gets (u + i/n) mod 1.

    u is the uniform of the first of them. Nothing here waits for the device.
    """
    rows = len(keys_M)
    if rows < 2:
        return u_M
    sorted_M, order_M = keys_M.sort(stable=True)
    at_M = torch.arange(rows, device=keys_M.device)
    differs = sorted_M[1:] != sorted_M[:-1]
    edge = differs.new_ones(1)
    first_M = torch.where(torch.cat([edge, differs]), at_M, 0).cummax(0).values
    ends_M = torch.where(torch.cat([differs, edge]), at_M, rows)
    last_M = ends_M.flip(0).cummin(0).values.flip(0)
    share_M = (at_M - first_M).double() / (last_M - first_M + 1).double()
    joint_M = torch.remainder(u_M[order_M][first_M] + share_M, 1.0)
    return torch.empty_like(u_M).index_copy_(0, order_M, joint_M)
