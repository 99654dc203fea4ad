"""The exact distribution of a small target: the tree of its outputs, heaviest prefix first."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import defaultdict

import torch
from torch import Tensor

from smcprog.potentials import Potential, Request
from smcprog.potentials.bitmask import unpack_bitmask

__all__ = ["Truth", "enumerate_outputs"]

BATCH = 64  # prefixes whose next tokens are computed in one call


@dataclasses.dataclass(frozen=True)
class Truth:
    """γ of the outputs found.

    Attributes
    ----------
    gamma : dict
        Token sequence, EOS included → γ.
    unexplored : float
        Most that all other outputs together can weigh.
    prefixes : int
        How many were expanded.
    """

    gamma: dict[tuple[int, ...], float]
    unexplored: float
    prefixes: int


def enumerate_outputs(
    model: Potential,
    grammar: Potential,
    request: Request,
    *,
    share: float = 1e-3,
    most: int = 4096,
) -> Truth:
    """Expand prefixes until what is left is less than `share` of what was found.

    Parameters
    ----------
    model : Potential
        LM-like, normalised at every step: the mass of a prefix bounds that of its outputs.
    grammar : Potential
        Masks, and 1 or 0.
    request : Request
        Its `max_tokens` and EOS ids count; the last token can only be EOS.
    share : float
    most : int
        Prefixes that are expanded at most.
    """
    eos = sorted(request.vocab.eos_ids)
    gamma: dict[tuple[int, ...], float] = defaultdict(float)
    order = itertools.count()
    heap: list[tuple[float, int, tuple[int, ...]]] = [(-1.0, next(order), ())]
    waiting, found, expanded = 1.0, 0.0, 0
    roots = (model.start(request, 1), grammar.start(request, 1))
    while heap and waiting > share * found and expanded < most:
        group = [heapq.heappop(heap) for _ in range(min(BATCH, len(heap)))]
        prefixes = [prefix for _, _, prefix in group]
        expanded += len(group)
        logp_N_V = _next_logp(model, grammar, roots, prefixes, request)
        waiting -= sum(-mass for mass, _, _ in group)
        for (minus, _, prefix), logp_V in zip(group, logp_N_V, strict=True):
            for token in eos:
                if (p := -minus * math.exp(float(logp_V[token]))) > 0:
                    gamma[(*prefix, token)] += p
                    found += p
            logp_V[eos] = -math.inf
            if len(prefix) + 2 > request.max_tokens:
                continue
            possible = torch.nonzero(logp_V > -math.inf).flatten()
            for token, log_step in zip(possible.tolist(), logp_V[possible].tolist(), strict=True):
                mass = -minus * math.exp(log_step)
                if mass > 0:
                    heapq.heappush(heap, (-mass, next(order), (*prefix, token)))
                    waiting += mass
    for potential, state in zip((model, grammar), roots, strict=True):
        potential.release(state)
    return Truth(dict(gamma), max(0.0, -sum(mass for mass, _, _ in heap)), expanded)


def _next_logp(
    model: Potential,
    grammar: Potential,
    roots: tuple[object, object],
    prefixes: list[tuple[int, ...]],
    request: Request,
) -> Tensor:
    """log p of every next token under the mask, float64 [N, V], on the host."""
    width = max(map(len, prefixes))
    tokens_N_T = torch.tensor([[*p, *[0] * (width - len(p))] for p in prefixes]).long()
    tokens_N_T = tokens_N_T.view(len(prefixes), width)
    lengths_N = torch.tensor([len(p) for p in prefixes])
    running_N = torch.zeros(len(prefixes), dtype=torch.bool)
    out = []
    for potential, root in zip((model, grammar), roots, strict=True):
        state = potential.fork(root, torch.zeros(len(prefixes), dtype=torch.int64))
        try:
            state, _ = potential.advance(state, tokens_N_T, lengths_N, running_N)
            out.append(potential.next_logw(state) if potential is model else potential.mask(state))
        finally:
            potential.release(state)
    logw_N_V, mask = out
    assert logw_N_V is not None and mask is not None
    logw_N_V = logw_N_V[:, : request.vocab.size].double().cpu()
    return logw_N_V.masked_fill(~unpack_bitmask(mask, logw_N_V.shape[1]).cpu(), -math.inf)
