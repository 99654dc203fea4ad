"""The built-in grammar of arithmetic against Python's parser."""

from __future__ import annotations

import ast
import random

import pytest

from smcprog import Grammar
from smcprog.grammars import arithmetic
from smcprog.grammars.builtin.files import file_text
from tests.grammars.draw import Drawer

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.UAdd, ast.USub)


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar(arithmetic)


@pytest.mark.parametrize(
    "text",
    ["0", "12", "1.50", "1+2", "1 + 2", "1 +2", "-1", "--1", "1 - -1", "1--1", "2**-3", "(1)",
     "-(1+2)*3 % 4", "((0.5))"],
)  # fmt: skip
def test_valid_expressions(grammar, text):
    ast.parse(text, mode="eval")
    assert grammar.accepts(text)


@pytest.mark.parametrize(
    "text",
    ["", "1+", "+", "(1", "1)", "()", "1 2", "01", "1.", ".5", "1e5", "1_0", "1//2", "a", "1  + 2",
     " 1", "1 ", "( 1)", "1 ***2", "*1", "1\n+2", "٣"],
)  # fmt: skip
def test_invalid_expressions(grammar, text):
    assert not grammar.accepts(text)


def test_drawn_expressions_are_python(grammar):
    drawer = Drawer(file_text("arithmetic"))
    rng = random.Random(0)
    longest = 0
    for _ in range(300):
        text = drawer.draw(rng, rng.choice([4, 8, 12]))
        assert grammar.accepts(text), text
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            assert isinstance(
                node, (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, *OPERATORS)
            )
        longest = max(longest, len(text))
    assert longest > 30


def test_broken_expressions_agree_with_python(grammar):
    """One character changed: what Python takes without blanks and words, the grammar takes."""
    drawer = Drawer(file_text("arithmetic"), {"_GAP": lambda rng: ""})
    rng = random.Random(1)
    for _ in range(400):
        text = drawer.draw(rng, 6)
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(["", text[at] * 2, *"()+*.05"]) + text[at + 1 :]
        try:
            tree = ast.parse(text, mode="eval")
            operators = [n for n in ast.walk(tree) if isinstance(n, (ast.operator, ast.unaryop))]
            valid = all(isinstance(o, OPERATORS) for o in operators) and not any(
                isinstance(n, (ast.Tuple, ast.Call)) for n in ast.walk(tree)
            )
            # Python also has 00, 1. and .5.
            valid = valid and not _has_other_numbers(text)
        except SyntaxError:
            valid = False
        assert grammar.accepts(text) == valid, text


def _has_other_numbers(text: str) -> bool:
    for number in "".join(c if c in "0123456789." else " " for c in text).split():
        whole, _, fraction = number.partition(".")
        if not whole or ("." in number and not fraction) or (len(whole) > 1 and whole[0] == "0"):
            return True
    return False
