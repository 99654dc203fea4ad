"""The page allocator: counts, the free list, and its own integrity check."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcprog.engine.pages import PageAllocator
from smcprog.errors import PagesExhaustedError


def test_scratch_page_is_never_handed_out():
    pages = PageAllocator(4, 8)
    assert sorted(pages.alloc(3)) == [1, 2, 3]
    assert (pages.free, pages.in_use) == (0, 3)


def test_message_names_numbers_and_setting():
    pages = PageAllocator(4, 8)
    pages.alloc(2)
    with pytest.raises(
        PagesExhaustedError, match=r"3 more pages of 8 tokens.*1 of the 3.*kv_pages"
    ):
        pages.alloc(3)
    assert pages.free == 1


def test_duplicates_count():
    pages = PageAllocator(4, 8)
    (page,) = pages.alloc(1)
    twice = np.array([page, page])
    pages.retain(twice)
    pages.release(np.array([page]))
    assert pages.in_use == 1
    pages.release(twice)
    assert pages.in_use == 0
    pages.check([])


def test_check_finds_a_leak_and_a_stray_reference():
    pages = PageAllocator(4, 8)
    taken = pages.alloc(2)
    pages.check([taken])
    with pytest.raises(AssertionError, match="reference count 1, and 0 live"):
        pages.check([taken[:1]])
    with pytest.raises(AssertionError, match="reference count 1, and 2 live"):
        pages.check([taken, taken[1:]])


@given(st.lists(st.tuples(st.sampled_from(["alloc", "retain", "release"]), st.integers(0, 7))))
def test_any_order_of_operations(operations):
    pages = PageAllocator(9, 4)
    live: list[np.ndarray] = []
    for name, number in operations:
        if name == "alloc":
            if number <= pages.free:
                live.append(pages.alloc(number))
            else:
                with pytest.raises(PagesExhaustedError):
                    pages.alloc(number)
        elif live:
            entry = live[number % len(live)]
            if name == "retain":
                pages.retain(entry)
                live.append(entry)
            else:
                live.pop(number % len(live))
                pages.release(entry)
        pages.check(live)
        assert pages.free + pages.in_use == 8
