"""The built-in JSON grammar against Python's own parser."""

from __future__ import annotations

import json as stdlib_json
import random

import pytest

from smcprog import Grammar, GrammarError, grammars
from smcprog.grammars import json

VALID = [
    "null", "true", "false", "0", "-0", "12", "1.5", "-2.25e+10", "1E-7", '""', '"a b"',
    r'"\" \\ \/ \b \f \n \r \t \u00e9 \ud83d\ude00"', '"é😀"', '"\x7f"', "[]", "{}", "[ ]",
    "[1,2,3]", "[1, 2]", '{"a":1}', '{"a": {"b": [true, null, "x"]}}', '{"":0}',
    '{"a": 1, "a": 2}', "[[[[[[[[[[]]]]]]]]]]", '[\n  1,\n  2\n]', '{\n\t"a": 1\n}',
    '{ "a" : 1 }', '[1 ,2]',
]  # fmt: skip
INVALID = [
    "", " ", "nul", "True", "01", "1.", ".5", "+1", "- 1", "1e", "NaN", "Infinity", "'a'",
    '"', '"a', '"\n"', '"\t"', r'"\x41"', r'"\u12"', r'"\u12g4"', "[", "]", "[1,]", "[,]",
    "[1 2]", "{", '{"a"}', '{"a":}', '{"a":1,}', "{a:1}", "{1:2}", '{"a":1 "b":2}', "[1]]",
    "1 2", "//", "nulltrue",
]  # fmt: skip


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar(json)


@pytest.mark.parametrize("text", VALID)
def test_valid_documents(grammar, text):
    stdlib_json.loads(text)
    assert grammar.accepts(text)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_documents(grammar, text):
    assert not grammar.accepts(text)


@pytest.mark.parametrize("text", [" 1", "1 ", "\n{}", "[1,  2]", "[1,\n\n2]", "[" + " " * 99 + "]"])
def test_white_space_is_bounded_inside_and_absent_around(grammar, text):
    stdlib_json.loads(text)
    assert not grammar.accepts(text)


def random_value(rng: random.Random, depth: int):
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.randrange(-1000, 1000)
    if kind == 2:
        return rng.uniform(-1, 1) * 10 ** rng.randrange(-30, 30)
    if kind in (3, 4):
        return "".join(
            rng.choice('ab "\\/\n\t\x00\x1f\x7fé€😀\u2028') for _ in range(rng.randrange(6))
        )
    if kind == 5:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {f"k{i}\n": random_value(rng, depth - 1) for i in range(rng.randrange(4))}


def test_what_python_writes_is_accepted(grammar):
    rng = random.Random(0)
    for _ in range(150):
        value = random_value(rng, 4)
        for options in (
            {}, {"ensure_ascii": False}, {"indent": 2}, {"indent": 4}, {"indent": "\t"},
            {"separators": (",", ":")},
        ):  # fmt: skip
            text = stdlib_json.dumps(value, **options)
            assert grammar.accepts(text), text


def test_broken_documents_agree_with_python(grammar):
    """One character deleted, doubled or replaced: what Python takes, the grammar takes."""
    rng = random.Random(1)
    for _ in range(400):
        text = stdlib_json.dumps(random_value(rng, 3), ensure_ascii=rng.random() < 0.5)
        at = rng.randrange(len(text))
        new = rng.choice(["", text[at] * 2, *'{}[]",:0e-\\'])
        text = text[:at] + new + text[at + 1 :]
        try:
            stdlib_json.loads(text, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            assert not grammar.accepts(text), text
        else:
            assert grammar.accepts(text), text


def test_registry():
    assert "json" in grammars.names()
    assert grammars.load("json") is json
    with pytest.raises(GrammarError, match=r"no built-in grammar 'yaml'.*json"):
        grammars.load("yaml")


def test_explain_and_names(grammar):
    assert grammar.name == "Grammar(json)"
    assert "checked besides: nothing" in grammar.explain()
    assert grammar.lark_text.startswith('%llguidance {"no_forcing": true}\n')
    assert grammar.source is json
