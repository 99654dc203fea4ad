"""N = 1 again, over models and settings drawn by Hypothesis: zeros, ties, tiny vocabularies.

Enumerated, so there is no false alarm; the examples are the same in every run.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog import Grammar, Reward, Target
from smcprog.smc.settings import Settings

from ..tiny import tiny_llama, tiny_model
from .test_one_particle import assert_same, weighted_outcomes
from .test_real_engine import as_toy
from .toys import Toy, gamma, in_regex

PATTERNS = ["[ab]*", "a?", "b+a", "(ab|ba)*", "a[ab]{1,2}|b"]


@st.composite
def toys(draw, symbols: int, support: list[list[bool]] | None = None) -> Toy:
    """A model of order 0 or 1 whose probabilities are small fractions, zero among them."""
    order = draw(st.integers(0, 1))
    least = 0 if support is None else 1  # a draft must reach whatever the target reaches
    rows = {}
    for history in [(), *[(v,) for v in range(symbols + 1)]]:
        parts = draw(st.lists(st.integers(least, 5), min_size=symbols, max_size=symbols))
        rows[history] = np.array([*parts, draw(st.integers(1, 4))], dtype=float)
        rows[history] /= rows[history].sum()
    tokens = (*(bytes([ord("a") + i]) for i in range(symbols)), b"<eos>")
    return Toy(tokens, symbols, lambda h: rows[h if order else ()], order)


@st.composite
def runs(draw):
    return {
        "k": draw(st.sampled_from([0, 1, 2, 4])),
        "power": draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        "temperature": draw(st.sampled_from([0.5, 0.7, 1.0, 1.5])),
        "draft_temperature": draw(st.sampled_from([None, 0.5, 1.0, 2.0])),
        "truncate": draw(st.booleans()),
        "max_tokens": draw(st.integers(1, 4)),
        "pattern": draw(st.sampled_from([None, *PATTERNS])),
        "beta": draw(st.sampled_from([None, 1.0, -2.0])),
    }


def check(lm, toy, draft, run):
    target = Target(lm, temperature=run["temperature"], power=run["power"])
    exact = {"power": run["power"], "temperature": run["temperature"]}
    if run["pattern"]:
        target = target * Grammar.regex(run["pattern"])
        exact["accepts"] = in_regex(run["pattern"])
    if run["beta"]:
        target = Reward(lambda texts: [len(t) for t in texts], run["beta"]) * target
        exact["log_reward"] = lambda text: run["beta"] * len(text)
    options = Settings(
        particles=1,
        draft=draft,
        draft_tokens=run["k"],
        draft_temperature=run["draft_temperature"],
        max_tokens=run["max_tokens"],
    )
    got = weighted_outcomes(target, options, run["truncate"])
    assert_same(got, gamma(toy, run["max_tokens"], truncate=run["truncate"], **exact))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.data(), st.integers(2, 3), runs())
def test_tables(data, symbols, run):
    toy = data.draw(toys(symbols))
    draft = data.draw(toys(symbols, support=[]))
    check(toy.lm(), toy, draft.lm("draft"), run)


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 1000), runs())
def test_llamas(seed, run):
    lm = tiny_llama(seed=seed)
    toy = as_toy(lm, tiny_model(seed=seed))
    check(lm, toy, tiny_llama(seed=seed + 1), run)
    assert lm.pages_in_use == 0
