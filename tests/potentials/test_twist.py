"""Twists change the way, not the target."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from smcprog import Grammar, Reward, Target, Twist
from smcprog.errors import PotentialError
from smcprog.potentials import Request
from smcprog.smc.settings import Settings
from smcprog.testing import check_potential

from ..exactness.test_many_particles import assert_unbiased, run_many, variance_of_one
from ..exactness.test_one_particle import assert_same, weighted_outcomes
from ..exactness.toys import bigram, gamma, in_regex, random_toy


def count_a(texts):
    return [1.5 * t.count("a") - 0.7 * t.count("b") for t in texts]


TWISTS = {
    "round": lambda: Twist(count_a),
    "boundary": lambda: Twist(count_a, at="b"),
    "pattern": lambda: Twist(count_a, at=re.compile("a+")) ** -0.5,
    "tokens": lambda: Twist(count_a, at=[0]) ** 2,
}


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("make", TWISTS.values(), ids=TWISTS)
def test_laws_and_the_value_of_complete_outputs(make, truncate):
    """The law test: ψ may be anything on the way, and φ is 1 for every complete output."""
    lm = random_toy(np.random.default_rng(0)).lm()
    request = Request([0], (0,), lm.vocab, max_tokens=4, truncate=truncate, stop=("bba",))
    check_potential(make(), request, samples=80)
    twist = make()
    moved = set()
    for y in gamma(random_toy(np.random.default_rng(0)), 4, truncate=truncate):
        for t in range(len(y) + 1):
            ended = t == len(y)
            state = twist.start(request, 1)
            _, log_psi_1 = twist.advance(state, *arguments(y[:t], ended))
            moved.add(float(log_psi_1[0]))
            if ended:
                assert float(log_psi_1[0]) == 0
    assert len(moved) >= 3  # it does say something on the way


def arguments(tokens, ended):
    row = torch.tensor([tokens], dtype=torch.int64).view(1, len(tokens))
    return row, torch.tensor([len(tokens)]), torch.tensor([ended])


@pytest.mark.parametrize(("k", "coupling"), [(0, math.inf), (2, math.inf), (2, 2.0)])
@pytest.mark.parametrize("make", TWISTS.values(), ids=TWISTS)
def test_the_final_target_is_unchanged(make, k, coupling):
    """N = 1, every draw enumerated; no false alarms."""
    rng = np.random.default_rng(3)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, coupling=coupling,
        max_tokens=4,
    )  # fmt: skip
    target = Target(toy.lm()) * Grammar.regex("a[ab]*b|b?") * make()
    want = gamma(toy, 4, truncate=True, accepts=in_regex("a[ab]*b|b?"))
    assert_same(weighted_outcomes(target, settings, True), want)


@pytest.mark.parametrize("k", [0, 2])
def test_many_particles(k):
    """Resampled by what the twist says. False-alarm rate 6e-5 for Ẑ, 1e-4 over all outcomes."""
    rng = np.random.default_rng(4)
    toy, other = random_toy(rng), random_toy(rng)
    score = lambda texts: [0.5 * t.count("a") for t in texts]  # noqa: E731
    target = Target(toy.lm()) * Reward(score) * Twist(count_a)
    settings = Settings(
        particles=8, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4,
        ess_threshold=1.0,
    )  # fmt: skip
    gammas = gamma(toy, 4, truncate=True, log_reward=lambda t: 0.5 * t.count("a"))
    assert variance_of_one(target, settings, True, sum(gammas.values())) <= 4
    assert_unbiased(*run_many(target, settings, True, runs=500), gammas)


def test_a_good_twist_makes_the_evidence_surer():
    """One output in a few hundred is rewarded; the twist foresees it from its first token on."""
    toy = bigram((0.3, 0.6, 0.1), [(0.3, 0.6, 0.1)] * 2, tokens=(b"a", b"b", b"<eos>"))
    score = lambda texts: [6.0 * (t == "aaaaa") for t in texts]  # noqa: E731
    hopes = lambda texts: [1.2 * len(t) * (set(t) <= {"a"}) for t in texts]  # noqa: E731
    base = Target(toy.lm()) * Reward(score)
    settings = Settings(particles=16, max_tokens=5, ess_threshold=1.0)
    want = sum(gamma(toy, 5, truncate=True, log_reward=lambda t: 6.0 * (t == "aaaaa")).values())
    spread = {}
    for target in (base, base * Twist(hopes)):
        z, _ = run_many(target, settings, True, runs=200)
        assert abs(z.mean() - want) < 4 * z.std(ddof=1) / math.sqrt(len(z))  # 6e-5 each
        spread[len(target.factors)] = z.std(ddof=1) / want
    assert spread[3] < 0.7 * spread[2], spread


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (-np.inf, "the log-twist is -inf for text"),
        (np.inf, r"\+?inf for text"),
        (np.nan, "NaN for text"),
        ("x", "must return numbers"),
    ],
)
def test_what_a_twist_may_not_say(returned, says):
    lm = random_toy(np.random.default_rng(0)).lm()
    twist = Twist(lambda texts: [returned] * len(texts), name="mine")
    with pytest.raises(PotentialError, match=rf"Twist\(mine\): .*{says}"):
        (Target(lm) * twist).sample([0], particles=2, max_tokens=4, seed=0)
    with pytest.raises(PotentialError, match=r"Twist\(mine\): .*one number per text"):
        (Target(lm) * Twist(lambda texts: [1.0], name="mine")).sample([0], max_tokens=4, seed=0)
