"""Waste-free SMC: few ancestors, many moves, and every state on the way is a particle.

Instead of N ancestors of which each is moved and only its last state kept, M = N/P ancestors are
drawn, each is moved P − 1 times by block moves (`smcprog.smc.variants.moves`), and all P states
of its chain stay. A move leaves the intermediate target invariant, so the mean over a chain of
any function has the expectation that the resampled population gives it, and E[Ẑ] = Z. That needs
chains in every round: where ESS decided about them, they would depend on the blocks they move.

Dau and Chopin, "Waste-free sequential Monte Carlo", JRSS B 84(1), 2022 (arXiv 2011.02328).
"""

from __future__ import annotations

import torch
from torch import Tensor

from smcprog.rng import STREAM_MOVE, uniforms

__all__ = ["chain_heads"]

NOBODY = 0xFFFF_FFFF  # no particle has this number


def chain_heads(drawn_R_N: Tensor, chain: int, seeds_R: Tensor, round_number: int) -> Tensor:
    """N/P of N ancestors, each P times side by side, [R, N].

    Every P-th slot is taken, from a random one on. That keeps the share of each particle in
    expectation for any scheme, and makes N/P systematic draws of N of them.

    Parameters
    ----------
    drawn_R_N : Tensor, int64
        Ancestors as a scheme gives them, N draws.
    chain : int
        P, which divides N.
    seeds_R : Tensor, int64
    round_number : int
    """
    n = drawn_R_N.shape[1]
    u_R = uniforms(seeds_R, NOBODY, round_number, 0, STREAM_MOVE)
    first_R = (u_R * chain).long().clamp(max=chain - 1)
    slot_N = torch.arange(n) // chain * chain
    return drawn_R_N.gather(1, first_R.unsqueeze(1) + slot_N)
