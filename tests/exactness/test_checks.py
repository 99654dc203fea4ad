"""Checks, every order of candidates enumerated: E[Ẑ · 1(outcome)] = γ(outcome).

With one particle each path of a run has one probability and one weight, so the sums are exact
and there are no false alarms. The Monte Carlo tests at the end state theirs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import regex

from smcprog import Check, Grammar, Reward, Target
from smcprog.grammars.text import Check as GrammarCheck
from smcprog.grammars.text import CheckState, FinalCheck, GrammarText
from smcprog.smc.settings import Settings

from .enumerate_draws import enumerate_paths
from .test_many_particles import assert_unbiased, run_many
from .toys import CASES, gamma, in_regex, random_toy

PATTERN = "a[ab]*b|b?"
LENGTHS = {"A": 4, "B": 6, "C": 4, "D": 3}


def regex_check(pattern, **options):
    """The language of a regex as a check, told about prefixes by partial matching."""
    compiled = regex.compile(pattern)
    return Check(
        lambda text: compiled.fullmatch(text) is not None,
        prefix=lambda text: compiled.fullmatch(text, partial=True) is not None,
        **options,
    )


def dyck_check(**options):
    def holds(text, finished):
        depths = list(itertools.accumulate(1 if c == "(" else -1 for c in text))
        return min(depths, default=0) >= 0 and (not finished or not depths or depths[-1] == 0)

    return Check(holds, at="prefix", **options)


def weighted_outcomes(target, settings, truncate):
    total = defaultdict(float)
    mass = 0.0
    for path in enumerate_paths(target, [0], settings, truncate):
        mass += math.exp(path.log_q)
        weight = math.exp(path.log_q + path.log_z)
        if weight > 0:
            total[path.outcome] += weight
    assert mass == pytest.approx(1, abs=1e-9)  # nothing that can be drawn was missed
    return dict(total)


def assert_same(got, want):
    for outcome in got.keys() | want.keys():
        assert got.get(outcome, 0.0) == pytest.approx(want.get(outcome, 0.0), abs=1e-9), outcome


@pytest.mark.parametrize(
    ("k", "max_checks", "power", "truncate"),
    [
        (0, 1, 1.0, True),
        (0, 2, 2.0, False),
        (0, 3, 1.0, True),
        (0, 256, 2.0, True),
        (2, 1, 2.0, False),
        (2, 2, 1.0, False),
        (2, 256, 2.0, True),
    ],
)
def test_one_check(k, max_checks, power, truncate):
    rng = np.random.default_rng([k, max_checks])
    toy, other = random_toy(rng), random_toy(rng)
    length = 4 if k else 3  # of which the first is drawn without the draft
    target = Target(toy.lm(), power=power) * regex_check(PATTERN, max_checks=max_checks)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=length
    )
    got = weighted_outcomes(target, settings, truncate)
    assert_same(got, gamma(toy, length, truncate=truncate, power=power, accepts=in_regex(PATTERN)))


@pytest.mark.parametrize("max_checks", [2, 3, 5, 256])
def test_one_draw_from_six_tokens(max_checks):
    """Two of them are good: long searches, and estimates of several terms."""
    toy = random_toy(np.random.default_rng(5), symbols=5, order=1)
    target = Target(toy.lm()) * regex_check("b|d", max_checks=max_checks)
    settings = Settings(particles=1, max_tokens=1)
    got = weighted_outcomes(target, settings, True)
    assert_same(got, gamma(toy, 1, truncate=True, accepts=in_regex("b|d")))


@pytest.mark.parametrize("k", [0, 2])
def test_with_a_mask_a_reward_and_two_checks(k):
    rng = np.random.default_rng(31)
    toy, other = random_toy(rng), random_toy(rng)
    few = Check(lambda t: t.count("b") < 3, prefix=lambda t: t.count("b") < 3, max_checks=2)
    target = Target(toy.lm(), temperature=0.7) * Grammar.regex("[ab]*b") * few
    target = target * Reward(lambda texts: [t.count("a") for t in texts], beta=0.5)
    target = target * Check(lambda t: not t.startswith("bb"), prefix=lambda t: t[:2] != "bb")
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=5
    )
    want = gamma(
        toy, 5, truncate=False, temperature=0.7,
        accepts=lambda t: t.endswith("b") and t.count("b") < 3 and t[:2] != "bb",
        log_reward=lambda t: 0.5 * t.count("a"),
    )  # fmt: skip
    assert_same(weighted_outcomes(target, settings, False), want)


class AlternatesCheck(GrammarCheck):
    """No letter twice in a row: seen as soon as it happens."""

    description = "no letter twice in a row"

    def begin(self):
        return Alternates(b"")


@dataclasses.dataclass(frozen=True)
class Alternates(CheckState):
    text: bytes

    def feed(self, data):
        text = self.text + data
        return None if b"aa" in text or b"bb" in text else Alternates(text)

    def complete(self):
        return True


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("early", [False, True])
def test_what_a_grammar_checks_besides_its_mask(early, k):
    check = (
        AlternatesCheck()
        if early
        else FinalCheck("no letter twice", lambda t: b"aa" not in t and b"bb" not in t)
    )
    text = GrammarText("alternating", "start: /[ab]+/\n", "letters", (check,))
    rng = np.random.default_rng(61)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4
    )
    grammar = Grammar(text)
    assert grammar.rejects
    want = gamma(toy, 4, truncate=False, accepts=in_regex("(ab)*a?|(ba)*b?"))
    want = {y: w for y, w in want.items() if toy.text(y)}
    assert_same(weighted_outcomes(Target(toy.lm()) * grammar, settings, False), want)


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("rejection", [False, True])
def test_stop_strings_are_no_part_of_what_is_checked(k, rejection):
    """The last a of a text may begin the stop string "ab", and is not held against it."""
    rng = np.random.default_rng(41)
    toy, other = random_toy(rng), random_toy(rng)
    none = Check(lambda t: "a" not in t, prefix=lambda t: "a" not in t, rejection=rejection)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=4,
        stop=("ab",),
    )  # fmt: skip
    want = defaultdict(float)
    for y in gamma(toy, 4, truncate=True):
        text = toy.text(y)
        cut = y if "ab" not in text else y[: text.index("ab") + 2]
        if "a" not in text.split("ab")[0]:
            want[cut] = math.prod(toy.conditional(cut[:t][-2:])[v] for t, v in enumerate(cut))
    assert any("ab" in toy.text(y) for y in want)
    assert_same(weighted_outcomes(Target(toy.lm()) * none, settings, True), want)


@pytest.mark.parametrize("rejection", [False, True])
@pytest.mark.parametrize("k", [0, 2])
def test_a_check_of_finished_texts(rejection, k):
    rng = np.random.default_rng(51)
    toy, other = random_toy(rng), random_toy(rng)
    even = Check(lambda text: text.count("a") % 2 == 1, rejection=rejection)
    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, max_tokens=3
    )
    got = weighted_outcomes(even * Target(toy.lm()), settings, True)
    assert_same(got, gamma(toy, 3, truncate=True, accepts=lambda t: t.count("a") % 2 == 1))


@pytest.mark.parametrize("coupling", [1.0, 2.0])
def test_coupled_rounds_weigh_a_check_after_the_draw(coupling):
    rng = np.random.default_rng(61)
    toy, other = random_toy(rng), random_toy(rng)
    settings = Settings(
        particles=1, draft=other.lm("draft"), draft_tokens=2, coupling=coupling, max_tokens=4
    )
    got = weighted_outcomes(Target(toy.lm()) * regex_check(PATTERN), settings, True)
    assert_same(got, gamma(toy, 4, truncate=True, accepts=in_regex(PATTERN)))


def case_check(case, **options):
    return {
        "A": lambda: regex_check("11[01]+|0[01]*", **options),
        "B": lambda: regex_check("0{5}|1[01]{4}", **options),
        "C": lambda: dyck_check(**options),
        "D": lambda: regex_check("ab", **options),
    }[case]()


@pytest.mark.parametrize("case", CASES)
def test_reference_cases(case):
    of = CASES[case]
    settings = Settings(particles=1, max_tokens=LENGTHS[case])
    got = weighted_outcomes(Target(of.toy.lm()) * case_check(case), settings, False)
    assert_same(got, gamma(of.toy, LENGTHS[case], truncate=False, accepts=of.accepts))


RUNS = 300


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("case", "k"), [("A", 2), ("B", 0), ("C", 0), ("D", 0)])
def test_many_particles(case, k, joint):
    """Real draws, N = 8: false-alarm rate 6e-5 for Ẑ and 1e-4 over all outcomes together."""
    of, length = CASES[case], {"A": 8, "B": 6, "C": 9, "D": 3}[case]
    settings = Settings(
        particles=8, draft=of.toy.lm("draft") if k else None, draft_tokens=k, max_tokens=length,
        joint_draws=joint,
    )  # fmt: skip
    target = Target(of.toy.lm()) * case_check(case, max_checks=2 if joint else 256)
    z, outcomes = run_many(target, settings, False, runs=RUNS)
    assert_unbiased(z, outcomes, gamma(of.toy, length, truncate=False, accepts=of.accepts))
