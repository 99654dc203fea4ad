"""Potentials of every kind over one small vocabulary with several spellings of a text."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re

import numpy as np
import torch
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from smcprog import Canonical, Check, Grammar, Guidance, Mixture, Reward, Target, Twist
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars.text import FinalCheck, GrammarText
from smcprog.potentials import Potential, Request
from smcprog.testing import TabularLM

LETTERS = ["a", "b", "ab", "ba", "aba", "aa"]
MERGES = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "a")]
EOS = len(LETTERS)


@functools.cache
def vocabulary() -> Vocabulary:
    bpe = Tokenizer(models.BPE({piece: i for i, piece in enumerate(LETTERS)}, MERGES))
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>")
    return Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


@functools.cache
def table(seed: int) -> TabularLM:
    """A model with memory of two tokens, the prompt's among them."""
    rng, rows = np.random.default_rng(seed), {}

    def conditional(history):
        if history not in rows:
            rows[history] = rng.dirichlet(np.full(EOS + 1, 0.7)) + 1e-3
        return rows[history]

    tokens = [t.encode() for t in LETTERS] + [b""]
    lm = TabularLM.from_conditionals(tokens, [EOS], conditional, 2, f"t{seed}", reads_prompt=True)
    lm.vocab = vocabulary()
    return lm


def requests(**fixed):
    """What a request may say of its outputs."""

    def make(truncate, stop, max_tokens):
        options = {"truncate": truncate, "stop": stop, "max_tokens": max_tokens, **fixed}
        return Request([0, 1], (0, 1), vocabulary(), **options)

    stops = st.sampled_from([(), (), ("bb",), ("aab", "b")])
    return st.builds(make, st.booleans(), stops, st.sampled_from([4, 7]))


class Letters(Potential):
    """A user's potential: ψ = e^−(number of a's), for a text or for every next token."""

    positive = True

    def start(self, request, n):
        return torch.zeros(n, dtype=torch.float64)

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        real = torch.arange(tokens_N_T.shape[1]) < lengths_N.unsqueeze(1)
        state = state - (COUNTS[tokens_N_T] * real).sum(1)
        return state, state

    def fork(self, state, ancestors_M):
        return state[ancestors_M]


class NextLetters(Letters):
    def next_logw(self, state):
        return -COUNTS.double().expand(len(state), -1)


COUNTS = torch.tensor([t.count("a") for t in LETTERS] + [0])


def few(text, finished=True):
    return text.count("a") <= 3 and (not finished or not text.endswith("b"))


def score(texts):
    return [len(t) - 1.5 * t.count("b") for t in texts]


def is_odd(text):
    return len(text) % 2 == 1


@dataclasses.dataclass(frozen=True)
class Made:
    """A potential and how it was made, so that a failing example can be read."""

    what: str
    potential: Potential

    def __repr__(self):
        return self.what


def named(potential, what=None):
    return Made(what or repr(potential), potential)


prompts = st.sampled_from([None, None, [1], [3, 0], lambda p: [*p, 2]])
tables = st.integers(0, 2).map(table)
local = st.sampled_from([{}, {}, {"temperature": 0.5}, {"temperature": 2.0}])
cuts = st.sampled_from([{}, {}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}])
powers = st.sampled_from([1, 1, 2, 0.5])


def targets(powers=powers):
    make = lambda lm, prompt, a, b, c: Target(lm, prompt=prompt, **a, **b) ** c  # noqa: E731
    return st.builds(make, tables, prompts, local, cuts, powers)


def divided():
    make = lambda lm, prompt, a, c: Target(lm, prompt=prompt, **a) ** -c  # noqa: E731
    return st.builds(make, tables, prompts, local, powers)


def guidances(powers=powers):
    def make(lm, scale, prompt, negative, options, cut, power):
        kind = Guidance(lm, scale, prompt=prompt, negative_prompt=negative, **options, **cut)
        return kind**power

    scales = st.sampled_from([0, 0.5, 1, 1.7, 3, -0.5])
    return st.builds(make, tables, scales, prompts, prompts, local, cuts, powers)


def mixtures():
    ones = st.just(1)
    parts = st.lists(st.one_of(targets(), guidances()), min_size=1, max_size=3)
    plain = st.lists(st.one_of(targets(ones), guidances(ones)), min_size=1, max_size=3)
    weigh = lambda parts: np.arange(1.0, len(parts) + 1)  # noqa: E731
    return st.one_of(
        st.builds(lambda p, c: Mixture(p, weigh(p)) ** c, parts, powers),
        st.builds(lambda p, c: Mixture(p, weigh(p), of="tokens") ** c, plain, powers),
    )


def grammars():
    return st.sampled_from(
        [
            lambda: Grammar.regex("a[ab]*|b{2}a"),
            lambda: Grammar.choice(["a", "ab", "aba", "baab"]),
            lambda: Grammar.lark('start: "a" start "b" | "ba"\n'),
            lambda: Grammar(
                GrammarText("odd", "start: /[ab]+/\n", "letters", (FinalCheck("odd", is_odd),))
            ),
        ]
    ).map(lambda make: make())


def checks():
    return st.sampled_from(
        [
            lambda: Check(few),
            lambda: Check(few, rejection=True),
            lambda: Check(few, at="prefix"),
            lambda: Check(few, at="prefix", rejection=False),
            lambda: Check(few, prefix=lambda text: few(text, False), max_checks=2),
        ]
    ).map(lambda make: make())


def looks(at_end=True):
    kinds = ["round", "b", re.compile("a+b"), {1, 3}]
    return st.sampled_from([*kinds, "end"] if at_end else kinds)


def rewards():
    sums = st.builds(lambda at: Reward(score, 0.5, at=at, kind="sum"), st.sampled_from(["b", {0}]))
    last = st.builds(
        lambda beta, at: Reward(score, beta, at=at), st.sampled_from([1, -0.5]), looks()
    )
    return st.one_of(last, sums)


def twists():
    return st.builds(lambda at, c: Twist(score, at=at) ** c, looks(at_end=False), powers)


def own():
    makes = [lambda: Letters(), lambda: NextLetters(), lambda: Letters() ** 0.3]
    makes += [lambda: NextLetters() ** -0.5, lambda: Check(few) ** 2]
    return st.sampled_from(makes).map(lambda make: make())


def genlm_potentials():
    """One of genlm-control's, where it is installed."""
    from genlm.control import BoolFSA

    from smcprog import Genlm

    return st.sampled_from(["[ab]*b", "a?(ba)*"]).map(lambda p: Genlm(BoolFSA.from_regex(p)))


KINDS = {
    "target": targets(),
    "divided by": divided(),
    "mixture": mixtures(),
    "guidance": guidances(),
    "grammar": grammars(),
    "check": checks(),
    "reward": rewards(),
    "twist": twists(),
    "own": own(),
    "canonical": st.builds(Canonical),
}
if importlib.util.find_spec("genlm") is not None:
    KINDS["genlm"] = genlm_potentials()


def potentials():
    """Any potential, each kind as often as the others."""
    return st.sampled_from(sorted(KINDS)).flatmap(KINDS.__getitem__).map(named)
