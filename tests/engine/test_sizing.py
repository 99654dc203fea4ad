"""How pools are sized: from free memory, in proportion, and what is said where none is left."""

from __future__ import annotations

import gc

import pytest
import torch

from smcprog import Target
from smcprog.attention import torch_paged
from smcprog.attention.torch_pool import Pool
from smcprog.engine import LM, memory, sizing
from smcprog.errors import PagesExhaustedError, SettingError

GIB = 1 << 30


@pytest.mark.parametrize("reserve", [0, 3 * GIB, 1000 * GIB])
@pytest.mark.parametrize(
    "needs",
    [[(2 << 20, 16)], [(2 << 20, 16), (360 << 10, 16)], [(2 << 20, 16), (90 << 10, 4), (7, 1)]],
)
@pytest.mark.parametrize("free", [8 * GIB, 24 * GIB, 140 * GIB])
def test_pools_hold_the_same_tokens_and_fit(free, needs, reserve):
    pages = sizing.share_pages(free, needs, reserve, most_tokens=1 << 40)
    sizes = [size for _, size in needs]
    tokens = [n * size for n, size in zip(pages, sizes, strict=True)]
    assert max(tokens) - min(tokens) < max(sizes)
    usable = 0.9 * free - min(reserve, free / 4)
    taken = sum((n + 1) * each for n, (each, _) in zip(pages, needs, strict=True))
    assert usable - 2 * sum(each for each, _ in needs) <= taken <= usable


def test_no_room_and_the_most_there_is():
    assert sizing.share_pages(0, [(1 << 20, 16)]) == [0]
    assert sizing.share_pages(1 << 60, [(1 << 20, 16), (1 << 10, 8)]) == [1 << 17, 1 << 18]


@pytest.fixture
def shared(monkeypatch):
    """The CPU's memory shared out as that of CUDA, with as many free bytes as one says."""
    gc.collect()
    monkeypatch.setattr(sizing, "SHARED_ON", {"cpu"})
    monkeypatch.setattr(sizing, "RESERVE", 0)
    monkeypatch.setattr(sizing, "activation_bytes", lambda config, dtype: 0)
    monkeypatch.setattr("smcprog.engine.lm.activation_bytes", lambda config, dtype: 0)
    monkeypatch.setattr(sizing, "_known", type(sizing._known)())
    free = {"bytes": 4 << 20}
    monkeypatch.setattr(memory, "available_bytes", lambda device: free["bytes"])
    return free


def bytes_per_page(lm):
    return lm.engine.pool_size.bytes_per_page


def test_target_and_draft_share_what_is_free(shared, model_of, vocabulary):
    big = LM.from_model(model_of("llama"), vocabulary)
    alone = big.kv_pages
    assert big.pages_free == alone
    small = LM.from_model(model_of("llama", num_hidden_layers=1), vocabulary, page_size=16)
    assert big.kv_pages < alone  # nothing was settled by looking
    assert abs(big.kv_pages * 8 - small.kv_pages * 16) < 16
    expected = sizing.share_pages(4 << 20, [(bytes_per_page(m), m.page_size) for m in (big, small)])
    assert [big.kv_pages, small.kv_pages] == expected

    post = Target(big).sample([1, 2, 3], draft=small, particles=2, max_tokens=5, seed=0)
    assert post.particles
    assert [big.kv_pages, small.kv_pages] == expected  # settled by the call
    assert [big.engine.attention.num_pages, small.engine.attention.num_pages] == [
        n + 1 for n in expected
    ]
    big.check_pages()
    small.check_pages()
    assert big.pages_free == big.kv_pages  # the prefix store has a place in the new pool too
    assert big.engine.prefixes is not None
    taken = sum(
        m.engine.attention.bytes_per_page * m.engine.attention.num_pages for m in (big, small)
    )
    assert 0.85 * (4 << 20) < taken <= 0.9 * (4 << 20)


def test_equal_to_a_pool_of_given_size(shared, model_of, vocabulary):
    given = LM.from_model(model_of("llama"), vocabulary, kv_pages=40)
    shared["bytes"] = 64 << 20
    found = LM.from_model(model_of("llama"), vocabulary)
    with found.sequences([1] * 20, 2) as rows:  # the first of all; its prompt is kept
        assert rows.n == 2
    assert found.engine.prefixes.idle == 20 // 8
    found.check_pages()
    draws = [
        Target(lm).sample([1, 2, 3, 4] * 5, particles=3, max_tokens=9, seed=1).tokens
        for lm in (given, found)
    ]
    assert draws[0] == draws[1]


def test_a_given_number_counts_as_taken(shared, model_of, vocabulary):
    given = LM.from_model(model_of("llama"), vocabulary, kv_pages=200)
    promised = 201 * bytes_per_page(given)
    other = LM.from_model(model_of("llama"), vocabulary)
    rest = (4 << 20) - promised
    assert other.kv_pages == sizing.share_pages(rest, [(bytes_per_page(other), 8)])[0]
    with pytest.raises(PagesExhaustedError, match="at most"):
        LM.from_model(model_of("llama"), vocabulary, kv_pages=rest // bytes_per_page(given) + 1)


def test_too_late(shared, model_of, vocabulary):
    first = LM.from_model(model_of("llama"), vocabulary, name="first")
    first.sequences([1, 2], 1).close()
    taken = first.engine.attention.bytes_per_page * first.engine.attention.num_pages
    shared["bytes"] -= taken
    late = LM.from_model(model_of("llama"), vocabulary, name="late")
    assert 0 < late.kv_pages < first.kv_pages / 5  # what the first has left
    shared["bytes"] = 100
    with pytest.raises(PagesExhaustedError, match=r"for pages of late.*pools: first.*Load all"):
        late.sequences([1, 2], 1)
    shared["bytes"] = 1 << 20
    late.sequences([1, 2], 1).close()  # nothing is broken


def test_cuda_is_asked_once_its_cache_is_empty(monkeypatch):
    """`torch.cuda` in place of which stand numbers: 10 GiB free, 2 GiB kept by the allocator."""
    emptied = []
    cuda = {
        "mem_get_info": lambda device: (10 * GIB, 16 * GIB),
        "memory_reserved": lambda device: 5 * GIB - len(emptied) * 2 * GIB,
        "memory_allocated": lambda device: 3 * GIB,
        "empty_cache": lambda: emptied.append(1),
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(sizing, "_known", type(sizing._known)())
    target, draft, elsewhere = (
        sizing.PoolSize(name, torch.device(device), None, size, 16, activations=GIB)
        for name, device, size in (
            ("target", "cuda:0", 2 << 20),
            ("draft", "cuda:0", 1 << 18),
            ("elsewhere", "cuda:1", 1 << 18),
        )
    )
    before = target.pages
    assert before == draft.pages
    assert not target.settled
    needs = [(2 << 20, 16), (1 << 18, 16)]
    assert [before] * 2 == sizing.share_pages(12 * GIB, needs, sizing.RESERVE + GIB)
    draft.agree = lambda pages: pages - 1  # another process found less
    assert target.settle() == sizing.share_pages(10 * GIB, needs, sizing.RESERVE + GIB)[0]
    assert emptied == [1]
    assert draft.settled
    assert draft.settle() == target.pages - 1
    assert not elsewhere.settled


def test_the_cpu_takes_a_quarter(monkeypatch, model_of, vocabulary):
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1 << 22)
    lms = [LM.from_model(model_of("llama"), vocabulary) for _ in range(2)]
    assert [lm.kv_pages for lm in lms] == [(1 << 20) // bytes_per_page(lm) for lm in lms]
    assert lms[0].engine.sized


def test_another_number_while_nothing_is_held(model_of, vocabulary):
    lm = LM.from_model(model_of("llama"), vocabulary, kv_pages=20)
    rows = lm.sequences([1] * 20, 2)
    before = rows.next_logits().clone()
    with pytest.raises(SettingError, match="while sequences hold 3 pages"):
        lm.kv_pages = 10
    rows.close()
    lm.kv_pages = 5  # what the prefix store kept is forgotten
    assert (lm.kv_pages, lm.pages_free, lm.engine.attention.num_pages) == (5, 5, 6)
    assert lm.engine.attention.layers == frozenset()
    again = lm.sequences([1] * 20, 2)
    torch.testing.assert_close(again.next_logits(), before)
    with pytest.raises(PagesExhaustedError):
        again.score(torch.ones(2, 30, dtype=torch.int64))
    again.close()
    lm.check_pages()
    with pytest.raises(SettingError):
        lm.kv_pages = 0


@pytest.mark.parametrize("layer", [0, 1])
def test_a_pool_that_is_not_to_be_had(layer, monkeypatch, model_of, vocabulary):
    """`torch.OutOfMemoryError` where a layer's pool is made: it says what fits, and that works."""
    lm = LM.from_model(model_of("llama"), vocabulary, name="big", kv_pages=64)
    page = bytes_per_page(lm)
    held = []

    def empty(heads, pages, page_size, like, stored):
        held.append(pages)
        if len(held) == layer + 1 and pages > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return make(heads, pages, page_size, like, stored)

    make = Pool.empty
    monkeypatch.setattr(torch_paged.Pool, "empty", empty)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 20 * page)
    with pytest.raises(PagesExhaustedError) as caught:
        lm.sequences([1, 2, 3], 2)
    text = str(caught.value)
    assert f"(layer {layer}): kv_pages=64 pages of 8 tokens" in text
    assert "about 17 pages fit" in text  # 90 % of 20, less the scratch page
    assert "lm.kv_pages" in text
    assert lm.engine.attention.layers == frozenset()  # what there was of the pools is free
    lm.check_pages()
    assert lm.pages_in_use == 0
    lm.kv_pages = 17
    rows = lm.sequences([1, 2, 3], 2)
    assert rows.score(torch.ones(2, 4, dtype=torch.int64)).shape == (2, 4, 50)
    rows.close()
    lm.check_pages()
