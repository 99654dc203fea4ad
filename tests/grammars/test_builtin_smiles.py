"""The built-in SMILES grammar; texts and reasons are those of the OpenSMILES specification."""

from __future__ import annotations

import random
import re

import pytest

from smcprog import Grammar
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars import smiles
from smcprog.grammars.builtin.files import file_text
from smcprog.potentials.base import Request
from smcprog.testing import check_potential
from tests.grammars.draw import Drawer

VALID = [
    "C", "CC", "C=C", "C#N", "Cl", "Br", "CCl", "*", "[Na+].[Cl-]", "CC(=O)Oc1ccccc1C(=O)O",
    "c1ccc2ccccc2c1", "C1CCCCC1", "C%12CC%12", "C=1CCCCC=1", "C=1CCCCC1", "C1CCCCC=1",
    "C12(CCCCC1)CCCCC2", "C1.C1", "CC(C)(C)C", "C(C(C))C", "C(.C)C", "[13CH4]", "[OH-]", "[Fe+3]",
    "[Cu++]", "[nH]1cccc1", "N[C@@H](C)C(=O)O", "F/C=C\\F", "[C:12]", "[H+]", "[H]", "[2H]O[2H]",
    "[C@TH1](F)(Cl)(Br)I", "[*]", "[se]1cccc1", "C0CC0", "C$C", "c1ccccc1-c2ccccc2", "C1CC1C1CC1",
    "C%01CC1", "C(=O)([O-])C", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
]  # fmt: skip
INVALID = [
    "", "c1ccccc", "C1CC", "C1CC2", "C11", "C1C1", "C12CCCCC12", "C=1CCCCC-1", "C(", "C)", "C()",
    "(C)C", "=C", "C=", "C.", ".C", "C==C", "[C", "C]", "[]", "[HH1]", "[CH0]", "[Xx]", "[12]",
    "X", "R", "Q", "C%1", "1CC1", "C-(C)C", "C((C))C", "C C", "[C@3]", "[C+16]", "[0C]", "C=.C",
    "[cl]", "al", "C%%11", "C1CC%1",
]  # fmt: skip


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar(smiles)


@pytest.mark.parametrize("text", VALID)
def test_valid_molecules(grammar, text):
    assert grammar.accepts(text)


@pytest.mark.parametrize("text", INVALID)
def test_invalid_molecules(grammar, text):
    assert not grammar.accepts(text)


def rings_are_paired(text: str) -> bool:
    """The rule on ring bonds, read atom by atom from a list of lexemes and a graph."""
    edges: set[frozenset[int]] = set()
    open_rings: dict[int, tuple[int, str]] = {}
    atoms, stack, previous, symbol = 0, [], None, ""
    for lexeme in re.findall(r"\[.*?\]|Cl|Br|%\d\d|.", text):
        if lexeme == "(":
            stack.append(previous)
        elif lexeme == ")":
            previous = stack.pop()
        elif lexeme == ".":
            previous = None
        elif lexeme in "-=#$:/\\":
            symbol = lexeme
        elif lexeme.lstrip("%").isdigit():
            ring = int(lexeme.lstrip("%"))
            if ring in open_rings:
                other, at_other = open_rings.pop(ring)
                edge = frozenset({other, previous})
                both = {symbol, at_other} - {""}
                if len(edge) < 2 or edge in edges or (len(both) > 1 and both != {"/", "\\"}):
                    return False
                edges.add(edge)
            else:
                open_rings[ring] = (previous, symbol)
            symbol = ""
        else:
            if previous is not None:
                edges.add(frozenset({previous, atoms}))
            previous, atoms, symbol = atoms, atoms + 1, ""
    return not open_rings


def drawn(rng: random.Random):
    # Few ring numbers, so that many of them are closed.
    drawer = Drawer(file_text("smiles"), {"ring": lambda r: r.choice(["1", "1", "2", "=1", "%01"])})
    while True:
        yield drawer.draw(rng, rng.choice([5, 7, 9]))


def test_drawn_molecules_are_accepted_where_rings_are_paired(grammar):
    counts = {True: 0, False: 0}
    rng = random.Random(0)
    for text, _ in zip(drawn(rng), range(1500), strict=False):
        paired = rings_are_paired(text)
        assert grammar.accepts(text) == paired, text
        counts[paired] += 1
    assert min(counts.values()) > 200


def test_checks_are_alike_however_the_text_is_split():
    begin = smiles.checks[0].begin()
    rng = random.Random(1)
    for text, _ in zip(drawn(rng), range(300), strict=False):
        whole, state, at = begin.feed(text.encode()), begin, 0
        while at < len(text) and state is not None:
            end = at + rng.randrange(1, 4)
            state, at = state.feed(text[at:end].encode()), end
        assert (whole is None) == (state is None)
        assert whole is None or whole.complete() == state.complete()


def test_a_wrong_ring_bond_ends_the_text_at_once():
    begin = smiles.checks[0].begin()
    assert begin.feed(b"C1") is not None
    assert begin.feed(b"C11") is None
    assert begin.feed(b"C%1").feed(b"2CC%1").feed(b"2").complete()


def test_laws(grammar):
    tokens = [b"C", b"1", b"(", b")", b"=", b"CC", b"C1", b"[", b"N", b"]", b"%", b"<eos>"]
    vocab = Vocabulary.from_tokens(tokens, [11])
    request = Request(
        prompt="", prompt_tokens=(), vocab=vocab, max_tokens=16, truncate=False, stop=()
    )
    check_potential(grammar, request, samples=60, max_length=7)
