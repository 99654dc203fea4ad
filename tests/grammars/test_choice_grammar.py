from __future__ import annotations

import pytest

from smcprog import Grammar, GrammarError


def test_exact_strings():
    choices = [
        "yes",
        "yes!",
        "no",
        'a "quoted" one',
        "two\nlines",
        "\ttab\x00\x7f",
        "é😀",
        "a/b\\c",
        "",
    ]
    grammar = Grammar.choice(choices)
    assert all(grammar.accepts(c) for c in choices)
    for other in ["ye", "yes!!", "NO", " no", "no ", "two\\nlines", "a/b\\", "e", "'a'"]:
        assert not grammar.accepts(other)


def test_repeats_count_once_and_any_iterable_is_taken():
    grammar = Grammar.choice(str(i % 3) for i in range(9))
    assert [t for t in "0123" if grammar.accepts(t)] == ["0", "1", "2"]


def test_only_the_empty_string():
    grammar = Grammar.choice([""])
    assert grammar.accepts("")
    assert not grammar.accepts(" ")


def test_many_choices():
    grammar = Grammar.choice([f"item {i}" for i in range(5000)])
    assert grammar.accepts("item 4999")
    assert not grammar.accepts("item 5000")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "empty"),
        ("yes", "a list of str"),
        ([1], "got int: 1"),
        (["a", None], "got NoneType"),
        (["\ud800"], "surrogate"),
        (7, "a list of str"),
    ],
)
def test_refused(choices, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.choice(choices)


def test_sources_that_are_none():
    with pytest.raises(GrammarError, match=r"Grammar\.lark"):
        Grammar("yes")
    with pytest.raises(GrammarError, match=r"Grammar\.choice"):
        Grammar(["yes"])
    with pytest.raises(GrammarError, match="got NoneType"):
        Grammar(None)
