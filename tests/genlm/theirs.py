"""genlm-control, where it is installed, and potentials of it over the letters a, b and ab."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest

from smcprog.potentials import Request
from smcprog.testing import TabularLM

WHY = "genlm-control is not installed (extra: genlm)"
control = pytest.importorskip("genlm.control", reason=WHY)
grammar = pytest.importorskip("genlm.grammar", reason=WHY)
tokenization = pytest.importorskip("genlm.backend.tokenization", reason=WHY)
util = pytest.importorskip("genlm.control.util", reason=WHY)

TOKENS = (b"a", b"b", b"ab", b"<eos>", b"<end>")


class Tokens:
    vocab: ClassVar = [tokenization.Token(i, t) for i, t in enumerate(TOKENS[:3])]


class Strings:
    vocab: ClassVar = list(TOKENS[:3])


class Letters(control.Potential):
    """One factor 2 for each a, over byte strings of length 1, with no method but the least."""

    def __init__(self):
        super().__init__([b"a", b"b"])

    async def prefix(self, context):
        assert all(len(letter) == 1 for letter in context)
        return math.log(2) * context.count(b"a")

    async def complete(self, context):
        return await self.prefix(context) - 1.5


class Ends(control.Potential):
    """Weighs complete outputs only, by their number of tokens."""

    def __init__(self):
        super().__init__(Tokens.vocab)

    def is_terminal_only(self):
        return True

    async def prefix(self, context):
        return 0.0

    async def complete(self, context):
        return -0.5 * len(context)


def bytes_wfsa():
    """a, then b (weight 2), or a, then anything of b and a, less and less likely."""
    m = grammar.WFSA(grammar.Float)
    m.add_I(0, 1.5)
    m.add_arc(0, ord("a"), 1, 2.0)
    m.add_arc(1, ord("b"), 2, 1.0)
    m.add_arc(1, ord("a"), 1, 0.25)
    m.add_arc(2, ord("a"), 1, 0.5)
    m.add_F(2, 1.0)
    return control.WFSA(m)


def potentials():
    fsa, wfsa = control.BoolFSA.from_regex("a(b|a)*b?"), bytes_wfsa()
    join = b"".join
    return {
        "bool fsa": fsa,
        "wfsa": wfsa,
        "bool cfg": control.BoolCFG.from_lark('start: "a" start "b" | "ab"'),
        "coerced to tokens": wfsa.coerce(Tokens, f=join),
        "coerced to strings": wfsa.coerce(Strings, f=join),
        "product": fsa * wfsa,
        "power": wfsa**0.5,
        "batched": wfsa.to_autobatched(),
        "letters": Letters(),
        "ends": Ends(),
    }


def table(chances=(0.3, 0.2, 0.2, 0.2, 0.1)) -> TabularLM:
    """i.i.d. tokens with two EOS ids."""
    return TabularLM.from_conditionals(TOKENS, [3, 4], lambda h: chances, 0)


def request(max_tokens: int = 8) -> Request:
    return Request([0], (0,), table().vocab, max_tokens)
