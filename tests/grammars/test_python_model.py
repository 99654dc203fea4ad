"""Functions that the default model completes under the grammar of Python."""

from __future__ import annotations

import ast

from typer.testing import CliRunner

from smcprog import Grammar, Target
from smcprog.bench.code import BUILT_IN, measure, parses
from smcprog.cli.app import app
from smcprog.errors import AllDeadError
from smcprog.grammars import python


def test_completions_parse_and_end_with_the_function(default_lm):
    """Random bodies, cut off at 48 tokens; with fixed seeds the same in every run.

    A population of four dies now and then (a few in a hundred). All of three prompts have not
    died unless what lets particles end in time is broken.
    """
    target = Target(default_lm) * Grammar(python)
    alive = 0
    for seed, prompt in enumerate(BUILT_IN[:3]):
        try:
            post = target.sample(prompt, particles=4, max_tokens=48, seed=seed)
        except AllDeadError:
            continue
        alive += 1
        for particle in post.particles:
            if particle.finish_reason == "dead":
                continue
            tree = ast.parse(prompt + particle.text)
            assert len(tree.body) == 1  # the function that the prompt began, and no more
            assert len(tree.body[0].body) > 1  # more than its docstring
    assert alive >= 2


def test_measure_counts_what_it_saw(default_lm):
    report = measure(default_lm, BUILT_IN[:1], particles=2, max_tokens=12)
    with_grammar, without = report["constrained"], report["unconstrained"]
    assert report["problems"] == 1
    assert with_grammar["dead_populations"] in (0, 1)
    if with_grammar["completions"]:
        assert with_grammar["parse_share"] == 1.0
    assert without["completions"] == 2
    assert without["dead_share"] == 0
    assert without["tokens"] <= 24
    assert 0 < report["mask_us"]["median"] <= report["mask_us"]["p99"]
    assert report["time_ratio"] > 0


def test_parses():
    assert parses(BUILT_IN[0] + "    return 1\n")
    assert not parses(BUILT_IN[0] + "    return (1\n")
    assert not parses("x = \0")


def test_the_command_prints_a_table(default_model, monkeypatch):
    monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", str(default_model))
    command = ["bench", "code", "--count", "1", "-n", "2", "--max-tokens", "8"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "1 functions, N=2, 8 tokens, τ=1"
    assert [line.split()[0] for line in lines[2:4]] == ["constrained", "unconstrained"]
    assert "median" in lines[4]
