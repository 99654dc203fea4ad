"""The law check finds potentials that break a law, and says which."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import Check, Potential
from smcprog.potentials import Request
from smcprog.testing import LawError, check_potential

from ..exactness.toys import random_toy


class Counts(Potential):
    """ψ = exp(−number of a's): a correct potential to break."""

    def start(self, request, n):
        return torch.zeros(n, dtype=torch.float64)

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        real = torch.arange(tokens_N_T.shape[1]) < lengths_N.unsqueeze(1)
        state = state - ((tokens_N_T == 0) & real).sum(1)
        return state, state

    def fork(self, state, ancestors_M):
        return state[ancestors_M]


class Increments(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        new, _ = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return new, new - state


class CountsPadding(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state = state - (tokens_N_T == 0).sum(1)
        return state, state


class SharesRows(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value - value.mean()


class ForksInPlace(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        real = torch.arange(tokens_N_T.shape[1]) < lengths_N.unsqueeze(1)
        state -= ((tokens_N_T == 0) & real).sum(1)
        return state, state.clone()

    def fork(self, state, ancestors_M):
        if len(ancestors_M) <= len(state):
            return state[ancestors_M]
        state.resize_(len(ancestors_M))  # grows in place: the origin changes too
        return state


class Revives(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, torch.where(state == -1, -torch.inf, value)


class WrongMask(Counts):
    masks = True

    def mask(self, state):
        allowed = torch.ones((len(state), 3), dtype=torch.bool)
        allowed[:, 1] = False
        return allowed


class WrongNext(Counts):
    def next_logw(self, state):
        return torch.zeros((len(state), 3))


class WrongShape(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value.unsqueeze(1)


class SaysNaN(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, torch.where(state == -2, torch.nan, value)


@pytest.fixture
def request_ab():
    lm = random_toy(np.random.default_rng(0)).lm()
    return Request([0], (0,), lm.vocab, max_tokens=6)


def test_a_correct_potential_passes(request_ab):
    check_potential(Counts(), request_ab)


@pytest.mark.parametrize(
    ("broken", "law"),
    [
        (Increments, "telescoping"),
        (CountsPadding, "telescoping"),
        (SharesRows, "batch"),
        (ForksInPlace, "fork"),
        (Revives, "support"),
        (WrongMask, "mask"),
        (WrongNext, "next"),
        (WrongShape, "shape"),
        (SaysNaN, "shape"),
    ],
)
def test_a_broken_one_is_named(request_ab, broken, law):
    with pytest.raises(LawError) as caught:
        check_potential(broken(), request_ab)
    assert caught.value.law == law
    if law != "shape":
        assert "[" in str(caught.value)  # a counterexample


def test_a_check_that_comes_back_to_life():
    """The prefix "a" is refused, though "aa" would be good."""
    even = Check(lambda t: t.count("a") % 2 == 0, prefix=lambda t: t.count("a") % 2 == 0)
    lm = random_toy(np.random.default_rng(0)).lm()
    with pytest.raises(LawError) as caught:
        check_potential(even, Request([0], (0,), lm.vocab, max_tokens=6), samples=60)
    assert caught.value.law == "support"


def test_a_check_that_foretells_what_does_not_come():
    class Hopeful(Check):
        def admits(self, state, rows, tokens, ended):
            return [True] * len(rows)

    none = Hopeful(lambda t: "a" not in t, prefix=lambda t: "a" not in t)
    lm = random_toy(np.random.default_rng(0)).lm()
    with pytest.raises(LawError) as caught:
        check_potential(none, Request([0], (0,), lm.vocab, max_tokens=6), samples=60)
    assert caught.value.law == "admits"
