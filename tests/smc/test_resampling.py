"""The five resampling schemes: no bias, no dead ancestor, nothing but the row matters.

Lemma used for exact expectations: with weights a_i / A (A small), where a slot's ancestor changes
as its uniform moves is a multiple of a known 1/D. The mean over the D cell midpoints is then
the integral over the uniform, without statistics.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from smcprog.errors import InputError, SettingError
from smcprog.resampling import SCHEMES, resample
from smcprog.rng import STREAM_RESAMPLE, uniforms

INF = math.inf
ALL = ["multinomial", "stratified", "systematic", "residual", "ssp"]
ZERO, ONE = 0.0, 1.0
BELOW_ONE = 1 - 2.0**-53
ABOVE_ZERO = 2.0**-53

# Numerators of weights: dead ends, ties, one that has all, N = 1, whole and fractional N·w̄.
NUMERATORS = [
    [1],
    [3, 0],
    [0, 3],
    [1, 2],
    [1, 1, 1],
    [0, 0, 5, 0],
    [0, 1, 0, 3, 0],
    [4, 1, 1, 1, 1],
    [7, 2, 0, 1, 2],
    [1, 2, 3, 4, 5, 6],
    [5, 5, 0, 0, 1, 1, 0],
    [13, 1, 1, 1, 0, 1, 2, 1],
]


def log_weights(numerators: list[int], runs: int = 1) -> Tensor:
    return torch.tensor(numerators, dtype=torch.float64).log().expand(runs, -1)


def offspring(ancestors_R_N: Tensor) -> Tensor:
    """How often each particle is an ancestor, [R, N]."""
    counts = torch.zeros_like(ancestors_R_N)
    return counts.scatter_add_(1, ancestors_R_N, torch.ones_like(ancestors_R_N))


def midpoints(cells: int) -> Tensor:
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def random_case(seed: int, runs: int, n: int) -> tuple[Tensor, Tensor]:
    """Log-weights that differ by row, some dead, and the uniforms of the library."""
    generator = torch.Generator().manual_seed(seed)
    log_w = 3 * torch.randn(runs, n, dtype=torch.float64, generator=generator)
    log_w[torch.rand(runs, n, generator=generator) < 0.25] = -INF
    rows = torch.arange(runs).repeat_interleave(n)
    slots = torch.arange(n).repeat(runs)
    return log_w, uniforms(rows + 1000 * seed, slots, 0, 0, STREAM_RESAMPLE).view(runs, n)


def exact_w(log_w_R_N: Tensor) -> Tensor:
    return torch.softmax(log_w_R_N, dim=1).nan_to_num(0.0)


# --- no bias ---------------------------------------------------------------------------------


@pytest.mark.parametrize("numerators", NUMERATORS)
@pytest.mark.parametrize("scheme", ["multinomial", "stratified", "systematic", "residual"])
def test_unbiased_exactly(scheme, numerators):
    n, total = len(numerators), sum(numerators)
    # Each slot's ancestor depends on one uniform, so all may move together (the expected count
    # is a sum over slots). Ancestors change at multiples of 1/total, or of 1/(total·L) for the
    # L < N drawn slots of "residual".
    cells = total * math.lcm(*range(1, n + 1))
    u = midpoints(cells)[:, None].expand(cells, n)
    mean = offspring(resample(scheme, log_weights(numerators, cells), u)).double().mean(0)
    want = [n * a / total for a in numerators]
    assert mean.tolist() == pytest.approx(want, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "numerators",
    [[1], [3, 2], [1, 1, 3], [0, 2, 3], [2, 1, 1, 1], [1, 3, 0, 1], [5, 2, 3, 2], [0, 4, 1, 0]],
)
def test_ssp_unbiased_exactly(numerators):
    # Rests are multiples of 1/A; every threshold is a ratio with a denominator up to A.
    n, total = len(numerators), sum(numerators)
    cells = math.lcm(*range(1, total // math.gcd(total, n) + 1))
    axes = [midpoints(cells).tolist()] * (n - 1)
    u = torch.tensor([[0.5, *point] for point in itertools.product(*axes)], dtype=torch.float64)
    counts = offspring(resample("ssp", log_weights(numerators, len(u)), u)).double()
    want = [n * a / total for a in numerators]
    assert counts.mean(0).tolist() == pytest.approx(want, rel=1e-12, abs=0)


@pytest.mark.parametrize("scheme", ALL)
def test_unbiased_statistically(scheme):
    # 20,000 runs of 6 weight vectors of 12: 72 means a scheme, each within 5.2 standard errors.
    # By Bonferroni over all 360 a correct library fails for fewer than 1 seed in 10,000.
    runs, n = 20_000, 12
    for seed in range(6):
        log_w = random_case(seed, 1, n)[0]
        u = uniforms(torch.arange(runs) + 10**6 * seed, 0, 0, torch.arange(n), STREAM_RESAMPLE)
        counts = offspring(resample(scheme, log_w.expand(runs, n), u)).double()
        want = n * exact_w(log_w)[0]
        error = counts.std(0) / math.sqrt(runs)
        # A rare offspring leaves no estimate of its error; its count is then near Poisson.
        error = torch.maximum(error, (want.clamp(max=1) / runs).sqrt() * 0.5)
        deviation = (counts.mean(0) - want).abs()
        assert torch.all(deviation <= 5.2 * error + 1e-9), (seed, deviation / error)


def test_multinomial_is_independent_draws():
    # Var count = N w (1 - w) within five standard errors of 20,000 runs, 5 values: a false
    # alarm rate below 1e-5.
    runs, numerators = 20_000, [1, 2, 3, 4, 10]
    n, total = 5, 20
    u = uniforms(torch.arange(runs), 0, 0, torch.arange(n), STREAM_RESAMPLE)
    counts = offspring(resample("multinomial", log_weights(numerators, runs), u)).double()
    for i, a in enumerate(numerators):
        p = a / total
        var = n * p * (1 - p)
        fourth = var * (1 + 3 * (n - 2) * p * (1 - p))  # central fourth moment of a binomial
        se = math.sqrt((fourth - var**2) / runs)
        assert abs(counts[:, i].var().item() - var) < 5 * se


@pytest.mark.parametrize("scheme", ALL)
def test_variance_is_at_most_that_of_multinomial(scheme):
    # Holds always for "stratified" and "residual" (Douc et al. 2005); the order of particles can
    # spoil it for the others, but not on these weights, with room for the noise of 20,000 runs.
    runs = 20_000
    numerators = [1, 2, 3, 4, 10]
    u = uniforms(torch.arange(runs), 0, 0, torch.arange(5), STREAM_RESAMPLE)
    value = torch.tensor([0.3, -1.0, 2.0, 0.7, 1.1], dtype=torch.float64)

    def scatter(name: str) -> float:
        return value[resample(name, log_weights(numerators, runs), u)].mean(1).var().item()

    assert scatter(scheme) <= scatter("multinomial") * 1.05


# --- what every scheme keeps ----------------------------------------------------------------


def check_ancestors(scheme: str, log_w: Tensor, u: Tensor) -> None:
    """Range, dead particles, dead rows and the bounds on counts that the scheme promises."""
    n = log_w.shape[1]
    ancestors = resample(scheme, log_w, u)
    assert ancestors.dtype == torch.int64
    assert ancestors.shape == log_w.shape
    assert ancestors.min() >= 0
    assert ancestors.max() < n
    dead_rows = (log_w == -INF).all(1)
    assert torch.equal(ancestors[dead_rows], torch.arange(n).expand(int(dead_rows.sum()), n))
    living = ~dead_rows
    assert torch.all(log_w.gather(1, ancestors)[living] > -INF)
    counts = offspring(ancestors)[living].double()
    share = n * exact_w(log_w)[living]
    slack = 1e-9  # N·w̄ at a whole number may round to either side
    if scheme in ("systematic", "ssp", "residual"):
        assert torch.all(counts >= (share - slack).floor())
    if scheme in ("systematic", "ssp"):
        assert torch.all(counts <= (share + slack).ceil())
    if scheme == "stratified":
        assert torch.all((counts - share).abs() < 2)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33, 300])
@pytest.mark.parametrize("scheme", ALL)
def test_random_rows(scheme, n):
    log_w, u = random_case(n, 200, n)
    log_w[::7] = -INF
    check_ancestors(scheme, log_w, u)


EDGES = [
    [0.0],
    [0.0, -INF],
    [-INF, 0.0],
    [-INF, 0.0, -INF],
    [0.0, 0.0, 0.0, -INF],
    [-INF, 0.0, 0.0, 0.0],
    [0.0, math.log(1e-300), math.log(1e-300)],
    [math.log(1e-300), 0.0, -INF],
    [-INF, math.log(1e-300), 0.0, math.log(1e-16), -INF],
    [-1e4, -1e4, -1e4 - 1e-9],
    [-1e300, -1e300],
    [700.0, 0.0, -700.0, -INF],
    [0.0] * 10,
    [0.1] * 7 + [-INF],
    [-INF, -INF],
    [0.0, -800.0],
]


@pytest.mark.parametrize("u_value", [ZERO, ABOVE_ZERO, 1e-300, 0.5, BELOW_ONE, ONE])
@pytest.mark.parametrize("log_w", EDGES)
@pytest.mark.parametrize("scheme", ALL)
def test_edges(scheme, log_w, u_value):
    log_w_R_N = torch.tensor([log_w], dtype=torch.float64)
    check_ancestors(scheme, log_w_R_N, torch.full_like(log_w_R_N, u_value))


@pytest.mark.parametrize("n", [3, 10, 49, 100, 1000, 5000])
def test_last_systematic_point_does_not_overrun(n):
    # (N - 1 + u) / N rounds to 1 for u next to 1; the last living particle must take it.
    log_w = torch.zeros(1, n, dtype=torch.float64)
    log_w[:, n - 2 :] = -INF
    u = torch.full_like(log_w, BELOW_ONE)
    for scheme in ("systematic", "stratified", "multinomial"):
        assert resample(scheme, log_w, u)[0, -1] == n - 3


@pytest.mark.parametrize("scheme", ["stratified", "systematic", "residual", "ssp"])
@pytest.mark.parametrize("n", [1, 2, 7, 10, 100])
def test_equal_weights_change_nothing(scheme, n):
    u = random_case(n, 50, n)[1]
    log_w = torch.full((50, n), -12.3, dtype=torch.float64)
    assert torch.equal(resample(scheme, log_w, u), torch.arange(n).expand(50, n))


@pytest.mark.parametrize("scheme", ALL)
def test_one_has_all(scheme):
    u = random_case(0, 20, 6)[1]
    log_w = torch.full((20, 6), -INF, dtype=torch.float64)
    log_w[:, 4] = -1e6
    assert torch.all(resample(scheme, log_w, u) == 4)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 37, 200])
@pytest.mark.parametrize("scheme", ALL)
def test_rows_do_not_depend_on_the_batch(scheme, n):
    log_w, u = random_case(n, 40, n)
    log_w[3] = -INF
    together = resample(scheme, log_w, u)
    alone = [resample(scheme, log_w[r : r + 1], u[r : r + 1]) for r in range(40)]
    assert torch.equal(together, torch.cat(alone))


def test_systematic_uses_the_first_uniform_only():
    log_w, u = random_case(5, 30, 9)
    other = u.clone()
    other[:, 1:] = 1 - u[:, 1:]
    assert torch.equal(resample("systematic", log_w, u), resample("systematic", log_w, other))


@pytest.mark.parametrize("scheme", ALL)
def test_schemes_take_normalised_weights(scheme):
    log_w, u = random_case(6, 30, 9)
    log_w[0] = -INF
    assert torch.equal(SCHEMES[scheme](exact_w(log_w), u), resample(scheme, log_w, u))


@pytest.mark.parametrize("scheme", ALL)
def test_no_population_at_all(scheme):
    empty = torch.zeros(0, 4, dtype=torch.float64)
    assert resample(scheme, empty, empty).shape == (0, 4)


weights = st.one_of(st.just(-INF), st.floats(-800, 800), st.sampled_from([0.0, -690.0, 1.0]))
unit = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([ZERO, ABOVE_ZERO, BELOW_ONE]))


@st.composite
def populations(draw):
    n = draw(st.integers(1, 9))
    runs = draw(st.integers(1, 3))
    row = st.lists(weights, min_size=n, max_size=n)
    points = st.lists(unit, min_size=n, max_size=n)
    log_w = [draw(row) for _ in range(runs)]
    u = [draw(points) for _ in range(runs)]
    return torch.tensor(log_w, dtype=torch.float64), torch.tensor(u, dtype=torch.float64)


@pytest.mark.parametrize("scheme", ALL)
@settings(derandomize=True, max_examples=150, deadline=None)
@given(population=populations())
def test_any_population(scheme, population):
    log_w, u = population
    check_ancestors(scheme, log_w, u)
    alone = [resample(scheme, log_w[r : r + 1], u[r : r + 1]) for r in range(len(u))]
    assert torch.equal(resample(scheme, log_w, u), torch.cat(alone))


# --- refusals -------------------------------------------------------------------------------


def test_unknown_scheme_names_the_five():
    one = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(SettingError) as caught:
        resample("Systematic", one, one)
    assert "'Systematic'" in str(caught.value)
    assert all(f'"{name}"' in str(caught.value) for name in ALL)
    assert list(SCHEMES) == ALL


@pytest.mark.parametrize("shapes", [((2, 3), (2, 1)), ((3,), (3,)), ((2, 0), (2, 0))])
def test_wrong_shapes(shapes):
    log_w, u = (torch.zeros(shape, dtype=torch.float64) for shape in shapes)
    with pytest.raises(InputError, match="must both be"):
        resample("systematic", log_w, u)
