"""Scores against compute: what N of M draws come to, intervals, methods at equal compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

__all__ = ["Cell", "best_of", "compare", "summary", "weighted"]

Array = NDArray[np.float64]

SUBSETS = 256  # of N draws, for what has no closed form
RESAMPLES = 2000  # of the bootstrap over items


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method with one N.

    Attributes
    ----------
    method : str
    particles : int
    rows, seconds : float
        For one answer, mean over items.
    score_I, perfect_I : array, [I]
        Of every item: the expected score, and the probability that the score is 1.
    """

    method: str
    particles: int
    rows: float
    seconds: float
    score_I: Array
    perfect_I: Array


def best_of(score_M: Array, n: int) -> tuple[float, float]:
    """Expected highest of `n` of M scores, and the probability that it is 1.

    The `n` are drawn without replacement, so that the mean over all subsets is meant; it has
    a closed form: at most the k-th smallest with probability C(k, n) / C(M, n).
    """
    ordered_M = np.sort(score_M)
    k_M = np.arange(1, len(ordered_M) + 1)
    at_most_M = np.exp(_log_choose(k_M, n) - _log_choose(np.array(len(ordered_M)), n))
    mass_M = np.diff(at_most_M, prepend=0.0)
    return float(mass_M @ ordered_M), float(mass_M[ordered_M == 1].sum())


def _log_choose(k: Any, n: int) -> Any:
    """log C(k, n); −∞ where k ‹ n."""
    enough = k >= n
    at = np.where(enough, k, n)
    return np.where(enough, gammaln(at + 1) - gammaln(n + 1) - gammaln(at - n + 1), -np.inf)


def weighted(
    score_M: Array, log_w_M: Array, n: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Expected score of one of `n` of M draws, chosen by weight, and the probability of 1."""
    picks_S_N = np.stack([rng.permutation(len(score_M))[:n] for _ in range(SUBSETS)])
    log_w_S_N = log_w_M[picks_S_N]
    top_S_1 = log_w_S_N.max(1, keepdims=True)
    w_S_N = np.exp(log_w_S_N - np.where(np.isfinite(top_S_1), top_S_1, 0.0))
    total_S = w_S_N.sum(1)
    w_S_N = w_S_N / np.where(total_S, total_S, 1.0)[:, None]
    score_S_N = score_M[picks_S_N]
    return float((w_S_N * score_S_N).sum(1).mean()), float((w_S_N * (score_S_N == 1)).sum(1).mean())


def _means(value_I: Array, seed: int) -> Array:
    """Means over items drawn with replacement; one seed draws the same items for all."""
    rng = np.random.default_rng(seed)
    picks_B_I = rng.integers(len(value_I), size=(RESAMPLES, len(value_I)))
    return np.asarray(value_I[picks_B_I].mean(1), dtype=np.float64)


def summary(cell: Cell, seed: int) -> dict[str, Any]:
    """A cell as numbers, with the 95 % interval of its score by the bootstrap over items."""
    low, high = np.quantile(_means(cell.score_I, seed), [0.025, 0.975])
    return {
        "method": cell.method,
        "particles": cell.particles,
        "rows": cell.rows,
        "seconds": cell.seconds,
        "score": float(cell.score_I.mean()),
        "low": float(low),
        "high": float(high),
        "perfect": float(cell.perfect_I.mean()),
    }


def compare(cells: Sequence[Cell], method: str, rival: str, by: str, seed: int) -> dict[str, Any]:
    """How much more `method` scores than `rival` at equal compute, item by item.

    Parameters
    ----------
    cells : sequence of Cell
    method, rival : str
    by : {"rows", "seconds"}
        What compute is.
    seed : int
        Of the bootstrap.

    Returns
    -------
    dict
        ``points``: for each N of the method the compute, the difference of the scores and
        the bounds of its 95 % interval. The rival's score at that compute lies on the straight
        lines, over log compute, through its own sizes; beyond the last of them it is that of
        the last one, and the point says so (``beyond``).
    """
    theirs = sorted((c for c in cells if c.method == rival), key=lambda c: getattr(c, by))
    at_C = np.log([getattr(c, by) for c in theirs])
    score_C_I = np.stack([c.score_I for c in theirs])
    points = []
    for cell in sorted((c for c in cells if c.method == method), key=lambda c: c.particles):
        x = np.log(getattr(cell, by))
        rival_I = np.array([np.interp(x, at_C, column) for column in score_C_I.T])
        more_I = cell.score_I - rival_I
        low, high = np.quantile(_means(more_I, seed), [0.025, 0.975])
        points.append(
            {
                "particles": cell.particles,
                by: getattr(cell, by),
                "more": float(more_I.mean()),
                "low": float(low),
                "high": float(high),
                "beyond": bool(x > at_C[-1] + 0.05),
            }
        )
    return {"method": method, "rival": rival, "by": by, "points": points}
