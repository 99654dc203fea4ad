"""Where one more token is the last one of text, the mask holds exactly those that finish it."""

from __future__ import annotations

import random

import pytest
import torch

from smcprog import Grammar
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars import json, python
from smcprog.potentials.base import Request
from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.testing import check_potential

TOKENS = [
    *(b'0 1 01 110 a b ab ( ) )) (( " [ ] { } , : ") ]) }] }} ,1 :1 \n'.split(b" ")),
    b"    ",
    b" x",
    b" = ",
    b" pass",
    b"if",
    b"\xc3",
    b"\xa9",
    "é".encode(),
    b"<eos>",
]
EOS = len(TOKENS) - 1

GRAMMARS = {
    "regex": Grammar.regex("11[01]+|0[01]*"),
    "choice": Grammar.choice(["0", "01", "é", "110", "ab"]),
    "recursion": Grammar.lark('start: "(" start ")" | /[ab]+/ | "\\"" /[^"]*/ "\\""'),
    "ignored": Grammar.lark('start: "a" start | "b"\n%ignore " "'),
    "schema": Grammar({"type": "object", "additionalProperties": {"type": "integer"}}),
    "json": Grammar(json),
    "module": Grammar(python.module()),
    "body": Grammar(python.function_body()),
}


def walk(grammar, vocab, max_tokens, tokens, truncate=False):
    request = Request("", (), vocab, max_tokens, truncate)
    state = grammar.start(request, 1)
    for token in tokens:
        state, log_psi = grammar.advance(
            state, torch.tensor([[token]]), torch.tensor([1]), torch.tensor([False])
        )
    return state, (log_psi.item() if tokens else 0.0)


def allowed(grammar, vocab, state):
    return set(unpack_bitmask(grammar.mask(state), vocab.size)[0].nonzero().flatten().tolist())


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("truncate", [False, True])
def test_the_last_token_completes_the_text(name, truncate):
    grammar, vocab = GRAMMARS[name], Vocabulary.from_tokens(TOKENS, [EOS])
    rng = random.Random(name)
    seen = finished = 0
    for _ in range(12):
        walked: list[int] = []
        for _ in range(rng.randint(0, 7)):
            state, _ = walk(grammar, vocab, 99, walked)
            going_on = sorted(allowed(grammar, vocab, state) - {EOS})
            if not going_on:
                break
            walked.append(rng.choice(going_on))
        text = b"".join(TOKENS[t] for t in walked)
        state, log_psi = walk(grammar, vocab, 99, walked)
        if log_psi < 0:
            continue
        usual = allowed(grammar, vocab, state)
        room = len(walked) + (1 if truncate else 2)
        state, _ = walk(grammar, vocab, room, walked, truncate)
        last = allowed(grammar, vocab, state)
        texts = {t: (text + TOKENS[t]).decode(errors="surrogateescape") for t in usual - {EOS}}
        complete = {t for t, whole in texts.items() if grammar.accepts(whole)}
        assert complete <= last <= usual
        assert (EOS in last) == (EOS in usual)
        if not grammar._text.checks:
            assert last == complete | (usual & {EOS})
        seen += len(usual)
        finished += len(last)
        for t in sorted(usual - {EOS})[:8]:
            if not truncate:  # no text after it: dead unless it is complete
                _, after = walk(grammar, vocab, room, [*walked, t])
                assert (after == 0.0) == (t in complete)
    assert 0 < finished < seen  # it left tokens out, and not all


def test_rows_have_their_own_room():
    """Requests of one batch may allow different lengths."""
    grammar, vocab = GRAMMARS["recursion"], Vocabulary.from_tokens(TOKENS, [EOS])
    states = [grammar.start(Request("", (), vocab, n, False), 1) for n in (2, 9)]
    state = grammar.join(states)
    masks_N_V = unpack_bitmask(grammar.mask(state), vocab.size)
    opening = TOKENS.index(b"(")
    assert masks_N_V[:, opening].tolist() == [False, True]
    swapped = grammar.fork(state, torch.tensor([1, 0, 1]))
    masks_N_V = unpack_bitmask(grammar.mask(swapped), vocab.size)
    assert masks_N_V[:, opening].tolist() == [True, False, True]


@pytest.mark.parametrize("name", ["regex", "ignored", "json"])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_the_laws_hold_where_little_room_is_left(name, truncate, max_tokens):
    vocab = Vocabulary.from_tokens(TOKENS, [EOS])
    request = Request([0], (0,), vocab, max_tokens, truncate)
    check_potential(GRAMMARS[name], request, samples=40)
