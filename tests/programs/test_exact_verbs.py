"""Each verb, with one particle, over all draws: E[Ẑ · 1{outcome}] is γ, to rounding."""

from __future__ import annotations

import math
import re

import pytest

from smcprog import Check, Grammar, Reward, Target
from smcprog.programs import program
from tests.exactness.toys import CASE_A, REGEX_A, bigram, in_regex

from .runs import Truth, assert_same, enumerate_program

LM = CASE_A.lm()
OTHER = bigram((0.4, 0.3, 0.3), [(0.5, 0.2, 0.3), (0.1, 0.5, 0.4)]).lm("other")
DRAFTS = [
    {},
    {"draft": OTHER, "draft_tokens": 2},
    {"draft": OTHER, "draft_tokens": 2, "coupling": 2.0},
]


@pytest.mark.parametrize("options", DRAFTS)
def test_extend_observe_extend(options):
    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM) * Grammar.regex("(0|1)1*"), max_tokens=3, **options)
        p.observe("0")
        p.extend(Target(LM), until="1", max_tokens=2, **options)

    truth = Truth(CASE_A).extend(3, in_regex("(0|1)1*"), truncate=False).observe((0,))
    truth.extend(2, until=lambda new: new[-1] == 1)
    assert_same(enumerate_program(p, LM), truth.gamma)


@pytest.mark.parametrize("options", DRAFTS[1:2])
def test_eos_in_the_middle_and_weigh(options):
    """EOS ends an extension, and the next one goes on before it; the last one stays."""
    reward = Reward(lambda texts: [float(len(t)) for t in texts], beta=0.3)

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM) ** 2, max_tokens=2, **options)
        p.weigh(reward)
        p.extend(Target(LM), max_tokens=2, **options)
        p.weigh(Grammar.regex(REGEX_A))
        p.resample()

    truth = Truth(CASE_A).extend(2, power=2).weigh(lambda text: math.exp(0.3 * len(text)))
    truth.extend(2).weigh(in_regex(REGEX_A))
    assert any(y[-1] == 2 for y in truth.gamma)
    assert_same(enumerate_program(p, LM), truth.gamma)


@pytest.mark.parametrize(
    ("until", "ends"),
    [
        ("10", lambda new: new[-2:] == (1, 0)),
        (["10", "00"], lambda new: new[-2:] in ((1, 0), (0, 0))),
        (re.compile("^1.?1"), lambda new: new[:2] == (1, 1) or new[:3] == (1, 0, 1)),
        ({1}, lambda new: new[-1] == 1),
    ],
)
def test_until(until, ends):
    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), until=until, max_tokens=3)
        p.observe("1")

    truth = Truth(CASE_A).extend(3, until=ends).observe((1,))
    assert_same(enumerate_program(p, LM), truth.gamma)


def test_max_tokens_of_the_program():
    """A text that has reached it ends there; with truncate=False it weighs nothing."""

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=3)
        p.observe("1")
        p.extend(Target(LM))

    truth = Truth(CASE_A).extend(3)
    truth.where(lambda t: len(t) == 3, lambda t: t, lambda t: t.observe((1,)))
    truth.where(
        lambda t: len(t) >= 3,
        lambda t: t,
        lambda t: t.where(lambda u: len(u) == 2, lambda u: u.extend(1), lambda u: u.extend(2)),
    )
    assert_same(enumerate_program(p, LM, max_tokens=3), truth.gamma)
    strict = Truth(CASE_A).extend(3)
    strict.states = {s: g for s, g in strict.states.items() if len(s[0]) - s[1] < 3}
    strict.observe((1,))
    strict.states = {s: g for s, g in strict.states.items() if len(s[0]) < 3}
    strict.where(lambda u: len(u) == 2, lambda u: u.extend(1), lambda u: u.extend(2))
    assert_same(enumerate_program(p, LM, max_tokens=3, truncate=False), strict.gamma)


def test_choose():
    power = 2.0
    target = Target(LM) ** power

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=2)
        p.choose(["0", "10", "11"], target)
        p.extend(Target(LM), max_tokens=1)

    truth = Truth(CASE_A).extend(2).choose([(0,), (1, 0), (1, 1)], power).extend(1)
    assert_same(enumerate_program(p, LM), truth.gamma)


def test_map_and_prompt_are_not_weighed():
    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=2)
        p.map(lambda texts: ["1" * (2 - len(t)) for t in texts])
        p.prompt("0")
        p.extend(Target(LM), max_tokens=2)

    steps = Truth(CASE_A).extend(2)
    after: dict = {}
    for (tokens, ended), g in steps.states.items():
        text = tokens[:-1] if ended else tokens
        key = ((*text, *(1,) * (2 - len(text)), 0), False)
        after[key] = after.get(key, 0.0) + g
    steps.states = after
    assert_same(enumerate_program(p, LM), steps.extend(2).gamma)


def test_branch_finish_and_sub_program():
    @program
    def closing(p, text):
        p.observe(text)
        p.finish()

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=2)
        p.branch(
            lambda text: text.startswith("1"),
            then=lambda q: closing(q, "00"),
            otherwise=lambda q: q.extend(Target(LM), until="0", max_tokens=2),
        )
        p.extend(Target(LM), max_tokens=1)

    truth = Truth(CASE_A).extend(2)
    finished = Truth(CASE_A).extend(2)
    finished.states = {s: g for s, g in truth.states.items() if s[0][0] == 1}
    truth.states = {s: g for s, g in truth.states.items() if s[0][0] != 1}
    truth.extend(2, until=lambda new: new[-1] == 0).extend(1)
    gamma = truth.gamma
    for y, g in finished.observe((0, 0)).gamma.items():
        gamma[y] = gamma.get(y, 0.0) + g
    assert_same(enumerate_program(p, LM), gamma)


def test_targets_of_a_branch_are_forgotten_at_its_end():
    """Else what `observe` asks would depend on whether anybody took the branch."""

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=1)
        p.branch(
            lambda text: text == "1",
            lambda q: [q.extend(Target(LM) ** 3, max_tokens=1), q.observe("0")],
        )
        p.observe("1")

    truth = Truth(CASE_A).extend(1)
    truth.where(lambda t: t == "1", lambda t: t.extend(1, power=3).observe((0,), 3))
    assert_same(enumerate_program(p, LM), truth.observe((1,)).gamma)


def test_checks_and_annealed_sums_in_extensions():
    def longer(text):
        ends = {i + 1 for i, c in enumerate(text) if c == "1"} | ({len(text)} - {0})
        return 0.3 * sum(ends)

    reward = Reward(lambda texts: [0.3 * len(t) for t in texts], at="1", kind="sum", anneal=True)
    check = Check(lambda text: "11" not in text, prefix=lambda text: "11" not in text)

    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM) * reward * check, max_tokens=2, **DRAFTS[2])
        p.extend(Target(LM) ** 2 * reward, max_tokens=1)

    truth = Truth(CASE_A).extend(2, lambda text: "11" not in text, log_reward=longer)
    truth.extend(1, power=2, log_reward=longer)
    assert_same(enumerate_program(p, LM), truth.gamma)


def test_death_in_a_map():
    @program
    def p(p):
        p.prompt([0])
        p.extend(Target(LM), max_tokens=2)
        p.map(lambda texts: [None if t == "1" else "" for t in texts], on_failure="die")

    truth = Truth(CASE_A).extend(2)
    truth.states = {s: g for s, g in truth.states.items() if CASE_A.text(s[0]) != "1"}
    assert_same(enumerate_program(p, LM), truth.gamma)
