"""The same exactness on random-weight Llamas, run by the real engine in float64.

The reference is the plain `transformers` forward of every whole sequence. N = 1 is
enumerated (no statistics); N › 1 uses the bounds of `test_many_particles`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from smcprog import Grammar, Reward, Target
from smcprog.smc.settings import Settings

from ..tiny import tiny_llama, tiny_model
from .test_many_particles import assert_unbiased, run_many, variance_of_one
from .test_one_particle import assert_same, weighted_outcomes
from .toys import Toy, gamma, in_regex

LONG = 4
PROMPT = [0]
PATTERN = "a[ab]*|b?"
SCALE = 0.3  # of the logits: the draft is another model, and must not be hopeless


def as_toy(lm, plain) -> Toy:
    """p(next | prompt + history) of the plain model, tabulated."""
    table = {}
    eos = lm.vocab.eos_ids[0]
    letters = [v for v in range(lm.vocab.size) if v != eos]
    for n in range(LONG):
        for history in itertools.product(letters, repeat=n):
            ids = torch.tensor([[*PROMPT, *history]])
            with torch.no_grad():
                logits = plain(ids, use_cache=False).logits[0, -1]
            table[history] = torch.softmax(logits, -1).numpy()
    names = [b"abcdefgh"[v : v + 1] for v in range(lm.vocab.size)]
    names[eos] = b"<eos>"
    return Toy(tuple(names), eos, table.__getitem__, order=LONG)


def pair(seed):
    lm = tiny_llama(seed=seed, scale=SCALE)
    return lm, as_toy(lm, tiny_model(seed=seed, scale=SCALE))


@pytest.mark.parametrize(
    ("k", "power", "temperature", "truncate", "masked"),
    [
        (0, 1.0, 1.0, True, False),
        (0, 2.0, 0.7, False, True),
        (1, 1.0, 0.7, True, True),
        (1, 2.0, 1.0, False, False),
        (4, 1.0, 1.0, False, True),
        (4, 2.0, 0.7, True, False),
        (4, 1.0, 0.7, True, True),
    ],
)
@pytest.mark.parametrize("rewarded", [False, True])
def test_one_particle_enumerated(k, power, temperature, truncate, masked, rewarded):
    lm, toy = pair(seed=10 * k + int(power))
    target = Target(lm, temperature=temperature, power=power)
    exact = {"power": power, "temperature": temperature}
    if masked:
        target = target * Grammar.regex(PATTERN)
        exact["accepts"] = in_regex(PATTERN)
    if rewarded:
        target = target * Reward(lambda texts: [t.count("b") for t in texts], beta=0.6)
        exact["log_reward"] = lambda text: 0.6 * text.count("b")
    draft = tiny_llama(seed=77, scale=SCALE) if k else None
    settings = Settings(particles=1, draft=draft, draft_tokens=k, max_tokens=LONG)
    got = weighted_outcomes(target, settings, truncate)
    assert_same(got, gamma(toy, LONG, truncate=truncate, **exact))
    assert lm.pages_in_use == 0


@pytest.mark.parametrize(
    ("n", "k", "scheme", "threshold", "masked"),
    [
        (2, 4, "multinomial", 1.0, True),
        (8, 1, "systematic", 0.5, False),
        (8, 4, "ssp", 1.0, True),
        (32, 2, "residual", 0.5, True),
        (8, 0, "stratified", 1.0, True),
    ],
)
def test_many_particles(n, k, scheme, threshold, masked):
    lm, toy = pair(seed=n + k)
    target = Target(lm)
    exact = {}
    if masked:
        target = target * Grammar.regex(PATTERN)
        exact["accepts"] = in_regex(PATTERN)
    settings = Settings(
        particles=n,
        draft=tiny_llama(seed=99, scale=SCALE) if k else None,
        draft_tokens=k,
        max_tokens=LONG,
        resampling=scheme,
        ess_threshold=threshold,
    )
    gammas = gamma(toy, LONG, truncate=True, **exact)
    assert variance_of_one(target, settings, True, sum(gammas.values())) <= 4
    z, outcomes = run_many(target, settings, True)
    assert_unbiased(z, outcomes, gammas)
    assert np.isfinite(z).all()
    assert lm.pages_in_use == 0


@pytest.mark.parametrize(
    ("coupling", "k", "paths", "power", "masked"),
    [
        (1.0, 2, 1, 1.0, False),
        (1.0, 3, 1, 2.0, True),
        (1.0, 1, 2, 1.0, True),
        (1.25, 2, 1, 1.0, True),
        (2.0, 3, 1, 2.0, False),
        (8.0, 2, 1, 1.0, True),
    ],
)
def test_coupled_rounds_enumerated(coupling, k, paths, power, masked):
    """Rows that keep some drafts and drop others, through pages that are truncated."""
    lm, toy = pair(seed=int(10 * coupling) + k)
    target, exact = Target(lm, power=power), {"power": power}
    if masked:
        target = target * Grammar.regex(PATTERN)
        exact["accepts"] = in_regex(PATTERN)
    draft = tiny_llama(seed=78, scale=SCALE)
    settings = Settings(
        particles=1, draft=draft, draft_tokens=k, coupling=coupling, draft_paths=paths,
        max_tokens=3,
    )  # fmt: skip
    got = weighted_outcomes(target, settings, True)
    assert_same(got, gamma(toy, 3, truncate=True, **exact))
    for model in (lm, draft):
        assert model.pages_in_use == 0
        model.check_pages()


@pytest.mark.parametrize(("n", "coupling", "paths"), [(2, 1.0, 1), (8, 2.0, 1), (8, 1.0, 3)])
def test_many_coupled_particles(n, coupling, paths):
    """Particles of different length in one population, resampled at every chance."""
    lm, toy = pair(seed=50 + n)
    settings = Settings(
        particles=n, draft=tiny_llama(seed=98, scale=SCALE), draft_tokens=2, coupling=coupling,
        draft_paths=paths, max_tokens=LONG, ess_threshold=1.0,
    )  # fmt: skip
    target = Target(lm) * Grammar.regex(PATTERN)
    gammas = gamma(toy, LONG, truncate=True, accepts=in_regex(PATTERN))
    z, outcomes = run_many(target, settings, True)
    assert_unbiased(z, outcomes, gammas)
    assert lm.pages_in_use == 0
