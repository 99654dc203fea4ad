"""Timing a forward leaves nothing behind."""

import pytest

from smcprog.engine.timing import time_forward
from smcprog.errors import PagesExhaustedError, SettingError


def test_runs_what_it_says_and_gives_pages_back(lm_of, monkeypatch):
    lm = lm_of(kv_pages=40, page_size=4)
    seen = []
    forward = lm._engine._forward

    def watch(layout, tokens_M_T, columns):
        seen.append((tuple(tokens_M_T.shape), layout.stored_M.tolist(), len(columns)))
        return forward(layout, tokens_M_T, columns)

    monkeypatch.setattr(lm._engine, "_forward", watch)
    assert time_forward(lm, 3, 2, 9, repeats=4) > 0
    assert seen[1:] == [((3, 2), [9, 9, 9], 2)] * 5
    assert lm.pages_in_use == 0
    lm.check_pages()
    with pytest.raises(PagesExhaustedError):
        time_forward(lm, 3, 60, 9)
    assert lm.pages_in_use == 0


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 10_000)])
def test_sizes_out_of_range(lm_of, sizes):
    with pytest.raises(SettingError):
        time_forward(lm_of(), *sizes)
