"""Annealed rewards: how hard a resampling selects by them is tempered, by bisection on ESS.

Let a be log ψ of a particle's annealed rewards so far. Ancestors are drawn in proportion to
w·η with η = exp((f − 1)·a): the share f of the rewards' strength β is selected for, the rest
stays in the weight, 1/η after resampling. f is the largest number in [0, 1] for which the ESS
of w·η reaches the threshold, so that a resampling never has to choose among fewer. Since what
was not selected for is still in the weights, the next rounds go on selecting while new tokens
keep the population diverse. E[Ẑ] = Z whatever f is; finished particles count as the others.

Where no f reaches the threshold, f is the one of largest ESS. f is not kept from falling: when
outputs end and their reward arrives at once, selecting for all of it is what a large f would do.

A. Jasra, D. Stephens, A. Doucet and T. Tsagaris, "Inference for Lévy-driven stochastic
volatility models via adaptive sequential Monte Carlo", Scand. J. Statist. 38(1), 2011 (choice of
temperatures by ESS).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.particles import ess

if TYPE_CHECKING:
    from smcprog.smc.block import Progress
    from smcprog.smc.wave import Wave

__all__ = ["Tempering", "selected_share"]

GRID = 32  # shares tried where none or several may reach the threshold
HALVINGS = 30


def selected_share(log_w_R_N: Tensor, a_R_N: Tensor, least: float) -> Tensor:
    """The largest f in [0, 1] with ESS(log_w + (f − 1)·a) ≥ `least`, else that of largest ESS.

    ESS need not be monotone in f: a grid finds the last interval where it crosses `least`.

    Parameters
    ----------
    log_w_R_N : Tensor, float64
    a_R_N : Tensor, float64
        Finite where the particle is alive; 0 where it is dead.
    least : float

    Returns
    -------
    Tensor, float64, [R]
    """

    def size(f_R: Tensor) -> Tensor:
        return ess(log_w_R_N + (f_R.unsqueeze(1) - 1) * a_R_N)

    grid_G = torch.linspace(0, 1, GRID + 1, dtype=torch.float64)
    sizes_R_G = torch.stack([size(f.expand(len(a_R_N))) for f in grid_G], dim=1)
    enough_R_G = sizes_R_G >= least
    last_R = torch.where(enough_R_G, torch.arange(GRID + 1), -1).amax(1)
    low_R = grid_G[last_R.clamp(min=0)]
    high_R = grid_G[(last_R + 1).clamp(max=GRID)]
    for _ in range(HALVINGS):
        middle_R = (low_R + high_R) / 2
        holds_R = size(middle_R) >= least
        low_R = torch.where(holds_R, middle_R, low_R)
        high_R = torch.where(holds_R, high_R, middle_R)
    return torch.where(last_R >= 0, low_R, grid_G[sizes_R_G.argmax(1)])


class Tempering:
    """The annealed rewards of a wave: ``Reward(..., anneal=True)``."""

    def __init__(self, wave: Wave, annealed: list[int]) -> None:
        self._wave = wave
        self._annealed = annealed

    @classmethod
    def of(cls, wave: Wave) -> Tempering | None:
        """None where no reward is annealed."""
        annealed = [
            i for i, f in enumerate(wave.target.factors) if getattr(f, "anneal", False) is True
        ]
        return cls(wave, annealed) if annealed else None

    def value(self, block: Progress) -> Tensor:
        """a of the rows of a block, float64 [M]; 0 where dead."""
        total_M = torch.stack([block.factors[i].log_psi_M for i in self._annealed]).sum(0).cpu()
        return torch.where(block.delta_M.cpu() > -torch.inf, total_M, 0.0)

    def log_eta(self, need_R: Tensor) -> tuple[Tensor, Tensor]:
        """The requests that resample, and log η of every particle, [R, N]."""
        wave = self._wave
        r, n = wave.log_w_R_N.shape
        dead_R_N = wave.log_w_R_N == -torch.inf
        a_R_N = wave.annealed_B.view(r, n).masked_fill(dead_R_N, 0.0)
        least = wave.settings.ess_threshold * n
        share_R = selected_share(wave.log_w_R_N, a_R_N, least)
        share_R = torch.where(need_R, share_R, 1.0)
        return need_R, (share_R - 1).unsqueeze(1) * a_R_N
