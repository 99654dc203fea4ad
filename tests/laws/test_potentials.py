"""Every potential of the library obeys the laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog import Check, Grammar, Reward, Target
from smcprog.grammars.text import FinalCheck, GrammarText
from smcprog.potentials import Request
from smcprog.testing import TabularLM, check_potential

from ..exactness.toys import CASE_D, LARK_D, random_toy
from ..tiny import tiny_llama


def request_for(lm, **options):
    return Request([0], (0,), lm.vocab, max_tokens=6, **options)


def lm_of(seed, symbols=3):
    return random_toy(np.random.default_rng(seed), symbols).lm()


TARGETS = {
    "plain": {},
    "power": {"power": 2.0},
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7, "power": 0.5},
    "min_p": {"min_p": 0.6},
}


@pytest.mark.parametrize("options", TARGETS.values(), ids=TARGETS)
def test_target_over_a_table(options):
    lm = lm_of(0)
    check_potential(Target(lm, **options), request_for(lm))


@pytest.mark.parametrize("options", TARGETS.values(), ids=TARGETS)
def test_target_over_a_model(options):
    lm = tiny_llama(vocab_size=6, eos=5)
    check_potential(Target(lm, **options), request_for(lm), samples=8)


GRAMMARS = {
    "regex": lambda: Grammar.regex("a[ab]*|b{2}c"),
    "choice": lambda: Grammar.choice(["a", "ab", "cab"]),
    "lark": lambda: Grammar.lark('start: "a" start "b" | "c"\n'),
    "checked besides": lambda: Grammar(
        GrammarText("odd", "start: /[ab]+/\n", "letters", (FinalCheck("odd", _is_odd),))
    ),
}


def _is_odd(text):
    return len(text) % 2 == 1


@pytest.mark.parametrize("make", GRAMMARS.values(), ids=GRAMMARS)
def test_grammar(make):
    lm = lm_of(1)
    check_potential(make(), request_for(lm), max_length=5, samples=40)


def test_grammar_over_two_spellings():
    lm = CASE_D.lm()
    check_potential(Grammar.lark(LARK_D), request_for(lm), max_length=3, samples=200)


@pytest.mark.parametrize("beta", [1.0, -2.0, 0.0])
def test_reward(beta):
    lm = lm_of(2)
    score = lambda texts: [len(t) - t.count("b") for t in texts]  # noqa: E731
    check_potential(Reward(score, beta), request_for(lm, stop=("cc",)))


def test_reward_that_forbids():
    lm = lm_of(3)
    score = lambda texts: [0.0 if "b" in t else -np.inf for t in texts]  # noqa: E731
    check_potential(Reward(score), request_for(lm))


def few(text, finished=True):
    return text.count("a") <= 1 and (not finished or not text.endswith("b"))


CHECKS = {
    "finished": lambda: Check(few),
    "finished, by rejection": lambda: Check(few, rejection=True),
    "prefix": lambda: Check(few, at="prefix"),
    "prefix, weighed": lambda: Check(few, at="prefix", rejection=False),
    "two functions": lambda: Check(few, prefix=lambda text: few(text, False)),
    "batches": lambda: Check(
        lambda texts, ends: list(map(few, texts, ends)), at="prefix", batch=True
    ),
}


@pytest.mark.parametrize("make", CHECKS.values(), ids=CHECKS)
def test_check(make):
    lm = lm_of(4)
    check_potential(make(), request_for(lm, stop=("cb",)), max_length=5, samples=60)


def test_check_over_split_characters():
    tokens = [b"a", "é".encode()[:1], "é".encode()[1:], b"<eos>"]
    lm = TabularLM(tokens, [3], np.log(np.full((1, 4), 0.25)), np.zeros((1, 4), dtype=int))
    plain = Check(lambda t: "\ufffd" not in t, prefix=lambda t: "\ufffd" not in t)
    check_potential(plain, request_for(lm), max_length=4, samples=400)


FACTORS = {
    "target": lambda lm: Target(lm),
    "sharp": lambda lm: Target(lm, top_k=2) ** 2,
    "regex": lambda lm: Grammar.regex("[ab]+c?"),
    "choice": lambda lm: Grammar.choice(["abc", "b", "aa"]),
    "reward": lambda lm: Reward(lambda texts: [t.count("a") for t in texts], 0.5),
    "check": lambda lm: Check(lambda text: "ab" not in text, prefix=lambda text: "ab" not in text),
}


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.sampled_from(sorted(FACTORS)), st.sampled_from(sorted(FACTORS)), st.integers(0, 5))
def test_product_of_two(one, two, seed):
    lm = lm_of(seed)
    product = FACTORS[one](lm) * FACTORS[two](lm)
    check_potential(product, request_for(lm), samples=12)


def test_duplicate_bytes_and_split_characters():
    """Two ids with the same bytes, and a character cut over two tokens."""
    tokens = [b"a", b"a", "é".encode()[:1], "é".encode()[1:], b"<eos>"]
    table = np.log(np.full((1, 5), 0.2))
    lm = TabularLM(tokens, [4], table, np.zeros((1, 5), dtype=int))
    check_potential(Grammar.regex("a?é|a"), request_for(lm), max_length=3, samples=400)
    check_potential(Reward(lambda texts: [len(t) for t in texts]), request_for(lm))
