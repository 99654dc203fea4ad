"""First tokens without replacement: a population begins with as many different tokens as it can.

All particles of a request draw their first token from one distribution over the vocabulary, with
weights w_v = Π_j ψ_j(v) over models and masks. N draws waste particles on copies of likely
tokens. Here the N weighted tokens are the optimal resampling of the V tokens to N (P. Fearnhead
and P. Clifford, "On-line inference for hidden Markov models via particle filters", JRSS B 65(4),
2003): with c such that Σ_v min(w_v/c, 1) = N, a token of w_v ≥ c is kept for sure with weight
w_v, and the others are drawn by systematic sampling with chances w_v/c, to weigh c each. The
weighted tokens are unbiased for w: a particle with token v weighs N·w_v or N·c, as if v had been
drawn with density min(w_v/c, 1)/N, which is what the draw reports.

Where fewer tokens have any weight than there are particles, every token is there, the heaviest
several times: a token with n_v particles counts as drawn with density n_v/N.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.rng import STREAM_TOKEN
from smcprog.smc.block import Block
from smcprog.smc.draws import Draw, Draws

__all__ = ["FirstTokens", "PlainBlock", "chosen_tokens"]


class PlainBlock(Block):
    """A block in which a token that a check refuses kills the particle."""

    by_rejection = False


def chosen_tokens(w_V: NDArray[np.float64], n: int, u: float) -> tuple[list[int], list[float]]:
    """N tokens and the density that each counts as drawn with.

    Parameters
    ----------
    w_V : array of float64
        Weights, at least one of them positive.
    n : int
        N.
    u : float
        Uniform in (0, 1), the place of the draw in each of the strata of width c.
    """
    support = np.flatnonzero(w_V > 0)
    if len(support) <= n:
        copies = np.ones(len(support), dtype=np.int64)
        for _ in range(n - len(support)):
            copies[np.argmax(w_V[support] / copies)] += 1
        tokens = np.repeat(support, copies)
        return tokens.tolist(), np.repeat(copies / n, copies).tolist()
    ordered = support[np.argsort(-w_V[support], kind="stable")]
    w_S = w_V[ordered]
    rest_S = w_S[::-1].cumsum()[::-1]  # of each token and all lighter ones
    # With k tokens kept for sure, c = rest_k / (N − k): the first k whose next token is lighter;
    # N − 1, where all that are lighter still vanish in rounding.
    c_K = rest_S[:n] / (n - np.arange(n))
    lighter_K = w_S[:n] < c_K
    lighter_K[-1] = True
    kept = int(np.argmax(lighter_K))
    c = c_K[kept]
    point_J = (np.arange(n - kept) + u) * c
    at_J = np.searchsorted(w_S[kept:].cumsum(), point_J, side="right")
    drawn_J = ordered[kept + np.minimum(at_J, len(w_S) - kept - 1)]
    density_J = w_V[drawn_J] / (n * c)
    return [*ordered[:kept].tolist(), *drawn_J.tolist()], [1 / n] * kept + density_J.tolist()


class FirstTokens(Draws):
    """Draws of the round in which all rows of a request have the same history: none."""

    by_rejection = False

    def draw(self, logw_M_V: Tensor, position: int, rows: Tensor | None = None) -> Draw:
        """A population's tokens, and the log-densities that they count as drawn with."""
        drawn = super().draw(logw_M_V, position, rows)
        u_M = self._uniform(STREAM_TOKEN, position, rows).tolist()
        tokens_M, log_density_M = drawn.tokens_M.clone(), drawn.log_density_M.clone()
        empty = (drawn.log_total_M == -math.inf).tolist()
        begin = 0
        for size in self._population_sizes():
            span = slice(begin, begin + size)
            begin += size
            if empty[span.start]:
                continue
            # A request's rows differ by rounding at most; the first stands for all.
            logw_V = logw_M_V[span.start].double().cpu().numpy()
            tokens, density = chosen_tokens(np.exp(logw_V - logw_V.max()), size, u_M[span.start])
            tokens_M[span] = torch.tensor(tokens, device=tokens_M.device)
            log_density_M[span] = torch.tensor(np.log(density), device=tokens_M.device)
        return Draw(tokens_M, log_density_M, drawn.log_total_M)

    def _population_sizes(self) -> list[int]:
        """Rows of each request; its particles are numbered from 0."""
        begins = torch.nonzero(self._particles == 0).flatten().tolist()
        return [b - a for a, b in zip(begins, [*begins[1:], len(self._particles)], strict=True)]
