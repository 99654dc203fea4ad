"""`bench bias`: its truths and distances are right, and SMC is far closer than local masking."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from smcprog import Grammar, Target
from smcprog.bench.bias import as_check, distances, measure
from smcprog.bench.bias_cases import MODEL_CASES, TABLE_CASES
from smcprog.bench.bias_truth import enumerate_outputs
from smcprog.cli.app import app
from smcprog.plots import plot_bias
from smcprog.potentials import Request

from ..exactness.toys import CASES, gamma


def request_of(case, lm):
    return Request(case.prompt, tuple(case.prompt), lm.vocab, case.max_tokens, truncate=False)


@pytest.mark.parametrize("case", TABLE_CASES, ids=lambda case: case.name)
def test_the_truth_is_that_of_the_definition(case):
    lm, of = case.table(), CASES[case.name]
    found = enumerate_outputs(Target(lm), case.grammar(), request_of(case, lm), share=0.0)
    want = gamma(of.toy, case.max_tokens, truncate=False, accepts=of.accepts)
    assert found.unexplored == 0
    assert found.gamma == pytest.approx(want)


def test_what_is_left_out_of_a_truth_is_bounded():
    case = TABLE_CASES[0]
    lm = case.table()
    whole = enumerate_outputs(Target(lm), case.grammar(), request_of(case, lm), share=0.0)
    part = enumerate_outputs(Target(lm), case.grammar(), request_of(case, lm), share=0.2)
    missing = sum(whole.gamma.values()) - sum(part.gamma.values())
    assert 0 < missing <= part.unexplored and len(part.gamma) < len(whole.gamma)


def test_distances_of_known_laws():
    truth = {"a": 0.5, "b": 0.5}
    got = distances([{"a": 1.0}, {"a": 0.6, "b": 0.4}], truth)
    assert got["tv"] == pytest.approx(0.3)
    assert got["kl"] == pytest.approx(0.8 * math.log(1.6) + 0.2 * math.log(0.4))
    # Of two runs the bootstrap picks one twice with probability ½, and is then off by .2.
    assert got["tv_noise"] == pytest.approx(0.1, abs=0.03)
    assert distances([truth, truth], truth)["tv"] == 0


def test_a_grammar_as_a_check():
    grammar = Grammar.regex("é+x|no")
    check = as_check(grammar)._fn
    for text in ("", "é", "éé", "éx", "n", "no", "nox", "x", "e"):
        assert check(text, True) == grammar.accepts(text)
    assert [check(t, False) for t in ("", "éé", "éx", "n", "x", "nox")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


def test_smc_is_five_times_closer_than_local_masking(tmp_path):
    """Seeds are fixed. Local masking's own distances are known: .4412 for B, .375 for D."""
    report = measure(TABLE_CASES, [2, 32], 60, batch=60)
    by = {case["case"]: case for case in report["cases"]}
    for name, case in by.items():
        assert max(case["closer"].values()) >= 5, (name, case["closer"])
        cells = {(c["method"], c["particles"]): c for c in case["cells"]}
        local = cells["local masking", 1]
        for method in ("SMC", "AWRS", "importance sampling"):
            far, near = cells[method, 2], cells[method, 32]
            assert near["tv"] < 0.5 * local["tv"] and near["kl"] < 0.2 * local["kl"], (name, method)
            assert near["tv"] < far["tv"] and near["rows"] > 8 * far["rows"]
        awrs = cells["AWRS", 32]
        assert awrs["candidates"] > awrs["rows"] and awrs["texts"] < awrs["candidates"]
    assert by["B"]["truth"]["log_evidence"] == pytest.approx(math.log(17 / 32))
    for name, tv in (("B", 1 / 2 - 1 / 17), ("D", 0.375)):
        local = by[name]["cells"][-4]
        assert local["method"] == "local masking"
        assert local["tv"] == pytest.approx(tv, abs=0.02)
    plot_bias(report, tmp_path / "bias.png")
    assert (tmp_path / "bias.png").stat().st_size > 10_000


def test_the_command_prints_a_table_and_json():
    options = ["bench", "bias", "--runs", "2", "-n", "2"]
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0, shown.output
    assert "local masking" in shown.output and "D: 2 outputs" in shown.output
    report = json.loads(CliRunner().invoke(app, [*options, "--json"]).output)
    assert [case["case"] for case in report["cases"]] == ["A", "B", "C", "D"]
    wrong = CliRunner().invoke(app, ["bench", "bias", "--cases", "none"])
    assert wrong.exit_code != 0


def test_the_models_cases_have_languages():
    assert len(MODEL_CASES) == 10 and all(case.grammar().masks for case in MODEL_CASES)
