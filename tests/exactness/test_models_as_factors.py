"""Products, mixtures and guidance of models, every draw enumerated: Σ q · w = γ(outcome).

γ is computed from the definitions, one outcome at a time. One particle, so the sums are exact:
no false alarms. The last test runs many particles and states its rate.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import Grammar, Guidance, Mixture, Potential, Target
from smcprog.smc.settings import Settings
from smcprog.testing import TabularLM

from .test_many_particles import assert_unbiased, run_many, variance_of_one
from .test_one_particle import assert_same, weighted_outcomes
from .toys import gamma, in_regex, random_toy

PROMPT = (0,)  # of the request, as `weighted_outcomes` has it
OTHER, THIRD = (1, 0), (1, 1)
RUNS = [(0, math.inf), (2, math.inf), (2, 2.0)]  # K and λ
LONG = 3


class Model:
    """A random model that reads its prompt: as an LM, and as a plain function."""

    def __init__(self, seed):
        self.toy = random_toy(np.random.default_rng(seed), order=4)
        self.lm = TabularLM.from_conditionals(
            self.toy.tokens, [self.toy.eos], self.toy.conditional, self.toy.order, f"toy{seed}",
            reads_prompt=True,
        )  # fmt: skip

    def step(self, prompt, history, temperature=1.0):
        probs = np.asarray(self.toy.conditional((*prompt, *history)[-self.toy.order :]))
        probs = probs ** (1 / temperature)
        return probs / probs.sum()

    def psi(self, prompt, y, temperature=1.0):
        return math.prod(self.step(prompt, y[:t], temperature)[v] for t, v in enumerate(y))


A, B, C = Model(1), Model(2), Model(3)
OUTCOMES = list(gamma(A.toy, LONG, truncate=True))


def by_step(step):
    """ψ of a whole output, from the distribution of every step."""
    return lambda y: math.prod(step(y[:t])[v] for t, v in enumerate(y))


def guided(model, scale, prompt, negative, temperature=1.0, top=None):
    def step(history):
        logits = scale * np.log(model.step(prompt, history)) + (1 - scale) * np.log(
            model.step(negative, history)
        )
        probs = np.exp(logits / temperature)
        if top:
            probs[np.argsort(-probs)[top:]] = 0
        return probs / probs.sum()

    return by_step(step)


def blended(weights, steps):
    return by_step(lambda h: sum(w * step(h) for w, step in zip(weights, steps, strict=True)))


def own(model, prompt=None, **options):
    return Target(model.lm, prompt=prompt if prompt is None else list(prompt), **options)


TARGETS = {
    "product": (lambda: own(A) * own(B), lambda y: A.psi(PROMPT, y) * B.psi(PROMPT, y)),
    "powers": (
        lambda: (own(A) * own(B, temperature=0.7) ** 0.5) ** 2,
        lambda y: A.psi(PROMPT, y) ** 2 * B.psi(PROMPT, y, 0.7),
    ),
    "contrast": (
        lambda: own(A) ** 1.5 / own(B) ** 0.5,
        lambda y: A.psi(PROMPT, y) ** 1.5 / B.psi(PROMPT, y) ** 0.5,
    ),
    "small total power": (
        lambda: own(A) / own(B) ** 1.25,
        lambda y: A.psi(PROMPT, y) / B.psi(PROMPT, y) ** 1.25,
    ),
    "divided by the first": (
        lambda: (own(B) ** -0.5) * own(A),
        lambda y: A.psi(PROMPT, y) / B.psi(PROMPT, y) ** 0.5,
    ),
    "two prompts": (
        lambda: own(A) * own(A, OTHER),
        lambda y: A.psi(PROMPT, y) * A.psi(OTHER, y),
    ),
    "prompts of their own": (
        lambda: own(A, OTHER) * own(B, THIRD) / own(A, THIRD) ** 0.3,
        lambda y: A.psi(OTHER, y) * B.psi(THIRD, y) / A.psi(THIRD, y) ** 0.3,
    ),
    "a prompt made from the request's": (
        lambda: Target(A.lm, prompt=lambda p: [1, *p]) * own(B),
        lambda y: A.psi((1, *PROMPT), y) * B.psi(PROMPT, y),
    ),
    "mixture of sequences": (
        lambda: Mixture([own(A), own(A, OTHER), own(B)], [1, 2, 3]),
        lambda y: (A.psi(PROMPT, y) + 2 * A.psi(OTHER, y) + 3 * B.psi(PROMPT, y)) / 6,
    ),
    "mixture of powers": (
        lambda: Mixture([own(A) ** 2, own(B) ** 0.5]) ** 1.5,
        lambda y: (0.5 * A.psi(PROMPT, y) ** 2 + 0.5 * B.psi(PROMPT, y) ** 0.5) ** 1.5,
    ),
    "mixture of tokens": (
        lambda: Mixture([own(A), own(B, OTHER), own(A, THIRD)], [2, 1, 1], of="tokens") ** 2,
        lambda y: blended(
            [0.5, 0.25, 0.25],
            [
                lambda h: A.step(PROMPT, h),
                lambda h: B.step(OTHER, h),
                lambda h: A.step(THIRD, h),
            ],
        )(y)
        ** 2,
    ),
    "guidance": (
        lambda: Guidance(A.lm, 1.7, negative_prompt=list(OTHER), temperature=0.8),
        guided(A, 1.7, PROMPT, OTHER, 0.8),
    ),
    "guidance against the last token": (
        lambda: Guidance(A.lm, 2.5, prompt=list(OTHER), top_k=2) ** 0.5,
        lambda y: guided(A, 2.5, OTHER, OTHER[-1:], top=2)(y) ** 0.5,
    ),
    "a product of them": (
        lambda: Mixture([own(A), own(B)])
        * Guidance(C.lm, 0.5, negative_prompt=list(THIRD))
        / own(A),
        lambda y: (A.psi(PROMPT, y) + B.psi(PROMPT, y)) / 2 / A.psi(PROMPT, y)
        * guided(C, 0.5, PROMPT, THIRD)(y),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("k", "coupling"), RUNS)
@pytest.mark.parametrize("name", TARGETS)
def test_the_definition(name, k, coupling):
    make, psi = TARGETS[name]
    draft = random_toy(np.random.default_rng(9)).lm("draft") if k else None
    settings = Settings(
        particles=1, draft=draft, draft_tokens=k, coupling=coupling, max_tokens=LONG
    )
    want = {y: psi(y) for y in OUTCOMES}
    assert_same(weighted_outcomes(make(), settings, True), {y: w for y, w in want.items() if w})


@pytest.mark.parametrize(("k", "coupling"), RUNS)
@pytest.mark.parametrize("name", ["contrast", "mixture of sequences", "guidance"])
def test_under_a_mask_that_must_end(name, k, coupling):
    make, psi = TARGETS[name]
    draft = random_toy(np.random.default_rng(9)).lm("draft") if k else None
    settings = Settings(
        particles=1, draft=draft, draft_tokens=k, coupling=coupling, max_tokens=LONG
    )
    good = gamma(A.toy, LONG, truncate=False, accepts=in_regex("a?b|bb"))
    target = make() * Grammar.regex("a?b|bb")
    assert_same(weighted_outcomes(target, settings, False), {y: psi(y) for y in good})


@pytest.mark.parametrize("name", ["powers", "mixture of sequences", "guidance"])
def test_several_drafts_per_particle(name):
    make, psi = TARGETS[name]
    draft = random_toy(np.random.default_rng(9), eos=0.4).lm("draft")
    settings = Settings(
        particles=1, draft=draft, draft_tokens=1, coupling=1.0, draft_paths=2, max_tokens=LONG
    )
    assert_same(weighted_outcomes(make(), settings, True), {y: psi(y) for y in OUTCOMES})


class Follows(Potential):
    """A user's weight for every next token: e for an a, 1 for anything else."""

    def start(self, request, n):
        return torch.zeros(n, dtype=torch.float64)

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        real = torch.arange(tokens_N_T.shape[1]) < lengths_N.unsqueeze(1)
        state = state + ((tokens_N_T == 0) & real).sum(1)
        return state, state

    def fork(self, state, ancestors_M):
        return state[ancestors_M]

    def next_logw(self, state):
        return torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(len(state), 3)


@pytest.mark.parametrize(("k", "coupling"), RUNS)
@pytest.mark.parametrize("power", [0.5, -2.0])
def test_a_power_of_a_users_potential(power, k, coupling):
    follows = Follows()
    follows.positive = True
    draft = random_toy(np.random.default_rng(9)).lm("draft") if k else None
    settings = Settings(
        particles=1, draft=draft, draft_tokens=k, coupling=coupling, max_tokens=LONG
    )
    got = weighted_outcomes(own(A) * follows**power, settings, True)
    assert_same(got, {y: A.psi(PROMPT, y) * math.exp(power * y.count(0)) for y in OUTCOMES})


def test_guidance_is_not_the_product():
    """The product weighs what a step's sum is; guidance forgets it."""
    product, kind = own(A) ** 2 / own(A, OTHER), Guidance(A.lm, 2, negative_prompt=list(OTHER))
    settings = Settings(particles=1, max_tokens=LONG)
    one, two = (weighted_outcomes(t, settings, True) for t in (product, kind))
    assert sum(two.values()) == pytest.approx(1)
    total = sum(one.values())
    gap = sum(abs(one[y] / total - two[y]) for y in OUTCOMES) / 2
    assert gap > 0.05


@pytest.mark.parametrize("name", ["contrast", "mixture of sequences", "guidance"])
def test_many_particles(name):
    """False-alarm rate 6e-5 for Ẑ and 1e-4 over all outcomes together, for other seeds."""
    make, psi = TARGETS[name]
    settings = Settings(
        particles=8, draft=random_toy(np.random.default_rng(9)).lm("draft"), draft_tokens=2,
        coupling=2.0 if name == "guidance" else math.inf, max_tokens=LONG, ess_threshold=1.0,
    )  # fmt: skip
    gammas = {y: psi(y) for y in OUTCOMES}
    target = make()
    assert variance_of_one(target, settings, True, sum(gammas.values())) <= 4
    assert_unbiased(*run_many(target, settings, True, runs=1000), gammas)
