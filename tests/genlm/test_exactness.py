"""What a factor of genlm-control does to the posterior, and what our samplers hand to it.

Enumerations have false-alarm rate 0; the two averages of Ẑ are within four standard errors of
Z but once in 16,000 each (the seeds are fixed).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from smcprog import Genlm, Grammar, Target
from smcprog.smc.settings import Settings

from ..exactness.enumerate_draws import Script, ScriptedDraws
from ..exactness.test_one_particle import assert_same, weighted_outcomes
from ..exactness.toys import gamma, random_toy
from ..tiny import tiny_llama, tiny_model
from .theirs import WHY, control, util

room = pytest.importorskip("smcprog.genlm", reason=WHY)

PROMPT = [0, 1, 2]


@pytest.mark.parametrize("guide", [None, "mask", "reject", "weights"])
@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("truncate", [False, True])
def test_one_particle_exactly(guide, k, truncate):
    rng = np.random.default_rng([k, truncate])
    toy, other = random_toy(rng), random_toy(rng)
    wfsa = control.WFSA.from_regex("a(a|b)*b|b?")
    target = Target(toy.lm(), temperature=0.7) * Genlm(wfsa, guide=guide)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4
    )
    got = weighted_outcomes(target, settings, truncate)

    def log_phi(text):
        return asyncio.run(wfsa.complete(text.encode()))

    assert_same(got, gamma(toy, 4, truncate=truncate, temperature=0.7, log_reward=log_phi))


# ------------------------------------------------------------------ our rounds in their sampler


def models():
    return (
        tiny_llama(vocab_size=4, eos=3, scale=0.5, page_size=4),
        tiny_llama(vocab_size=4, eos=3, scale=0.5, seed=1, page_size=4),
    )


PLAIN = functools.cache(lambda: tiny_model(4, 3, scale=0.5))


def exact_log_probs(context):
    ids = torch.tensor([[*PROMPT, *context]])
    with torch.no_grad():
        return torch.log_softmax(PLAIN()(ids).logits[0], dim=-1)


@pytest.mark.parametrize("context", [(), (0, 2)])
@pytest.mark.parametrize("condition", [None, "theirs", "ours"])
def test_a_unit_is_weighed_exactly(context, condition):
    """Over all that can be drawn, Σ q · w is the weight of each unit under the target."""
    lm, small = models()
    llm = control.PromptedLLM(room.AsyncLM(lm), prompt_ids=PROMPT)
    pattern = "(a|c)*b?"
    fsa = (control.WFSA if condition == "theirs" else control.BoolFSA).from_regex(pattern)
    factor = {None: None, "theirs": fsa, "ours": Grammar.regex(pattern)}[condition]
    frontier, total, mass = [()], defaultdict(float), 0.0
    while frontier:
        scripts = [Script(tokens) for tokens in frontier]

        def draws(seeds_M, particles_M, *rest, scripts=scripts):
            return ScriptedDraws(scripts, (3,), particles_M, particles_M, *rest)

        sampler = room.DraftSampler(llm, small, 2, condition=factor, _make_draws=draws)
        tokens = [llm.token_maps.decode[v] for v in context]

        async def units(sampler=sampler, tokens=tokens, scripts=scripts):
            return await asyncio.gather(*[sampler.sample(list(tokens)) for _ in scripts])

        results = asyncio.run(units())
        frontier = []
        for script, (unit, log_w, log_q) in zip(scripts, results, strict=True):
            if script.choices is not None:
                frontier.extend((*script.tokens, v) for v in script.choices)
                continue
            mass += math.exp(script.log_q)
            if log_w > -math.inf:
                assert log_q == pytest.approx(script.log_q, abs=1e-9)
                ids = tuple(3 if t is control.EOS else t.token_id for t in unit)
                total[ids] += math.exp(script.log_q + log_w)
    assert mass == pytest.approx(1, abs=1e-9)

    want = {}
    for length in (1, 2, 3):
        for unit in itertools.product(range(4), repeat=length):
            if 3 in unit[:-1] or (length < 3 and unit[-1] != 3):
                continue  # a unit ends at EOS or has three tokens
            logp = exact_log_probs((*context, *unit))[len(PROMPT) + len(context) - 1 :]
            log_gain = sum(float(logp[i, v]) for i, v in enumerate(unit))
            if condition:
                text = bytes(97 + v for v in (*context, *unit) if v < 3)
                score = fsa.complete if unit[-1] == 3 else fsa.prefix
                before = asyncio.run(fsa.prefix(bytes(97 + v for v in context)))
                log_gain += asyncio.run(score(text)) - before
            want[unit] = math.exp(log_gain)
    assert_same(dict(total), want)


T, SEEDS = 6, 25


def evidence(fsa):
    """Z over outputs of at most T tokens, EOS included, as both count them."""
    total = 0.0
    for n in range(T):
        for word in itertools.product(range(3), repeat=n):
            log_phi = asyncio.run(fsa.complete(bytes(97 + v for v in word)))
            if log_phi > -math.inf:
                logp = exact_log_probs(word)[len(PROMPT) - 1 :]
                log_p = sum(float(logp[i, v]) for i, v in enumerate((*word, 3)))
                total += math.exp(log_p + log_phi)
    return total


@pytest.mark.parametrize("as_critic", [False, True])
def test_their_smc_over_our_units_is_unbiased(as_critic):
    lm, small = models()
    llm = control.PromptedLLM(room.AsyncLM(lm), prompt_ids=PROMPT)
    fsa = control.WFSA.from_regex("(a|b)*c?")
    estimates = []
    for seed in range(SEEDS):
        np.random.seed(seed)  # noqa: NPY002 - their resampling draws from there
        sampler = room.DraftSampler(llm, small, 2, seed=seed, condition=None if as_critic else fsa)
        critic = None
        if as_critic:
            joined = lambda units: b"".join(util.flatten_units(units))  # noqa: E731
            critic = fsa.coerce(llm, f=joined, prune=False)
        found = asyncio.run(
            sampler.smc(n_particles=8, ess_threshold=0.5, max_tokens=6, critic=critic)
        )
        weights = [
            math.exp(w) for units, w in found if len(util.flatten_units(units)) <= T
        ]  # longer outputs are none of the target's
        estimates.append(sum(weights) / 8)
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - evidence(fsa)) < 4 * error


def test_their_smc_over_our_model_is_unbiased():
    lm, _ = models()
    llm = control.PromptedLLM(room.AsyncLM(lm), prompt_ids=PROMPT)
    fsa = control.BoolFSA.from_regex("(a|b)*c?")
    condition = fsa.coerce(llm, f=b"".join)
    estimates = []
    for seed in range(SEEDS):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        sampler = control.AWRS(llm, condition, seed=seed)
        found = asyncio.run(sampler.smc(n_particles=8, ess_threshold=0.5, max_tokens=T))
        estimates.append(math.exp(found.log_ml))
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - evidence(fsa)) < 4 * error
