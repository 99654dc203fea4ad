"""Log-mean-exp, normalised weights and effective sample size."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog.particles import ess, logmeanexp, normalized

INF = math.inf


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_hand_computed():
    log_w = rows([math.log(1), math.log(2), math.log(5)])
    assert logmeanexp(log_w).item() == pytest.approx(math.log(8 / 3), rel=1e-15)
    assert normalized(log_w).tolist()[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=1e-15)
    assert ess(log_w).item() == pytest.approx(64 / 30, rel=1e-15)


def test_dead_rows():
    log_w = rows([-INF, -INF, -INF], [-INF, 3.0, -INF], [0.0, 0.0, -INF])
    mean, w, size = logmeanexp(log_w), normalized(log_w), ess(log_w)
    assert mean.tolist() == [-INF, pytest.approx(3 - math.log(3)), pytest.approx(math.log(2 / 3))]
    assert w.tolist() == [[0, 0, 0], [0, 1, 0], [0.5, 0.5, 0]]
    assert size.tolist() == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 31, 100, 1000])
@pytest.mark.parametrize("value", [0.0, -1234.5678, 0.1, 1e300, -1e300])
def test_equal_weights_are_exact(n, value):
    log_w = torch.full((3, n), value, dtype=torch.float64)
    assert logmeanexp(log_w).tolist() == [value] * 3
    assert ess(log_w).tolist() == [n] * 3
    assert normalized(log_w).tolist() == [[1 / n] * n] * 3


@pytest.mark.parametrize("n", [2, 3, 8, 33])
def test_rounding_does_not_push_ess_past_n(n):
    generator = torch.Generator().manual_seed(n)
    size = ess(1e-8 * torch.randn(2000, n, dtype=torch.float64, generator=generator))
    assert size.max().item() <= n
    assert size.min().item() == pytest.approx(n)


def test_extreme_weights():
    log_w = rows([-1e5, -1e5 - 700, -1e5 - 1e4], [700.0, 710.0, -INF], [0.0, -800.0, -900.0])
    assert torch.isfinite(logmeanexp(log_w)).all()
    assert logmeanexp(log_w)[0].item() == pytest.approx(-1e5 - math.log(3))
    assert normalized(log_w).sum(1).tolist() == pytest.approx([1, 1, 1], rel=1e-15)
    assert ess(log_w)[2].item() == 1


def test_single_particle():
    log_w = rows([-3.25], [-INF])
    assert logmeanexp(log_w).tolist() == [-3.25, -INF]
    assert normalized(log_w).tolist() == [[1], [0]]
    assert ess(log_w).tolist() == [1, 0]


def test_nan_is_not_hidden():
    log_w = rows([0.0, math.nan], [0.0, 0.0])
    for value in (logmeanexp(log_w), ess(log_w), normalized(log_w).sum(1)):
        assert torch.isnan(value).tolist() == [True, False]


def test_float32_is_widened():
    log_w = torch.zeros(2, 3)
    for value in (logmeanexp(log_w), ess(log_w), normalized(log_w)):
        assert value.dtype == torch.float64


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 127, 500])
def test_rows_do_not_depend_on_the_batch(n):
    generator = torch.Generator().manual_seed(n)
    log_w = 10 * torch.randn(40, n, dtype=torch.float64, generator=generator)
    log_w[torch.rand(40, n, generator=generator) < 0.2] = -INF
    for function in (logmeanexp, normalized, ess):
        together = function(log_w)
        alone = torch.cat([function(log_w[r : r + 1]) for r in range(40)])
        assert torch.equal(together, alone)


log_weights = st.lists(st.one_of(st.just(-INF), st.floats(-1e4, 1e4)), min_size=1, max_size=20)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(values=log_weights, shift=st.floats(-1e4, 1e4))
def test_laws(values, shift):
    log_w = rows(values)
    mean, w, size = logmeanexp(log_w), normalized(log_w), ess(log_w)
    if max(values) == -INF:
        assert mean.item() == -INF
        assert w.sum().item() == 0
        assert size.item() == 0
        return
    # Against math.fsum on the same shift.
    top = max(values)
    terms = [math.exp(v - top) for v in values]
    total = math.fsum(terms)
    want = top + math.log(total / len(values))
    assert mean.item() == pytest.approx(want, rel=1e-13, abs=1e-13)
    assert w.tolist()[0] == pytest.approx([t / total for t in terms], rel=1e-12, abs=1e-300)
    assert 1 <= size.item() <= len(values)
    assert size.item() == pytest.approx(total**2 / math.fsum(t * t for t in terms), rel=1e-12)
    # A common factor moves the mean only.
    assert logmeanexp(log_w + shift).item() == pytest.approx(want + shift, rel=1e-11, abs=1e-11)
    assert ess(log_w + shift).item() == pytest.approx(size.item(), rel=1e-9)
