"""Variants of SMC give a request the same tokens alone, among others, and under a scheduler."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from smcprog import Grammar, PotentialError, Reward, Scheduler, Target
from smcprog.drafts.fed import FedDraft
from smcprog.smc.settings import Settings

from ..exactness.test_fed_drafts import network
from ..exactness.test_many_particles import assert_unbiased, run_many
from ..exactness.test_real_engine import as_toy
from ..exactness.toys import gamma
from ..tiny import tiny_llama, tiny_model

VARIANTS = [
    {"moves": 2},
    {"waste_free": 4},
    {"lookahead": 2, "rollouts": 2},
    {"first_tokens": "without_replacement"},
]


def count_b(texts):
    return [t.count("b") for t in texts]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_alone_among_others_and_scheduled(variant):
    lm, draft = tiny_llama(seed=5, scale=0.5), tiny_llama(seed=77, scale=0.5)
    target = Target(lm) * Grammar.regex("[ab]*b") * Reward(count_b, beta=1.0, at="round")
    options = {
        "particles": 8, "max_tokens": 12, "draft": draft, "draft_tokens": 2, "ess_threshold": 0.9,
        **variant,
    }  # fmt: skip
    alone = [target.sample([0, s], seed=s, **options) for s in range(3)]
    together = target.sample([[0, s] for s in range(3)], seed=range(3), **options)
    with Scheduler() as scheduler:
        handles = [scheduler.submit(target, [0, s], seed=s, **options) for s in range(3)]
        scheduled = [handle.result(60) for handle in handles]
    awaited = asyncio.run(target.asample([0, 1], seed=1, **options))
    assert [p.tokens for p in awaited] == [p.tokens for p in alone[1]]
    for a, b, c in zip(alone, together, scheduled, strict=True):
        assert [p.tokens for p in a] == [p.tokens for p in b] == [p.tokens for p in c]
        assert a.log_evidence == pytest.approx(b.log_evidence) == pytest.approx(c.log_evidence)
        assert [i.moves_accepted for i in a.rounds] == [i.moves_accepted for i in b.rounds]
    assert lm.pages_in_use == draft.pages_in_use == 0


def test_rollouts_near_the_limit_do_not_depend_on_the_company():
    """Coupled blocks differ in length, so that requests come near the limit at other times."""
    lm, draft = tiny_llama(seed=5, scale=0.5), tiny_llama(seed=77, scale=0.5)
    target = Target(lm) * Reward(count_b, beta=1.0, at="round")
    options = {
        "particles": 4, "max_tokens": 9, "draft": draft, "draft_tokens": 2, "coupling": 1.0,
        "ess_threshold": 1.0, "lookahead": 6, "rollouts": 2,
    }  # fmt: skip
    together = target.sample([[0]] * 12, seed=range(12), **options)
    for seed, post in enumerate(together):
        alone = target.sample([0], seed=seed, **options)
        assert [p.tokens for p in alone] == [p.tokens for p in post]


@pytest.mark.parametrize("variant", [{"moves": 2}, {"lookahead": 3, "rollouts": 2}], ids=str)
def test_a_draft_that_is_fed_by_the_target(variant):
    """Bounds of `test_many_particles`."""
    lm = tiny_llama(seed=5, scale=0.3)
    toy = as_toy(lm, tiny_model(seed=5, scale=0.3))
    target = Target(lm) * Reward(count_b, beta=0.7, at="round")
    settings = Settings(
        particles=8, draft=FedDraft(lm, network(lm.model), "random"), draft_tokens=2, max_tokens=4,
        ess_threshold=1.0, joint_draws=False, **variant,
    )  # fmt: skip
    z, outcomes = run_many(target, settings, True, 300)
    assert_unbiased(
        z, outcomes, gamma(toy, 4, truncate=True, log_reward=lambda t: 0.7 * t.count("b"))
    )
    assert lm.pages_in_use == 0


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=str)
@pytest.mark.parametrize("calls", [3, 5])
def test_a_potential_that_raises_on_the_side_fails_its_own_request(variant, calls):
    """Whichever call of the score raises, no page stays taken and the others go on."""
    lm = tiny_llama(seed=5, scale=0.5)
    count = 0

    def score(texts, prompts):
        nonlocal count
        if any("b" in p for p in prompts):
            count += 1
            if count >= calls:
                raise RuntimeError("no more")
        return [len(t) * 0.9 for t in texts]

    target = Target(lm) * Reward(score, at="round")
    options = {"particles": 8, "max_tokens": 12, "ess_threshold": 1.0, **variant}
    with Scheduler() as scheduler:
        good = scheduler.submit(target, [0, 0], seed=1, **options)
        bad = scheduler.submit(target, [0, 1], seed=2, **options)
        with pytest.raises(PotentialError, match="no more"):
            bad.result(60)
        assert good.result(60).alive
    assert lm.pages_in_use == 0
    assert np.isfinite(target.sample([0, 0], seed=1, **options).log_evidence)
