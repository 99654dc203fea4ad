"""Lark grammars under tokens: laws of a potential, split characters, early deaths."""

from __future__ import annotations

import math

import lark
import pytest

from smcprog import Grammar
from smcprog.testing import check_potential

from .test_grammar_potential import after, allowed, request, vocabulary


@pytest.mark.parametrize("options", [{"parser": "lalr"}, {"parser": "earley"}])
def test_laws_with_a_check(options):
    """`aab` is A and then no B for Lark's lexers, though the rules derive it."""
    grammar = Grammar.lark(lark.Lark("start: (A B)+\nA: /a+/\nB: /ab|b/\n", **options))
    vocab = vocabulary(b"a", b"b", b"ab", b"ba", b"aa")
    check_potential(grammar, request(vocab), samples=60, max_length=5)


def test_particles_die_at_the_token_that_settles_it():
    grammar = Grammar.lark(lark.Lark('start: "x"? A B "."\nA: /a+/\nB: /ab/\n', parser="lalr"))
    vocab = vocabulary(b"a", b"b", b".", b"aab")
    state, log_psi = after(grammar, vocab, (0, 0))
    assert log_psi == 0.0
    assert allowed(grammar, state, vocab) == {0, 1, 3}  # the mask says what rules derive
    assert after(grammar, vocab, (0, 0, 1))[1] == -math.inf
    assert after(grammar, vocab, (3,))[1] == -math.inf


def test_a_word_boundary_under_tokens():
    """Known only once the next character is there."""
    grammar = Grammar.lark("start: A+\nA: /if\\b/ | /[ ]/ | /x/")
    vocab = vocabulary(b"if", b" ", b"x", b"f x", b"i")
    state, log_psi = after(grammar, vocab, (0,))
    assert log_psi == 0.0
    assert 5 in allowed(grammar, state, vocab)
    assert after(grammar, vocab, (0, 2))[1] == -math.inf
    assert after(grammar, vocab, (4, 3))[1] == 0.0


def test_terminals_that_share_characters():
    vocab = vocabulary(b"a", b"b", b"bb", b"c", b"bc")
    state, _ = after(Grammar.lark("start: /ab*/ /bc?/"), vocab, (0, 2, 2))
    assert allowed(Grammar.lark("start: /ab*/ /bc?/"), state, vocab) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("options", [{}, {"parser": "lalr"}])
def test_characters_split_between_tokens(options):
    grammar = Grammar.lark("start: /[😀-🙏]+/", **options)
    smile, rocket = "😀".encode(), "🚀".encode()
    vocab = vocabulary(smile[:2], smile[2:], smile, rocket[:2], rocket[2:], smile[3:] + smile)
    state, log_psi = after(grammar, vocab, (0,))
    assert log_psi == 0.0
    assert 1 in allowed(grammar, state, vocab)
    assert 6 not in allowed(grammar, state, vocab)
    assert after(grammar, vocab, (0, 1))[1] == 0.0
    assert after(grammar, vocab, (3, 4))[1] == -math.inf
    state, _ = after(grammar, vocab, (0, 1, 2))
    assert 6 in allowed(grammar, state, vocab)
