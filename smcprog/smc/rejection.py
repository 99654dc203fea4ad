"""Adaptive weighted rejection sampling: tokens drawn under a check that is asked about few.

A check c(v) ∈ {0, 1} of next tokens is too dear to ask about the whole vocabulary. A token is
drawn from the local distribution r (masked and normalised) without replacement until one is
accepted, and comes with an estimate ŵ of z = Σ_v r(v) c(v) such that

    E[ŵ · 1{token = v}] = r(v) c(v)        for every v,

so that charging the draw with the density r(v)/ŵ keeps every weight unbiased, as if the token
had been drawn from r and lived or died by c (proper weighting; Lipkin et al. 2025, "Fast
controlled generation from language models with adaptive weighted rejection sampling",
arXiv 2504.05410). A draw looks at no more than L candidates.

Let R be the tokens rejected so far and m = 1 − r(R) what is left of r.

* *Search.* A candidate is drawn from r outside R. If it is rejected, it joins R; after L
  rejections, or when nothing is left, the particle dies (weight 0).
* *Last chance.* If the L-th candidate is accepted, ŵ = m.
* *Estimate.* If an earlier one, the k-th, is accepted as v, then M = min(k, L − k) more
  candidates x₁ … x_M are drawn without replacement from r outside R ∪ {v}, and

      ŵ = 1/M Σ_i [a_i + m_i c(x_i)],

  with a_i the mass of v and of those of x₁ … x_{i−1} that were accepted, and m_i what is left
  of r before x_i. (Once nothing is left, c is known everywhere and the terms are a_i.)

*Proof.* Given R and v, E[m_i c(x_i) | x₁ … x_{i−1}] is the accepted mass among what is left, so
each term of ŵ has the mean a_i + (z − a_i) = z, and so has their average, since M is fixed by R
(this is the ordered estimator of Des Raj, JASA 51:269, 1956). Now let W(R, v) = E[ŵ 1{v} | R] at
the time the k-th candidate is drawn, for v with c(v) = 1. For k = L it is r(v)/m · m = r(v). For
k < L, by induction from k + 1 and as all of R is rejected,

    W(R, v) = r(v)/m · z + Σ_{x ∉ R, c(x) = 0} r(x)/m · r(v) = r(v)/m · (z + (m − z)) = r(v).  ∎

With M = 1 this is the paper's recursive estimator. M = k spends as many checks on the estimate
as the search took: for a z spread over many tokens E[ŵ²]/z² is then about ln(1/z), not 1/z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smcprog.smc.draws import Draw, Draws, pick
from smcprog.smc.factors import Factor
from smcprog.smc.urn import Urn

__all__ = ["draw_by_rejection"]

Ends = Callable[[Sequence[int], Sequence[int]], list[bool]]


class _Search:
    """One row's draw: `offer` is the candidate that waits for its answer, None at the end.

    Attributes
    ----------
    token : int or None
        What was accepted; None while nothing is.
    refused : int
        The candidate refused last.
    estimate : float
        ŵ, once there is no offer; 0 if nothing was accepted.
    """

    def __init__(self, urn: Urn, first: int, limit: int) -> None:
        self.offer: int | None = first
        self.token: int | None = None
        self.refused = first
        self.estimate = 0.0
        self._urn = urn
        self._limit = limit
        self._asked = 0
        self._accepted = 0.0  # mass of what was accepted
        self._terms = 0.0
        self._more = self._planned = 0

    def answer(self, accepted: bool) -> None:
        """Take the answer about the offer, and make the next one."""
        assert self.offer is not None
        self._asked += 1
        left = self._urn.left
        mass = self._urn.remove(self.offer)
        if self.token is not None:
            self._terms += self._accepted + (left if accepted else 0.0)
            self._accepted += mass if accepted else 0.0
            self._more -= 1
            self._estimate()
        elif accepted:
            self.token, self._accepted = self.offer, mass
            self._more = self._planned = min(self._asked, self._limit - self._asked)
            if self._planned:
                self._estimate()
            else:
                self.estimate, self.offer = left / self._urn.total, None
        else:
            self.refused = self.offer
            over = self._asked == self._limit or self._urn.left == 0
            self.offer = None if over else self._urn.draw()

    def _estimate(self) -> None:
        if self._urn.left == 0:
            self._terms += self._more * self._accepted
            self._more = 0
        if self._more:
            self.offer = self._urn.draw()
        else:
            self.estimate = self._terms / (self._planned * self._urn.total)
            self.offer = None


def draw_by_rejection(
    draws: Draws,
    logw_M_V: Tensor,
    drawn: Draw,
    position: int,
    running_M: Tensor,
    checks: Sequence[tuple[int, Factor]],
    ends: Ends,
) -> Draw:
    """Replace tokens that the checks refuse, and correct the densities.

    Parameters
    ----------
    draws : Draws
    logw_M_V : Tensor, [M, V]
        Log-weights under all masks.
    drawn : Draw
        First candidates, drawn in proportion to exp(logw).
    position : int
        In the block.
    running_M : Tensor, bool
        Rows that need a token; the others stay as they are.
    checks : sequence of (int, Factor)
        The factors that reject, each with its number.
    ends : callable
        From rows and tokens to whether the token would complete the row's output.

    Returns
    -------
    Draw
        With `refused_by_M` set where no token was accepted; its token is one that was refused.
    """
    rows_S = torch.nonzero(running_M & (drawn.log_total_M > -math.inf)).flatten()
    if not len(rows_S):
        return drawn
    limit = min(factor.potential.max_checks for _, factor in checks)
    rows = rows_S.tolist()
    logw_S_V = logw_M_V[rows_S]
    weights_S_V = (logw_S_V - logw_S_V.amax(dim=1, keepdim=True)).exp()
    urns = draws.urns(weights_S_V, position, rows_S)
    firsts = drawn.tokens_M[rows_S].tolist()
    searches = [_Search(urn, first, limit) for urn, first in zip(urns, firsts, strict=True)]
    refused_by = [-1] * len(rows)
    active = list(range(len(rows)))
    while active:
        offers = [(rows[i], offer) for i in active if (offer := searches[i].offer) is not None]
        asked_rows, tokens = [r for r, _ in offers], [t for _, t in offers]
        refusals = _refusals(checks, asked_rows, tokens, ends(asked_rows, tokens))
        for i, refusal in zip(active, refusals, strict=True):
            if refusal >= 0 and searches[i].token is None:
                refused_by[i] = refusal
            searches[i].answer(refusal < 0)
        active = [i for i in active if searches[i].offer is not None]
    return _replaced(drawn, logw_S_V, rows_S, searches, refused_by)


def _refusals(
    checks: Sequence[tuple[int, Factor]],
    rows: Sequence[int],
    tokens: Sequence[int],
    ended: Sequence[bool],
) -> list[int]:
    """Number of the first factor that refuses each token; −1 where none does."""
    refusals = [-1] * len(rows)
    for number, factor in checks:
        left = [i for i, refusal in enumerate(refusals) if refusal < 0]
        if not left:
            break
        admitted = factor.admits(
            [rows[i] for i in left], [tokens[i] for i in left], [ended[i] for i in left]
        )
        for i, admits in zip(left, admitted, strict=True):
            if not admits:
                refusals[i] = number
    return refusals


def _replaced(
    drawn: Draw,
    logw_S_V: Tensor,
    rows_S: Tensor,
    searches: Sequence[_Search],
    refused_by: Sequence[int],
) -> Draw:
    device = logw_S_V.device
    tokens_S = torch.tensor(
        [s.refused if s.token is None else s.token for s in searches], device=device
    )
    estimate_S = torch.tensor([s.estimate for s in searches], dtype=torch.float64, device=device)
    refused_S = torch.tensor(
        [by if s.token is None else -1 for by, s in zip(refused_by, searches, strict=True)],
        device=device,
    )
    log_r_S = pick(logw_S_V, tokens_S).double() - drawn.log_total_M[rows_S]
    # A refused row is dead whatever it is charged with, but must not become NaN.
    charged_S = log_r_S - torch.where(refused_S < 0, estimate_S, 1.0).log()
    refused_M = torch.full_like(drawn.tokens_M, -1)
    return Draw(
        drawn.tokens_M.index_copy(0, rows_S, tokens_S),
        drawn.log_density_M.index_copy(0, rows_S, charged_S),
        drawn.log_total_M,
        refused_M.index_copy(0, rows_S, refused_S),
    )
