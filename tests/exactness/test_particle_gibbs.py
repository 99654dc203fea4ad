"""Particle Gibbs leaves the target invariant: its transition kernel, enumerated.

Every draw of a conditional run (tokens of the free particles, ancestors of their slots) is a
choice of a script; summing over all scripts gives the exact kernel P(y → y′), and π P = π to
1e-9 with no statistics (false-alarm rate 0). The chain itself is compared with the posterior by
total variation.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch

from smcprog import Grammar, InputError, Reward, SettingError, Target, particle_gibbs
from smcprog.particles import normalized
from smcprog.potentials import Product, Request
from smcprog.smc.settings import Settings
from smcprog.smc.variants.conditional import ConditionalWave
from smcprog.smc.wave import WaveRequest

from .enumerate_draws import Script, ScriptedDraws
from .test_many_particles import total_variation
from .toys import gamma, in_regex, random_toy


class ScriptedConditionalWave(ConditionalWave):
    """Ancestors are choices of the request's script, too."""

    conditional = True

    def __init__(self, scripts, *args, **options):
        super().__init__(*args, **options)
        self._scripts = scripts

    def _ancestors(self, log_v_R_N, need_R):
        n = log_v_R_N.shape[1]
        ancestors_R_N = torch.zeros_like(log_v_R_N, dtype=torch.int64)
        for r in torch.nonzero(need_R).flatten().tolist():
            weights = normalized(log_v_R_N[r : r + 1])[0].tolist()
            for slot in range(self.conditional, n):
                drawn = self._scripts[r].follow(weights)
                ancestors_R_N[r, slot] = weights.index(max(weights)) if drawn is None else drawn
        return ancestors_R_N


def kernel(target, settings, truncate, outcomes, wave_of=ScriptedConditionalWave):
    """P(y → y′) of one sweep, exactly, as a dict of dicts."""
    product = target if isinstance(target, Product) else Product([target])
    lm = next(f.lm for f in product.factors if hasattr(f, "lm"))
    request = Request([0], (0,), lm.vocab, settings.max_tokens, truncate, settings.stop)
    moves = {y: defaultdict(float) for y in outcomes}
    frontier = [(y, ()) for y in outcomes]
    while frontier:
        scripts = [Script(tokens) for _, tokens in frontier]
        wave = wave_of(
            scripts,
            product,
            [WaveRequest(i, request, i) for i in range(len(scripts))],
            settings,
            truncate,
            [y for y, _ in frontier],
            make_draws=lambda *a, s=scripts: ScriptedDraws(s, lm.vocab.eos_ids, *a),
        )
        wave.run()
        longer = []
        for i, ((y, _), script) in enumerate(zip(frontier, scripts, strict=True)):
            if script.choices is not None:
                longer.extend((y, (*script.tokens, v)) for v in script.choices)
                continue
            for k, share in enumerate(normalized(wave.log_w_R_N[i : i + 1])[0].tolist()):
                row = i * settings.particles + k
                tokens = tuple(wave.tokens_B_T[row, : int(wave.lengths_B[row])].tolist())
                if share > 0:
                    moves[y][tokens] += math.exp(script.log_q) * share
        frontier = longer
    return moves


def unchanged(gammas, moves):
    """Largest |π P − π| over all outcomes."""
    total = sum(gammas.values())
    after = defaultdict(float)
    for y, row in moves.items():
        assert sum(row.values()) == pytest.approx(1, abs=1e-9)
        for outcome, p in row.items():
            after[outcome] += gammas[y] / total * p
    return max(abs(after[y] - gammas.get(y, 0.0) / total) for y in after.keys() | gammas.keys())


def setting(k, drafted, masked, rewarded, n, threshold, length=3, seed=4):
    rng = np.random.default_rng([seed, k, drafted, masked])
    toy, other = random_toy(rng), random_toy(rng)
    target, exact = Target(toy.lm()), {}
    if masked:
        target, exact["accepts"] = target * Grammar.regex("a[ab]*b|b?"), in_regex("a[ab]*b|b?")
    if rewarded:
        score = Reward(lambda texts: [t.count("a") for t in texts], beta=1.2, at="round")
        target, exact["log_reward"] = target * score, lambda text: 1.2 * text.count("a")
    settings = Settings(
        particles=n,
        draft=other.lm("draft") if drafted else None,
        draft_tokens=k,
        max_tokens=length,
        ess_threshold=threshold,
        resampling="multinomial",
        joint_draws=False,
    )
    return target, settings, not masked, gamma(toy, length, truncate=not masked, **exact)


CASES = [
    # K, draft, mask, reward, N, ESS threshold
    (0, False, False, True, 2, 1.0),
    (0, False, True, True, 2, 0.9),
    (0, False, True, False, 3, 1.0),
    (1, True, False, True, 2, 0.8),
    (2, True, True, True, 2, 1.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_sweep_leaves_the_target_invariant(case):
    target, settings, truncate, gammas = setting(*case)
    moves = kernel(target, settings, truncate, list(gammas))
    assert unchanged(gammas, moves) < 1e-9
    assert any(p > 0 for y, row in moves.items() for other, p in row.items() if other != y)


def test_the_enumeration_notices_a_retained_particle_that_may_lose_its_place():
    class Unconditional(ScriptedConditionalWave):
        conditional = False

    target, settings, truncate, gammas = setting(*CASES[0])
    moves = kernel(target, settings, truncate, list(gammas), Unconditional)
    assert unchanged(gammas, moves) > 1e-3


def run_chain(target, n=4, **options):
    return particle_gibbs(target, [0], particles=n, seed=1, **options)


def test_the_chain_converges_to_the_posterior():
    """TV against chains drawn from the enumerated kernel: their 99.9 % quantile (1e-3)."""
    target, settings, truncate, gammas = setting(1, True, False, True, 2, 1.0)
    total, sweeps = sum(gammas.values()), 120
    exact = {y: g / total for y, g in gammas.items()}
    outcomes = list(exact)
    moves = kernel(target, settings, truncate, outcomes)
    step_Y_Y = np.array([[moves[y].get(x, 0.0) for x in outcomes] for y in outcomes])
    chain = run_chain(
        target, 2, sweeps=sweeps, max_tokens=3, draft=settings.draft, draft_tokens=1,
        ess_threshold=1.0, init=outcomes[0],
    )  # fmt: skip
    rng, chains = np.random.default_rng(0), 2000
    at_C = np.zeros(chains, dtype=int)
    counts_C_Y = np.zeros((chains, len(outcomes)))
    for _ in range(sweeps):
        at_C = (step_Y_Y.cumsum(1)[at_C] < rng.random(chains)[:, None]).sum(1)
        at_C = at_C.clip(max=len(outcomes) - 1)
        counts_C_Y[np.arange(chains), at_C] += 1
    noise_C = 0.5 * np.abs(counts_C_Y / sweeps - np.array(list(exact.values()))).sum(1)
    found = total_variation([tuple(particle.tokens) for particle in chain], exact)
    assert found < np.quantile(noise_C, 0.999)
    assert 0 < chain.renewal_rate < 1


def test_all_particles_of_all_sweeps_count():
    target, _, truncate, gammas = setting(0, False, True, True, 4, 1.0)
    lm = target.factors[0].lm
    chain = run_chain(target, sweeps=60, max_tokens=3, truncate=truncate)
    found = chain.probabilities(burn=10)
    assert sum(found.values()) == pytest.approx(1)
    exact = {lm.vocab.to_bytes(y).decode(): g / sum(gammas.values()) for y, g in gammas.items()}
    assert set(found) == set(exact)
    assert all(abs(found[text] - exact[text]) < 0.15 for text in exact)
    assert sum(chain.probabilities(len).values()) == pytest.approx(1)
    with pytest.raises(SettingError, match="burn"):
        chain.probabilities(burn=60)


def test_one_seed_repeats_the_chain_and_init_starts_it():
    target = Target(random_toy(np.random.default_rng(3)).lm())
    chains = [run_chain(target, sweeps=5, max_tokens=5) for _ in range(2)]
    assert chains[0].texts == chains[1].texts
    assert len(chains[0]) == 5
    assert run_chain(target, sweeps=3, max_tokens=5).texts == chains[0].texts[:3]
    post = target.sample([0], particles=4, max_tokens=5, seed=0)
    for init in (post, post.sample, post.tokens):
        chain = run_chain(target, sweeps=2, max_tokens=5, init=init)
        assert chain.renewed[0] == (chain[0].tokens != post.tokens)


def test_checks_that_reject_elsewhere_only_kill_here():
    target = Target(random_toy(np.random.default_rng(3)).lm()) * Grammar.lark('start: "a"+ | "b"')
    chain = run_chain(target, sweeps=5, max_tokens=5)
    assert all(set(text) in ({"a"}, {"b"}) for text in chain.texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 1}, "particles must be a whole number of at least 2"),
        ({"coupling": 1.0}, "infinite coupling"),
        ({"draft_tokens": "auto"}, "auto"),
        ({"resampling": "systematic"}, "multinomial"),
        ({"moves": 1}, "no moves"),
        ({"init": [0, 0]}, "complete output"),
        ({"init": [0] * 9}, "complete output"),
        ({"init": [7, 2]}, "token ids from 0 to 2"),
        ({"init": "ab"}, "token ids from 0 to 2"),
        ({"init": [0, 2, 0, 2]}, "goes on after its end"),
        ({"init": [1, 2]}, "weight zero"),
    ],
    ids=str,
)
def test_bad_input(options, message):
    target = Target(random_toy(np.random.default_rng(3)).lm()) * Grammar.regex("a[ab]*")
    with pytest.raises((SettingError, InputError), match=message):
        run_chain(target, sweeps=2, max_tokens=5, **options)
