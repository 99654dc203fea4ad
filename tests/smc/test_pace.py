"""`draft_tokens="auto"`: finds the best K for known times and weights, and stays unbiased."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import Grammar, Target
from smcprog.errors import SettingError
from smcprog.smc.pace import MOST_AUTO, Pace
from smcprog.smc.settings import Settings

from ..exactness.test_many_particles import assert_unbiased, run_many
from ..exactness.toys import gamma, in_regex, random_toy


def best(base, slope, spread, kept):
    def worth(k):
        length = sum(kept**i for i in range(k + 1))
        return length * math.exp(-spread * (length - kept**k)) / (base + slope * k)

    return max(range(1, MOST_AUTO + 1), key=worth)


@pytest.mark.parametrize(
    ("base", "slope", "spread", "kept"),
    [
        (1.0, 0.05, 0.01, 1.0),
        (1.0, 0.05, 0.3, 1.0),
        (1.0, 0.9, 0.05, 1.0),
        (1.0, 0.1, 0.0, 0.8),
        (1.0, 0.02, 0.0, 0.95),
        (1.0, 0.3, 0.0, 0.5),
    ],
)
def test_finds_the_best_block_length(base, slope, spread, kept):
    """Weights log-normal with the given χ² a token; 4,096 particles, so noise is small."""
    generator = torch.Generator().manual_seed(0)
    pace = Pace()
    for _ in range(30):
        k = pace.next()
        sigma = math.sqrt(spread * k)  # log(1 + χ²) of a log-normal weight is σ²
        delta = sigma * torch.randn(1, 4096, generator=generator, dtype=torch.float64)
        offers = sum(kept**i for i in range(k))
        pace.learn(k, base + slope * k, delta, kept * offers, offers)
    assert pace.next() == pytest.approx(best(base, slope, spread, kept), abs=1)
    assert pace.log_spread == pytest.approx(spread, abs=0.05)
    assert pace.kept == pytest.approx(kept, abs=0.05)


def test_dead_populations_and_equal_times_are_no_trouble():
    pace = Pace()
    for _ in range(6):
        k = pace.next()
        assert 1 <= k <= MOST_AUTO
        pace.learn(k, 0.0, torch.full((2, 3), -math.inf, dtype=torch.float64))
        pace.learn(k, 1.0, torch.tensor([[0.0, math.nan, -1.0]], dtype=torch.float64))


@pytest.mark.parametrize("coupling", [1.0, 2.0, math.inf])
def test_evidence_stays_unbiased(coupling):
    """K follows the clock here, so runs differ; a false alarm is due in about 1 of 5,000."""
    rng = np.random.default_rng(5)
    toy, other = random_toy(rng, eos=0.1), random_toy(rng, eos=0.1)
    target = Target(toy.lm()) * Grammar.regex("a[ab]*")
    settings = Settings(
        particles=4, draft=other.lm("draft"), draft_tokens="auto", coupling=coupling, max_tokens=7
    )
    z, outcomes = run_many(target, settings, True)
    assert_unbiased(z, outcomes, gamma(toy, 7, truncate=True, accepts=in_regex("a[ab]*")))


def test_what_is_refused():
    with pytest.raises(SettingError, match='draft_tokens must be a number or "auto"'):
        Settings(draft_tokens="often")
    with pytest.raises(SettingError, match="deterministic"):
        Settings(draft_tokens="auto", deterministic=True)
