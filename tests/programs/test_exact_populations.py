"""Several particles: Ẑ is unbiased, and so is the weight in a bin, whatever resamples where."""

from __future__ import annotations

import math

import pytest

from smcprog import Grammar, Reward, Target
from smcprog.programs import program
from tests.exactness.toys import CASE_A, bigram, in_regex

from .runs import Truth, assert_unbiased

LM = CASE_A.lm()
OTHER = bigram((0.4, 0.3, 0.3), [(0.5, 0.2, 0.3), (0.1, 0.5, 0.4)]).lm("other")
RUNS = 40
DRAFT = {"draft": OTHER, "draft_tokens": 2}


@pytest.mark.parametrize(
    ("n", "options", "settings"),
    [
        (4, DRAFT, {"ess_threshold": 0.7, "resampling": "multinomial"}),
        (2, {**DRAFT, "coupling": 1.5}, {"ess_threshold": 1.0, "resampling": "ssp"}),
    ],
)
def test_extend_observe_weigh_resample(n, options, settings):
    """EOS, `until` and length end extensions at different times; what has ended is copied too."""
    reward = Reward(lambda texts: [float(t.count("1")) for t in texts], beta=-1.5)

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM) * Grammar.regex("(0|1)1*0?"), max_tokens=4, **options)
        p.observe("0", Target(LM) ** 1.5)
        p.weigh(reward)
        p.resample()
        p.extend(Target(LM) ** 1.5, until="10", max_tokens=3, **options)
        p.weigh(Grammar.regex("[01]*1[01]*"))

    truth = Truth(CASE_A).extend(4, in_regex("(0|1)1*0?"), truncate=False).observe((0,), 1.5)
    truth.weigh(lambda text: math.exp(-1.5 * text.count("1")))
    truth.extend(3, until=lambda new: new[-2:] == (1, 0), power=1.5)
    truth.weigh(lambda text: float("1" in text))
    assert_unbiased(p, truth, RUNS, particles=n, **settings)


def test_branches_that_resample_and_fork():
    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=2)

        def then(q):
            q.fork(2)
            q.choose(["0", "10"], Target(LM))
            q.resample()
            q.extend(Target(LM) ** 2, max_tokens=2)

        def otherwise(q):
            q.observe("1", Target(LM) ** 2)
            q.finish()

        p.branch(lambda text: len(text) == 2, then, otherwise)
        p.resample(0.9)
        p.extend(Target(LM), max_tokens=2, **DRAFT)

    truth = Truth(CASE_A).extend(2)
    long, short = Truth(CASE_A), Truth(CASE_A)
    for part, wanted in ((long, True), (short, False)):
        part.states = {
            s: g for s, g in truth.states.items() if (len(CASE_A.text(s[0])) == 2) == wanted
        }
    long.choose([(0,), (1, 0)]).extend(2, power=2).extend(2)
    short.observe((1,), 2)
    both = Truth(CASE_A)
    both.states = dict(long.states)
    for s, g in short.states.items():
        both.states[s] = both.states.get(s, 0.0) + g
    assert_unbiased(p, both, RUNS, particles=4, ess_threshold=1.0)
