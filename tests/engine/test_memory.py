"""What sequences cost in pages, when pages come back, and what happens when none is left."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch

from smcprog.engine import LM
from smcprog.errors import InputError, PagesExhaustedError, SettingError


def tokens(rows, width, seed=0):
    return torch.randint(0, 50, (rows, width), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def lm(model_of, vocabulary):
    return LM.from_model(model_of("llama", max_position_embeddings=2048), vocabulary)


@pytest.mark.parametrize("prompt", [512, 517, 519, 505])
@pytest.mark.parametrize("step", [1, 5])
def test_sixteen_particles_share_the_prompt(lm, prompt, step):
    n, new = 16, 64
    rows = lm.sequences(tokens(1, prompt)[0].tolist(), n)
    prompt_pages = -(-prompt // lm.page_size)
    assert lm.pages_in_use == prompt_pages
    most = 0
    for at in range(0, new, step):
        block = tokens(n, min(step, new - at), at)
        if at == 0:
            block[:, 0] = torch.arange(n)  # from here on, no two rows are alike
        rows.score(block)
        most = max(most, lm.pages_in_use)
    lm.check_pages()
    assert most <= 1.1 * (prompt_pages + n * -(-new // lm.page_size))
    assert most == lm.pages_needed(prompt, n, new)
    rows.close()
    assert lm.pages_in_use == 0


def test_resampling_at_every_step_needs_no_more(lm):
    n, new = 16, 64
    rows = lm.sequences(tokens(1, 517)[0].tolist(), n)
    generator = torch.Generator().manual_seed(0)
    for at in range(new):
        rows.score(tokens(n, 1, at))
        forked = rows.fork(torch.randint(0, n, (n,), generator=generator))
        rows.close()
        rows = forked
        lm.check_pages()
        assert lm.pages_in_use <= lm.pages_needed(517, n, new)
    rows.close()
    assert lm.pages_in_use == 0


def test_fork_takes_no_page_and_tail_is_copied_once_a_row(lm):
    rows = lm.sequences([1] * (lm.page_size + 1), 1)
    assert lm.pages_in_use == 2
    forked = rows.fork([0, 0, 0])
    assert lm.pages_in_use == 2
    rows.close()
    forked.score(tokens(3, 1))
    assert lm.pages_in_use == 1 + 3  # one of the three keeps the original
    forked.close()
    assert lm.pages_in_use == 0


def test_parent_is_not_disturbed_by_its_children(lm):
    rows = lm.sequences([1] * (lm.page_size + 3), 1)
    child = rows.fork([0, 0])
    child.score(tokens(2, 4))
    block = tokens(1, 4, seed=1)
    alone = lm.sequences([1] * (lm.page_size + 3), 1)
    torch.testing.assert_close(rows.score(block), alone.score(block))


def test_pages_come_back_without_close(lm):
    rows = lm.sequences([1, 2, 3], 4)
    forked = rows.fork([0, 1])
    del rows
    gc.collect()
    lm.check_pages()
    assert lm.pages_in_use == 1
    del forked
    gc.collect()
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_close_twice_and_use_after_close(lm):
    rows = lm.sequences([1, 2, 3], 2)
    rows.close()
    rows.close()
    assert lm.pages_in_use == 0
    for use in (rows.next_logits, lambda: rows.fork([0]), lambda: rows.append(tokens(2, 1))):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_join_consumes(lm):
    a, b = lm.sequences([1, 2, 3], 2), lm.sequences([4], 1)
    joined = lm.join([a, b])
    assert joined.n == 3
    assert joined.has_next
    with pytest.raises(ValueError, match="joined"):
        a.next_logits()
    a.close()
    lm.check_pages()
    assert lm.pages_in_use == 2
    with pytest.raises(ValueError, match="at least one"):
        lm.join([])


def test_join_refuses_what_is_not_its_own(lm, lm_of):
    with pytest.raises(ValueError, match="this LM"):
        lm.join([lm.sequences([1], 1), lm_of().sequences([1], 1)])
    rows = lm.sequences([1], 1)
    with pytest.raises(ValueError, match="twice"):
        lm.join([rows, rows])
    assert rows.has_next


def test_exhausted_leaks_nothing_and_stays_usable(model_of, vocabulary):
    lm = LM.from_model(model_of("llama"), vocabulary, kv_pages=6, page_size=4)
    rows = lm.sequences([1, 2, 3, 4, 5], 3)
    rows.append(tokens(3, 2))
    before = lm.pages_in_use
    with pytest.raises(PagesExhaustedError, match=r"kv_pages by at least 4"):
        rows.score(tokens(3, 6))
    lm.check_pages()
    assert lm.pages_in_use == before
    with pytest.raises(PagesExhaustedError, match=r"the 6 in the pool"):
        lm.sequences([1] * 30, 1)
    lm.check_pages()
    assert lm.pages_in_use == before
    # The queued tokens are still queued, and the rows go on where room is left.
    assert rows.lengths.tolist() == [7, 7, 7]
    assert rows.score(tokens(3, 1)).shape == (3, 1, 50)
    rows.close()
    assert lm.pages_free == 6
    lm.sequences([1] * 20, 1)


def test_failed_forward_leaks_nothing(lm):
    rows = lm.sequences([1] * 21, 3)
    before = lm.pages_in_use
    with pytest.raises(IndexError):
        rows.score(torch.tensor([[1, 1], [1, 5000], [1, 1]]))  # 5000 is no token
    lm.check_pages()
    assert lm.pages_in_use == before
    block = tokens(3, 2)
    torch.testing.assert_close(rows.score(block), lm.sequences([1] * 21, 3).score(block))


def test_beyond_the_context(lm_of):
    lm = lm_of()
    rows = lm.sequences([1] * 126, 2)
    with pytest.raises(SettingError, match=r"129 tokens.*context is 128"):
        rows.score(tokens(2, 3))
    rows.score(tokens(2, 2))
    assert rows.next_logits().shape == (2, 50)


def test_nan_of_one_request_does_not_reach_the_next(lm):
    rows = lm.sequences([1] * 30, 2)
    rows.score(tokens(2, 3))
    rows.close()
    lm._engine.prefixes.clear()
    with torch.inference_mode():
        for pair in lm._engine.attention._pools.values():
            for pool in pair:  # as after a request whose activations overflowed
                pool.data[:, 1:].fill_(float("nan"))
    rows = lm.sequences([1] * 30, 2)
    assert torch.isfinite(rows.score(tokens(2, 3))).all()
    forked = rows.fork([0, 0, 1])
    assert torch.isfinite(forked.score(tokens(3, 2), [2, 0, 1])[0]).all()
    assert torch.isfinite(forked.next_logits()).all()


def test_default_pool_is_bounded_and_sizes_are_checked(lm_of):
    assert 0 < lm_of().kv_pages <= (1 << 21)
    for settings in ({"kv_pages": 0}, {"page_size": 0}, {"kv_pages": -3}):
        with pytest.raises(SettingError):
            lm_of(**settings)


def test_bad_rows_and_counts(lm):
    rows = lm.sequences([1, 2], 2)
    for block, counts in ((tokens(3, 1), None), (tokens(2, 2), [1, 3]), (tokens(2, 2), [1])):
        with pytest.raises(ValueError):
            rows.score(block, counts)
    for ancestors in ([0, 2], [-1], [[0]]):
        with pytest.raises(ValueError):
            rows.fork(ancestors)
    assert issubclass(SettingError, InputError)
    lm.check_pages()


def test_no_rows(lm):
    rows = lm.sequences([1, 2], 2).fork([])
    assert rows.n == 0
    assert rows.next_logits().shape == (0, 50)
    assert rows.score(tokens(0, 3)).shape == (0, 3, 50)
    rows.append(tokens(0, 1))
    assert lm.join([rows, lm.sequences([1], 1)]).next_logits().shape == (1, 50)


def test_threads_do_not_disturb_each_other(lm, monkeypatch):
    inside, most = [0], [0]
    run = lm._engine._run

    def watched(*arguments):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.001)  # lets the other threads in, if anything does
        try:
            return run(*arguments)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(lm._engine, "_run", watched)

    def work(seed):
        rows = lm.sequences(tokens(1, 20 + seed, seed)[0].tolist(), 3)
        out = []
        for step in range(12):
            out.append(rows.score(tokens(3, 2, 100 * seed + step)))
            forked = rows.fork([2, 0, 0])
            rows.close()
            rows = forked
        return torch.cat(out, dim=1)

    alone = [work(seed) for seed in range(4)]
    together: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda s=seed: together.update({s: work(s)})) for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        torch.testing.assert_close(together[seed], alone[seed])
    assert most[0] == 1
    gc.collect()
    lm.check_pages()
    assert lm.pages_in_use == 0


@pytest.mark.parametrize("page_size", [1, 3, 8])
def test_truncated_rows_continue_as_if_never_longer(model_of, vocabulary, page_size):
    """Random extends, truncations and forks against rows that are run from scratch."""
    lm = LM.from_model(
        model_of("llama", max_position_embeddings=512), vocabulary, page_size=page_size
    )
    generator = torch.Generator().manual_seed(page_size)

    def draw(*shape):
        return torch.randint(0, 50, shape, generator=generator)

    prompt = [1, 2, 3, 4, 5]
    rows, said = lm.sequences(prompt, 4), [list(prompt) for _ in range(4)]
    for _ in range(12):
        new, before = draw(4, 6), rows.lengths
        counts = draw(4) % 7
        logits = torch.cat([rows.score(new, counts), rows.next_logits()[:, None]], dim=1)
        keep = draw(4) % (counts + 1)
        rows.truncate(before + keep.numpy(), logits[torch.arange(4), keep])
        for i in range(4):
            said[i] += new[i, : keep[i]].tolist()
        assert rows.lengths.tolist() == [len(s) for s in said]
        lm.check_pages()
        ancestors = draw(4) % 4
        forked = rows.fork(ancestors)
        rows.close()
        rows, said = forked, [list(said[a]) for a in ancestors]
        for i, tokens_so_far in enumerate(said):
            with lm.sequences(tokens_so_far, 1) as fresh:
                torch.testing.assert_close(rows.next_logits()[i], fresh.next_logits()[0])
    rows.close()
    assert lm.pages_in_use == 0


def test_truncation_gives_pages_back_and_refuses_nonsense(lm):
    rows = lm.sequences([1] * 5, 2)
    rows.append(tokens(2, 3))
    with pytest.raises(ValueError, match="truncate"):
        rows.truncate([9, 4], None)
    with pytest.raises(ValueError, match="truncate"):
        rows.truncate([0, 4], None)
    logits = rows.next_logits()
    rows.score(tokens(2, 3 * lm.page_size, 1))
    held = lm.pages_in_use
    rows.truncate([8, 8], logits)
    assert lm.pages_in_use == held - 2 * 3
    rows.close()


def test_more_pages_than_memory_are_refused_with_what_fits(model_of, vocabulary):
    with pytest.raises(PagesExhaustedError, match=r"at most (\d+) pages fit. Lower kv_pages") as e:
        LM.from_model(model_of("llama"), vocabulary, kv_pages=1 << 30)
    fits = int(str(e.value).split("at most ")[1].split()[0])
    assert 1 <= fits < 1 << 30
    lm = LM.from_model(model_of("llama"), vocabulary, kv_pages=min(fits // 2, 1 << 20))
    assert lm.pages_free == lm.kv_pages


def test_twin_rows_are_run_once_and_share_their_pages(lm, monkeypatch):
    """Rows of one history cost one row, until their tokens differ."""
    ran = []
    plain = type(lm.engine).extend

    def extend(self, tables_M_W, *rest):
        ran.append(len(tables_M_W))
        return plain(self, tables_M_W, *rest)

    monkeypatch.setattr(type(lm.engine), "extend", extend)
    rows = lm.sequences([1] * (lm.page_size + 3), 6)
    ran.clear()
    same, two = torch.tensor([[7, 8, 9]] * 6), torch.tensor([[1, 2, 1, 2, 2, 1]]).T
    logits = rows.score(same)
    assert ran == [1] and lm.pages_in_use == 2
    lm.check_pages()
    logits = torch.cat([logits, rows.score(two)], dim=1)  # all are twins before it, so one pass
    rows.append(torch.full((6, 1), 3))
    last = rows.next_logits()
    assert ran == [1, 2, 2] and lm.pages_in_use == 3
    lm.check_pages()
    for i in range(6):
        with lm.sequences([1] * (lm.page_size + 3), 1) as alone:
            want = torch.cat([alone.score(same[i : i + 1]), alone.score(two[i : i + 1])], dim=1)
            torch.testing.assert_close(logits[i], want[0])
            alone.append(torch.tensor([[3]]))
            torch.testing.assert_close(last[i], alone.next_logits()[0])
    rows.close()
    assert lm.pages_in_use == 0


def test_twins_are_whole_again_when_pages_run_out(model_of, vocabulary):
    lm = LM.from_model(model_of("llama"), vocabulary, kv_pages=3, prefix_cache=False)
    rows = lm.sequences([1] * lm.page_size, 4)
    before = rows.next_logits().clone()
    with pytest.raises(PagesExhaustedError):
        rows.score(torch.tensor([[2] * 20] * 2 + [[3] * 20] * 2))
    lm.check_pages()
    assert rows.n == 4 and lm.pages_in_use == 1
    torch.testing.assert_close(rows.next_logits(), before)
    rows.score(torch.tensor([[2], [2], [3], [2]]))
    lm.check_pages()
    assert lm.pages_in_use == 3
    rows.close()
