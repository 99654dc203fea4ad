"""Block moves after resampling, and waste-free SMC: Ẑ and the posterior stay exact.

Bounds and false-alarm rates are those of `test_many_particles` (6e-5 a mean, 1e-4 a
configuration over its bins); runs are seeds 0..R−1, so the tests are deterministic.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from smcprog import Grammar, Reward, SettingError, Target
from smcprog.potentials import Potential, Request
from smcprog.smc.call import Call
from smcprog.smc.settings import Settings
from smcprog.smc.variants.moves import BlockMoves
from smcprog.smc.variants.waste_free import chain_heads
from smcprog.smc.wave import Wave, WaveRequest

from ..tiny import tiny_llama, tiny_model
from . import enumerate_draws
from .test_many_particles import assert_unbiased, run_many
from .test_one_particle import assert_same, weighted_outcomes
from .test_real_engine import as_toy
from .toys import CASES, Toy, gamma, in_regex, random_toy

RUNS = 300
LONG = 5
PATTERN = "a[ab]*b|b?"


def count_a(texts):
    return [t.count("a") for t in texts]


class ScriptedMoves(BlockMoves):
    """Whether a move is accepted is a choice of the row's script, too."""

    def _decide(self, log_chance_P, heads_P, move):
        count = len(self._wave.scripts) // len(heads_P)
        accepts = []
        for i, chance in enumerate(log_chance_P.exp().clamp(max=1).tolist()):
            accepts.append(self._wave.scripts[i * count].follow([1 - chance, chance]))
        return torch.tensor([bool(accepted) for accepted in accepts])


class Moving(Wave):
    """Every round resamples (its one particle), and the moves follow the script."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._moves = ScriptedMoves(self)

    def draws(self, *args):
        drawn = super().draws(*args)
        self.scripts = drawn._rows
        return drawn

    def _log_eta(self, need_R):
        return self.log_w_R_N[:, 0] > -math.inf, torch.zeros_like(self.log_w_R_N)


@pytest.mark.parametrize(
    ("k", "coupling", "masked", "rewarded", "long"),
    [
        (0, math.inf, False, True, 3),
        (0, math.inf, True, True, 4),
        (1, math.inf, True, True, 3),
        (1, 2.0, False, True, 3),
        (2, 1.0, True, False, 3),
    ],
)
def test_one_particle_enumerated(k, coupling, masked, rewarded, long, monkeypatch):
    """Over all draws, decisions included, Σ q · Ẑ = γ(y) for each outcome; no statistics."""
    assert_same(*enumerated(k, coupling, masked, rewarded, long, monkeypatch))


def test_the_enumeration_notices_a_wrong_chance(monkeypatch):
    class Hasty(ScriptedMoves):
        def _decide(self, log_chance_P, heads_P, move):
            return super()._decide(log_chance_P.clamp(min=-0.3), heads_P, move)

    monkeypatch.setitem(globals(), "ScriptedMoves", Hasty)
    with pytest.raises(AssertionError):
        assert_same(*enumerated(0, math.inf, True, True, 3, monkeypatch))


def enumerated(k, coupling, masked, rewarded, long, monkeypatch):
    monkeypatch.setattr(enumerate_draws, "Wave", Moving)
    rng = np.random.default_rng([k, masked])
    toy, other = random_toy(rng), random_toy(rng)
    target, exact = Target(toy.lm()), {}
    if masked:
        target, exact["accepts"] = target * Grammar.regex(PATTERN), in_regex(PATTERN)
    if rewarded:
        target = target * Reward(count_a, beta=-0.8, at="round")
        exact["log_reward"] = lambda text: -0.8 * text.count("a")
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=long,
        coupling=coupling, moves=1,
    )  # fmt: skip
    got = weighted_outcomes(target, settings, not masked)
    return got, gamma(toy, long, truncate=not masked, **exact)


def check(settings, masked=True, at="round", seed=3, long=LONG):
    toy, other = random_toy(np.random.default_rng(seed)), random_toy(np.random.default_rng(99))
    target = Target(toy.lm()) * Reward(count_a, beta=-0.8, at=at)
    exact = {"log_reward": lambda text: -0.8 * text.count("a")}
    if masked:
        target, exact["accepts"] = target * Grammar.regex(PATTERN), in_regex(PATTERN)
    options = {
        "particles": 8,
        "draft": other.lm("draft") if settings.get("draft_tokens") else None,
        "max_tokens": long,
        "ess_threshold": 0.9,
        **settings,
    }
    z, outcomes = run_many(target, Settings(**options), not masked, RUNS)
    assert_unbiased(z, outcomes, gamma(toy, long, truncate=not masked, **exact))
    return z


@pytest.mark.parametrize(
    ("masked", "settings"),
    [
        (True, {"moves": 1, "draft_tokens": 0}),
        (False, {"moves": 3, "draft_tokens": 2, "joint_draws": False}),
        (True, {"moves": 1, "draft_tokens": 2, "coupling": 2.0}),
        (False, {"moves": 2, "draft_tokens": 3, "coupling": 1.0, "draft_paths": 2}),
        (True, {"waste_free": 2, "draft_tokens": 2}),
        (False, {"waste_free": 4, "draft_tokens": 0, "resampling": "multinomial"}),
        (True, {"waste_free": 4, "draft_tokens": 2, "coupling": 2.0, "resampling": "ssp"}),
    ],
    ids=str,
)
def test_unbiased(masked, settings):
    check(settings, masked)


@pytest.mark.parametrize("settings", [{"moves": 1}, {"waste_free": 2}], ids=str)
def test_these_tests_notice_moves_that_are_always_accepted(settings, monkeypatch):
    def always(self, block, delta_P, heads_P, count):
        dead_P_C = block.delta_M.cpu().view(-1, count) == -math.inf
        held_P_C = torch.full((len(heads_P), count + 1), -1)
        for c in range(count):
            held_P_C[:, c + 1] = torch.where(dead_P_C[:, c], held_P_C[:, c], c)
        self._count(heads_P, held_P_C)
        return held_P_C

    monkeypatch.setattr(BlockMoves, "_accept", always)
    with pytest.raises(AssertionError):
        check({"draft_tokens": 0, **settings})


@pytest.mark.parametrize("settings", [{"moves": 2}, {"waste_free": 4}], ids=str)
def test_a_reference_case_with_outputs_that_end_at_different_times(settings):
    """Dyck words: moves turn finished outputs into running ones and back."""
    of = CASES["C"]
    target = Target(of.toy.lm()) * of.grammar()
    options = Settings(particles=8, max_tokens=7, ess_threshold=1.0, joint_draws=False, **settings)
    z, outcomes = run_many(target, options, False, RUNS)
    assert_unbiased(z, outcomes, gamma(of.toy, 7, truncate=False, accepts=of.accepts))


def mean_of_two(settings):
    """Standard errors between γ("b") = 0.9 and its mean over pairs of particles."""
    toy = Toy((b"a", b"b", b"<eos>"), 2, lambda h: (0.7, 0.3, 0.0), order=1)
    target = Target(toy.lm()) * Reward(
        lambda texts: [math.log(3) * t.count("b") for t in texts], at="round", anneal=True
    )
    runs = 10_000
    options = Settings(particles=2, max_tokens=1, ess_threshold=1.0, joint_draws=False, **settings)
    request = Request([0], (0,), toy.lm().vocab, 1, True)
    wave = Wave(target, [WaveRequest(i, request, i) for i in range(runs)], options, True)
    wave.run()
    is_b_R_N = (wave.tokens_B_T[:, 0] == 1).view(runs, 2)
    found_R = ((wave.log_evidence_R[:, None] + wave.log_w_R_N).exp() * is_b_R_N).mean(1)
    return abs(float(found_R.mean()) - 0.9) / float(found_R.std()) * math.sqrt(runs)


@pytest.mark.parametrize("settings", [{"moves": 1}, {"moves": 3}, {"waste_free": 2}], ids=str)
def test_moves_do_not_depend_on_what_they_move(settings):
    """Within 4 standard errors, false alarms 6e-5."""
    assert mean_of_two(settings) < 4


def test_and_the_test_notices_moves_where_ess_is_low_only(monkeypatch):
    """Whether it is low depends on the block that is moved."""
    decide = BlockMoves._decide

    def low(self, log_chance_P, heads_P, move):
        return (
            decide(self, log_chance_P, heads_P, move)
            & self._wave.rounds[-1].resampled_R[heads_P // self._wave.settings.particles]
        )

    monkeypatch.setattr(BlockMoves, "_decide", low)
    assert mean_of_two({"moves": 1}) > 6


def test_tokens_drawn_by_rejection_can_be_moved():
    """Their weights are estimates; the moves are exact on the larger space."""

    class Starts(Potential):
        """ψ = 1 for texts that do not hold "bb", told for single tokens only."""

        rejects = True
        max_checks = 2

        def start(self, request, n):
            return [()] * n

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            rows = [
                (*old, *new[:length])
                for old, new, length in zip(
                    state, tokens_N_T.tolist(), lengths_N.tolist(), strict=True
                )
            ]
            return rows, torch.tensor([0.0 if self.fine(row) else -math.inf for row in rows])

        def fork(self, state, ancestors_M):
            return [state[i] for i in ancestors_M.tolist()]

        def admits(self, state, rows, tokens, ended):
            return [self.fine((*state[r], t)) for r, t in zip(rows, tokens, strict=True)]

        @staticmethod
        def fine(row):
            return (1, 1) not in itertools.pairwise(row)

    toy = random_toy(np.random.default_rng(6))
    target = Target(toy.lm()) * Starts()
    options = Settings(particles=8, max_tokens=4, ess_threshold=1.0, joint_draws=False, moves=2)
    z, outcomes = run_many(target, options, True, RUNS)
    want = gamma(toy, 4, truncate=True, accepts=lambda text: "bb" not in text)
    assert_unbiased(z, outcomes, want)


def test_stop_strings_follow_the_moves():
    toy = random_toy(np.random.default_rng(3))
    target = Target(toy.lm()) * Reward(count_a, beta=-0.8, at="round")
    options = Settings(
        particles=8, draft=toy.lm("draft"), draft_tokens=1, max_tokens=LONG, stop=("ab",),
        ess_threshold=1.0, moves=2, joint_draws=False,
    )  # fmt: skip
    z, outcomes = run_many(target, options, True, RUNS)
    want = {}
    for y in gamma(toy, LONG, truncate=True):
        text = toy.text(y)
        cut = y if "ab" not in text else y[: text.index("ab") + 2]
        p = math.prod(toy.conditional(cut[:t][-toy.order :])[token] for t, token in enumerate(cut))
        want[cut] = p * math.exp(-0.8 * toy.text(cut).removesuffix("ab").count("a"))
    assert_unbiased(z, outcomes, want)


@pytest.mark.parametrize("settings", [{"moves": 2}, {"waste_free": 4}], ids=str)
def test_the_real_engine_keeps_rows_and_pages_in_order(settings):
    lm = tiny_llama(seed=5, scale=0.3)
    toy = as_toy(lm, tiny_model(seed=5, scale=0.3))
    draft = tiny_llama(seed=77, scale=0.3)
    options = Settings(
        particles=8, draft=draft, draft_tokens=1, max_tokens=4, ess_threshold=1.0,
        joint_draws=False, **settings,
    )  # fmt: skip
    target = Target(lm) * Reward(count_a, beta=1.0, at="round")
    z, outcomes = run_many(target, options, True, 300)
    want = gamma(toy, 4, truncate=True, log_reward=lambda text: text.count("a"))
    assert_unbiased(z, outcomes, want)
    assert lm.pages_in_use == draft.pages_in_use == 0


def test_the_reserved_pages_are_enough():
    """A pool of exactly the pages that admission reserves serves the run."""
    prompt, options = [0] * 37, {"particles": 6, "max_tokens": 20, "draft_tokens": 3, "moves": 2}
    for settings in (options, {**options, "moves": 0, "waste_free": 3},
                     {**options, "moves": 0, "lookahead": 5, "rollouts": 2}):  # fmt: skip
        draft = tiny_llama(seed=7, page_size=4, kv_pages=2000)
        big = tiny_llama(seed=6, page_size=4, kv_pages=2000)
        call = Call.of(Target(big), None, draft=draft, **settings)
        need = call.pages(call.request(prompt))[big]
        lm = tiny_llama(seed=6, page_size=4, kv_pages=need, prefix_cache=False)
        target = Target(lm) * Reward(count_a, beta=0.7, at="round")
        post = target.sample(prompt, draft=draft, ess_threshold=1.0, seed=1, **settings)
        assert post.alive
        assert lm.pages_in_use == 0


def test_what_a_run_reports():
    toy = random_toy(np.random.default_rng(3))
    target = Target(toy.lm()) * Reward(count_a, beta=-0.8, at="round")
    options = {"particles": 8, "max_tokens": 6, "seed": 0, "ess_threshold": 1.0}
    post = target.sample([0], moves=2, **options)
    for info in post.rounds:
        assert 0 <= info.moves_accepted <= info.moves <= 16
    assert post.rounds[0].moves == 16
    assert 0 < post.move_rate <= 1
    still = target.sample([0], moves=2, **{**options, "ess_threshold": 0})
    assert not any(info.resampled for info in still.rounds)
    assert still.rounds[0].moves == 16
    plain = target.sample([0], **options)
    assert math.isnan(plain.move_rate)
    free = target.sample([0], waste_free=4, **options)
    assert math.isnan(free.log_evidence_se)
    for info in free.rounds:
        if info.resampled:
            assert all(len(set(info.ancestors[i : i + 4])) == 1 for i in (0, 4))


def test_chains_keep_every_particles_share():
    drawn = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 3]])
    seeds = torch.arange(40_000)
    heads = chain_heads(drawn.expand(len(seeds), 8), 4, seeds, 0)
    share = torch.bincount(heads.flatten(), minlength=4).double() / heads.numel()
    # 4 standard errors; false alarms 6e-5 a share
    assert (share - torch.tensor([3, 2, 1, 2]) / 8).abs().max() < 4 * 0.5 / math.sqrt(80_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"moves": -1}, "moves"),
        ({"waste_free": 3}, "must divide particles=8"),
        ({"moves": 1, "waste_free": 2}, "exclude each other"),
        ({"moves": 1, "lookahead": 2}, "lookahead cannot be combined"),
        ({"lookahead": 2, "rollouts": 1}, "rollouts"),
        ({"first_tokens": "best"}, "first_tokens must be one of"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        Settings(**settings)
