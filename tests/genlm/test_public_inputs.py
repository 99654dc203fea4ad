"""Inputs that genlm-control's own tests use, seen through our factor and our engine.

What its potentials must say of these inputs is known in numbers; our factor has to say the
same of the tokens of an output, one token at a time and in one block.
"""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch

from smcprog import Genlm
from smcprog.potentials import Request
from smcprog.testing import TabularLM, check_potential

from .theirs import WHY, control, grammar

room = pytest.importorskip("smcprog.genlm", reason=WHY)

DEAD = -math.inf
LETTERS = (*(bytes([b]) for b in range(256)), b"ab", b"true", '"é'.encode(), b"\xc2", b"<eos>")
EOS = len(LETTERS) - 1


def alphabet() -> TabularLM:
    """All bytes, and some tokens that span several."""
    rows = np.zeros((1, len(LETTERS)))
    return TabularLM(LETTERS, [EOS], rows, rows)


REQUEST = Request([0], (0,), alphabet().vocab, 4096)


def spellings(text: bytes):
    """A text byte by byte, and with the longest tokens that fit."""
    yield list(text)
    tokens, at = [], 0
    while at < len(text):
        fits = [v for v, t in enumerate(LETTERS[:-1]) if text.startswith(t, at)]
        tokens.append(max(fits, key=lambda v: len(LETTERS[v])))
        at += len(LETTERS[tokens[-1]])
    yield tokens


def value(potential, tokens, complete, by_token):
    factor = Genlm(potential)
    state = factor.start(REQUEST, 1)
    tokens = [*tokens, EOS] if complete else list(tokens)
    blocks = [[t] for t in tokens] if by_token else [tokens]
    log_psi_1 = torch.zeros(1)
    state, log_psi_1 = factor.advance(
        state, torch.zeros((1, 0)).long(), torch.tensor([0]), torch.tensor([False])
    )
    at = 0
    for block in blocks:
        at += len(block)
        ended = torch.tensor([complete and at == len(tokens)])
        state, log_psi_1 = factor.advance(
            state, torch.tensor([block]).view(1, -1).long(), torch.tensor([len(block)]), ended
        )
    return float(log_psi_1)


def fsa(semiring):
    """a, then b or c; d leads nowhere."""
    m = grammar.WFSA(semiring)
    log = semiring is grammar.Log
    one = grammar.Log(0.0) if log else 1.0
    m.add_I(0, one)
    m.add_arc(0, ord("a"), 1, one if log else 2)
    m.add_arc(1, ord("b"), 2, grammar.Log(math.log(0.6)) if log else 1)
    m.add_arc(1, ord("c"), 2, grammar.Log(math.log(0.4)) if log else 1)
    if not log:
        m.add_arc(1, ord("d"), 3, 1)
    m.add_F(2, one)
    return m


def cfg():
    g = grammar.CFG(grammar.Float, S="S", V={ord("a"), ord("b")})
    g.add(3.0, "S", "A", "B")
    g.add(2.0, "S", "A", "B", "B")
    g.add(1.0, "A", ord("a"))
    g.add(1.0, "B", ord("b"))
    return g


INTEGERS = {"type": "array", "items": {"type": "integer"}}
# potential, text, log ψ of it as a prefix, log φ of it as a whole (None: not looked at)
SAYS = {
    "wfsa": (
        lambda: control.WFSA(fsa(grammar.Float)),
        [
            (b"ab", math.log(2), math.log(2)),
            (b"ac", math.log(2), math.log(2)),
            (b"a", math.log(4), DEAD),
            (b"c", DEAD, DEAD),
            (b"ad", DEAD, DEAD),
        ],
    ),
    "log wfsa": (
        lambda: control.WFSA(fsa(grammar.Log)),
        [(b"ab", math.log(0.6), math.log(0.6)), (b"a", 0, DEAD), (b"ac", None, math.log(0.4))],
    ),
    "regex": (
        lambda: control.WFSA.from_regex("a(b|c)"),
        [(b"ab", math.log(0.5), math.log(0.5)), (b"a", 0, DEAD), (b"c", DEAD, DEAD)],
    ),
    "bool fsa": (
        lambda: control.BoolFSA(fsa(grammar.Float)),
        [(b"ab", 0, 0), (b"ac", 0, 0), (b"a", 0, DEAD), (b"c", DEAD, DEAD)],
    ),
    "long context": (lambda: control.BoolFSA.from_regex(".*"), [(b"a" * 1000, 0, 0)]),
    "wcfg": (
        lambda: control.WCFG(cfg()),
        [
            (b"ab", math.log(5), math.log(3)),
            (b"abb", None, math.log(2)),
            (b"a", math.log(5), DEAD),
        ],
    ),
    "bool cfg": (
        lambda: control.BoolCFG(cfg()),
        [(b"", 0, None), (b"ab", 0, 0), (b"abb", 0, 0), (b"a", 0, DEAD)],
    ),
    "json": (
        lambda: control.JsonSchema(INTEGERS),
        [
            (b"[1,2,3", 0, None),
            (b"[1, 2]", 0, 0),
            (b'["hello world"', DEAD, DEAD),
            (b"{", DEAD, None),
            (b"}", DEAD, None),
        ],
    ),
    "json text": (
        lambda: control.JsonSchema({"type": "string"}),
        [('"é0"'.encode(), None, 0), (b'"0\xc2\x80\xc2', 0, None), (bytes([190] * 5), DEAD, None)],
    ),
    "json names": (
        lambda: control.JsonSchema({"enum": [True, None, 10]}),
        [(b"true", None, 0), (b"tru", 0, DEAD), (b"1", 0, DEAD), (b"10", None, 0)],
    ),
}


@pytest.mark.parametrize("name", SAYS)
def test_values(name):
    make, cases = SAYS[name]
    potential = make()
    for text, prefix, whole in cases:
        for tokens in spellings(text):
            for by_token in (False, True) if len(text) < 20 else (False,):
                if prefix is not None:
                    got = value(potential, tokens, False, by_token)
                    assert got == pytest.approx(prefix, abs=1e-9), text
                if whole is not None:
                    got = value(potential, tokens, True, by_token)
                    assert got == pytest.approx(whole, abs=1e-9), text


@pytest.mark.parametrize("name", ["wfsa", "wcfg", "bool cfg", "json"])
def test_laws_over_tokens_that_span_several_bytes(name):
    potential = SAYS[name][0]()
    walks = [tokens for text, _, _ in SAYS[name][1] for tokens in spellings(text)]
    walks += [[*w, EOS] for w in walks if value(potential, w, False, False) > DEAD]
    for guide in (None, "reject"):
        check_potential(Genlm(potential, guide=guide), REQUEST, sequences=walks)


def test_the_contract_of_a_model_over_the_default_model(default_lm):
    """Their checks on `PromptedLLM`, over real tokens, with a temperature and other EOS tokens."""
    model = room.AsyncLM(default_lm)
    llm = control.PromptedLLM(model, temperature=0.8)
    llm.prompt_ids = default_lm.encode("The capital of France is")
    contexts = [llm.tokenize(text) for text in ("", " Paris", " Paris, a city", " the 1st é")]
    asyncio.run(llm.assert_contract(contexts, rtol=1e-3, atol=1e-3, top=10))
    other = llm.spawn_new_eos(eos_byte_strings=[b".", b" city"])
    context = llm.tokenize(" Paris, which is")
    asyncio.run(other.assert_logw_next_consistency(context, top=10, rtol=1e-3, atol=1e-3))
    asyncio.run(other.assert_autoreg_fact(context, rtol=1e-3, atol=1e-3))
    assert control.EOS not in other.vocab
    model.clear_cache()
