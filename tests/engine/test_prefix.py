"""Prompts with a common beginning share its pages, and everything else stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import Target
from smcprog.engine.pages import PageAllocator
from smcprog.engine.prefix import PrefixStore, without_sharing
from smcprog.errors import PagesExhaustedError

from ..tiny import tiny_llama

PROMPT = [0, 1, 2, 3, 4, 5] * 4  # three pages


@pytest.fixture
def ran(monkeypatch):
    """An LM, and the list of how many tokens each of its forwards ran."""

    def make(**options):
        lm, tokens = tiny_llama(8, eos=7, context=128, **options), []
        call = lm.engine.call_model

        def watched(ids, *arguments):
            tokens.append(ids.numel())
            return call(ids, *arguments)

        monkeypatch.setattr(lm.engine, "call_model", watched)
        return lm, tokens

    return make


def next_logits(lm, prompt):
    with lm.sequences(prompt, 2) as rows:
        return rows.next_logits().clone()


def test_only_the_rest_is_run(ran):
    lm, tokens = ran()
    for prompt in (PROMPT, [*PROMPT, 6, 6], [*PROMPT[:16], 6]):
        next_logits(lm, prompt)
    assert tokens == [24, 2, 1]
    next_logits(lm, PROMPT)  # at least one token, for the logits after it: here one page
    assert tokens[3:] == [8]
    next_logits(lm, [6, *PROMPT])  # the same tokens elsewhere are another prefix
    assert tokens[4:] == [25]


@pytest.mark.parametrize("rest", [[], [6], [6] * 20])
def test_logits_are_those_of_a_whole_run(ran, rest):
    lm, _ = ran()
    plain = next_logits(lm, PROMPT + rest)
    lm.engine.prefixes.clear()
    next_logits(lm, PROMPT)
    torch.testing.assert_close(next_logits(lm, PROMPT + rest), plain)


def test_shared_pages_count_once_and_idle_ones_are_free(ran):
    lm, _ = ran(kv_pages=40)
    one = lm.sequences([*PROMPT, 6], 1)
    assert (lm.pages_in_use, lm.pages_free) == (4, 36)
    two = lm.sequences([*PROMPT, 5, 5], 1)
    assert (lm.pages_in_use, lm.pages_free) == (5, 35)
    lm.check_pages()
    one.close()
    two.close()
    assert (lm.pages_in_use, lm.pages_free) == (0, 40)
    assert lm.engine.prefixes.idle == 3
    lm.check_pages()


def test_pages_come_back_when_they_are_needed(ran):
    lm, tokens = ran(kv_pages=12)
    next_logits(lm, PROMPT)
    assert lm.engine.prefixes.idle == 3
    with lm.sequences([6] * 80, 2) as rows:  # 10 pages; 9 are on the free list
        assert lm.pages_in_use == 10
        with pytest.raises(PagesExhaustedError, match=r"2 of the 12 .*are free"):
            rows.score(torch.zeros((2, 30), dtype=torch.int64))
        lm.check_pages()
    next_logits(lm, PROMPT)
    assert tokens[-1] == len(PROMPT)  # the oldest had to go


def test_store_stays_within_a_quarter_of_the_pool(ran):
    lm, tokens = ran(kv_pages=32)
    for first in range(7):
        next_logits(lm, [first] * 25)
        assert lm.engine.prefixes.idle <= 8
    lm.check_pages()
    tokens.clear()
    next_logits(lm, [6] * 25)  # the newest are kept, the oldest not
    next_logits(lm, [0] * 25)
    assert tokens == [1, 25]


def test_off(ran):
    lm, tokens = ran(prefix_cache=False)
    next_logits(lm, PROMPT)
    next_logits(lm, PROMPT)
    assert tokens == [24, 24]
    assert lm.engine.prefixes is None


def test_deterministic_requests_run_their_whole_prompt(ran):
    lm, tokens = ran()
    posts = []
    for _ in range(2):
        tokens.clear()
        posts.append(Target(lm).sample(PROMPT, particles=2, max_tokens=3, seed=0,
                                       deterministic=True))  # fmt: skip
        assert tokens[0] == 24
    assert [p.logprobs for p in posts[0]] == [p.logprobs for p in posts[1]]
    with without_sharing(False):
        next_logits(lm, PROMPT)
    with without_sharing():
        tokens.clear()
        next_logits(lm, PROMPT)
    assert tokens == [24]


def test_failed_prompt_leaves_nothing(ran, monkeypatch):
    lm, _ = ran(kv_pages=16)

    def fail(*arguments):
        raise RuntimeError("no")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no"):
        patch.setattr(lm.engine, "call_model", fail)
        lm.sequences(PROMPT, 2)
    lm.check_pages()
    assert lm.pages_free == 16
    assert lm.engine.prefixes.idle == 0
    assert not lm.engine.prefixes.coming(PROMPT)


def test_claims_say_what_is_coming():
    store = PrefixStore(PageAllocator(20, 4), 10)
    claim = store.claim([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert store.coming([1, 2, 3, 4, 9, 9, 9])
    assert not store.coming([1, 2, 3, 4])  # its last token must be run anyway
    assert not store.coming([1, 2, 3, 5, 9, 9])
    store.unclaim(claim)
    assert not store.coming([1, 2, 3, 4, 9, 9, 9])


def test_any_order_of_prompts(ran):
    """Against a store that is not there, with a pool so small that pages always run short."""
    lm, _ = ran(kv_pages=24)
    plain, _ = ran(prefix_cache=False)
    rng = np.random.default_rng(0)
    live = []
    for _ in range(150):
        if live and rng.random() < 0.5:
            live.pop(rng.integers(len(live))).close()
        prompt = rng.integers(0, 2, size=rng.integers(1, 40)).tolist()
        if rng.random() < 0.7:
            prompt = PROMPT[: rng.integers(1, 25)] + prompt[:10]
        try:
            rows = lm.sequences(prompt, 2)
        except PagesExhaustedError:
            assert lm.pages_free < lm.pages_needed(len(prompt), 2, 0)
        else:
            torch.testing.assert_close(rows.next_logits()[:1], next_logits(plain, prompt)[:1])
            live.append(rows)
        lm.check_pages()
    for rows in live:
        rows.close()
    assert (lm.pages_in_use, lm.pages_free) == (0, 24)
