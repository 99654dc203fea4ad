"""The genealogy estimate of Var(log Ẑ), on a toy whose Z is known exactly.

The toy: a two-state Markov chain of six steps with a positive factor at each step. SMC over
it is written here from the definitions, many runs at once. Seeds are fixed, so a failure
repeats; over all seeds, each 4-standard-error check fails by chance with probability 6e-5
(normal, two-sided), all of them together with less than 1e-3.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from smcprog.smc.standard_error import (
    eve_indices,
    log_evidence_standard_error,
    normalised,
    relative_variance,
)

START = np.array([0.5, 0.5])
STEP = np.array([[0.7, 0.3], [0.2, 0.8]])
FACTOR = np.array([[1, 0.3], [0.2, 1.4], [1, 0.1], [0.3, 1], [1.2, 0.2], [0.1, 1]])


def exact_evidence() -> float:
    """Z by the forward recursion."""
    alpha = START * FACTOR[0]
    for factor in FACTOR[1:]:
        alpha = (alpha @ STEP) * factor
    return float(alpha.sum())


def draw_ancestors(scheme: str, w_M_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    runs, n = w_M_N.shape
    edges = np.cumsum(w_M_N, axis=1)
    edges /= edges[:, -1:]
    u = {
        "multinomial": lambda: rng.random((runs, n)),
        "systematic": lambda: (np.arange(n) + rng.random((runs, 1))) / n,
        "stratified": lambda: (np.arange(n) + rng.random((runs, n))) / n,
    }[scheme]()
    return (u[:, :, None] >= edges[:, None, :]).sum(axis=2).clip(0, n - 1)


def run_smc(runs: int, n: int, scheme: str, resample_after: set[int], seed: int):
    """log Ẑ, one list of ancestors a step (None: no resampling), and final log-weights."""
    rng = np.random.default_rng(seed)
    x = (rng.random((runs, n)) < START[1]).astype(int)
    log_w, log_z = np.zeros((runs, n)), np.zeros(runs)
    ancestors: list[np.ndarray | None] = []
    for t, factor in enumerate(FACTOR):
        if t:
            x = (rng.random((runs, n)) < STEP[x, 1]).astype(int)
        log_w = log_w + np.log(factor[x])
        if t not in resample_after:
            ancestors.append(None)
            continue
        w = np.exp(log_w)
        drawn = draw_ancestors(scheme, w, rng)
        x = np.take_along_axis(x, drawn, axis=1)
        log_z += np.log(w.mean(axis=1))
        log_w = np.zeros((runs, n))
        ancestors.append(drawn)
    log_z += np.log(np.exp(log_w).mean(axis=1))
    return log_z, ancestors, log_w


def estimates(scheme: str, ancestors: list[np.ndarray | None], log_w: np.ndarray, function):
    return np.array(
        [
            function(
                [None if a is None else a[m].tolist() for a in ancestors],
                log_w[m],
                multinomial=scheme == "multinomial",
            )
            for m in range(len(log_w))
        ]
    )


@pytest.mark.parametrize("n", [4, 16])
@pytest.mark.parametrize("resample_after", [set(), {2}, {0, 2, 4}, {0, 1, 2, 3, 4}])
def test_multinomial_estimate_is_unbiased(n: int, resample_after: set[int]) -> None:
    """E[Ẑ² V] = Var(Ẑ): with Z known, Ẑ² V − (Ẑ² − Z²) has mean zero."""
    log_z, ancestors, log_w = run_smc(6000, n, "multinomial", resample_after, seed=11)
    v = estimates("multinomial", ancestors, log_w, relative_variance)
    square = np.exp(2 * (log_z - math.log(exact_evidence())))
    off = square * v - (square - 1)
    assert abs(off.mean()) < 4 * off.std(ddof=1) / math.sqrt(len(off))


def test_equal_weights_have_no_variance() -> None:
    """Multinomial resampling of equal weights adds nothing to Ẑ, and the estimate knows."""
    rng = np.random.default_rng(5)
    n, values = 8, []
    for _ in range(4000):
        ancestors = rng.integers(0, n, size=(3, n)).tolist()
        values.append(relative_variance(ancestors, np.zeros(n), multinomial=True))
    spread = np.array(values)
    assert abs(spread.mean()) < 4 * spread.std(ddof=1) / math.sqrt(len(spread))
    identity = [list(range(n))] * 3
    assert relative_variance(identity, np.zeros(n), multinomial=False) == 0


@pytest.mark.parametrize(
    ("scheme", "low", "high"),
    # Multinomial: 4 standard errors of both variances. The others count the noise that
    # resampling adds to family sizes as variance of Ẑ, and are too large by up to about 2.
    [("multinomial", 0.8, 1.2), ("systematic", 0.9, 2.0), ("stratified", 0.9, 2.5)],
)
def test_matches_the_spread_of_log_evidence(scheme: str, low: float, high: float) -> None:
    log_z, ancestors, log_w = run_smc(3000, 100, scheme, {2, 4}, seed=3)
    v = estimates(scheme, ancestors, log_w, relative_variance)
    assert low < v.mean() / log_z.var(ddof=1) < high


def test_interval_covers_the_truth() -> None:
    log_z, ancestors, log_w = run_smc(1500, 100, "multinomial", {2, 4}, seed=8)
    se = estimates("multinomial", ancestors, log_w, log_evidence_standard_error)
    known = ~np.isnan(se)
    covered = np.abs(log_z - math.log(exact_evidence()))[known] < 2 * se[known]
    assert known.mean() > 0.95
    assert covered.mean() > 0.85


@pytest.mark.parametrize("multinomial", [True, False])
def test_without_resampling_it_is_importance_sampling(multinomial: bool) -> None:
    log_w = np.array([-1.0, -2.5, 0.3, -np.inf, -0.7])
    w = normalised(log_w)
    expected = 5 / 4 * ((w**2).sum() - 1 / 5)
    assert relative_variance([None] * 4, log_w, multinomial=multinomial) == pytest.approx(expected)
    se = log_evidence_standard_error([None] * 4, log_w, multinomial=multinomial)
    assert se == pytest.approx(math.sqrt(expected))


def test_eve_follows_every_resampling() -> None:
    assert eve_indices([None, [0, 0, 2, 3], None, [3, 1, 1, 0]], 4).tolist() == [3, 0, 0, 0]
    assert eve_indices([], 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("multinomial", [True, False])
def test_nan_where_one_run_cannot_tell(multinomial: bool) -> None:
    def se(ancestors, log_w) -> float:
        return log_evidence_standard_error(ancestors, log_w, multinomial=multinomial)

    assert math.isnan(se([], [0.0]))
    assert math.isnan(se([], [-np.inf, -np.inf]))
    assert math.isnan(se([[1, 1, 1]], [0.0, -1.0, -2.0]))
    # Only particles of positive weight count as survivors ...
    assert math.isnan(se([[0, 1, 1]], [-np.inf, 0.0, -1.0]))
    # ... and one survivor without any resampling is importance sampling like any other.
    assert se([None], [-np.inf, 0.0, -np.inf]) == pytest.approx(1.0)


def test_many_resamplings_of_few_particles_do_not_overflow() -> None:
    ancestors = [[0, 1]] * 5000
    assert relative_variance(ancestors, [0.0, 0.0], multinomial=True) < -1e300
    assert math.isnan(log_evidence_standard_error(ancestors, [0.0, 0.0], multinomial=True))
    assert log_evidence_standard_error(ancestors, [0.0, 0.0], multinomial=False) == 0


@pytest.mark.parametrize("bad", [[0, 1], [0, 1, 3], [-1, 0, 1]])
def test_wrong_ancestors_are_refused(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="ancestors of round 1 must be 3 numbers from 0 to 2"):
        eve_indices([None, bad], 3)


def test_large_log_weights() -> None:
    w = normalised([-5000.0, -5000.0, -np.inf])
    assert w.tolist() == [0.5, 0.5, 0.0]
    assert normalised([800.0, 800.0]).tolist() == [0.5, 0.5]
