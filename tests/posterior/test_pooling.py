"""Independent runs taken together, and populations added until the evidence is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smcprog import AllDeadError, Grammar, InputError, Reward, SettingError, Target, grow, pool

from ..exactness.toys import CASE_A, REGEX_A, gamma, in_regex, random_toy

TOY = random_toy(np.random.default_rng(0))
TARGET = Target(TOY.lm()) * Reward(lambda texts: [t.count("a") for t in texts], beta=1.0)
EXACT = gamma(TOY, 5, truncate=True, log_reward=lambda text: text.count("a"))
Z = sum(EXACT.values())


def runs_of(count, particles=4, first=0, target=TARGET, **options):
    seeds = list(range(first, first + count))
    return target.sample([[0]] * count, particles=particles, max_tokens=5, seed=seeds, **options)


def test_the_pool_is_the_mean_of_the_runs():
    runs = runs_of(30)
    pooled = pool(runs)
    z_R = np.exp([run.log_evidence for run in runs])
    assert pooled.log_evidence == pytest.approx(math.log(z_R.mean()))
    assert len(pooled) == 120
    assert pooled.weights.sum() == pytest.approx(1)
    assert pooled.log_evidence_se == pytest.approx(
        z_R.std(ddof=1) / math.sqrt(30) / z_R.mean(), rel=1e-9
    )
    assert not pooled.log_evidence_se_approximate
    assert pooled.evidence_ess == pytest.approx(z_R.sum() ** 2 / (z_R**2).sum())
    first = np.array(pooled.weights[:4])
    assert first == pytest.approx(runs[0].weights * z_R[0] / z_R.sum())
    assert pooled.sample in list(pooled)
    assert pooled.runs == tuple(runs)
    # A particle's place and text survive, and a pool of pools is a pool of all runs.
    assert [p.text for p in pooled][:4] == [p.text for p in runs[0]]
    again = pool([pool(runs[:10]), pool(runs[10:])])
    assert again.log_evidence == pytest.approx(pooled.log_evidence)
    assert again.probabilities() == pytest.approx(pooled.probabilities())


def test_the_pool_is_exact_in_the_limit():
    """Z within 4 standard errors (6e-5); TV below the 99.9 % quantile of ESS exact draws (1e-3)."""
    pooled = pool(runs_of(500))
    assert abs(pooled.log_evidence - math.log(Z)) < 4 * pooled.log_evidence_se
    exact = {}
    for y, g in EXACT.items():
        exact[TOY.text(y)] = exact.get(TOY.text(y), 0.0) + g / Z
    found = pooled.probabilities()
    tv = 0.5 * sum(abs(found.get(t, 0.0) - exact.get(t, 0.0)) for t in found.keys() | exact.keys())
    draws = int(pooled.ess)
    p_T = np.array(list(exact.values()))
    counts = np.random.default_rng(0).multinomial(draws, p_T, size=2000)
    assert tv < np.quantile(0.5 * np.abs(counts / draws - p_T).sum(1), 0.999)


def test_the_pools_sample_is_a_draw_from_the_target():
    """Of 200 pools of 4 runs of 2; 4 standard errors of a share (6e-5), and 0.03 of bias."""
    runs = runs_of(800, particles=2)
    texts = [pool(runs[i : i + 4]).text for i in range(0, 800, 4)]
    want = sum(g for y, g in EXACT.items() if TOY.text(y).startswith("a")) / Z
    share = np.mean([t.startswith("a") for t in texts])
    assert abs(share - want) < 4 * math.sqrt(want * (1 - want) / 200) + 0.03


def test_runs_of_other_sizes_count_by_their_particles():
    small, large = runs_of(1, particles=2)[0], runs_of(1, particles=30, first=1)[0]
    pooled = pool([small, large])
    want = (2 * math.exp(small.log_evidence) + 30 * math.exp(large.log_evidence)) / 32
    assert math.exp(pooled.log_evidence) == pytest.approx(want)


def test_a_dead_run_counts_as_zero():
    with pytest.raises(Exception, match="requests failed") as failure:
        dead_or_alive(40)
    runs = [r.posterior if isinstance(r, AllDeadError) else r for r in failure.value.results]
    pooled = pool(runs)
    z_R = np.exp([run.log_evidence for run in runs])
    assert (z_R == 0).any()
    assert math.exp(pooled.log_evidence) == pytest.approx(z_R.mean())
    assert pooled.sample.alive
    dead = pool([run for run in runs if not run.alive])
    assert dead.log_evidence == -math.inf
    assert dead.sample is None
    assert dead.evidence_ess == 0
    assert math.isnan(dead.log_evidence_se)


def dead_or_alive(count):
    """Runs of one particle, some of which die: a check that the mask does not know."""
    target = Target(TOY.lm()) * Reward(
        lambda texts: [0.0 if t.startswith("a") else -math.inf for t in texts]
    )
    return runs_of(count, particles=1, target=target)


def test_what_cannot_be_pooled():
    runs = runs_of(2)
    with pytest.raises(InputError, match="no posterior"):
        pool([])
    with pytest.raises(InputError, match="takes posteriors"):
        pool([1])
    with pytest.raises(InputError, match="the seed 0"):
        pool([runs[0], runs[0]])
    other = TARGET.sample([1], particles=2, max_tokens=5, seed=9)
    with pytest.raises(InputError, match="one prompt"):
        pool([runs[0], other])


def test_grow_reaches_the_ess_of_the_evidence():
    grown = grow(TARGET, [0], evidence_ess=12, max_particles=800, particles=4, max_tokens=5, seed=3)
    assert grown.evidence_ess >= 12
    assert len(grown.runs) < 60
    fewer = grow(TARGET, [0], evidence_ess=4, max_particles=800, particles=4, max_tokens=5, seed=3)
    assert len(fewer.runs) < len(grown.runs)
    for a, b in zip(fewer.runs, grown.runs, strict=False):
        assert [p.tokens for p in a] == [p.tokens for p in b]


def test_grow_reaches_a_standard_error():
    grown = grow(
        TARGET, [0], log_evidence_se=0.1, max_particles=4000, particles=4, max_tokens=5, seed=3
    )
    assert grown.log_evidence_se <= 0.1
    assert abs(grown.log_evidence - math.log(Z)) < 5 * grown.log_evidence_se


def test_grow_stops_at_the_cap():
    grown = grow(
        TARGET, [0], log_evidence_se=1e-6, max_particles=40, particles=4, max_tokens=5, seed=3
    )
    assert len(grown) == 40
    assert grown.log_evidence_se > 1e-6


def test_grow_lives_with_dead_populations():
    target = (
        Target(CASE_A.lm())
        * Grammar.regex(REGEX_A)
        * Reward(lambda texts: [0.0 if t.startswith("0") else -math.inf for t in texts])
    )
    grown = grow(target, [0], evidence_ess=6, max_particles=100, particles=1, max_tokens=6, seed=1)
    assert any(not run.alive for run in grown.runs)
    assert grown.alive
    assert all(in_regex(REGEX_A)(p.text) for p in grown if p.alive)
    never = Target(TOY.lm()) * Reward(lambda texts: [-math.inf] * len(texts))
    with pytest.raises(AllDeadError, match="in all of 5 populations") as failure:
        grow(never, [0], evidence_ess=2, max_particles=10, particles=2, max_tokens=3, seed=1)
    assert len(failure.value.posterior) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_particles": 7}, "two populations"),
        ({"evidence_ess": 100}, "cannot be reached"),
        ({"evidence_ess": 0.5}, "evidence_ess"),
        ({"prompt": [[0], [1]]}, "one prompt"),
    ],
)
def test_bad_settings(options, message):
    options = {"prompt": [0], "particles": 4, "max_particles": 40, "max_tokens": 3, **options}
    with pytest.raises(SettingError, match=message):
        grow(TARGET, options.pop("prompt"), **options)
