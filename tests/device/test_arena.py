"""Block tables on the device, over random histories of forks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog.engine.arena import Arena, arena_pages, table_columns

ROWS, MOST = 6, 40


class Recorder:
    """Of an attention, what an arena needs; keeps what was moved. Contents are numbers a slot."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.slots = np.full((num_pages, page_size), -1)
        self.moved = 0

    def move_pages(self, source_M, target_M):
        source, target = source_M.numpy(), target_M.numpy()
        real = source != 0
        assert ((target != 0) == real).all()
        assert not set(source[real]) & set(target[real])
        assert len(set(target[real])) == real.sum()
        self.slots[target[real]] = self.slots[source[real]].copy()
        self.moved += int(real.sum())


class Nothing(Recorder):
    """Of which only the tables are looked at."""

    def move_pages(self, source_M, target_M):
        pass


@pytest.mark.parametrize("page_size", [1, 3, 8])
@pytest.mark.parametrize(("back", "k"), [(1, 0), (1, 4), (2, 3)])
def test_rows_keep_their_ancestors_tokens(page_size, back, k):
    """What a row reads is what its line of ancestors wrote, and only tail pages are copied."""
    rng = np.random.default_rng(page_size * 10 + back + k)
    for _ in range(20):
        prompt = int(rng.integers(back + 1, 12))
        most = prompt + MOST
        written = back + k
        need = arena_pages(prompt, ROWS, most, written, page_size)
        pool = Recorder(need + 1 + prompt, page_size)
        columns = table_columns(most, written, page_size)
        arena = Arena(pool, torch.device("cpu"), 1, ROWS, columns, need + 3, back, written)
        pages = rng.permutation(np.arange(1, pool.num_pages))
        used = -(-prompt // page_size)
        mine = np.zeros(need + 3, dtype=np.int64)
        mine[:need] = pages[used : used + need]
        arena.pages_R_A[0].copy_(torch.from_numpy(mine))
        arena.tables_M_W[:, :used] = torch.from_numpy(pages[:used])
        # Tokens are numbers that never come twice, except along one line of ancestors.
        for at in range(prompt):
            pool.slots[pages[at // page_size], at % page_size] = at
        history = [list(range(prompt)) for _ in range(ROWS)]
        fresh = 1000
        length = np.full(ROWS, prompt)
        ancestors = np.arange(ROWS)
        while length.max() + written <= most:
            before = pool.moved
            arena.open(torch.from_numpy(ancestors), torch.from_numpy(length))
            begin = np.maximum(length - back, 0)
            assert pool.moved - before == (begin % page_size > 0).sum()
            tables = arena.tables_M_W.numpy()
            for m in range(ROWS):
                first = begin[m] // page_size
                window = tables[m, first : (begin[m] + written - 1) // page_size + 1]
                assert (window != 0).all()
                others = np.delete(tables, m, axis=0)
                assert not np.isin(window, others).any()  # nobody else writes or reads there
                for at in range(begin[m]):  # everything before is what the ancestors had
                    page = tables[m, at // page_size]
                    assert pool.slots[page, at % page_size] == history[m][at]
            step = rng.integers(1, k + 2, size=ROWS)  # what is kept of the block
            for m in range(ROWS):
                for i in range(written):
                    at = begin[m] + i
                    value = history[m][at] if at < length[m] else fresh
                    fresh += 1
                    pool.slots[tables[m, at // page_size], at % page_size] = value
                    if at >= length[m]:
                        history[m].append(value)
                # The last token kept is the round's own, and not stored.
                history[m] = [*history[m][: length[m] + step[m] - 1], fresh]
                fresh += 1
            length = length + step
            ancestors = rng.integers(0, ROWS, size=ROWS)
            history = [list(history[a]) for a in ancestors]
            length = length[ancestors]


def test_pages_suffice():
    """An arena never runs out, where no two rows ever share; much fewer pages would not do."""
    page_size, back, k, prompt = 4, 2, 4, 5
    most, written = prompt + 40, back + k
    need = arena_pages(prompt, ROWS, most, written, page_size)
    pool = Nothing(need + 10, page_size)
    columns = table_columns(most, written, page_size)

    def runs_out(pages):
        arena = Arena(pool, torch.device("cpu"), 1, ROWS, columns, need, back, written)
        mine = np.zeros(need, dtype=np.int64)
        mine[:pages] = np.arange(3, 3 + pages)
        arena.pages_R_A[0].copy_(torch.from_numpy(mine))
        arena.tables_M_W[:, :2] = torch.tensor([1, 2])
        for length in range(prompt + 1, most + 1):
            arena.open(torch.arange(ROWS), torch.full((ROWS,), length))
            first = (length - back) // page_size
            last = (length + k - 1) // page_size
            if (arena.tables_M_W[:, first : last + 1] == 0).any():
                return True
        return False

    assert not runs_out(need)
    assert runs_out(need * 2 // 3)
