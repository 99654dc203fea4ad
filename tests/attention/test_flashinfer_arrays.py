"""The index arrays for FlashInfer, on the host and with fixed shapes on the device."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from smcprog.attention import Layout
from smcprog.attention.flashinfer.arrays import Tokens, groups_of, indptr_of, page_table
from smcprog.attention.flashinfer.device_arrays import PageBuffers

CPU = torch.device("cpu")

rows_and_ends = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), min_size=1, max_size=7),
    )
)


@given(rows_and_ends, st.integers(0, 99))
def test_pages_by_row(case, seed):
    """Written out: row b holds pages `first` to the one of its last token."""
    size, rows = case
    width = 41
    tables = np.random.default_rng(seed).permutation(len(rows) * width).astype(np.int32)
    tables = tables.reshape(len(rows), width)
    first, end = (np.array(column) for column in zip(*rows, strict=True))
    table = page_table(tables, first, end, size)
    assert all(a.dtype == np.int32 for a in (table.indptr, table.indices, table.last_page_len))
    assert table.indptr[0] == 0 and table.indptr[-1] == len(table.indices)
    for row in range(len(rows)):
        pages = table.indices[table.indptr[row] : table.indptr[row + 1]]
        needed = -(-end[row] // size)
        assert pages.tolist() == tables[row, first[row] : max(needed, first[row])].tolist()
        length = (len(pages) - 1) * size + table.last_page_len[row] if len(pages) else 0
        assert length == max(0, end[row] - first[row] * size)
        assert 1 <= table.last_page_len[row] <= size if len(pages) else not table.last_page_len[row]


@given(rows_and_ends, st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=2))
def test_the_device_makes_the_same(case, seeds):
    """Twice into the same buffers: nothing of the first is seen after the second."""
    size, rows = case
    buffers = PageBuffers(np.arange(len(rows) + 1, dtype=np.int32), 41, size, CPU)
    addresses = [b.data_ptr() for b in (buffers.indptr, buffers.indices, buffers.last_page_len)]
    for seed in seeds:
        random = np.random.default_rng(seed)
        tables = random.integers(0, 999, (len(rows), 41)).astype(np.int32)
        first, end = (random.permutation(column) for column in zip(*rows, strict=True))
        expected = page_table(tables, first, end, size)
        buffers.schedule(first, end)
        buffers.place(*(torch.from_numpy(a) for a in (tables.astype(np.int64), first, end)))
        assert buffers.indptr.tolist() == buffers.host_indptr.tolist() == expected.indptr.tolist()
        last = expected.last_page_len.tolist()
        assert buffers.last_page_len.tolist() == buffers.host_last_page_len.tolist() == last
        used = int(expected.indptr[-1])
        assert buffers.indices[:used].tolist() == expected.indices.tolist()
        assert buffers.host_length.tolist() == np.maximum(end - first * size, 0).tolist()
    assert addresses == [
        b.data_ptr() for b in (buffers.indptr, buffers.indices, buffers.last_page_len)
    ]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=6))
def test_tokens_of_ragged_rows(rows):
    stored, counts = (np.array(column) for column in zip(*rows, strict=True))
    width = max(1, int(counts.max()))
    tokens = Tokens.of(Layout(np.zeros((len(rows), 9), np.int32), stored, counts, width))
    flat = [(row, t) for row in range(len(rows)) for t in range(counts[row])]
    assert [tokens.row_B[b] for b in tokens.batch_indices] == [row for row, _ in flat]
    assert tokens.positions.tolist() == [stored[row] + t for row, t in flat]
    assert tokens.qo_indptr.tolist() == np.cumsum([0, *counts[counts > 0]]).tolist()
    assert (tokens.positions_M_T >= 0).all()
    for row, t in flat:
        assert tokens.positions_M_T[row, t] == stored[row] + t
    places = np.array([row * width + t for row, t in flat], dtype=int)
    if len(places) == len(rows) * width:
        assert tokens.real_S is None and tokens.spread_P is None
        return
    assert tokens.real_S.tolist() == places.tolist()
    assert tokens.spread_P[places].tolist() == list(range(len(flat)))
    assert len(tokens.spread_P) == len(rows) * width
    assert (tokens.spread_P >= 0).all() and (tokens.spread_P < max(1, len(flat))).all()


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9
    )
)
def test_groups_share_what_all_their_rows_hold(rows):
    """Row: the leading page (0: one of its own), pages like those of others with it, full ones."""
    tables = np.zeros((len(rows), 5), dtype=np.int32)
    for i, (lead, alike, _) in enumerate(rows):
        tables[i] = [10 * lead + c if c < alike else 100 + 10 * i + c for c in range(5)]
    full = np.array([full for _, _, full in rows])
    groups = groups_of(tables, full)
    bounds = groups.first_R1.tolist()
    assert bounds[0] == 0 and bounds[-1] == len(rows) and sorted(set(bounds)) == bounds
    saved = 0
    for begin, end, shared in zip(bounds[:-1], bounds[1:], groups.shared_R, strict=True):
        leads = [tables[i, 0] if full[i] else -i - 1 for i in range(begin, end)]
        assert len(set(leads)) == 1
        if end < len(rows):
            assert not full[end] or leads[0] != tables[end, 0]
        most = 0
        while (
            end - begin > 1
            and all(full[begin:end] > most)
            and len(set(tables[begin:end, most].tolist())) == 1
        ):
            most += 1
        assert shared == most
        saved += most * (end - begin - 1)
    assert groups.saved == saved
    assert groups.shared_B.tolist() == np.repeat(groups.shared_R, np.diff(bounds)).tolist()


def test_indptr():
    assert indptr_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert indptr_of(np.array([], dtype=np.int64)).tolist() == [0]
