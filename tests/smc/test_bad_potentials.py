"""Potentials of users that break the contract: refused by name, and only their request fails."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import AllDeadError, BatchError, Potential, PotentialError, Reward, Target

from ..exactness.toys import random_toy

LM = random_toy(np.random.default_rng(0)).lm()
DRAFT = random_toy(np.random.default_rng(1)).lm("draft")


class Quiet(Potential):
    """ψ = 1; the state is the number of rows."""

    def start(self, request, n):
        return n

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        return state, torch.zeros(state, dtype=torch.float64)

    def fork(self, state, ancestors_M):
        return len(ancestors_M)


def masking(make):
    class Masking(Quiet):
        masks = True

        def mask(self, state):
            return make(state)

    return Masking()


def proposing(make):
    class Proposing(Quiet):
        def next_logw(self, state):
            return make(state)

    return Proposing()


def advancing(make):
    class Advancing(Quiet):
        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            return state, make(state)

    return Advancing()


BAD = {
    "mask: a row too many": (masking, lambda n: torch.ones((n + 1, 3), dtype=torch.bool)),
    "mask: one dimension": (masking, lambda n: torch.ones(3, dtype=torch.bool)),
    "mask: too narrow": (masking, lambda n: torch.ones((n, 2), dtype=torch.bool)),
    "mask: floats": (masking, lambda n: torch.ones((n, 3))),
    "mask: unpacked integers": (masking, lambda n: torch.ones((n, 3), dtype=torch.int32)),
    "mask: an array": (masking, lambda n: np.ones((n, 3), dtype=bool)),
    "mask: raises": (masking, lambda n: 1 / 0),
    "next_logw: a row too many": (proposing, lambda n: torch.zeros((n + 1, 3))),
    "next_logw: too narrow": (proposing, lambda n: torch.zeros((n, 2))),
    "next_logw: nothing": (proposing, lambda n: None),
    "next_logw: complex": (proposing, lambda n: torch.zeros((n, 3), dtype=torch.complex64)),
    "next_logw: NaN": (proposing, lambda n: torch.full((n, 3), math.nan)),
    "next_logw: infinite": (proposing, lambda n: torch.full((n, 3), math.inf)),
    "advance: wrong shape": (advancing, lambda n: torch.zeros((n, 1))),
    "advance: integers": (advancing, lambda n: torch.zeros(n, dtype=torch.int64)),
    "advance: no values": (advancing, lambda n: torch.zeros(n, device="meta")),
    "advance: NaN": (advancing, lambda n: torch.full((n,), math.nan)),
    "advance: infinite": (advancing, lambda n: torch.full((n,), math.inf)),
}


@pytest.mark.parametrize(("kind", "make"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("draft", [None, DRAFT])
def test_one_bad_request_is_named_and_the_others_finish(kind, make, draft):
    good = {"mask": lambda n: None}.get(kind.__name__)
    seen = []

    class Sometimes(type(kind(make))):
        """Breaks the contract for the second request only."""

        def start(self, request, n):
            seen.append(request)
            return (n, request.prompt == [1])

        def fork(self, state, ancestors_M):
            return (len(ancestors_M), state[1])

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            if state[1]:
                return state, super().advance(state[0], tokens_N_T, lengths_N, ended_N)[1]
            return state, torch.zeros(state[0], dtype=torch.float64)

        def mask(self, state):
            return super().mask(state[0]) if state[1] else good and good(state[0])

    if kind is proposing:

        def next_logw(self, state):
            return make(state[0]) if state[1] else torch.zeros((state[0], 3))

        Sometimes.next_logw = next_logw

    target = Target(LM) * Sometimes()
    options = {"particles": 3, "max_tokens": 4, "seed": 0, "draft": draft, "draft_tokens": 2}
    with pytest.raises(BatchError) as caught:
        target.sample([[0], [1], [0, 0]], **options)
    first, second, third = caught.value.results
    assert isinstance(second, PotentialError)
    assert second.potential == "Sometimes"
    assert first.text is not None and third.text is not None
    with pytest.raises(PotentialError):
        target.sample([1], **options)
    assert target.sample([0], **options).text is not None


def test_the_dead_are_never_reported_complete():
    """A factor hears `ended` only for outputs that are outcomes."""

    class Deadly(Quiet):
        """Forbids the letter b, but only says so by its value."""

        masks = True

        def mask(self, state):
            return None

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            real = torch.arange(tokens_N_T.shape[1]) < lengths_N.unsqueeze(1)
            dead = ((tokens_N_T == 1) & real).any(1)
            return state, torch.where(dead, -math.inf, 0.0).double()

    class Strict(Quiet):
        def start(self, request, n):
            return [[] for _ in range(n)]

        def fork(self, state, ancestors_M):
            return [list(state[a]) for a in ancestors_M.tolist()]

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            for row, new, n, ended in zip(
                state, tokens_N_T.tolist(), lengths_N.tolist(), ended_N.tolist(), strict=True
            ):
                row.extend(new[:n])
                if ended and n:
                    assert row[-1] == 2 or len(row) == 6, row
            return state, torch.zeros(len(state), dtype=torch.float64)

    class StrictLM(Strict):
        def next_logw(self, state):
            return torch.zeros((len(state), 3))

    for strict in (Strict(), StrictLM()):
        target = Target(LM) * Deadly() * strict
        post = target.sample(
            [0], draft=DRAFT, draft_tokens=4, max_tokens=6, particles=32, seed=0, truncate=True
        )
        assert "b" not in post.text


def test_the_form_of_a_prompt_reaches_the_potential():
    """A text and the token ids it encodes to are two prompts."""

    class IsText(Quiet):
        def start(self, request, n):
            return (n, isinstance(request.prompt, str))

        def fork(self, state, ancestors_M):
            return (len(ancestors_M), state[1])

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            return state, torch.full((state[0],), float(state[1]), dtype=torch.float64)

    posts = (Target(LM) * IsText()).sample([[0], "a"], seed=0, max_tokens=3)
    assert [round(p.log_evidence, 9) for p in posts] == [0, 1]


def test_gradients_stay_outside():
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    target = Target(LM) * advancing(lambda n: weight.expand(n))
    assert target.sample([0], seed=0, max_tokens=3).log_evidence == pytest.approx(0.5)


def test_impossible_start_is_all_dead():
    with pytest.raises(AllDeadError) as caught:
        target = Target(LM) * advancing(lambda n: torch.full((n,), -math.inf))
        target.sample([0], seed=0, max_tokens=3)
    assert caught.value.potential == "Advancing"
    assert caught.value.position == 0


def test_interruptions_pass_through():
    def stop(texts):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        (Target(LM) * Reward(stop)).sample([0], seed=0, max_tokens=3)


class Joining(Quiet):
    joins = True

    def join(self, states):
        return sum(states)


def test_a_joining_potential_that_cannot_start_is_named():
    class Broken(Joining):
        def start(self, request, n):
            if request.prompt == [1]:
                raise ValueError("broken")
            return n

    with pytest.raises(BatchError) as caught:
        (Target(LM) * Broken()).sample([[0], [1]], seed=0, max_tokens=3)
    first, second = caught.value.results
    assert first.text is not None
    assert isinstance(second, PotentialError) and second.potential == "Broken"


def test_requests_that_cannot_be_joined_run_alone():
    class Broken(Joining):
        def join(self, states):
            raise ValueError("broken")

    assert len((Target(LM) * Broken()).sample([[0], [1]], seed=0, max_tokens=3)) == 2
