"""N › 1: Ẑ is unbiased, and so is Ẑ · 1[sample in bin], over many independent runs.

A covering sample (every three settings occur together) of K, draft, N, scheme, threshold, α, τ,
truncation, mask, reward, coupling and joint draws. Runs are seeds 0..R−1 in one batch, so the
tests are deterministic; for another choice of seeds the chance of a false alarm is about 6e-5 a
mean (4 standard errors) and 1e-4 a configuration over all its bins (Bonferroni).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from covertable import make
from scipy import stats

from smcprog import Grammar, Reward, Target
from smcprog.particles import logmeanexp, normalized
from smcprog.potentials import Product, Request
from smcprog.rng import STREAM_CHOICE, uniforms
from smcprog.smc.draws import categorical
from smcprog.smc.settings import Settings
from smcprog.smc.wave import Wave, WaveRequest

from .enumerate_draws import enumerate_paths
from .toys import CASES, bins, gamma, in_regex, random_toy

RUNS = 2000
LONG = 5
PATTERN = "a[ab]*b|b?"


def run_many(target, settings, truncate, runs=RUNS, kind=None):
    """Ẑ and the drawn outcome of `runs` independent populations, [runs] each."""
    product = target if isinstance(target, Product) else Product([target])
    lm = next(f.lm for f in product.factors if hasattr(f, "lm"))
    request = Request([0], (0,), lm.vocab, settings.max_tokens, truncate, settings.stop)
    wave = (kind or Wave)(
        product, [WaveRequest(i, request, i) for i in range(runs)], settings, truncate
    )
    wave.run()
    assert not wave.failed, wave.failed
    z = (wave.log_evidence_R + logmeanexp(wave.log_w_R_N)).exp().numpy()
    seeds = torch.arange(runs)
    u = uniforms(seeds, torch.zeros_like(seeds), len(wave.rounds), 0, STREAM_CHOICE)
    pick = categorical(normalized(wave.log_w_R_N), u) + seeds * settings.particles
    outcomes = [
        tuple(row[:length])
        for row, length in zip(
            wave.tokens_B_T[pick].tolist(), wave.lengths_B[pick].tolist(), strict=True
        )
    ]
    return z, outcomes


def assert_unbiased(z, outcomes, gammas, rounding=1e-12):
    total = sum(gammas.values())
    runs = len(z)
    error = z.std(ddof=1) / math.sqrt(runs)
    assert abs(z.mean() - total) < 4 * error + rounding * total, (z.mean(), total, error)
    groups = list(bins(gammas, 50 / runs))
    worst = stats.norm.isf(1e-4 / (2 * max(1, len(groups))))
    for group in groups:
        hit = z * np.array([y in group for y in outcomes])
        want = sum(gammas[y] for y in group)
        error = hit.std(ddof=1) / math.sqrt(runs)
        allowed = worst * error + rounding * want
        assert abs(hit.mean() - want) < allowed, (hit.mean(), want, error, group)
    assert all(y in gammas for y, weight in zip(outcomes, z, strict=True) if weight > 0)


CONFIGS = [
    list(c)
    for c in make(
        [
            [0, 1, 4],  # K
            [False, True],  # with a draft
            [2, 8, 32],  # N
            ["systematic", "multinomial", "stratified", "residual", "ssp"],
            [0.0, 0.5, 1.0],  # threshold
            [1.0, 2.0],  # α
            [0.7, 1.0],  # τ
            [False, True],  # truncation
            [False, True],  # mask
            [False, True],  # reward
            [1.0, 2.0, math.inf],  # coupling
            [False, True],  # joint draws
        ],
        strength=3,
    )
]


def variance_of_one(target, settings, truncate, total):
    """Relative variance of Ẑ with one particle, exactly."""
    one = Settings(
        particles=1,
        draft=settings.draft,
        draft_tokens=settings.draft_tokens,
        coupling=settings.coupling,
        max_tokens=settings.max_tokens,
    )
    second = sum(
        math.exp(p.log_q + 2 * p.log_z) for p in enumerate_paths(target, [0], one, truncate)
    )
    return second / total**2 - 1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c)))
def test_random_models(config):
    (
        k, drafted, n, scheme, threshold, power, temperature, truncate, masked, rewarded,
        coupling, joint,
    ) = config  # fmt: skip
    for attempt in range(20):
        rng = np.random.default_rng([CONFIGS.index(config), attempt])
        toy, other = random_toy(rng), random_toy(rng)
        target = Target(toy.lm(), temperature=temperature, power=power)
        exact = {"power": power, "temperature": temperature}
        if masked:
            target = target * Grammar.regex(PATTERN)
            exact["accepts"] = in_regex(PATTERN)
        if rewarded:
            target = target * Reward(lambda texts: [t.count("a") for t in texts], beta=-0.4)
            exact["log_reward"] = lambda text: -0.4 * text.count("a")
        settings = Settings(
            particles=n,
            draft=other.lm("draft") if drafted else None,
            draft_tokens=k,
            max_tokens=LONG,
            ess_threshold=threshold,
            resampling=scheme,
            coupling=coupling,
            joint_draws=joint,
        )
        gammas = gamma(toy, LONG, truncate=truncate, **exact)
        if variance_of_one(target, settings, truncate, sum(gammas.values())) <= 4:
            break
    else:
        pytest.fail("no random model of small variance in 20 tries")
    z, outcomes = run_many(target, settings, truncate)
    assert_unbiased(z, outcomes, gammas)


LENGTHS = {"A": 8, "B": 6, "C": 9, "D": 3}  # max_tokens of each case


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("k", [0, 2])
def test_reference_cases(case, k):
    of, length = CASES[case], LENGTHS[case]
    toy, grammar, accepts = of.toy, of.grammar, of.accepts
    settings = Settings(
        particles=8, draft=toy.lm("draft") if k else None, draft_tokens=k, max_tokens=length
    )
    z, outcomes = run_many(Target(toy.lm()) * grammar(), settings, False)
    assert_unbiased(z, outcomes, gamma(toy, length, truncate=False, accepts=accepts))


def total_variation(outcomes, probabilities):
    share = dict.fromkeys(probabilities, 0.0)
    for y in outcomes:
        share[y] = share.get(y, 0.0) + 1 / len(outcomes)
    return 0.5 * sum(abs(s - probabilities.get(y, 0.0)) for y, s in share.items())


@pytest.mark.parametrize("case", ["A", "B", "C"])
def test_one_draw_a_run_converges_to_the_posterior(case):
    """TV of the drawn outcomes falls from local masking's bias to the noise floor.

    The floor is the 99.9 % quantile of the TV of as many exact draws: false-alarm rate 1e-3
    plus the O(1/N) bias of one draw, which the factor 1.1 allows for.
    """
    of, length = CASES[case], LENGTHS[case]
    toy, grammar, accepts = of.toy, of.grammar, of.accepts
    gammas = gamma(toy, length, truncate=False, accepts=accepts)
    total = sum(gammas.values())
    exact = {y: g / total for y, g in gammas.items()}
    rng = np.random.default_rng(0)
    counts = rng.multinomial(RUNS, list(exact.values()), size=2000)
    noise = 0.5 * np.abs(counts / RUNS - np.array(list(exact.values()))).sum(1)
    floor = np.quantile(noise, 0.999)
    found = {}
    for n in (1, 8, 128):
        settings = Settings(particles=n, max_tokens=length)
        _, outcomes = run_many(Target(toy.lm()) * grammar(), settings, False)
        found[n] = total_variation(outcomes, exact)
    assert found[128] < 1.1 * floor, (found, floor)
    assert found[1] > 3 * floor, (found, floor)  # one particle is local masking
    assert found[128] < found[8] < found[1] or found[8] < floor
