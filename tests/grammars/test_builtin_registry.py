"""Every built-in grammar is a file, an attribute, a name on the command line, and documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from smcprog import Grammar, GrammarError, grammars
from smcprog.cli.inputs import build_grammar
from smcprog.grammars.builtin.files import file_names

NAMES = ["arithmetic", "csv", "fol", "json", "python", "smiles", "sql"]
ROOT = Path(__file__).parents[2]


def test_names():
    assert list(grammars.names()) == NAMES
    assert set(NAMES) <= set(file_names())


@pytest.mark.parametrize("name", NAMES)
def test_each_is_an_attribute_and_on_the_command_line(name):
    assert getattr(grammars, name) is grammars.load(name)
    chosen = build_grammar(schema=None, regex=None, lark=None, choices=None, builtin=name)
    assert isinstance(chosen, Grammar) and chosen.source is grammars.load(name)
    assert name in grammars.__all__
    help_text = (ROOT / "smcprog/cli/generate.py").read_text()
    assert name in help_text.partition("A built-in grammar:")[2].partition('"')[0]


def test_an_unknown_name_lists_the_others():
    with pytest.raises(GrammarError, match=r"no built-in grammar 'xml'.*arithmetic.*sql"):
        grammars.load("xml")
    with pytest.raises(AttributeError, match="xml"):
        _ = grammars.xml
