"""First tokens without replacement: unbiased, and different from each other.

Bounds and false-alarm rates of the runs are those of `test_many_particles`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from smcprog import Grammar, Reward, Target
from smcprog.smc.settings import Settings
from smcprog.smc.variants.first_tokens import chosen_tokens

from .test_many_particles import assert_unbiased, run_many
from .toys import gamma, in_regex, random_toy


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12, 20])
def test_every_tokens_weight_is_right_on_average(n):
    """The mean over a fine grid of uniforms, exact up to the grid."""
    rng = np.random.default_rng(n)
    w_V = rng.dirichlet(np.full(12, 0.4))
    w_V[3] = 0.0
    w_V[5] = w_V[6]  # a tie
    points = 4000
    mean_V = np.zeros(12)
    for u in (np.arange(points) + 0.5) / points:
        tokens, density = chosen_tokens(w_V, n, u)
        assert len(tokens) == len(density) == n
        if n <= 11:
            assert len(set(tokens)) == n  # all different
        else:
            assert set(tokens) == set(np.flatnonzero(w_V).tolist())
        np.add.at(mean_V, tokens, w_V[tokens] / (n * np.array(density)) / points)
    assert np.abs(mean_V - w_V).max() < 2 * n / points * w_V.max() + 1e-9


def test_heavy_tokens_are_kept_for_sure():
    w_V = np.array([0.5, 0.3, 0.1, 0.05, 0.05])
    tokens, density = chosen_tokens(w_V, 3, 0.4)
    assert tokens[:2] == [0, 1]
    assert density[:2] == [1 / 3, 1 / 3]
    assert density[2] == pytest.approx(w_V[tokens[2]] / (3 * 0.2))


@pytest.mark.parametrize(("n", "k", "masked"), [(2, 0, True), (4, 2, False), (8, 0, True)])
def test_unbiased(n, k, masked):
    toy = random_toy(np.random.default_rng(8), symbols=5)
    draft = random_toy(np.random.default_rng(9), symbols=5).lm("draft")
    pattern = "[a-c][ab]*e?"
    target = Target(toy.lm()) * Reward(lambda texts: [t.count("a") for t in texts], beta=-0.5)
    exact = {"log_reward": lambda text: -0.5 * text.count("a")}
    if masked:
        target, exact["accepts"] = target * Grammar.regex(pattern), in_regex(pattern)
    settings = Settings(
        particles=n, draft=draft if k else None, draft_tokens=k, max_tokens=4,
        ess_threshold=0.8, first_tokens="without_replacement",
    )  # fmt: skip
    z, outcomes = run_many(target, settings, not masked, 600)
    assert_unbiased(z, outcomes, gamma(toy, 4, truncate=not masked, **exact))


def test_tokens_differ_where_all_the_others_vanish_beside_them():
    w_V = np.array([1.0, 0.5, 1e-30, 1e-31])
    for u in (0.01, 0.3, 0.7, 0.99):
        assert chosen_tokens(w_V, 2, u) == ([0, 1], [1 / 2, 1 / 2])


def test_a_population_begins_with_different_tokens():
    toy = random_toy(np.random.default_rng(8), symbols=6)
    post = Target(toy.lm()).sample(
        [0], particles=5, max_tokens=1, first_tokens="without_replacement", seed=3
    )
    assert len({p.tokens[0] for p in post}) == 5
    assert not post.rounds[0].resampled
    assert math.isnan(post.log_evidence_se)
    # With as many particles as tokens, the first round is an exact sum.
    full = Target(toy.lm()).sample(
        [0], particles=7, max_tokens=1, first_tokens="without_replacement", seed=3
    )
    assert full.log_evidence == pytest.approx(0, abs=1e-12)
    for particle, weight in zip(full, full.weights, strict=True):
        assert weight == pytest.approx(toy.conditional(())[particle.tokens[0]])


def test_requests_of_one_wave_do_not_mix():
    toy = random_toy(np.random.default_rng(8), symbols=6)
    target = Target(toy.lm())
    options = {"particles": 5, "max_tokens": 3, "first_tokens": "without_replacement"}
    alone = [target.sample([0], seed=s, **options) for s in (1, 2, 2)]
    together = target.sample([[0], [0], [0]], seed=[1, 2, 2], **options)
    for a, b in zip(alone, together, strict=True):
        assert [p.tokens for p in a] == [p.tokens for p in b]
        assert a.log_evidence == pytest.approx(b.log_evidence)
