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


class MasksTheEnd(Counts):
    """An output may end, and the mask says it may not."""

    masks = True

    def mask(self, state):
        allowed = torch.ones((len(state), 3), dtype=torch.bool)
        allowed[:, 2] = state == 0
        return allowed


class SilentMask(WrongMask):
    masks = False


class NarrowMask(WrongMask):
    def mask(self, state):
        return torch.ones((len(state), 2), dtype=torch.bool)


class NarrowNext(WrongNext):
    def next_logw(self, state):
        return torch.zeros((len(state), 2))


class RightNext(Counts):
    def next_logw(self, state):
        return torch.tensor([[-1.0, 0.0, 0.0]]).expand(len(state), 3)


class LooksTooFar(RightNext):
    def lookahead(self, state, tokens_N_T, lengths_N):
        logw_N_B_V = super().lookahead(state, tokens_N_T, lengths_N)
        return logw_N_B_V * (torch.arange(logw_N_B_V.shape[1]) < 2)[:, None]


class MovesInLookahead(RightNext):
    def lookahead(self, state, tokens_N_T, lengths_N):
        logw_N_B_V = super().lookahead(state, tokens_N_T, lengths_N)
        state -= (tokens_N_T == 0).sum(1)
        return logw_N_B_V


class JoinsBackwards(Counts):
    joins = True

    def join(self, states):
        return torch.cat(states[::-1])


class CountsCalls(Counts):
    """The value depends on how often it was asked, not on the output."""

    calls = 0

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        self.calls += 1
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value - self.calls


class ForgetsEnds(Counts):
    """It looks for EOS, and misses outputs that end at their length or in a stop string."""

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        if tokens_N_T.shape[1] > 1 and bool(ended_N.any()):
            ended_N = torch.zeros_like(ended_N)  # as if only single tokens could end
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, torch.where(ended_N, value - 5, value)


class ChecksAtTheEnd(Counts):
    """Dead prefixes that a completion brings back to life."""

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, torch.where(ended_N | (state > -2), value, -torch.inf)


class Admits(Counts):
    rejects = True

    def admits(self, state, rows, tokens, ended):
        return [t != 1 for t in tokens]


class WrongShape(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value.unsqueeze(1)


class NoTensor(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value.tolist()


class SinglePrecision(Counts):
    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, value.float()


class SaysNaN(Counts):
    bad = torch.nan

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
        return state, torch.where(state == -2, self.bad, value)


class SaysInfinity(SaysNaN):
    bad = torch.inf


@pytest.fixture
def request_ab():
    lm = random_toy(np.random.default_rng(0)).lm()
    return Request([0], (0,), lm.vocab, max_tokens=6)


def test_a_correct_potential_passes(request_ab):
    check_potential(Counts(), request_ab)


BROKEN = [  # what breaks which law, and the shortest output that shows it
    (Increments, "telescoping", 2),
    (CountsPadding, "telescoping", 1),
    (ForgetsEnds, "telescoping", 1),
    (SharesRows, "batch", 1),
    (CountsCalls, "batch", 0),
    (ForksInPlace, "fork", 1),
    (Revives, "support", 2),
    (ChecksAtTheEnd, "support", 3),
    (WrongMask, "mask", 1),
    (MasksTheEnd, "mask", 2),
    (SilentMask, "mask", 0),
    (NarrowMask, "mask", 0),
    (WrongNext, "next", 1),
    (NarrowNext, "next", 0),
    (Admits, "admits", 1),
    (LooksTooFar, "lookahead", 3),
    (MovesInLookahead, "lookahead", 2),
    (JoinsBackwards, "join", 0),
    (SaysNaN, "shape", 2),
    (SaysInfinity, "shape", 2),
    (WrongShape, "shape", None),
    (NoTensor, "shape", None),
    (SinglePrecision, "shape", None),
]


@pytest.mark.parametrize(
    ("broken", "law", "length"), BROKEN, ids=lambda v: getattr(v, "__name__", None)
)
@pytest.mark.parametrize("samples", [80, 15], ids=["all short outputs", "random long ones"])
def test_a_broken_one_is_named(request_ab, broken, law, length, samples):
    longest = 4 if samples == 80 else 6
    with pytest.raises(LawError) as caught:
        check_potential(broken(), request_ab, samples=samples, max_length=longest)
    error = caught.value
    assert error.law == law and str(error).startswith(f"{law} law: ")
    if length is None:
        assert error.counterexample is None
        return
    # As short as can be, up to what random tails add.
    assert length <= len(error.counterexample) <= length + {"fork": 1, "lookahead": 2}.get(law, 0)
    if law not in ("mask", "next", "admits", "lookahead"):  # those name the token apart
        assert str(list(error.counterexample)) in str(error)


def test_what_the_walk_covers():
    """Outputs are cut where they end; without truncation none fills its length."""
    lm = random_toy(np.random.default_rng(0)).lm()
    seen = []

    class Notes(Counts):
        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            state, value = super().advance(state, tokens_N_T, lengths_N, ended_N)
            seen.extend(ended_N.tolist())
            return state, value

    request = Request([0], (0,), lm.vocab, max_tokens=3, stop=("ab",))
    check_potential(Notes(), request, sequences=[(0, 1, 1, 1, 1), (1, 1, 1, 1), (0, 2, 0)])
    assert any(seen)
    check_potential(Counts(), Request([0], (0,), lm.vocab, max_tokens=3, truncate=False))


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
