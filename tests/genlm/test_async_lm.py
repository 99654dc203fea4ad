"""Our engine as genlm-control's language model: values, what they cost, what goes wrong."""

from __future__ import annotations

import asyncio
import functools
import gc

import numpy as np
import pytest
import torch

from smcprog import LM, Grammar
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import PagesExhaustedError, SettingError, VocabularyMismatchError

from ..tiny import tiny_llama, tiny_model
from .theirs import WHY, control

room = pytest.importorskip("smcprog.genlm", reason=WHY)

PROMPT = [0, 1, 2, 0, 1]


def small_lm(**options):
    return tiny_llama(vocab_size=4, eos=3, scale=1.0, page_size=4, **options)


PLAIN = functools.cache(lambda: tiny_model(4, 3, scale=1.0))


def reference(history):
    with torch.no_grad():
        logits = PLAIN()(torch.tensor([history])).logits[0, -1]
    return torch.log_softmax(logits, dim=-1)


def same(got, history):
    torch.testing.assert_close(got, reference(history), atol=1e-9, rtol=0)


def test_their_contract_holds_over_our_model():
    llm = control.PromptedLLM(room.AsyncLM(small_lm()), prompt_ids=PROMPT, temperature=0.7)
    a, b, c = llm.vocab
    contexts = [[], [a], [a, b], [a, b, c, c], [c, a], [a, b, a]]
    asyncio.run(llm.assert_contract(contexts, rtol=1e-6, atol=1e-6))


@pytest.mark.parametrize("rows", [1, 3, 256])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_any_order_of_histories_gives_the_models_values(rows, cache_bytes):
    lm = small_lm()
    model = room.AsyncLM(lm, rows=rows, cache_bytes=cache_bytes)
    rng = np.random.default_rng(rows)
    for _ in range(6):
        base = rng.integers(0, 3, size=int(rng.integers(1, 12))).tolist()
        batch = [base[: int(n)] for n in rng.integers(1, len(base) + 1, size=3)]
        batch += [[*base, int(v)] for v in rng.integers(0, 3, size=2)]
        for history, got in zip(batch, model.batch_next_token_logprobs_sync(batch), strict=True):
            same(got, history)
        lm.check_pages()
    model.clear_cache()
    assert lm.pages_in_use == 0


def test_a_history_that_grows_costs_a_token_each():
    model = room.AsyncLM(small_lm(), cache_bytes=0)
    histories = [[*PROMPT, v] for v in (0, 1, 2)]
    model.batch_next_token_logprobs_sync(histories)
    start = model.histories.tokens_run
    assert start == len(PROMPT) + 3
    for t in range(10):
        # particle 2 becomes a copy of particle 0 half-way, as after resampling
        source = [0, 1, 0] if t == 5 else [0, 1, 2]
        histories = [[*histories[s], (i + t) % 3] for i, s in enumerate(source)]
        got = model.batch_next_token_logprobs_sync(histories)
        same(got[2], histories[2])
    assert model.histories.tokens_run == start + 30


def test_prefixes_of_one_history_come_from_one_run():
    model = room.AsyncLM(small_lm())
    whole = [*PROMPT, 2, 1, 0, 0, 2, 1]
    batch = [whole[:n] for n in range(len(PROMPT), len(whole) + 1)]
    for history, got in zip(batch, model.batch_next_token_logprobs_sync(batch), strict=True):
        same(got, history)
    assert model.histories.tokens_run == len(whole)


def test_queries_made_together_are_one_batch():
    model = room.AsyncLM(small_lm())
    sizes = []
    run = model.histories.logprobs

    def counted(histories):
        sizes.append(len(histories))
        return run(histories)

    model.histories.logprobs = counted
    histories = [[*PROMPT, v] for v in (0, 1, 2)] * 2

    async def main():
        return await asyncio.gather(*[model.next_token_logprobs(h) for h in histories])

    for history, got in zip(histories, asyncio.run(main()), strict=True):
        same(got, history)
    assert sizes == [6]
    asyncio.run(main())
    assert sizes == [6]  # known by now


def test_one_bad_query_does_not_spoil_the_others():
    model = room.AsyncLM(small_lm(context=16))

    async def main():
        queries = [PROMPT, [0] * 40, [1, 2]]
        return await asyncio.gather(
            *[model.next_token_logprobs(q) for q in queries], return_exceptions=True
        )

    first, second, third = asyncio.run(main())
    same(first, PROMPT)
    same(third, [1, 2])
    assert isinstance(second, Exception)


def test_what_is_kept_makes_room_when_pages_run_short():
    lm = small_lm(kv_pages=12, prefix_cache=False)
    model = room.AsyncLM(lm)
    for first in range(3):
        history = [first, *[(first + i) % 3 for i in range(30)]]  # 8 pages
        same(model.next_token_logprobs_sync(history), history)
    with pytest.raises(PagesExhaustedError):
        model.next_token_logprobs_sync([0, 1] * 30)
    same(model.next_token_logprobs_sync(PROMPT), PROMPT)


def test_a_table_of_bytes_serves_as_vocabulary_and_several_eos_are_summed():
    vocab = Vocabulary.from_tokens([b"a", b"b", b"<end>", b"<eos>"], [3, 2])
    model = room.AsyncLM(LM.from_model(tiny_model(4, 3, scale=1.0), vocab))
    assert model.eos_byte_strings == [b"<eos>", b"<end>"]
    llm = control.PromptedLLM(model, prompt_ids=PROMPT, eos_byte_strings=model.eos_byte_strings)
    assert [bytes(t) for t in llm.vocab] == [b"a", b"b"]
    logw = asyncio.run(llm.logw_next([]))[control.EOS]
    assert logw == pytest.approx(float(reference(PROMPT)[2:].logsumexp(0)), abs=1e-6)


def test_what_is_refused():
    lm = small_lm()
    model = room.AsyncLM(lm)
    with pytest.raises(SettingError, match="must not be empty"):
        model.next_token_logprobs_sync([])
    with pytest.raises(ValueError, match="unknown LoRA adapter: 'tiny'"):
        model.next_token_logprobs_sync([0], lora_name="tiny")
    llm = control.PromptedLLM(model, prompt_ids=PROMPT)
    other = tiny_llama(vocab_size=5, eos=4)
    with pytest.raises(VocabularyMismatchError):
        room.DraftSampler(llm, other)
    with pytest.raises(SettingError, match=r"a PromptedLLM over smcprog\.genlm\.AsyncLM"):
        room.DraftSampler(control.BoolFSA.from_regex("a"), lm)
    with pytest.raises(SettingError, match="make it with eos_byte_strings"):
        room.DraftSampler(llm.spawn_new_eos([b"a"]), lm)
    with pytest.raises(SettingError, match="leave out draw"):
        asyncio.run(room.DraftSampler(llm, lm).sample([], draw=max))
    with pytest.raises(SettingError, match="the context is complete"):
        asyncio.run(room.DraftSampler(llm, lm).sample([llm.vocab[:1], control.EOS]))


def test_units_continue_rows_and_give_their_memory_back():
    lm = tiny_llama(vocab_size=4, eos=3, scale=0.3, page_size=4, prefix_cache=False)
    draft = tiny_llama(vocab_size=4, eos=3, seed=1, scale=0.3, page_size=4, prefix_cache=False)
    llm = control.PromptedLLM(room.AsyncLM(lm), prompt_ids=PROMPT)
    sampler = room.DraftSampler(llm, draft, 3, seed=1)

    async def play():
        first = await asyncio.gather(*[sampler.sample([]) for _ in range(8)])
        rounds = next(iter(sampler._rounds.values()))
        kept = dict(rounds._rows)
        units = [unit for unit, _, _ in first if unit[-1] is not control.EOS]
        again = await asyncio.gather(*[sampler.sample([u]) for u in units])
        return kept, again

    kept, again = asyncio.run(play())
    assert again
    assert 0 < len(kept) <= 8
    assert {len(unit) for unit, _, _ in again} <= {1, 2, 3, 4}
    lm.check_pages()
    asyncio.run(sampler.cleanup())
    llm.model.clear_cache()
    gc.collect()
    assert lm.pages_in_use == draft.pages_in_use == 0


def test_a_grammar_of_ours_masks_their_particles():
    lm = small_lm()
    llm = control.PromptedLLM(room.AsyncLM(lm), prompt_ids=PROMPT)
    sampler = room.DraftSampler(llm, lm, 3, condition=Grammar.regex("a(b|c){3}a"), seed=1)
    found = asyncio.run(sampler.smc(n_particles=16, ess_threshold=0.5, max_tokens=8))
    texts = {b"".join(b"".join(unit) for unit in units[:-1]) for units, w in found if w > -np.inf}
    assert texts
    assert all(len(t) == 5 and t[:1] == t[-1:] == b"a" and b"a" not in t[1:-1] for t in texts)
