"""`bench variance`: the report's figures, on a target whose variances are known to differ."""

from __future__ import annotations

import math

import pytest

from smcprog import Grammar, Target
from smcprog.bench.variance import run
from smcprog.errors import SettingError

from ..exactness.toys import CASES


def test_reports_both_ways_and_their_ratio():
    """Case B is exact with joint draws (Z is 17/32 in every run), and scatters without."""
    of = CASES["B"]
    report = run(Target(of.toy.lm()) * of.grammar(), [0], runs=12, particles=8, max_tokens=6)
    assert report["joint"]["sd_log_evidence"] == pytest.approx(0, abs=1e-9)
    assert report["joint"]["mean_log_evidence"] == pytest.approx(math.log(17 / 32))
    assert report["independent"]["sd_log_evidence"] > 0.1
    assert report["variance_ratio"] == pytest.approx(0, abs=1e-12)
    low, high = report["variance_ratio_95"]
    assert low <= report["variance_ratio"] <= high


def test_too_few_runs_are_refused():
    target = Target(CASES["A"].toy.lm())
    with pytest.raises(SettingError, match="at least 3"):
        run(target, [0], runs=2)
    with pytest.raises(SettingError, match="survivors"):
        run(target * Grammar.regex("1{9}"), [0], runs=3, particles=2, max_tokens=4)
