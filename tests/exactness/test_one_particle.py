"""N = 1, no statistics: over all that can be drawn, Σ q · w = γ(y) for each outcome.

The enumeration replaces the choice of tokens and nothing else; q is the distribution the
production code hands to its own draw. False-alarm rate 0.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from smcprog import Grammar, Reward, Target
from smcprog.smc.block import EOS, LENGTH, STOP
from smcprog.smc.settings import Settings

from .enumerate_draws import enumerate_paths
from .toys import CASES, gamma, in_regex, random_toy

LONG = 5


def weighted_outcomes(target, settings, truncate):
    total = defaultdict(float)
    mass = 0.0
    for path in enumerate_paths(target, [0], settings, truncate):
        mass += math.exp(path.log_q)
        weight = math.exp(path.log_q + path.log_z)
        if weight > 0:
            total[path.outcome] += weight
            assert path.finish in (EOS, LENGTH, STOP)
    assert mass == pytest.approx(1, abs=1e-9)  # nothing that can be drawn was missed
    return dict(total)


def assert_same(got, want):
    for outcome in got.keys() | want.keys():
        assert got.get(outcome, 0.0) == pytest.approx(want.get(outcome, 0.0), abs=1e-9), outcome


GRID = list(itertools.product((0, 1, 4), (False, True), (1.0, 2.0), (0.7, 1.0), (False, True)))


@pytest.mark.parametrize(("k", "drafted", "power", "temperature", "truncate"), GRID)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rewarded", [False, True])
def test_random_models(k, drafted, power, temperature, truncate, masked, rewarded):
    rng = np.random.default_rng([k, drafted, int(power), masked, rewarded, truncate])
    toy, other = random_toy(rng), random_toy(rng)
    target = Target(toy.lm(), temperature=temperature, power=power)
    pattern = "a[ab]*b|b?"
    exact = {"power": power, "temperature": temperature}
    if masked:
        target = target * Grammar.regex(pattern)
        exact["accepts"] = in_regex(pattern)
    if rewarded:
        target = Reward(lambda texts: [t.count("a") for t in texts], beta=-0.8) * target
        exact["log_reward"] = lambda text: -0.8 * text.count("a")
    settings = Settings(
        particles=1,
        draft=other.lm("draft") if drafted else None,
        draft_tokens=k,
        max_tokens=LONG,
    )
    got = weighted_outcomes(target, settings, truncate)
    assert_same(got, gamma(toy, LONG, truncate=truncate, **exact))


LENGTHS = {"A": 6, "B": 6, "C": 7, "D": 3}  # max_tokens of each case


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("truncate", [False, True])
def test_reference_cases(case, k, power, truncate):
    of, length = CASES[case], LENGTHS[case]
    toy, grammar, accepts = of.toy, of.grammar, of.accepts
    draft = random_toy(np.random.default_rng(7), symbols=len(toy.tokens) - 1).lm("draft")
    draft = type(draft)(toy.tokens, [toy.eos], draft.logits_S_V, draft.next_S_V, "draft")
    settings = Settings(particles=1, draft=draft if k else None, draft_tokens=k, max_tokens=length)
    got = weighted_outcomes(Target(toy.lm(), power=power) * grammar(), settings, truncate)
    assert_same(got, gamma(toy, length, truncate=truncate, accepts=accepts, power=power))


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("draft_temperature", [None, 0.5, 2.0])
def test_draft_temperature_changes_nothing(k, draft_temperature):
    rng = np.random.default_rng(11)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1,
        draft=other.lm("draft"),
        draft_tokens=k,
        draft_temperature=draft_temperature,
        max_tokens=4,
    )
    target = Target(toy.lm(), temperature=0.7, power=2)
    assert_same(
        weighted_outcomes(target, settings, True),
        gamma(toy, 4, truncate=True, power=2, temperature=0.7),
    )


@pytest.mark.parametrize("truncation", [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}])
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_truncated_target(truncation, k, power):
    """The truncated, renormalised step is the local distribution, whatever the draft does."""
    rng = np.random.default_rng(5)
    toy, other = random_toy(rng, symbols=3), random_toy(rng, symbols=3)

    def cut(probs):
        order = sorted(range(len(probs)), key=lambda v: -probs[v])
        if "top_k" in truncation:
            kept = order[: truncation["top_k"]]
        elif "top_p" in truncation:
            before = np.cumsum([0.0] + [probs[v] for v in order[:-1]])
            kept = [v for v, b in zip(order, before, strict=True) if b < truncation["top_p"]]
        else:
            kept = [v for v in order if probs[v] >= truncation["min_p"] * max(probs)]
        out = np.zeros(len(probs))
        out[kept] = np.asarray(probs)[kept]
        return out / out.sum()

    shorn = type(toy)(toy.tokens, toy.eos, lambda h: cut(toy.conditional(h)), toy.order)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4
    )
    got = weighted_outcomes(Target(toy.lm(), power=power, **truncation), settings, True)
    assert_same(got, gamma(shorn, 4, truncate=True, power=power))


@pytest.mark.parametrize("k", [0, 1, 4])
def test_stop_string_ends_an_output(k):
    """An output ends at the token that completes the stop string; nothing after it counts."""
    rng = np.random.default_rng(3)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1,
        draft=other.lm("draft") if k else None,
        draft_tokens=k,
        max_tokens=LONG,
        stop=("ab",),
    )
    want = {}
    for y, _ in gamma(toy, LONG, truncate=True).items():
        text = toy.text(y)
        cut = y if "ab" not in text else y[: text.index("ab") + 2]
        p = 1.0
        for t, token in enumerate(cut):
            p *= toy.conditional(cut[:t][-toy.order :])[token]
        want[cut] = p
    assert_same(weighted_outcomes(Target(toy.lm()), settings, True), want)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_product_of_two_models(k):
    rng = np.random.default_rng(23)
    a, b, c = (random_toy(rng) for _ in range(3))
    settings = Settings(
        particles=1, draft=c.lm("draft") if k else None, draft_tokens=k, max_tokens=4
    )
    target = Target(a.lm("a")) * Target(b.lm("b"), power=0.5) * Grammar.regex("[ab]*b")
    want = {
        y: g * gamma(b, 4, truncate=True)[y] ** 0.5
        for y, g in gamma(a, 4, truncate=True, accepts=in_regex("[ab]*b")).items()
    }
    assert_same(weighted_outcomes(target, settings, True), want)


def test_several_eos_ids_end_an_output():
    rng = np.random.default_rng(31)
    probs = {h: rng.dirichlet(np.ones(4)) for h in [(), (0,), (1,)]}

    def conditional(history):
        return probs.get(history, np.full(4, 0.25))

    from smcprog.testing import TabularLM

    lm = TabularLM.from_conditionals([b"a", b"b", b"<eos>", b"<end>"], [2, 3], conditional, 1)
    target = Target(lm) * Grammar.regex("ab?")
    settings = Settings(particles=1, max_tokens=4)
    want = {}
    for eos in (2, 3):
        want[0, eos] = probs[()][0] * probs[0,][eos]
        want[0, 1, eos] = probs[()][0] * probs[0,][1] * probs[1,][eos]
    assert_same(weighted_outcomes(target, settings, False), want)


def test_empty_prefix_value_enters_once():
    """ψ(∅) ≠ 1 multiplies γ, once."""
    toy = random_toy(np.random.default_rng(2))

    class Late(Reward):
        """Value 3 for every prefix, φ = 1."""

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            state, log_psi_N = super().advance(state, tokens_N_T, lengths_N, ended_N)
            return state, log_psi_N + math.log(3) * (~ended_N).double()

    target = Target(toy.lm()) * Late(lambda texts: [0.0] * len(texts))
    got = weighted_outcomes(target, Settings(particles=1, max_tokens=3), True)
    assert_same(got, gamma(toy, 3, truncate=True))
