"""Which pages of the key/value pool are in use, and by how many table entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from smcprog.attention.base import SCRATCH_PAGE
from smcprog.errors import PagesExhaustedError

__all__ = ["PageAllocator"]

Pages = NDArray[np.int32]


class PageAllocator:
    """Reference counts and the free list of `num_pages` pages.

    A page is free when no table entry holds it. Not thread-safe: the engine's lock guards it.

    Parameters
    ----------
    num_pages : int
        Size of the pool, the scratch page included.
    page_size : int
        Tokens a page; used in messages only.

    Attributes
    ----------
    reclaim : callable or None
        Called with a number of pages before an allocation fails for want of that many.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.refs = np.zeros(num_pages, dtype=np.int32)
        # A stack; the lowest page is on top, so a lone prompt gets neighbouring pages.
        self._free = np.arange(num_pages - 1, SCRATCH_PAGE, -1, dtype=np.int32)
        self._top = len(self._free)
        self.reclaim: Callable[[int], None] | None = None

    @property
    def free(self) -> int:
        """Pages that can be allocated now."""
        return self._top

    @property
    def in_use(self) -> int:
        """Pages held by at least one table entry."""
        return self.num_pages - 1 - self._top

    def alloc(self, count: int) -> Pages:
        """Take `count` pages, each with one reference; int32 [count].

        Raises
        ------
        PagesExhaustedError
            If fewer are free. Nothing is taken then.
        """
        if count > self._top and self.reclaim is not None:
            self.reclaim(count - self._top)
        if count > self._top:
            raise PagesExhaustedError(
                f"out of key/value memory: {count} more pages of {self.page_size} tokens are "
                f"needed, and {self._top} of the {self.num_pages - 1} in the pool are free; "
                f"raise kv_pages by at least {count - self._top}, or use fewer particles, fewer "
                "tokens or fewer requests at a time"
            )
        pages = self._free[self._top - count : self._top][::-1].copy()
        self._top -= count
        self.refs[pages] = 1
        return pages

    def retain(self, pages: Pages) -> None:
        """One more reference for each entry of `pages`; duplicates count."""
        np.add.at(self.refs, pages, 1)

    def release(self, pages: Pages) -> None:
        """One reference less for each entry of `pages`; duplicates count."""
        np.subtract.at(self.refs, pages, 1)
        freed = np.unique(pages[self.refs[pages] == 0])
        self._free[self._top : self._top + len(freed)] = freed[::-1]
        self._top += len(freed)

    def check(self, live: Iterable[Pages], gone: Iterable[Pages] = ()) -> None:
        """Raise AssertionError unless the counts add up to the given live table entries.

        Entries in `gone` are among the live ones, and do not count any more.
        """
        expected = np.zeros_like(self.refs)
        for pages in live:
            np.add.at(expected, pages, 1)
        for pages in gone:
            np.subtract.at(expected, pages, 1)
        wrong = np.flatnonzero(expected != self.refs)
        if len(wrong):
            page = int(wrong[0])
            raise AssertionError(
                f"page {page} has reference count {self.refs[page]}, and {expected[page]} live "
                f"table entries hold it ({len(wrong)} pages differ)"
            )
        listed = np.bincount(self._free[: self._top], minlength=self.num_pages)
        listed[SCRATCH_PAGE] += 1  # in use by itself
        if not np.array_equal(listed, self.refs == 0):
            raise AssertionError("the free list is not the pages without references, each once")
