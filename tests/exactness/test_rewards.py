"""Rewards at the end, each round and at boundaries have one and the same final target.

One particle: every draw enumerated, no statistics. Several particles, resampled at every
chance, so that what a reward says on the way steers them: bounds of `test_many_particles`.
The sums are taken from the definition, on whole texts.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from smcprog import Grammar, Reward, Target
from smcprog.smc.settings import Settings

from .test_many_particles import assert_unbiased, run_many, variance_of_one
from .test_one_particle import assert_same, weighted_outcomes
from .toys import gamma, in_regex, random_toy

BETA = 0.7
PATTERN = "a[ab]*b|b?"


def score(text):
    """Depends on the order of the letters, and its hints mislead."""
    return text.count("ab") - 0.6 * text.count("b") + 0.5 * (len(text) % 2)


def scores(texts):
    return [score(t) for t in texts]


def summed(ends):
    """β Σ score, over the ends of matches and what follows the last of them."""

    def log_reward(text):
        places = {m.end() for m in re.finditer(ends, text)} | {len(text)}
        return BETA * sum(score(text[:p]) for p in places if p > 0)

    return log_reward


def whole(text):
    return BETA * score(text)


REWARDS = {
    "end": ({"at": "end"}, whole),
    "round": ({"at": "round"}, whole),
    "string": ({"at": "b"}, whole),
    "two letters": ({"at": "ab"}, whole),
    "pattern": ({"at": re.compile("a+")}, whole),
    "tokens": ({"at": {0}}, whole),
    "sum, string": ({"at": "b", "kind": "sum"}, summed("b")),
    "sum, pattern": ({"at": re.compile("a+"), "kind": "sum"}, summed("a+")),
    "sum, tokens": ({"at": {0}, "kind": "sum"}, summed("a")),
}


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize(
    ("k", "coupling", "masked"),
    [(0, math.inf, False), (2, math.inf, True), (2, 1.0, False), (2, 2.0, True)],
)
def test_one_particle_enumerated(reward, k, coupling, masked):
    options, log_reward = REWARDS[reward]
    rng = np.random.default_rng(list(REWARDS).index(reward))
    toy, other = random_toy(rng), random_toy(rng)
    target, exact = Target(toy.lm(), power=1.5) * Reward(scores, BETA, **options), {"power": 1.5}
    if masked:
        target = target * Grammar.regex(PATTERN)
        exact["accepts"] = in_regex(PATTERN)
    draft = other.lm("draft") if k else None
    settings = Settings(particles=1, draft=draft, draft_tokens=k, coupling=coupling, max_tokens=4)
    got = weighted_outcomes(target, settings, True)
    assert_same(got, gamma(toy, 4, truncate=True, log_reward=log_reward, **exact))


RUNS = 500
ROUNDS = [(0, math.inf), (2, math.inf), (2, 2.0)]  # K and coupling


@pytest.mark.parametrize("number", range(len(REWARDS)))
def test_many_particles(number):
    options, log_reward = list(REWARDS.values())[number]
    k, coupling = ROUNDS[number % len(ROUNDS)]
    for attempt in range(20):
        rng = np.random.default_rng([number, attempt])
        toy, other = random_toy(rng), random_toy(rng)
        target = Target(toy.lm()) * Reward(scores, BETA, **options)
        draft = other.lm("draft") if k else None
        settings = Settings(
            particles=6, draft=draft, draft_tokens=k, coupling=coupling, max_tokens=4,
            ess_threshold=1.0,
        )  # fmt: skip
        gammas = gamma(toy, 4, truncate=True, log_reward=log_reward)
        if variance_of_one(target, settings, True, sum(gammas.values())) <= 2:
            break
    else:
        pytest.fail("no random model of small variance in 20 tries")
    z, outcomes = run_many(target, settings, True, RUNS)
    assert_unbiased(z, outcomes, gammas)


def test_stop_strings():
    """What a stop string cuts off is in no score, neither on the way nor at the end."""
    rng = np.random.default_rng(8)
    toy, other = random_toy(rng), random_toy(rng)
    want = {}
    for y in gamma(toy, 4, truncate=True):
        text = toy.text(y)
        cut = y if "ba" not in text else y[: text.index("ba") + 2]
        p = math.prod(toy.conditional(cut[:t][-2:])[v] for t, v in enumerate(cut))
        want[cut] = p * math.exp(summed("b")(toy.text(cut).split("ba")[0]))
    for k in (0, 3):
        settings = Settings(
            particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4,
            stop=("ba",),
        )  # fmt: skip
        target = Target(toy.lm()) * Reward(scores, BETA, at="b", kind="sum")
        assert_same(weighted_outcomes(target, settings, True), want)


def test_hints_steer():
    """With honest hints the population arrives at the good texts with more of its weight."""
    toy = random_toy(np.random.default_rng(2), eos=0.1)
    ess = {}
    for at in ("end", "round"):
        target = Target(toy.lm()) * Reward(lambda texts: [t.count("a") for t in texts], 1.5, at=at)
        posts = target.sample([[0]] * 8, particles=64, max_tokens=8, seed=list(range(8)))
        ess[at] = np.mean([p.ess for p in posts])
    assert ess["round"] > 1.5 * ess["end"]
