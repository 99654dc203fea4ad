"""Coupled rounds, every choice enumerated: E[Ẑ · 1(outcome)] = γ(outcome) for every λ.

One particle, so each path of the run has one probability and one weight; the sum over paths
is exact, and any deviation beyond rounding is an error: no false alarms.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from smcprog import Grammar, Reward, Target
from smcprog.potentials import Potential
from smcprog.smc.settings import Settings

from .enumerate_draws import enumerate_paths
from .toys import CASES, gamma, in_regex, random_toy

COUPLINGS = [1.0, 1.25, 2.0, 8.0, math.inf]
PATTERN = "a[ab]*b|b?"


def weighted_outcomes(target, settings, truncate):
    total = defaultdict(float)
    mass = 0.0
    for path in enumerate_paths(target, [0], settings, truncate):
        mass += math.exp(path.log_q)
        weight = math.exp(path.log_q + path.log_z)
        if weight > 0:
            total[path.outcome] += weight
    assert mass == pytest.approx(1, abs=1e-9)
    return dict(total)


def assert_same(got, want):
    for outcome in got.keys() | want.keys():
        assert got.get(outcome, 0.0) == pytest.approx(want.get(outcome, 0.0), abs=1e-9), outcome


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("truncate", [False, True])
def test_random_models(coupling, masked, power, k, truncate):
    rng = np.random.default_rng([k, int(power), masked, truncate])
    toy, other = random_toy(rng), random_toy(rng)
    target = Target(toy.lm(), temperature=0.8, power=power)
    exact = {"power": power, "temperature": 0.8}
    if masked:
        target = Grammar.regex(PATTERN) * target
        exact["accepts"] = in_regex(PATTERN)
    settings = Settings(
        particles=1, draft=other.lm("draft"), draft_tokens=k, coupling=coupling, max_tokens=4
    )
    got = weighted_outcomes(target, settings, truncate)
    assert_same(got, gamma(toy, 4, truncate=truncate, **exact))


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_products_with_rewards_and_stop_strings(coupling):
    rng = np.random.default_rng(41)
    a, b, c = (random_toy(rng) for _ in range(3))
    target = Target(a.lm("a")) * Target(b.lm("b"), power=0.5)
    target = target * Reward(lambda texts: [t.count("a") for t in texts], beta=-0.7)
    settings = Settings(
        particles=1, draft=c.lm("draft"), draft_tokens=2, coupling=coupling, max_tokens=4,
        stop=("ab",),
    )  # fmt: skip
    want = defaultdict(float)
    for y in gamma(a, 4, truncate=True):
        text = a.text(y)
        cut = y if "ab" not in text else y[: text.index("ab") + 2]
        p = 1.0
        for t, token in enumerate(cut):
            history = cut[:t][-2:]
            p *= a.conditional(history)[token] * b.conditional(history)[token] ** 0.5
        seen = a.text(cut).split("ab")[0]
        want[cut] = p * math.exp(-0.7 * seen.count("a"))
    assert_same(weighted_outcomes(target, settings, True), want)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("case", CASES)
def test_reference_cases(case, coupling):
    of, length = CASES[case], {"A": 5, "B": 6, "C": 5, "D": 3}[case]
    draft = random_toy(np.random.default_rng(7), symbols=len(of.toy.tokens) - 1).lm("draft")
    draft = type(draft)(of.toy.tokens, [of.toy.eos], draft.logits_S_V, draft.next_S_V, "draft")
    settings = Settings(
        particles=1, draft=draft, draft_tokens=2, coupling=coupling, max_tokens=length
    )
    got = weighted_outcomes(Target(of.toy.lm()) * of.grammar(), settings, False)
    assert_same(got, gamma(of.toy, length, truncate=False, accepts=of.accepts))


@pytest.mark.parametrize("paths", [2, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_several_drafts_per_particle(paths, masked):
    rng = np.random.default_rng(paths)
    toy, other = random_toy(rng, eos=0.4), random_toy(rng, eos=0.4)
    target = Target(toy.lm())
    accepts = {}
    if masked:
        target = target * Grammar.regex(PATTERN)
        accepts["accepts"] = in_regex(PATTERN)
    settings = Settings(
        particles=1, draft=other.lm("draft"), draft_tokens=2 if paths == 2 else 1, coupling=1.0,
        draft_paths=paths, max_tokens=4 if paths == 2 else 3,
    )  # fmt: skip
    got = weighted_outcomes(target, settings, True)
    assert_same(got, gamma(toy, settings.max_tokens, truncate=True, **accepts))


@pytest.mark.parametrize("paths", [1, 2])
def test_lossless_weights_are_the_normalisers_alone(paths):
    """Without a mask nothing is weighed at λ = 1: every path has Ẑ = 1."""
    rng = np.random.default_rng(12)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1, draft=other.lm("draft"), draft_tokens=2, coupling=1.0, draft_paths=paths,
        max_tokens=3,
    )  # fmt: skip
    for path in enumerate_paths(Target(toy.lm()), [0], settings, True):
        assert path.log_z == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("coupling", [1.25, 2.0, 8.0])
def test_weights_stay_within_their_bounds(coupling):
    """A block's tokens weigh at least 1/λ each."""
    rng = np.random.default_rng(13)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1, draft=other.lm("draft"), draft_tokens=3, coupling=coupling, max_tokens=4
    )
    lowest = min(p.log_z for p in enumerate_paths(Target(toy.lm()), [0], settings, True))
    assert lowest >= -3 * math.log(coupling) - 1e-9
    assert lowest < -1e-3  # and the weights do move


@pytest.mark.parametrize("paths", [1, 2])
def test_greedy_is_the_arg_max_with_and_without_a_draft(paths):
    rng = np.random.default_rng(14)
    toy, other = random_toy(rng, eos=0.1), random_toy(rng, eos=0.1)
    plain = Target(toy.lm(), temperature=0).sample([0], particles=2, max_tokens=8, seed=0)
    want = []
    while len(want) < 8 and (not want or want[-1] != toy.eos):
        want.append(int(np.argmax(toy.conditional(tuple(want)[-toy.order :]))))
    assert plain.tokens == want and plain.log_evidence == 0
    drafted = Target(toy.lm(), temperature=0).sample(
        [0], particles=2, max_tokens=8, seed=0, draft=other.lm("draft"), draft_tokens=3,
        coupling=1, draft_paths=paths,
    )  # fmt: skip
    assert drafted.tokens == want and drafted.log_evidence == 0


class Twice(Potential):
    """A user's model-like factor: joins nothing, looks ahead by the default, may mask too."""

    def __init__(self, toy, masks):
        self.toy, self.masks = toy, masks

    def start(self, request, n):
        return [()] * n

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        rows = [
            (*s, *t[:n])
            for s, t, n in zip(state, tokens_N_T.tolist(), lengths_N.tolist(), strict=True)
        ]
        return rows, torch.tensor([self.value(r) for r in rows], dtype=torch.float64)

    def value(self, row):
        return sum(math.log(self.toy.conditional(row[:t][-2:])[v]) for t, v in enumerate(row))

    def fork(self, state, ancestors_M):
        return [state[a] for a in ancestors_M.tolist()]

    def next_logw(self, state):
        return torch.tensor(np.array([self.toy.conditional(row[-2:]) for row in state])).log()

    def mask(self, state):
        return torch.ones((len(state), 3), dtype=torch.bool) if self.masks else None


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("masks", [False, True])
def test_a_users_model_is_part_of_the_local_distribution(coupling, masks):
    rng = np.random.default_rng(61)
    a, b, c = (random_toy(rng) for _ in range(3))
    settings = Settings(
        particles=1, draft=c.lm("draft"), draft_tokens=2, coupling=coupling, max_tokens=3
    )
    got = weighted_outcomes(Twice(b, masks) * Target(a.lm("a")), settings, True)
    other = gamma(b, 3, truncate=True)
    assert_same(got, {y: g * other[y] for y, g in gamma(a, 3, truncate=True).items()})
