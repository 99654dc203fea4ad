"""`*`, `/` and `**` of potentials, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import Check, Grammar, Guidance, Mixture, Product, Reward, Target, Twist
from smcprog.errors import PotentialError, SettingError
from smcprog.potentials import Potential, Power
from smcprog.testing import TabularLM

from ..exactness.toys import random_toy
from ..tiny import tiny_llama


def lm_of(seed=0):
    return random_toy(np.random.default_rng(seed)).lm(f"toy{seed}")


def score(texts):
    return [len(t) for t in texts]


def test_division_is_a_negative_power():
    a, b = Target(lm_of(0)), Target(lm_of(1), temperature=0.5)
    target = a**1.5 / b**0.5
    assert [f.power for f in target.factors] == [1.5, -0.5]
    assert repr(target) == "Target(toy0) * Target(toy1)"
    assert "temperature=0.5) ** -0.5" in repr(target.factors[1])
    whole = (a * b) / (a * b)
    assert [f.power for f in whole.factors] == [1, 1, -1, -1]


def test_powers_multiply_and_distribute():
    a, b = lm_of(0), lm_of(1)
    target = (Target(a) ** 2 * Mixture([Target(a), Target(b)]) * Guidance(a, 2)) ** 0.5
    assert [f.power for f in target.factors] == [1, 0.5, 0.5]
    assert (Reward(score, 2.0) ** 1.5).beta == 3
    assert (Twist(score) ** -2).beta == -2
    grammar, check = Grammar.regex("a"), Check(lambda text: True)
    assert grammar**3 is grammar and check**0.5 is check


class Halves(Potential):
    """ψ = 2^−length."""

    positive = True

    def start(self, request, n):
        return torch.zeros(n, dtype=torch.float64)

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state = state - 0.5 * lengths_N.double()
        return state, state

    def fork(self, state, ancestors_M):
        return state[ancestors_M]


def test_a_power_of_a_users_potential_scales_its_values():
    half = Halves()
    assert half**1 is half
    power = (half**3) ** -2
    assert isinstance(power, Power) and power.potential is half and power.power == -6
    post = (Target(lm_of()) * power).sample([0], particles=4, max_tokens=5, seed=1)
    model = Target(lm_of())
    for p in post.particles:
        assert p.log_target - sum(p.logprobs) == pytest.approx(3 * len(p.tokens))
    assert model.power == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a: a / Grammar.regex("a"), r"Grammar.* \*\* -1 would be infinite where"),
        (lambda a: a / Check(lambda t: True), r"Check.* \*\* -1 would be infinite"),
        (lambda a: a / Target(a.lm, top_p=0.9), r"truncated, so some tokens have probability zero"),
        (lambda a: a / Target(a.lm, temperature=0), r"truncated"),
        (lambda a: a / (a * Target(a.lm, min_p=0.1)), r"truncated"),
        (lambda a: a / Guidance(a.lm, 2, top_k=1), r"Guidance.* is truncated"),
        (lambda a: a / Mixture([Target(a.lm, top_k=1)] * 2), r"Mixture.* is truncated"),
        (lambda a: a / Twice(), r"positive = True"),
        (lambda a: a**0, r"power must not be 0"),
        (lambda a: Grammar.regex("a") ** 0, r"power 0 forgets"),
        (lambda a: a ** float("nan"), r"power must be a number"),
        (lambda a: a ** "2", r"power must be a number"),
        (lambda a: Halves() ** True, r"power must be a number"),
        (lambda a: a * 2, r"product of potentials, and int is none: a constant"),
        (lambda a: 0.5 * a, r"float is none: a constant"),
        (lambda a: a * a.lm, r"TabularLM is none: write Target\(lm\)"),
        (lambda a: a * score, r"function is none: write Reward\(fn\)"),
        (lambda a: a * {"type": "string"}, r"dict is none: write Grammar"),
        (lambda a: a / "x", r"str is none"),
        (lambda a: Product([a, None]), r"NoneType is none"),
        (lambda a: Target(a.lm, power=-1), r"power must be a number from 0"),
        (lambda a: Mixture([]), r"takes 1 to 64 models"),
        (lambda a: Mixture(a), r"takes a list of models"),
        (lambda a: Mixture([a, Reward(score)]), r"made of language models"),
        (lambda a: Mixture([a, a**-1]), r"of negative power"),
        (lambda a: Mixture([a, Target(a.lm, temperature=0)]), r"is greedy"),
        (lambda a: Mixture([a, a], [1]), r"2 numbers, one a model"),
        (lambda a: Mixture([a, a], [1, 0]), r"greater than 0"),
        (lambda a: Mixture([a, a], [1, float("inf")]), r"weights\[1\]"),
        (lambda a: Mixture([a, a**2], of="tokens"), r"has a power"),
        (lambda a: Mixture([a, a], of="words"), r"of must be"),
        (lambda a: Guidance(a.lm, float("inf")), r"scale must be"),
        (lambda a: Guidance(a.lm, 1, temperature=-1), r"temperature"),
        (lambda a: Twist(None), r"Twist takes a function"),
        (lambda a: Twist(score, at="end"), r"a twist is 1 where an output ends"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make(Target(lm_of()))


class Twice(Halves):
    positive = False


def test_products_from_either_side():
    a = Target(lm_of())
    reward = Reward(score)
    assert (reward * a).factors == (reward, a)
    assert (a * (reward * a)).factors == (a, reward, a)


def test_the_lead_is_the_first_model_of_positive_power():
    a, b = Target(lm_of(0)), Target(lm_of(1))
    post = (b**-0.5 * a).sample([0], particles=3, max_tokens=4, seed=0)
    toy = random_toy(np.random.default_rng(0))
    for p in post.particles:  # what is reported are the lead's
        want = [
            np.log(toy.conditional(tuple(p.tokens[:t])[-2:])[v]) for t, v in enumerate(p.tokens)
        ]
        assert p.logprobs == pytest.approx(want)
    with pytest.raises(SettingError, match="no language model of positive power to draw from"):
        (b**-0.5).sample([0])


def test_a_model_that_forbids_tokens_cannot_be_divided_by():
    """A table with zeros: the request that needs 1/0 fails, by name."""
    tokens = [b"a", b"b", b"<eos>"]
    some = TabularLM(tokens, [2], np.log([[0.5, 1e-300, 0.5]]), [[0, 0, 0]], "some")
    none = TabularLM(tokens, [2], [[0.0, -np.inf, 0.0]], [[0, 0, 0]], "none")
    with pytest.raises(
        PotentialError, match=r"Target\(none\): token 1 \('b'\) has probability zero"
    ):
        (Target(some) / Target(none)).sample([0], particles=2, max_tokens=3)
    with pytest.raises(PotentialError, match=r"Guidance.*token 1 \('b'\) is impossible under one"):
        Guidance(
            TabularLM(
                tokens, [2], [[0.0, -np.inf, 0.0], [0.0, 0.0, 0.0]], [[0, 0, 0], [1, 1, 1]],
                start=lambda prompt: int(prompt[0] == 0),
            ),
            2, negative_prompt=[1],
        ).sample([0], particles=2, max_tokens=3)  # fmt: skip


def test_padded_ids_stay_impossible_under_a_negative_power():
    class Padded(type(lm_of().vocab)):
        known_V = torch.tensor([True, True, False, True])

    lm = tiny_llama(vocab_size=4, eos=3)
    lm.vocab.__class__ = Padded
    target = Target(lm) ** 1.5 / Target(lm, temperature=2.0)
    post = target.sample([0], particles=64, max_tokens=6, seed=0)
    assert all(2 not in p.tokens for p in post.particles)
    assert all(np.isfinite(p.log_target) for p in post.particles)


def test_every_factor_says_what_it_does_to_the_draw():
    lm = lm_of()
    target = Target(lm, prompt=[1]) ** 2 * Grammar.regex("a*") * Reward(score)
    told = target.explain()
    assert "drawn from softmax(logits) of toy0 after its own prompt [1], to the power 2" in told
    assert "weighed after the draw" in told
    told = Mixture([Target(lm), Target(lm, top_k=2)], of="tokens").explain()
    assert "0.5 of softmax(logits) of toy0" in told and "cut to top_k=2" in told
    told = Guidance(lm, 1.5, negative_prompt=[0], temperature=0.7).explain()
    assert "p(v | prompt)^1.5 · p(v | negative prompt)^-0.5" in told and "0.7" in told
    assert "taken out again" in Twist(score).explain()
    assert "to the power 3" in (Halves() ** 3).explain()
