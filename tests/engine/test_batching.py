"""Work of several rows in one forward gives what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog.engine.batching import NARROW, Work, current_runner, run_pass, use_runner
from smcprog.errors import PagesExhaustedError, SettingError


def make(engine, rng, widths_M, columns=None):
    """Work on fresh rows: as many tokens a row as `widths_M` says."""
    counts_M = np.array(widths_M)
    tokens = torch.from_numpy(rng.integers(0, 40, size=(len(counts_M), counts_M.max())))
    keep = np.arange(counts_M.max()) if columns is None else np.array(columns)
    rows = len(counts_M)
    return Work(
        engine, np.zeros((rows, 0), np.int32), np.zeros(rows, np.int64), tokens, counts_M, keep
    )


def continued(work, rng, widths_M):
    """The next work of the same rows."""
    after = make(work.engine, rng, widths_M)
    after.tables_M_W, _ = work.result()
    after.stored_M = work.stored_M + work.counts_M
    return after


def finish(works):
    passes = 0
    while left := [w for w in works if not w.done]:
        run_pass(left)
        passes += 1
    return passes


def release(engine, works):
    for work in works:
        engine.pages().release(live(work))


def live(work):
    used_M = -(-(work.stored_M + work.counts_M) // work.engine.page_size)
    tables_M_W = work.result()[0]
    return tables_M_W[np.arange(tables_M_W.shape[1]) < used_M[:, None]]


def check_against(plain, work, earlier=()):
    """Every logit that means something, against the plain model run over the whole row."""
    logits = work.result()[1]
    for m, count in enumerate(work.counts_M):
        if not count:
            continue
        row = [t for w in (*earlier, work) for t in w.tokens_M_T[m, : w.counts_M[m]].tolist()]
        expected = plain(input_ids=torch.tensor([row]), use_cache=False).logits[0, -count:]
        for i, column in enumerate(work.keep_C):
            if column < count:
                torch.testing.assert_close(logits[m, i], expected[column], rtol=1e-4, atol=1e-4)


def warm(lm):
    """The very first forward makes the pools, by itself."""
    lm.sequences([1], 1).close()
    return lm


@pytest.fixture(params=["llama", "mistral", "gemma2", "gemma3", "gpt2"])
def pair(request, lm_of, model_of):
    lm = warm(lm_of(request.param, kv_pages=400))
    with torch.no_grad():
        yield lm, model_of(request.param)


def test_mixed_widths_equal_the_plain_model(pair):
    lm, plain = pair
    rng = np.random.default_rng(0)
    widths = [[3], [1, 1, 1], [2, 5, 0, 3], [70], [4, 4], [40, 33], [17]]
    first = [make(lm.engine, rng, w) for w in widths]
    assert finish(first) == 2  # 150 tokens are wide, of which the first pass takes 128
    for work in first:
        check_against(plain, work)
    second = [
        continued(work, rng, more)
        for work, more in zip(
            first, [[1], [1, 1, 1], [2, 1, 4, 0], [1], [3, 3], [1, 2], [40]], strict=True
        )
    ]
    assert finish(second) == 1
    for before, work in zip(first, second, strict=True):
        check_against(plain, work, [before])
    lm.engine.pages().check(map(live, second))
    release(lm.engine, second)
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_only_wanted_columns(lm_of, model_of):
    lm, rng = warm(lm_of()), np.random.default_rng(1)
    works = [
        make(lm.engine, rng, [4, 2], [3]),  # the second row has no such column
        make(lm.engine, rng, [90], [89]),  # nothing is wanted of its first pieces
        make(lm.engine, rng, [0, 3], [0, 2]),
    ]
    finish(works)
    with torch.no_grad():
        for work in works:
            check_against(model_of("llama"), work)
    assert [w.result()[1].shape for w in works] == [(2, 1, 50), (1, 1, 50), (2, 2, 50)]


def test_a_long_prompt_goes_in_pieces_beside_narrow_work(lm_of):
    lm, rng = warm(lm_of(kv_pages=400)), np.random.default_rng(2)
    prompt = make(lm.engine, rng, [120, 120, 120])
    done_after = None
    for number in range(1, 100):
        narrow = make(lm.engine, rng, [1, 1])
        run_pass([prompt, narrow])
        assert narrow.done  # in each pass, however long the prompt
        release(lm.engine, [narrow])
        if prompt.done:
            done_after = number
            break
    assert done_after == 3  # 42, 42 and 36 columns of three rows: never over 128 tokens
    release(lm.engine, [prompt])
    lm.check_pages()


def test_first_forward_of_all(lm_of, model_of):
    """Pages that were never used may hold anything."""
    lm, rng = lm_of("gemma3"), np.random.default_rng(7)
    works = [make(lm.engine, rng, [w]) for w in (1, 2, 5, 9, 20)]
    finish(works)
    with torch.no_grad():
        for work in works:
            check_against(model_of("gemma3"), work)


def test_who_gets_no_pages_fails_alone(lm_of, model_of):
    lm, rng = warm(lm_of(kv_pages=5)), np.random.default_rng(3)
    works = [make(lm.engine, rng, w) for w in ([20], [20, 1], [9])]
    assert finish(works) == 1
    with pytest.raises(PagesExhaustedError):
        works[1].result()
    for work in (works[0], works[2]):
        with torch.no_grad():
            check_against(model_of("llama"), work)
    release(lm.engine, [works[0], works[2]])
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_whose_row_is_too_long_fails_alone(lm_of):
    lm, rng = warm(lm_of()), np.random.default_rng(4)
    works = [make(lm.engine, rng, [129]), make(lm.engine, rng, [2])]
    finish(works)
    with pytest.raises(SettingError, match="context is 128"):
        works[0].result()
    assert works[1].error is None


@pytest.mark.parametrize("poisoned", [[0], [1], [0, 2], [0, 1, 2]])
def test_a_failing_forward_is_split(lm_of, model_of, monkeypatch, poisoned):
    """A forward that holds token 49 raises, as one that runs out of memory would."""
    lm, rng = warm(lm_of()), np.random.default_rng(5)
    call = lm.engine.call_model

    def strict(ids, *rest):
        if bool((ids == 49).any()):
            raise RuntimeError("49")
        return call(ids, *rest)

    monkeypatch.setattr(lm.engine, "call_model", strict)
    works = [make(lm.engine, rng, w) for w in ([3], [NARROW + 8], [1, 2])]
    for i in poisoned:
        works[i].tokens_M_T[0, 0] = 49
    finish(works)
    good = []
    for i, work in enumerate(works):
        if i in poisoned:
            with pytest.raises(RuntimeError, match="49"):
                work.result()
        else:
            with torch.no_grad():
                check_against(model_of("llama"), work)
            good.append(work)
    release(lm.engine, good)
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_cancelled_halfway_gives_its_pages_back(lm_of):
    lm, rng = warm(lm_of(kv_pages=400)), np.random.default_rng(6)
    work = make(lm.engine, rng, [100] * 8)
    run_pass([work])
    assert not work.done
    assert 0 < work.column < 100
    assert lm.pages_in_use == 8 * 13
    lm.check_pages()
    work.cancel(KeyboardInterrupt())
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_runner_gets_the_work_of_its_thread(lm_of):
    lm = lm_of()
    plain = lm.sequences([1, 2, 3], 1).next_logits()
    seen = []

    class Direct:
        def run(self, work):
            seen.append(work.rows)
            work.run_alone()
            return work.result()

        def wait(self, ready):
            assert ready()

    with use_runner(Direct()):
        torch.testing.assert_close(lm.sequences([1, 2, 3], 1).next_logits(), plain)
    assert seen == [1]
    assert current_runner() is None
