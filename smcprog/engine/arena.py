"""Block tables on the device: a fork and the next round's pages without the host.

A wave takes an *arena* of pages from the engine's allocator before its first round and gives it
back after its last. In between, which page belongs to which row is known to the device only. The
pages a round writes to are new ones every time: a row continues any ancestor by copying
its table's columns up to there, and the one page that is partly filled.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from smcprog.attention import SCRATCH_PAGE, PagedAttention

__all__ = ["Arena", "arena_pages", "table_columns"]


def table_columns(longest: int, written: int, page_size: int) -> int:
    """W: columns of a table for rows of so many tokens, when a round writes `written` more."""
    return longest // page_size + _window(written, page_size) + 1


def arena_pages(prompt: int, n: int, longest: int, written: int, page_size: int) -> int:
    """Pages that the arena of a request never has to exceed.

    Parameters
    ----------
    prompt : int
        Its tokens; their full pages are not the arena's.
    n : int
        Rows.
    longest : int
        Most tokens that a row is to keep.
    written : int
        Tokens that one round writes, at most.
    page_size : int
    """
    # What a row keeps, what it writes to, and the page it copies from.
    return n * (longest // page_size - prompt // page_size + _window(written, page_size) + 1)


def _window(written: int, page_size: int) -> int:
    """Pages that `written` neighbouring tokens touch, wherever they begin."""
    return (written + page_size - 2) // page_size + 1


class Arena:
    """Tables of the rows of one model, and the pages they are made of.

    The pages of a request are its own: whoever leaves gives back as many as it brought.

    Parameters
    ----------
    attention : PagedAttention
        Whose pages they are.
    device : torch.device
    requests, rows, columns : int
        R, M and W.
    pages : int
        A, of each request.
    back : int
        A round writes from so many tokens before a row's end.
    written : int
        Tokens that a round writes.

    Attributes
    ----------
    tables_M_W : Tensor, int64
        What no row needs is `SCRATCH_PAGE`.
    pages_R_A : Tensor, int64
        Filled for each request; `SCRATCH_PAGE` where there are fewer.
    """

    def __init__(
        self,
        attention: PagedAttention,
        device: torch.device,
        requests: int,
        rows: int,
        columns: int,
        pages: int,
        back: int,
        written: int,
    ) -> None:
        self._attention = attention
        self._size = attention.page_size
        self._back = back
        self._window_F = torch.arange(_window(written, self._size), device=device)
        self._column_W = torch.arange(columns, device=device)
        self.tables_M_W = torch.zeros((rows, columns), dtype=torch.int64, device=device)
        self.pages_R_A = torch.zeros((requests, pages), dtype=torch.int64, device=device)
        self._held_P = torch.zeros(attention.num_pages, dtype=torch.int32, device=device)
        # Past the end lies a place for what is not free; scratch is what an empty place gives.
        places = max(pages, rows // requests * len(self._window_F)) + 1
        self._fresh_R_X = torch.zeros((requests, places), dtype=torch.int64, device=device)

    def part(self, request: int, requests: int) -> Arena:
        """The tables and pages of one of the requests, as an arena that shares their memory."""
        twin = copy.copy(self)
        n = self.tables_M_W.shape[0] // requests
        twin.tables_M_W = self.tables_M_W[request * n : (request + 1) * n]
        twin.pages_R_A = self.pages_R_A[request : request + 1]
        twin._fresh_R_X = self._fresh_R_X[request : request + 1]
        return twin

    def begin_M(self, length_M: Tensor) -> Tensor:
        """Where a round begins to write, given the rows' tokens."""
        return (length_M - self._back).clamp(min=0)

    def open(self, ancestors_M: Tensor, length_M: Tensor) -> None:
        """Rows continue their ancestors and get pages for the tokens of a round.

        Device work of fixed shape. A page that no table holds any more is free from here on.

        Parameters
        ----------
        ancestors_M : Tensor, int64
        length_M : Tensor, int64
            Tokens of the rows, after they became copies.
        """
        size = self._size
        begin_M = self.begin_M(length_M)
        tail_M_1 = (begin_M // size).unsqueeze(1)
        old_M_W = self.tables_M_W.index_select(0, ancestors_M)
        partly_M = begin_M % size > 0
        source_M = torch.where(partly_M, old_M_W.gather(1, tail_M_1).squeeze(1), SCRATCH_PAGE)
        kept_M_W = torch.where(self._column_W < tail_M_1, old_M_W, SCRATCH_PAGE)

        # What the new tables hold, and what is copied from, is not free.
        held = torch.cat([kept_M_W.reshape(-1), source_M])
        self._held_P.zero_()
        self._held_P.scatter_(0, held, 1)  # scratch is among them: no table is full
        free_R_A = self._held_P[self.pages_R_A] == 0
        last = self._fresh_R_X.shape[1] - 1
        place_R_A = torch.where(free_R_A, free_R_A.long().cumsum(1) - 1, last)
        self._fresh_R_X.fill_(SCRATCH_PAGE)
        self._fresh_R_X.scatter_(1, place_R_A, self.pages_R_A)
        rows, window = kept_M_W.shape[0], self._window_F.shape[0]
        each = rows // self._fresh_R_X.shape[0] * window
        fresh_M_F = self._fresh_R_X[:, :each].reshape(rows, window)
        column_M_F = tail_M_1 + self._window_F
        self.tables_M_W.copy_(kept_M_W.scatter(1, column_M_F, fresh_M_F))
        target_M = torch.where(partly_M, fresh_M_F[:, 0], SCRATCH_PAGE)
        self._attention.move_pages(source_M, target_M)
