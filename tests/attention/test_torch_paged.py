"""Paged attention against attention written out, over random layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smcprog.attention import Layout, TorchPagedAttention, torch_paged

CPU = torch.device("cpu")


def written_out(query, keys, values, scaling, window, softcap):
    """One row: query [Hq, T, D], keys [Hkv, L, D], values [Hkv, L, Dv]; [T, Hq, Dv]."""
    heads, width, _ = query.shape
    length = keys.shape[1]
    group = heads // keys.shape[0]
    out = torch.empty(width, heads, values.shape[-1], dtype=query.dtype)
    for h in range(heads):
        for t in range(width):
            at = length - width + t
            first = 0 if window is None else max(0, at - window + 1)
            scores = keys[h // group, first : at + 1] @ query[h, t] * scaling
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            out[t, h] = torch.softmax(scores, 0) @ values[h // group, first : at + 1]
    return out


class Case:
    """Groups of rows with a common prefix each, then more tokens of their own."""

    def __init__(self, data, page_size):
        draw = data.draw
        self.heads = draw(st.sampled_from([1, 2]), "heads")
        self.group = draw(st.sampled_from([1, 3]), "queries a head")
        self.dim, self.value_dim = draw(st.sampled_from([(4, 4), (4, 6)]), "dims")
        groups = draw(st.integers(1, 3), "groups")
        self.prefix = [draw(st.integers(0, 11), "prefix") for _ in range(groups)]
        owner = draw(st.lists(st.integers(0, groups - 1), min_size=1, max_size=6), "rows")
        self.owner = owner
        self.middle = [draw(st.integers(0, 6), "own") for _ in owner]
        self.width = draw(st.sampled_from([1, 2, 5, 40]), "width")
        self.counts = [draw(st.integers(0, self.width), "count") for _ in owner]
        for i, group in enumerate(owner):
            if self.prefix[group] + self.middle[i] + self.counts[i] == 0:
                self.counts[i] = 1
        self.size = page_size
        self.generator = torch.Generator().manual_seed(draw(st.integers(0, 99), "seed"))

    def kv(self, length):
        return tuple(
            torch.randn(1, self.heads, length, d, generator=self.generator, dtype=torch.float64)
            for d in (self.dim, self.value_dim)
        )

    def query(self, rows, width):
        shape = (rows, self.heads * self.group, width, self.dim)
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)


@pytest.mark.parametrize("min_saved", [1, 1000])
@pytest.mark.parametrize("page_size", [1, 4])
@given(
    data=st.data(),
    window=st.sampled_from([None, 1, 3, 7, 64]),
    softcap=st.sampled_from([None, 0.7]),
)
def test_equals_attention_written_out(page_size, min_saved, data, window, softcap):
    case = Case(data, page_size)
    attention = TorchPagedAttention(1500, page_size, CPU)
    attention.min_saved = min_saved
    options = {"scaling": 0.3, "window": window, "softcap": softcap}
    next_page = 1

    def take(count):
        nonlocal next_page
        next_page += count
        pages = list(range(next_page - count, next_page))
        attention.clear_pages(np.array(pages, dtype=np.int32))
        return pages

    def store(pages, before, keys, values):
        """Write one row's tokens behind `before` stored ones."""
        width = keys.shape[2]
        if width:
            layout = Layout(
                np.array([pages], dtype=np.int32),
                np.array([before]),
                np.array([width]),
                width,
            )
            plan = attention.plan(layout)
            attention.attend(plan, 0, case.query(1, width), keys, values, **options)

    prefixes = []
    for length in case.prefix:
        keys, values = case.kv(length)
        pages = take(-(-length // page_size))
        store(pages, 0, keys, values)
        prefixes.append((pages, keys, values))

    tables, stored, dense = [], [], []
    for row, group in enumerate(case.owner):
        pages, keys, values = prefixes[group]
        own_keys, own_values = case.kv(case.middle[row])
        begin = case.prefix[group]
        total = begin + case.middle[row] + case.counts[row]
        whole = begin // page_size
        table = pages[:whole] + take(-(-total // page_size) - whole)
        store(
            table,
            whole * page_size,
            keys[:, :, whole * page_size :],
            values[:, :, whole * page_size :],
        )
        store(table, begin, own_keys, own_values)
        tables.append(table)
        stored.append(begin + case.middle[row])
        dense.append((torch.cat([keys, own_keys], 2), torch.cat([values, own_values], 2)))

    rows, widest = len(tables), max(map(len, tables))
    padded = np.array([t + [0] * (widest - len(t)) for t in tables], dtype=np.int32)
    counts = np.array(case.counts)
    plan = attention.plan(Layout(padded, np.array(stored), counts, case.width))
    query = case.query(rows, case.width)
    new = [case.kv(case.width) for _ in range(rows)]
    keys, values = torch.cat([k for k, _ in new]), torch.cat([v for _, v in new])
    out = attention.attend(plan, 0, query, keys, values, **options)

    assert out.shape == (rows, case.width, case.heads * case.group, case.value_dim)
    assert torch.isfinite(out).all()
    for row, (old_keys, old_values) in enumerate(dense):
        real = case.counts[row]
        all_keys = torch.cat([old_keys, keys[row : row + 1, :, :real]], 2)[0]
        all_values = torch.cat([old_values, values[row : row + 1, :, :real]], 2)[0]
        expected = written_out(query[row, :, :real], all_keys, all_values, 0.3, window, softcap)
        torch.testing.assert_close(out[row, :real], expected, atol=1e-12, rtol=0)
    expected_positions = [s + t for s, c in zip(stored, case.counts, strict=True) for t in range(c)]
    real_M_T = np.arange(case.width) < counts[:, None]
    assert plan.positions_M_T[torch.from_numpy(real_M_T)].tolist() == expected_positions


def test_wide_blocks_under_a_cap_in_parts(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, 40, 4, generator=generator) for _ in range(3))
    table = np.arange(1, 31, dtype=np.int32).reshape(3, 10)
    layout = Layout(table, np.zeros(3, dtype=np.int64), np.full(3, 40), 40)
    outs = []
    for most in (1 << 26, 4000):
        monkeypatch.setattr(torch_paged, "MOST_SCORES", most)
        attention = TorchPagedAttention(40, 4, CPU)
        plan = attention.plan(layout)
        outs.append(attention.attend(plan, 0, q, k, v, scaling=0.5, window=None, softcap=0.9))
    torch.testing.assert_close(outs[0], outs[1])


@pytest.mark.parametrize("width", [1, 40])
def test_low_precision(width):
    attention = TorchPagedAttention(40, 8, CPU)
    table = np.arange(1, 21, dtype=np.int32).reshape(2, 10)
    layout = Layout(table, np.array([0, 0]), np.array([width, width]), width)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, width, 16, generator=generator) for _ in range(3))
    half = [x.to(torch.bfloat16) for x in (q, k, v)]
    out = attention.attend(
        attention.plan(layout), 0, *half, scaling=0.25, window=None, softcap=None
    )
    assert out.dtype == torch.bfloat16
    for row in range(2):
        expected = written_out(*(x[row].float() for x in half), 0.25, None, None)
        torch.testing.assert_close(out[row].float(), expected, atol=3e-2, rtol=3e-2)


def test_pages_are_copied_and_cleared_in_every_layer():
    attention = TorchPagedAttention(6, 2, CPU)
    layout = Layout(np.array([[1, 2]], dtype=np.int32), np.array([0]), np.array([4]), 4)
    for layer, heads in ((0, 1), (1, 3)):
        x = torch.full((1, heads, 4, 5), layer + 1.0)
        attention.attend(
            attention.plan(layout), layer, x, x, x, scaling=1, window=None, softcap=None
        )
    attention.copy_pages(np.array([1, 2], dtype=np.int32), np.array([5, 3], dtype=np.int32))
    attention.clear_pages(np.array([1], dtype=np.int32))
    for layer, pair in attention._pools.items():
        for pool in pair:
            assert (pool.data[:, [2, 3, 5]] == layer + 1).all()
            assert (pool.data[:, 1] == 0).all()
    assert attention.layers == {0, 1}
    assert attention.bytes_per_page == 2 * 2 * 5 * (1 + 3) * 4


def test_padding_writes_only_the_scratch_page():
    attention = TorchPagedAttention(4, 4, CPU)
    table = np.array([[1], [2]], dtype=np.int32)
    ones = torch.ones(2, 1, 3, 2)
    plan = attention.plan(Layout(table, np.array([0, 0]), np.array([3, 3]), 3))
    attention.attend(plan, 0, ones, ones, ones, scaling=1, window=None, softcap=None)
    plan = attention.plan(Layout(table, np.array([3, 3]), np.array([0, 1]), 3))
    attention.attend(plan, 0, ones, ones * 7, ones * 7, scaling=1, window=None, softcap=None)
    keys = attention._pools[0][0].data[0, :, :, 0]
    assert keys[1].tolist() == [1, 1, 1, 0]
    assert keys[2].tolist() == [1, 1, 1, 7]
    assert not math.isnan(float(keys[0].sum()))
