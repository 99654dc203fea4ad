"""The exact side of the comparisons of posteriors, and what is said of estimates of it.

The average of Ẑ is within four standard errors of Z but once in 16,000 (the seeds are fixed).
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from smcprog import Grammar, Target
from smcprog.bench import peers
from smcprog.bench.infilling import Filled, NoEos, Template, infill
from smcprog.bench.peers_patterns import PATTERNS
from smcprog.bench.peers_posterior import Run, distance, exact_posterior, spellings
from smcprog.cli import app
from smcprog.potentials import Request
from smcprog.testing import TabularLM, check_potential

TOKENS = (b"a", b"b", b"ab", b"<eos>")
START = (0.3, 0.2, 0.4, 0.1)
AFTER = [(0.2, 0.4, 0.1, 0.3), (0.1, 0.5, 0.1, 0.3), (0.6, 0.05, 0.05, 0.3), (0.0, 0.0, 0.0, 1.0)]


def chances(history):
    return AFTER[history[-1]] if history else START


def table() -> TabularLM:
    return TabularLM.from_conditionals(TOKENS, [3], chances, 1)


def test_every_spelling_of_a_text_is_found():
    assert sorted(spellings(table(), "aab")) == [(0, 0, 1), (0, 2)]
    assert spellings(table(), "ac") == []
    assert spellings(table(), "") == [()]


def test_the_exact_posterior():
    log_z, found = exact_posterior(table(), [0], ["ab", "b"], 8)
    ab, b = 0.3 * 0.4 * 0.3 + 0.4 * 0.3, 0.2 * 0.3
    assert math.exp(log_z) == pytest.approx(ab + b)
    assert found == pytest.approx({"ab": ab / (ab + b), "b": b / (ab + b)})
    short, _ = exact_posterior(table(), [0], ["ab", "b"], 2)  # one token and EOS
    assert math.exp(short) == pytest.approx(0.4 * 0.3 + b)
    post = (Target(table()) * Grammar.regex("ab|b")).sample([0], particles=4000, seed=0)
    assert post.log_evidence == pytest.approx(log_z, abs=0.02)


def test_a_distance_is_judged_by_its_noise():
    exact = {"x": 0.75, "y": 0.25}
    log_z = math.log(0.4)
    spread = [Run({"x": 0.2, "y": 0.2}, 1.0), Run({"x": 0.4}, 3.0)] * 10
    found = distance(spread, log_z, exact, seed=0)
    assert found["tv"] == pytest.approx(0)
    assert 0 < found["tv_noise"] < found["tv_limit"] < 0.3
    assert found["z_error"] is None  # every Ẑ is the same
    assert found["seconds"] == 2
    wrong = [Run({"y": 0.3 + 0.001 * i, "z": 0.1}, 1.0) for i in range(10)]
    found = distance(wrong, log_z, exact, seed=0)
    assert found["tv"] > 0.7 > 10 * found["tv_limit"]
    assert found["outside"] == 1
    assert distance([Run({}, 1.0)] * 3, log_z, exact, seed=0)["tv"] == pytest.approx(0.5)


def test_infilling_is_unbiased():
    template = Template("a", ("b", "ab"))
    z = 0.0
    for blanks in itertools.product(range(3), repeat=4):
        chance, history = 1.0, ()
        for v in (*blanks[:2], 1, *blanks[2:], 2):  # "ab" is one token
            chance *= chances(history)[v]
            history = (*history, v)
        z += chance
    runs = [infill(table(), template, particles=8, blank=2, seed=s) for s in range(80)]
    estimates = np.exp([run.log_evidence for run in runs])
    error = estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert error > 0
    assert abs(estimates.mean() - z) < 4 * error
    assert all(re.fullmatch("(a|b|ab){2}b(a|b|ab){2}ab", t) for run in runs for t in run.texts)


def test_the_factor_that_forbids_eos_obeys_the_laws():
    check_potential(NoEos(), Request([0], (0,), table().vocab, 6))


def test_log_evidence_of_dead_runs():
    assert Filled(["", ""], [-math.inf, -math.inf], 0.1).log_evidence == -math.inf
    assert Filled(["", ""], [0.0, -math.inf], 0.1).log_evidence == pytest.approx(-math.log(2))


def test_patterns_mean_the_same_over_bytes():
    for name, pattern in PATTERNS.items():
        assert pattern.pattern.isascii(), name
        Grammar.regex(pattern.pattern)
    chosen, able = peers.choose_patterns(3)
    assert able == len(PATTERNS)
    assert [name for name, _, _ in chosen] == [list(PATTERNS)[i] for i in (0, 2, 5)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["peers"], "give either --schemas FILE or --patterns"),
        (["peers", "--patterns", "--schemas", "x"], "give either --schemas FILE or --patterns"),
        (["posterior", "--peer-python", "/no/such"], "there is no such program"),
        (["infilling", "--peer-python", "/no/such"], "there is no such program"),
    ],
)
def test_what_the_commands_refuse(arguments, said):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 3
    assert said in result.stderr
