"""Categorical draws by inverse CDF, one counter-based uniform a draw.

`Draws` is the one place where randomness enters a round, so that a test can put an
enumeration of every choice in its place.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from smcprog.rng import STREAM_TOKEN, uniforms

__all__ = ["Draw", "Draws", "categorical"]


@dataclasses.dataclass(frozen=True)
class Draw:
    """Tokens drawn, the log-density of each draw, and the log-normaliser of its row.

    Attributes
    ----------
    tokens_M : Tensor, int64
    log_density_M : Tensor, float64
        log q of the token under the row's *normalised* weights; −∞ in an empty row.
    log_total_M : Tensor, float64
        log Σ_v exp(logw_v); −∞ in an empty row (nothing can be drawn there).
    """

    tokens_M: Tensor
    log_density_M: Tensor
    log_total_M: Tensor


def categorical(weights_M_V: Tensor, u_M: Tensor) -> Tensor:
    """Token v with probability weight_v / Σ weights, by inverse CDF in float64.

    A token of weight zero is never returned, whatever rounding does to ``u · Σ``;
    an empty row returns 0.
    """
    cdf_M_V = weights_M_V.cumsum(dim=1, dtype=torch.float64)
    total_M = cdf_M_V[:, -1]
    below_total_M = torch.nextafter(total_M, torch.zeros_like(total_M))
    point_M = torch.minimum(u_M * total_M, below_total_M)
    token_M = torch.searchsorted(cdf_M_V, point_M.unsqueeze(1), right=True).squeeze(1)
    return torch.where(total_M > 0, token_M, 0)


class Draws:
    """The draws of some rows in one round: uniforms f(seed, particle, round, position).

    Parameters
    ----------
    seeds_M, particles_M : Tensor, int64
        Seed of the row's request, and the particle's number in its population.
    round_index : int
    positions : int
        How many tokens the block may draw.
    """

    def __init__(
        self, seeds_M: Tensor, particles_M: Tensor, round_index: int, positions: int
    ) -> None:
        at = torch.arange(positions, device=seeds_M.device)
        self.u_M_B = uniforms(seeds_M, particles_M, round_index, at, STREAM_TOKEN)

    def draw(self, logw_M_V: Tensor, position: int) -> Draw:
        """One token a row, in proportion to exp(logw)."""
        peak_M = logw_M_V.amax(dim=1)
        floor_M = torch.where(peak_M == -math.inf, torch.zeros_like(peak_M), peak_M)
        weights_M_V = (logw_M_V - floor_M.unsqueeze(1)).exp()
        tokens_M = self.choose(weights_M_V, position)
        log_total_M = floor_M.double() + weights_M_V.sum(dim=1, dtype=torch.float64).log()
        logw_M = logw_M_V.gather(1, tokens_M.unsqueeze(1)).squeeze(1).double()
        log_density_M = torch.where(log_total_M == -math.inf, -math.inf, logw_M - log_total_M)
        return Draw(tokens_M, log_density_M, log_total_M)

    def choose(self, weights_M_V: Tensor, position: int) -> Tensor:
        """Which token each row takes, given unnormalised weights."""
        return categorical(weights_M_V, self.u_M_B[:, position].to(weights_M_V.device))
