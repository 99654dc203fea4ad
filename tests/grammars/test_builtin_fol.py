"""The built-in grammar of first-order logic, and its check for free variables."""

from __future__ import annotations

import random
import re

import pytest

from smcprog import Grammar
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars import fol
from smcprog.grammars.builtin.files import file_text
from smcprog.potentials.base import Request
from smcprog.testing import check_potential
from tests.grammars.draw import Drawer

CLOSED = [
    "P", "P(a)", "∀x P(x)", "∀x (Dog(x) → Animal(x))", "∀x∃y R(x, y)", "∀x(P(x)∧¬Q(x))",
    "a = f(b, c)", "¬∃x x ≠ x", "forall x. exists y. R(x,y)", "forall x P(x)",
    "~P & Q | R -> S <-> T", "∀x xa(x) = x", "∀x1 P(x1)", "∀x ∀x P(x)", "∀x P(x) ∧ Q",
    "(∀x P(x)) ↔ ∃x P(x)", "P(forall_)", "∀x (∃y R(x, y) ∧ P(x))", "∀x ¬¬(P(f(x)) ∨ x != a)",
]  # fmt: skip
FREE = [
    "P(x)", "x = a", "∀x P(y)", "∀x P(x) ∧ Q(x)", "∀x (P(x)) ∧ Q(x)", "∀x ¬∃y R(x, y) ∧ P(x)",
    "∀x P(x1)", "(∀x P(x)) ∧ (P(x))", "∀x (∃y R(x, y) ∧ P(y))", "forall x. P(x) -> Q(x)",
    "∀x P(f(g(z), x))", "∀x P(x) <-> P(x)",
]  # fmt: skip
INVALID = [
    "", "p", "p(a)", "∀", "∀x", "∀ x P(x)", "∀a P(a)", "∀xP(x)", "P(", "P()", "P(a", "P(a))",
    "P(Q)", "P ∧", "∧ P", "P Q", "x1(a) = a", "P  ∧ Q", " P", "P ", "¬", "forallx P(x)",
    "forall x.", "a", "a = ", "x ∧ y", "forall(a) = a", "P(a,  b)", "P → → Q",
]  # fmt: skip


@pytest.fixture(scope="module")
def formula() -> Grammar:
    return Grammar(fol)


@pytest.fixture(scope="module")
def sentence() -> Grammar:
    return Grammar(fol(closed=True))


@pytest.mark.parametrize("text", CLOSED)
def test_sentences(formula, sentence, text):
    assert formula.accepts(text) and sentence.accepts(text)


@pytest.mark.parametrize("text", FREE)
def test_formulas_with_free_variables(formula, sentence, text):
    assert formula.accepts(text) and not sentence.accepts(text)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_formulas(formula, sentence, text):
    assert not formula.accepts(text) and not sentence.accepts(text)


class Reader:
    """Free variables of a formula by recursive descent, as the documentation defines them."""

    def __init__(self, text: str) -> None:
        self.left = re.findall("forall|exists|->|<->|!=|[A-Za-z_][A-Za-z0-9_]*|[^ .]", text)

    def formula(self, bound: frozenset[str]) -> set[str]:
        free = self.unit(bound)
        while self.left and self.left[0] in ("∧", "∨", "→", "↔", "&", "|", "->", "<->"):
            self.left.pop(0)
            free |= self.unit(bound)
        return free

    def unit(self, bound: frozenset[str]) -> set[str]:
        head = self.left[0]
        if head in ("¬", "~"):
            self.left.pop(0)
            return self.unit(bound)
        if head in ("∀", "∃", "forall", "exists"):
            self.left.pop(0)
            return self.unit(bound | {self.left.pop(0)})
        if head == "(":
            self.left.pop(0)
            free = self.formula(bound)
            assert self.left.pop(0) == ")"
            return free
        free = self.term(bound)
        if self.left and self.left[0] in ("=", "≠", "!="):
            self.left.pop(0)
            free |= self.term(bound)
        return free

    def term(self, bound: frozenset[str]) -> set[str]:
        head = self.left.pop(0)
        if re.fullmatch("[u-z][0-9]*", head):
            return set() if head in bound else {head}
        free: set[str] = set()
        if self.left and self.left[0] == "(":
            while self.left.pop(0) != ")":
                free |= self.term(bound)
        return free


def test_drawn_formulas(formula, sentence):
    samplers = {
        "VARIABLE": lambda rng: rng.choice(["x", "y", "x1"]),
        "NAME": lambda rng: rng.choice(["a", "f", "xa"]),
        "PREDICATE": lambda rng: rng.choice(["P", "Rx"]),
    }
    drawer = Drawer(file_text("fol"), samplers)
    rng = random.Random(0)
    closed = 0
    for _ in range(400):
        text = drawer.draw(rng, rng.choice([6, 9, 12]))
        reader = Reader(text)
        free = reader.formula(frozenset())
        assert not reader.left
        assert formula.accepts(text), text
        assert sentence.accepts(text) == (not free), text
        closed += not free
    assert 40 < closed < 360


def test_a_free_variable_ends_the_text_at_once():
    begin = fol(closed=True).checks[0].begin()
    assert begin.feed("∀x P(y".encode()) is not None  # the name may go on
    assert begin.feed("∀x P(y,".encode()) is None
    assert begin.feed("∀x P(ya".encode()).feed(b",") is not None
    split = "∀x P(x) ∧ Q(x)".encode()
    state = begin
    for i in range(len(split)):
        state = state.feed(split[i : i + 1])
        assert (state is None) == (i == len(split) - 1)
        if state is None:
            break


def test_laws(sentence):
    tokens = ["∀", "x", " ", "P", "(", ")", "(x)", "∧", "y", "<eos>"]
    encoded = [*(t.encode() for t in tokens[:-1]), "∀".encode()[:1], "∀".encode()[1:], b"<eos>"]
    vocab = Vocabulary.from_tokens(encoded, [len(encoded) - 1])
    request = Request(
        prompt="", prompt_tokens=(), vocab=vocab, max_tokens=16, truncate=False, stop=()
    )
    check_potential(sentence, request, samples=40, max_length=8)
