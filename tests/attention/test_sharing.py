"""Finding the leading pages that rows have in common."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smcprog.attention.sharing import find_sharing


def find(tables, full, first=0, min_saved=1):
    return find_sharing(
        np.array(tables, dtype=np.int32), first, np.array(full), min_saved=min_saved
    )


def test_one_population():
    sharing = find([[1, 2, 3], [1, 2, 4], [1, 2, 5]], [3, 3, 3])
    assert sharing.pages_R_W.tolist() == [[1, 2]]
    assert sharing.length_M.tolist() == [2, 2, 2]
    assert sharing.into is None and sharing.back is None


def test_a_page_that_is_not_full_is_not_shared():
    assert find([[1, 2], [1, 2]], [2, 1]).length_M.tolist() == [1, 1]
    assert find([[1], [1]], [0, 0]) is None


def test_rows_with_nothing_in_common():
    assert find([[1, 2], [3, 4]], [2, 2]) is None
    assert find([[1, 2]], [2]) is None


def test_columns_before_the_window_are_out_of_sight():
    sharing = find([[1, 2, 3], [1, 2, 3], [9, 2, 4]], [3, 3, 3], first=1)
    assert sharing.pages_R_W.tolist() == [[2]]
    assert sharing.length_M.tolist() == [1, 1, 1]


def test_not_worth_it():
    assert find([[1, 2], [1, 3]], [2, 2], min_saved=2) is None


@given(
    rows=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=2, max_size=9),
    first=st.integers(0, 3),
)
def test_groups_of_any_size_and_order(rows, first):
    """Rows of group g begin with pages 10g, 10g + 1, ...; then a page of their own."""
    table, full = [], []
    for i, (group, length) in enumerate(rows):
        prefix = [10 * group + c for c in range(length)]
        table.append(prefix + [100 + 10 * i + c for c in range(6 - length)])
        full.append(6)
    sharing = find(table, full, first)
    if sharing is None:
        seen = [row[first] for row in table]
        assert len(set(seen)) == len(seen)
        return
    table = np.array(table)
    places = sharing.groups * sharing.most if sharing.into is None else len(sharing.into)
    assert places == sharing.groups * sharing.most
    x = torch.arange(2 * len(rows) * 3, dtype=torch.float32).view(2 * len(rows), 3, 1)
    grouped = sharing.to_groups(x, heads=2)
    assert grouped.shape == (2 * sharing.groups, sharing.most * 3, 1)
    assert torch.equal(sharing.to_rows(grouped, 2, len(rows)), x)
    # Each row, in its group's place, finds its own leading pages in the group's prefix.
    back = torch.arange(len(rows)) if sharing.back is None else sharing.back
    for row, place in enumerate(back.tolist()):
        length = sharing.length_M[row]
        prefix = sharing.pages_R_W[place // sharing.most][:length]
        assert prefix.tolist() == table[row, first : first + length].tolist()
    assert ((sharing.length_M > 0) | (np.bincount(table[:, first])[table[:, first]] == 1)).all()


@pytest.mark.parametrize("sizes", [[2, 2], [3, 1], [1, 4, 2]])
def test_equal_groups_in_order_need_no_index(sizes):
    table = [[g + 1, 50 + 10 * g + i] for g, n in enumerate(sizes) for i in range(n)]
    sharing = find(table, [2] * len(table))
    assert (sharing.into is None) == (len(set(sizes)) == 1)
