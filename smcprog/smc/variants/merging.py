"""Rows of two factors become the rows of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.potentials.base import State

if TYPE_CHECKING:
    from smcprog.smc.factors import Factor

__all__ = ["merge"]


def merge(
    own: Factor,
    other: Factor,
    index_M: Tensor,
    sizes_R: Sequence[int],
    before: Factor,
    base_M: Tensor,
    tokens_M_T: Tensor,
    lengths_M: Tensor,
) -> None:
    """Row i of `own` goes on from row ``index_M[i]`` of its rows followed by the other's.

    States that join are joined. Others are made again, where a row of the other's is wanted: by
    an advance from rows of an earlier factor.

    Parameters
    ----------
    own, other : Factor
        Of one potential and the same requests. The other's states are used up.
    index_M : Tensor, int64
        Rows request after request, on the host, as all that follow.
    sizes_R : sequence of int
        How many of them belong to each request.
    before : Factor
        The earlier states; left as they are.
    base_M : Tensor, int64
        The row of `before` that each row continues.
    tokens_M_T, lengths_M : Tensor, int64
        What they have taken since; none of them has ended.
    """
    count = len(own.log_psi_M)
    own.log_psi_M = torch.cat([own.log_psi_M, other.log_psi_M])[index_M.to(own.log_psi_M.device)]
    new_at = own_at = base_at = 0
    for i, owner in enumerate(own._owners):
        size = sum(sizes_R) if owner is None else sizes_R[owner]
        span = slice(new_at, new_at + size)
        own_size, base_size = own._sizes[i], before._sizes[i]
        mine, theirs = own._parts[i], other._parts[i]
        own._parts[i] = other._parts[i] = None
        own._sizes[i] = size
        states = [state for state in (mine, theirs) if state is not None]
        try:
            if owner is None and len(states) == 2:
                states = [own._guard(None, own._call, own.potential.join, states)]
            if size and owner not in own.failed:
                if owner is not None and bool((index_M[span] >= count).any()):
                    own._parts[i] = own._guard(
                        owner, _replayed, own, before._parts[i],
                        base_M[span] - base_at, tokens_M_T[span], lengths_M[span],
                    )  # fmt: skip
                else:
                    first = own_at if mine is not None else own_at + own_size
                    rows = index_M[span] - first
                    own._parts[i] = own._guard(
                        owner, own._call, own.potential.fork, states[0], rows
                    )
        finally:
            for state in states:
                own._guarded.release(state)
        new_at, own_at, base_at = new_at + size, own_at + own_size, base_at + base_size


def _replayed(
    factor: Factor, state: State, base_S: Tensor, tokens_S_T: Tensor, lengths_S: Tensor
) -> State:
    """Rows `base_S` of a state, some tokens later."""
    ended_S = torch.zeros(len(base_S), dtype=torch.bool)
    advance, fork = factor.potential.advance, factor.potential.fork
    forked = factor._call(fork, state, base_S)
    return factor._call(advance, forked, tokens_S_T, lengths_S, ended_S)[0]
