"""What speed costs: log-probability of the outputs under the target, against its own samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import numpy as np

from smcprog.bench.runs import Output

__all__ = ["QUOTE_WITHIN", "Difference", "by_prompt", "compare", "proportion"]

QUOTE_WITHIN = 0.1
"""A cell may be quoted as a speed-up if its outputs are within so many nats a token."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean log p a token, minus that of autoregressive samples of the same prompts.

    Attributes
    ----------
    mean, low, high : float
        With a 95 % confidence interval over prompts; NaN where there are too few.
    """

    mean: float
    low: float
    high: float

    def quotable(self, exact: bool = False) -> str:
        """May the cell be quoted as a speed-up.

        Parameters
        ----------
        exact : bool
            The mode draws from the target itself, so only chance makes a difference.

        Returns
        -------
        {"exact", "yes", "unsure", "no"}
            "exact" if it is that, and the interval does not contradict it. "yes" if the whole
            interval is within `QUOTE_WITHIN`; "unsure" if the mean is, and the interval is
            not; else "no".
        """
        if exact and not (self.low > QUOTE_WITHIN or self.high < -QUOTE_WITHIN):
            return "exact"
        if not abs(self.mean) <= QUOTE_WITHIN:
            return "no"
        inside = self.low >= -QUOTE_WITHIN and self.high <= QUOTE_WITHIN
        return "yes" if inside else "unsure"


def by_prompt(outputs: Iterable[Output]) -> dict[int, float]:
    """Mean log p a token of each prompt's outputs."""
    sums: dict[int, list[float]] = {}
    for o in outputs:
        total = sums.setdefault(o.prompt, [0.0, 0.0])
        total[0] += o.logp
        total[1] += o.tokens
    return {prompt: logp / tokens for prompt, (logp, tokens) in sums.items() if tokens}


def compare(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """Paired over the prompts that both have; the interval is Student's."""
    from scipy import stats

    gaps = np.array([ours[p] - theirs[p] for p in sorted(set(ours) & set(theirs))])
    if not len(gaps):
        return Difference(math.nan, math.nan, math.nan)
    mean = float(gaps.mean())
    if len(gaps) < 2:
        return Difference(mean, math.nan, math.nan)
    error = float(stats.sem(gaps))
    half = float(stats.t.ppf(0.975, len(gaps) - 1)) * error
    return Difference(mean, mean - half, mean + half)


def proportion(hits: int, trials: int) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson)."""
    from scipy import stats

    interval = stats.binomtest(hits, trials).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)
