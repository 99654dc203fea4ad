"""Standard error of log Ẑ from one run, read off the genealogy of the particles.

Follow every final particle back to the first population; e is the initial particle it
descends from (its *Eve* index), and W_e is the total final normalised weight of the
descendants of e. If Ẑ did not depend on which initial particles were drawn, all W_e would
be near 1/N; their spread estimates the relative variance of Ẑ, which is Var(log Ẑ) to
first order.

With r multinomial resamplings of N particles, pairs of different descent are independent
enough for

    V = 1 − (N / (N − 1))^(r + 1) · (1 − Σ_e W_e²)

to satisfy E[Ẑ² V] = Var(Ẑ) exactly (Lee and Whiteley 2018, theorem 1, resampling times
fixed). The power of N / (N − 1) takes out the noise that multinomial resampling adds to the
family sizes even where the weights are equal. The other schemes add next to none of it, so
for them the power is 1:

    V = N / (N − 1) · Σ_e (W_e − 1/N)²  =  N / (N − 1) · (Σ_e W_e² − 1/N)

which counts the little they add as if it were variance of Ẑ (the form of Chan and Lai 2013).
Without resampling the two agree, and are 1/ESS − 1/N times N / (N − 1): the usual estimate
for importance sampling.

References
----------
H. P. Chan and T. L. Lai, "A general theory of particle filters in hidden Markov models and
some applications", Annals of Statistics 41(6), 2013.
A. Lee and N. Whiteley, "Variance estimation in the particle filter", Biometrika 105(3), 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["eve_indices", "log_evidence_standard_error", "normalised", "relative_variance"]


def normalised(log_w_N: ArrayLike) -> NDArray[np.float64]:
    """Weights that sum to 1; all zeros where no particle is alive.

    Parameters
    ----------
    log_w_N : array_like, [N]
        Log-weights; −∞ is a dead particle.

    Returns
    -------
    ndarray, float64, [N]
    """
    log_w_N = np.asarray(log_w_N, dtype=np.float64)
    top = log_w_N.max(initial=-np.inf)
    if top == -np.inf:
        return np.zeros(log_w_N.shape)
    w_N = np.exp(log_w_N - top)
    return np.asarray(w_N / w_N.sum())


def eve_indices(ancestors: Sequence[Sequence[int] | None], n: int) -> NDArray[np.int64]:
    """Initial particle that each final particle descends from.

    Parameters
    ----------
    ancestors : sequence of (sequence of int, [N], or None)
        One entry a round, in order: entry i of a round's list is the particle, numbered as
        before that round's resampling, that particle i continues. None where the round did
        not resample.
    n : int
        Number of particles, N.

    Returns
    -------
    ndarray, int64, [N]
    """
    eve_N = np.arange(n)
    for round_number, ancestors_N in enumerate(ancestors):
        if ancestors_N is None:
            continue
        a_N = np.asarray(ancestors_N, dtype=np.int64)
        if a_N.shape != (n,) or a_N.min(initial=0) < 0 or a_N.max(initial=0) >= n:
            raise ValueError(
                f"ancestors of round {round_number} must be {n} numbers from 0 to {n - 1}, "
                f"got {list(ancestors_N)}"
            )
        eve_N = eve_N[a_N]
    return eve_N


def relative_variance(
    ancestors: Sequence[Sequence[int] | None], log_w_N: ArrayLike, *, multinomial: bool
) -> float:
    """Estimate V of Var(Ẑ) / Z², as in the head of this module.

    Parameters
    ----------
    ancestors : sequence of (sequence of int, [N], or None)
        One entry a round; None where the round did not resample. See `eve_indices`.
    log_w_N : array_like, [N]
        Final log-weights.
    multinomial : bool
        Whether resampling was multinomial.

    Returns
    -------
    float
        Can be negative where `multinomial`. NaN for N = 1 and for a dead population.
    """
    w_N = normalised(log_w_N)
    n = len(w_N)
    if n < 2 or not w_N.any():
        return float("nan")
    family_N = np.bincount(eve_indices(ancestors, n), weights=w_N, minlength=n)
    squares = float(np.sum(family_N**2))
    if not multinomial:
        return n / (n - 1) * max(squares - 1 / n, 0.0)
    resamplings = sum(ancestors_N is not None for ancestors_N in ancestors)
    if resamplings == 0:  # the same value, without the cancellation of 1 − (1 − ...)
        return n / (n - 1) * max(squares - 1 / n, 0.0)
    # In logs: the power overflows a float where resamplings are many and particles few.
    log_pairs = (resamplings + 1) * -np.log1p(-1 / n) + np.log(max(1 - squares, 1e-300))
    return float(-np.expm1(min(log_pairs, 700.0)))


def log_evidence_standard_error(
    ancestors: Sequence[Sequence[int] | None], log_w_N: ArrayLike, *, multinomial: bool
) -> float:
    """Standard error of log Ẑ from one run: the square root of `relative_variance`.

    It is a first-order value, good where it is well below 1. Pooling several runs of
    different seeds gives one that does not lean on a single genealogy.

    Parameters
    ----------
    ancestors : sequence of (sequence of int, [N], or None)
        One entry a round; None where the round did not resample. See `eve_indices`.
    log_w_N : array_like, [N]
        Final log-weights.
    multinomial : bool
        Whether resampling was multinomial. Otherwise the value is approximate (it tends to
        be a little too large).

    Returns
    -------
    float
        NaN where one run cannot tell: N = 1; every particle dead; all particles of positive
        weight share one initial ancestor after at least one resampling; or the multinomial
        estimate is negative, as happens when resamplings are not few against particles.
    """
    w_N = normalised(log_w_N)
    resampled = any(ancestors_N is not None for ancestors_N in ancestors)
    if resampled and len(set(eve_indices(ancestors, len(w_N))[w_N > 0].tolist())) < 2:
        return float("nan")
    variance = relative_variance(ancestors, log_w_N, multinomial=multinomial)
    return float(np.sqrt(variance)) if variance >= 0 else float("nan")
