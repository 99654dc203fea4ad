"""Ancestors drawn by w·η instead of w: annealed rewards, lookahead, and any η at all.

Bounds and false-alarm rates are those of `test_many_particles`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import Grammar, Reward, Target
from smcprog.particles import ess
from smcprog.potentials import Request
from smcprog.smc.settings import Settings
from smcprog.smc.variants.moves import BlockMoves
from smcprog.smc.variants.tempering import selected_share
from smcprog.smc.wave import Wave, WaveRequest

from . import test_many_particles
from .test_many_particles import assert_unbiased, run_many
from .toys import BITS, Toy, gamma, in_regex, random_toy

RUNS = 300
LONG = 5
PATTERN = "a[ab]*b|b?"
BETA = -1.5


def count_a(texts):
    return [t.count("a") for t in texts]


def check(settings, masked, reward=None, seed=3):
    toy, other = random_toy(np.random.default_rng(seed)), random_toy(np.random.default_rng(99))
    target, exact = Target(toy.lm()), {}
    if reward is not None:
        target = target * Reward(count_a, beta=BETA, **reward)
        exact["log_reward"] = lambda text: BETA * text.count("a")
    if masked:
        target, exact["accepts"] = target * Grammar.regex(PATTERN), in_regex(PATTERN)
    options = {
        "particles": 8,
        "draft": other.lm("draft") if settings.get("draft_tokens") else None,
        "max_tokens": LONG,
        "ess_threshold": 0.9,
        **settings,
    }
    z, outcomes = run_many(target, Settings(**options), not masked, RUNS)
    assert_unbiased(z, outcomes, gamma(toy, LONG, truncate=not masked, **exact))


class AnyEta(Wave):
    """η is a wild function of the particle's number, its length and its last token."""

    def _log_eta(self, need_R):
        r, n = self.log_w_R_N.shape
        last_B = self.tokens_B_T.gather(1, (self.lengths_B - 1).clamp(min=0)[:, None])[:, 0]
        log_eta_B = ((7 * last_B + 3 * self.lengths_B + torch.arange(r * n) % n) % 5).double()
        return need_R, (0.7 * log_eta_B - 1).view(r, n)


class Forgets(AnyEta):
    """The same, but ancestors weigh 1 afterwards."""

    def _resample(self, active_R):
        ancestors_B = super()._resample(active_R)
        self.log_w_R_N[self.rounds[-1].resampled_R] = 0.0
        return ancestors_B


def test_any_eta_keeps_the_evidence_unbiased(monkeypatch):
    monkeypatch.setattr(test_many_particles, "Wave", AnyEta)
    check({"draft_tokens": 1, "ess_threshold": 1.0}, masked=True, reward={"at": "round"})


def test_and_the_test_notices_a_missing_correction(monkeypatch):
    monkeypatch.setattr(test_many_particles, "Wave", Forgets)
    with pytest.raises(AssertionError):
        check({"draft_tokens": 1, "ess_threshold": 1.0}, masked=True, reward={"at": "round"})


@pytest.mark.parametrize("at", ["round", "end"])
@pytest.mark.parametrize(
    "settings",
    [
        {"draft_tokens": 0},
        {"draft_tokens": 2, "coupling": 2.0},
        {"draft_tokens": 1, "moves": 2},
        {"draft_tokens": 0, "waste_free": 4},
    ],
    ids=str,
)
def test_annealed_rewards(settings, at):
    check(settings, masked=True, reward={"at": at, "anneal": True})


def test_moves_of_annealed_rewards_notice_the_wrong_target(monkeypatch):
    """A move must leave γ invariant, not γ·η."""
    accept = BlockMoves._accept

    def tempered(self, block, delta_P, heads_P, count):
        block.delta_M = block.delta_M - self._wave._tempering.value(block) / 2
        return accept(self, block, delta_P - self._wave.annealed_B[heads_P] / 2, heads_P, count)

    monkeypatch.setattr(BlockMoves, "_accept", tempered)
    with pytest.raises(AssertionError):
        check({"draft_tokens": 0, "moves": 3}, masked=False, reward={"at": "round", "anneal": True})


@pytest.mark.parametrize(
    ("masked", "settings"),
    [
        (False, {"lookahead": 2, "rollouts": 2}),
        (True, {"lookahead": 3, "draft_tokens": 2}),
        (True, {"lookahead": 2, "draft_tokens": 2, "coupling": 2.0, "joint_draws": False}),
    ],
    ids=str,
)
def test_lookahead(masked, settings):
    check(settings, masked, reward={"at": "round"})


def test_lookahead_avoids_dead_ends():
    """After "0" the mask refuses nearly all that the model says; the weights tell a step late."""
    after = {(): (0.9, 0.1, 0.0), (0,): (0.99, 0.01, 0.0), (1,): (0.5, 0.5, 0.0)}
    toy = Toy(BITS, 2, lambda h: after.get(h, (0.5, 0.5, 0.0) if len(h) < 3 else (0, 0, 1)), 3)
    pattern = "01[01]|1[01]{2}"
    nudge = Reward(lambda texts: [0.1 * (t[:1] == "0") for t in texts], at="round")
    target = Target(toy.lm()) * Grammar.regex(pattern) * nudge
    ess_after = {}
    for lookahead in (0, 1):
        posts = target.sample(
            [[0]] * 60, particles=20, max_tokens=4, ess_threshold=1.0, lookahead=lookahead,
            seed=list(range(60)),
        )  # fmt: skip
        ess_after[lookahead] = np.mean([post.rounds[1].ess for post in posts])
    # Of 20 particles about 2 have begun with "1": without rollouts, the next round finds out.
    assert ess_after[0] < 4
    assert ess_after[1] > 12


def test_the_selected_share_reaches_the_threshold_and_no_less():
    rng = np.random.default_rng(0)
    a_R_N = torch.from_numpy(rng.normal(size=(20, 50)) * 5)
    f_R = selected_share(a_R_N, a_R_N, 25.0)  # the weights are the rewards: f of them is left
    reached_R = ess(f_R.unsqueeze(1) * a_R_N)
    assert torch.allclose(reached_R, torch.full((20,), 25.0, dtype=torch.float64), atol=1e-4)
    assert (selected_share(a_R_N / 100, a_R_N / 100, 25.0) == 1).all()
    # Weights that are bad whatever is selected: the share of largest ESS
    bad_R_N = torch.zeros((1, 50), dtype=torch.float64)
    bad_R_N[0, 0] = 30.0
    a_1_N = torch.zeros_like(bad_R_N)
    a_1_N[0, 1] = 4.0
    assert selected_share(bad_R_N, a_1_N, 25.0).item() in (0.0, 1.0)


def test_a_dead_particle_has_no_eta():
    toy = random_toy(np.random.default_rng(3))
    lm = toy.lm()
    target = Target(lm) * Reward(
        lambda texts: [-math.inf if "bb" in t else t.count("a") for t in texts],
        beta=2.0, at="round", anneal=True, prune=True,
    )  # fmt: skip
    request = Request([0], (0,), lm.vocab, 6, True)
    wave = Wave(target, [WaveRequest(0, request, 1)], Settings(particles=64, max_tokens=6), True)
    wave.run()
    assert not wave.log_w_R_N.isnan().any()
    assert (wave.log_w_R_N > -math.inf).any()
    assert not wave.failed
