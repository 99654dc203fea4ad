"""`draft_tokens="auto"`: how many tokens to draft in the next round, from the past ones.

What a round of K drafted tokens is worth per second is taken to be

    L(K) · ESS(K)/N / t(K),    ESS(K)/N = (1 + χ²)^−K,

with L the tokens a particle gains, χ² that of one drafted token's weight, and t the round's
time, a straight line in K. All three are estimated from earlier rounds with geometric
forgetting: χ² from the spread of the populations' weight increments, L from how often drafted
tokens were kept, t by least squares. Since K depends on the past only, weights stay proper
(and runs are not reproducible, because times are not).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smcprog.particles import ess

__all__ = ["MOST_AUTO", "Pace"]

MOST_AUTO = 12
"""Most tokens that "auto" drafts."""
FIRST = (4, 2, 6)
"""K of the first rounds: two different ones are needed to see how the time grows."""
MEMORY = 0.9
"""Weight of a round's figures, relative to those of the round after it."""


class Pace:
    """Chooses K round by round. Attributes are estimates so far.

    Attributes
    ----------
    log_spread : float
        log(1 + χ²) of one drafted token.
    kept : float
        Probability that a drafted token is kept.
    """

    def __init__(self) -> None:
        self.log_spread = 0.0
        self.kept = 1.0
        self._rounds = 0
        self._spread = [0.0, 0.0]  # sums of log(1 + χ²) and of drafted tokens
        self._keeps = [1.0, 1.0]  # kept and offered, with one kept in advance
        self._time = [0.0] * 5  # sums of 1, k, k², t, k t

    def next(self) -> int:
        """K of the next round."""
        if self._rounds < len(FIRST):
            return FIRST[self._rounds]
        base, slope = self._line()
        return max(range(1, MOST_AUTO + 1), key=lambda k: self._log_worth(k, base, slope))

    def learn(
        self,
        k: int,
        seconds: float,
        delta_R_N: Tensor,
        kept: float | None = None,
        offered: float | None = None,
    ) -> None:
        """Figures of one round.

        Parameters
        ----------
        k : int
            Tokens drafted, 1 or more.
        seconds : float
        delta_R_N : Tensor, float64, [R, N]
            Increments of the log-weights, NaN for rows that did not play.
        kept, offered : float, optional
            Drafted tokens that were kept and looked at; None where all are kept.
        """
        self._rounds += 1
        played_R_N = ~delta_R_N.isnan()
        log_w_R_N = torch.where(played_R_N, delta_R_N, -math.inf)
        counts_R = played_R_N.sum(1)
        some_R = (counts_R > 1) & (log_w_R_N.amax(1) > -math.inf)
        if bool(some_R.any()):
            spread_R = (counts_R[some_R] / ess(log_w_R_N[some_R])).log()
            self._spread = [
                MEMORY * old + new
                for old, new in zip(self._spread, (float(spread_R.mean()), k), strict=True)
            ]
            self.log_spread = self._spread[0] / self._spread[1]
        if kept is not None and offered:
            self._keeps = [
                MEMORY * old + new for old, new in zip(self._keeps, (kept, offered), strict=True)
            ]
            self.kept = min(self._keeps[0] / self._keeps[1], 1.0)
        moments = (1.0, k, k * k, seconds, k * seconds)
        self._time = [MEMORY * old + new for old, new in zip(self._time, moments, strict=True)]

    def _line(self) -> tuple[float, float]:
        """Time of a round as base + slope · K, both at least 0."""
        n, sk, skk, st, skt = self._time
        spread = n * skk - sk * sk
        slope = max((n * skt - sk * st) / spread, 0.0) if spread > 1e-9 * n * skk else 0.0
        return max((st - slope * sk) / n, 1e-9), slope

    def _log_worth(self, k: int, base: float, slope: float) -> float:
        length = sum(self.kept**i for i in range(k + 1))
        drafted = length - self.kept**k  # those that were kept; the last token is exact
        return math.log(length) - self.log_spread * drafted - math.log(base + slope * k)
