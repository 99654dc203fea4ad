"""Rows of tokens with their key/value memory: extend, score, fork, join, free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.engine import Engine
from smcprog.engine.hidden import Hidden

__all__ = ["PagedSequences", "Sequences"]


class Sequences(Protocol):
    """M token sequences of one model, with their key/value memory."""

    n: int

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, on the host."""

    @property
    def has_next(self) -> bool:
        """Whether `next_logits` needs no forward."""

    def append(self, tokens_M_T: Tensor, counts_M: Any = None) -> None:
        """Queue T more tokens a row; runs nothing."""

    def score(self, tokens_M_T: Tensor, counts_M: Any = None) -> Tensor:
        """Logits that predict each of T more tokens; the tokens are then part of the rows."""

    def next_logits(self) -> Tensor:
        """Logits after the last token of every row."""

    def truncate(self, lengths_M: Any, next_M_V: Tensor) -> None:
        """Shorten rows, given the logits after the last token that each keeps."""

    def fork(self, ancestors_K: Any) -> Sequences:
        """New rows that continue the given ones; self stays valid."""

    @property
    def last_hidden(self) -> Tensor:
        """What the output head was given at the last token of each row that was run."""

    @property
    def pending(self) -> NDArray[np.int64]:
        """How many tokens of each row came after that one."""

    def close(self) -> None:
        """Give the memory back."""


class PagedSequences:
    """M token sequences whose keys and values live in pages of an `Engine`.

    Tokens are *stored* (their keys and values are in pages) or *queued* (appended, not run
    yet). The logits after the last token are kept for every row without queued tokens.
    Not thread-safe itself; several of one engine may be used in several threads.

    Attributes
    ----------
    n : int
        M, the number of rows.
    """

    def __init__(
        self,
        engine: Engine,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        queued_M: NDArray[np.int64],
        queue_M_Q: Tensor,
        next_M_V: Tensor | None,
    ) -> None:
        self.engine = engine
        self.n = len(stored_M)
        self._tables = tables_M_W
        self._stored = stored_M
        self._queued = queued_M
        self._queue = queue_M_Q
        self._next = next_M_V
        self._hidden: Hidden | None = None
        self._closed = False
        with engine.lock:
            engine.live.add(self)

    @classmethod
    def empty(cls, engine: Engine, n: int) -> PagedSequences:
        """`n` rows without tokens; they need some before there are logits."""
        return cls(
            engine,
            np.zeros((n, 0), dtype=np.int32),
            np.zeros(n, dtype=np.int64),
            np.zeros(n, dtype=np.int64),
            torch.empty((n, 0), dtype=torch.int64, device=engine.device),
            None,
        )

    @classmethod
    def join(cls, parts: Sequence[PagedSequences]) -> PagedSequences:
        """The rows of several, in order; consumes the parts.

        Raises
        ------
        ValueError
            If there is none, or they belong to different engines.
        """
        if not parts or any(part.engine is not parts[0].engine for part in parts):
            raise ValueError("join needs at least one part, all of the same LM")
        if len(set(map(id, parts))) < len(parts):
            raise ValueError("join was given the same sequences twice; fork them first")
        for part in parts:
            part._open()
        engine = parts[0].engine
        with engine.lock:
            logits = [p._next for p in parts]
            some = next((x for x in logits if x is not None), None)
            joined = cls(
                engine,
                _pad_columns([p._tables for p in parts]),
                np.concatenate([p._stored for p in parts]),
                np.concatenate([p._queued for p in parts]),
                _pad_queue([p._queue for p in parts]),
                None
                if some is None
                else torch.cat(
                    [
                        some.new_zeros((p.n, some.shape[1])) if x is None else x
                        for p, x in zip(parts, logits, strict=True)
                    ]
                ),
            )
            joined._hidden = Hidden.join([p._hidden for p in parts])
            for part in parts:
                part._forget()
            return joined

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, queued ones included; int64 [M]."""
        return self._stored + self._queued

    @property
    def tables_M_W(self) -> NDArray[np.int32]:
        """Pages of each row in order; entries beyond its stored tokens mean nothing. Read only."""
        return self._tables

    @property
    def has_next(self) -> bool:
        """Whether `next_logits` needs no forward."""
        return self._next is not None and not self._queued.any()

    def append(self, tokens_M_T: Tensor, counts_M: Any = None) -> None:
        """Queue T more tokens a row; runs nothing.

        Parameters
        ----------
        tokens_M_T : Tensor, int64, [M, T]
        counts_M : None or int [M]
            How many of the T are real, from 0 to T; None: all. A host value: a device tensor
            is waited for.
        """
        self._open()
        tokens, counts = self._new(tokens_M_T, counts_M)
        if tokens is tokens_M_T:
            tokens = tokens.clone()  # the caller may reuse its buffer
        self._queue, self._queued = self._with_queue(tokens, counts)
        if self._queued.all():
            self._next = None

    def score(self, tokens_M_T: Tensor, counts_M: Any = None) -> Tensor:
        """Logits that predict each of T more tokens, given all tokens before it.

        One pass over queued and new tokens, after which all are stored and the logits after
        the last one are kept. On an error nothing has changed.

        Parameters
        ----------
        tokens_M_T, counts_M
            As for `append`.

        Returns
        -------
        Tensor, [M, T, V]
            Where a row has fewer than T tokens, the rest has no meaning. Read only: it may be
            an inference-mode tensor; change a copy.

        Raises
        ------
        SettingError
            If a row would grow beyond the model's context.
        PagesExhaustedError
            If the pool is too small.
        """
        self._open()
        tokens, counts = self._new(tokens_M_T, counts_M)
        width = tokens.shape[1]
        if not counts.any():
            return self.next_logits()[:, None].repeat(1, width, 1)
        queued, cached = self._queued, self._next
        if not (queued + self._stored).all():
            raise ValueError("a row without tokens has no logits; append at least one first")
        block, totals = self._with_queue(tokens, counts)
        before = self.lengths - 1
        if counts.min() == width and queued.min() == queued.max():
            # The usual case, one shape for all rows, without gathers.
            out = self._extend(block, totals, np.arange(max(0, queued[0] - 1), totals[0]))
            old = self._hidden
            logits = self._split(out, before + (queued[0] == 0))
            self._next = _last(logits)
            if queued[0]:
                return logits[:, :-1]
            if self._hidden is not None and old is not None:
                self._hidden = self._hidden.after(old)
            assert cached is not None  # a row without queued tokens has its logits
            return torch.cat([cached[:, None], logits[:, :-1]], dim=1)

        # Token t of a row is predicted by column queued - 1 + t; column -1 is the kept logits.
        wanted_M_T = queued[:, None] - 1 + np.arange(width + 1)
        wanted_M_T = np.minimum(wanted_M_T, totals[:, None] - 1)
        logits = self._split(
            self._pick(block, totals, wanted_M_T), before, torch.from_numpy(wanted_M_T < 0)
        )
        if cached is not None:
            missing = torch.from_numpy(wanted_M_T < 0)
            if bool(missing.any()):
                place = missing.to(cached.device, non_blocking=True)[:, :, None]
                logits = torch.where(place, cached[:, None], logits)
        self._next = _last(logits)
        return logits[:, :-1]

    def next_logits(self) -> Tensor:
        """Logits after the last token of every row, [M, V]; runs what is queued, in one pass.

        Read only: the result is kept, and may be an inference-mode tensor; change a copy.
        Raises as `score` does.
        """
        self._open()
        if self.n == 0:
            return torch.empty((0, self.engine.vocab_size), device=self.engine.device)
        if not (self._queued + self._stored).all():
            raise ValueError("a row without tokens has no logits; append at least one first")
        if self._next is None or self._queued.any():
            queued, cached = self._queued, self._next
            out = self._pick(self._queue, queued, queued[:, None] - 1)
            nothing_M_1 = torch.from_numpy(queued == 0)[:, None]
            logits = self._split(out, self.lengths - 1, nothing_M_1)[:, 0]
            if cached is not None and not queued.all():
                ran = torch.from_numpy(queued > 0).to(cached.device, non_blocking=True)
                logits = torch.where(ran[:, None], logits, cached)
            self._next = logits
        return self._next

    def truncate(self, lengths_M: Any, next_M_V: Tensor) -> None:
        """Drop the last tokens of rows; pages that no row needs any more are given back.

        Parameters
        ----------
        lengths_M : int [M]
            Tokens to keep, at least 1 and at most as many as a row has. A host value.
        next_M_V : Tensor, [M, V]
            Logits after the last token that each row keeps, as `score` gave them; not looked
            at where that token is still queued.

        Raises
        ------
        ValueError
            If a row is shorter than asked for, or nothing would be left of it.
        """
        self._open()
        keep_M = _host(lengths_M)
        if keep_M.shape != (self.n,) or (keep_M < 1).any() or (keep_M > self.lengths).any():
            raise ValueError(f"truncate takes {self.n} lengths, from 1 to that of the row")
        stored_M = np.minimum(self._stored, keep_M)
        size = self.engine.page_size
        before_M, after_M = -(-self._stored // size), -(-stored_M // size)
        column = np.arange(self._tables.shape[1])
        unused = (column >= after_M[:, None]) & (column < before_M[:, None])
        with self.engine.lock:
            self.engine.pages().release(self._tables[unused])
            self._stored, self._queued = stored_M, keep_M - stored_M
        self._queue = self._queue[:, : int(self._queued.max(initial=0))]
        self._next = next_M_V
        if self._hidden is not None:
            self._hidden = self._hidden.at(stored_M - 1)

    def fork(self, ancestors_K: Any) -> PagedSequences:
        """New rows, row i continuing row ``ancestors_K[i]``; no key or value moves.

        Parameters
        ----------
        ancestors_K : int [K]
            Row numbers in [0, M), any number of them. A host value.
        """
        self._open()
        index = _host(ancestors_K)
        if index.ndim != 1 or (len(index) and not 0 <= index.min() <= index.max() < self.n):
            raise ValueError(f"ancestors must be row numbers from 0 to {self.n - 1}")
        engine = self.engine
        on_device = torch.from_numpy(index).to(engine.device, non_blocking=True)
        queue = self._queue.index_select(0, on_device)
        logits = None if self._next is None else self._next.index_select(0, on_device)
        with engine.lock:
            tables, stored = self._tables[index], self._stored[index]
            engine.pages().retain(_live_pages(tables, stored, engine.page_size))
            rows = PagedSequences(engine, tables, stored, self._queued[index], queue, logits)
        rows._hidden = None if self._hidden is None else self._hidden.rows(index)
        return rows

    @property
    def last_hidden(self) -> Tensor:
        """What the output head was given at the last stored token of each row, [M, D].

        Only after `Engine.keep_hidden`. So many tokens came after that one as `pending` says.

        Raises
        ------
        ValueError
            If hidden states are not kept, or a row was cut back beyond its last pass.
        """
        self._open()
        if self._hidden is None:
            raise ValueError("hidden states are not kept, or not of tokens so far back")
        return self._hidden.last

    @property
    def scored_hidden(self) -> Tensor:
        """Hidden states at the tokens of the last `score`, and at the one before, [M, T + 1, D].

        Where a row had fewer tokens, the rest has no meaning. Raises as `last_hidden` does.
        """
        self._open()
        if self._hidden is None:
            raise ValueError("hidden states are not kept, or not of tokens so far back")
        return self._hidden.states

    @property
    def pending(self) -> NDArray[np.int64]:
        """How many tokens of each row were appended but not run, int64 [M]."""
        return self._queued

    def close(self) -> None:
        """Give the pages back. Closing twice does nothing."""
        if not self._closed:
            with self.engine.lock:
                self.engine.drop(self.live_pages())
                self._forget()
                self.engine.pages()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.engine.drop(self.live_pages())
            self._closed = True

    def __enter__(self) -> PagedSequences:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def live_pages(self) -> NDArray[np.int32]:
        """Every table entry of these rows that holds a page, duplicates included; flat."""
        if self._closed:
            return np.empty(0, dtype=np.int32)
        return _live_pages(self._tables, self._stored, self.engine.page_size)

    # -- inside

    def _open(self) -> None:
        if self._closed:
            raise ValueError("these sequences were closed or joined into others")

    def _forget(self) -> None:
        self._closed = True
        self._next = self._hidden = None
        self.engine.live.discard(self)

    def _new(self, tokens_M_T: Tensor, counts_M: Any) -> tuple[Tensor, NDArray[np.int64]]:
        tokens = torch.as_tensor(tokens_M_T, dtype=torch.int64)
        tokens = tokens.to(self.engine.device, non_blocking=True)
        if tokens.ndim != 2 or tokens.shape[0] != self.n:
            raise ValueError(f"tokens must be [{self.n}, T], not {list(tokens.shape)}")
        width = tokens.shape[1]
        if counts_M is None:
            return tokens, np.full(self.n, width, dtype=np.int64)
        counts = _host(counts_M)
        if counts.shape != (self.n,) or (self.n and not 0 <= counts.min() <= counts.max() <= width):
            raise ValueError(f"counts must be {self.n} numbers from 0 to {width}")
        return tokens, counts

    def _with_queue(
        self, tokens_M_T: Tensor, counts_M: NDArray[np.int64]
    ) -> tuple[Tensor, NDArray[np.int64]]:
        """Queued tokens followed by new ones, padded on the right with id 0, and how many."""
        queue, queued = self._queue, self._queued
        old, new = queue.shape[1], tokens_M_T.shape[1]
        totals = queued + counts_M
        if (queued == old).all() and (counts_M == new).all():
            return (torch.cat([queue, tokens_M_T], dim=1) if old else tokens_M_T), totals
        column = np.arange(int(totals.max(initial=0)))
        source = np.where(column < queued[:, None], column, old + column - queued[:, None])
        real = column < totals[:, None]
        index = torch.from_numpy(np.where(real, source, 0)).to(queue.device, non_blocking=True)
        block = torch.cat([queue, tokens_M_T], dim=1).gather(1, index)
        keep = torch.from_numpy(real).to(queue.device, non_blocking=True)
        return torch.where(keep, block, 0), totals

    def _split(
        self,
        out_M_C_W: Tensor,
        first_M: NDArray[np.int64],
        missing_M_C: Tensor | None = None,
    ) -> Tensor:
        """Logits of a pass; its hidden states, if it has any, are noted.

        Parameters
        ----------
        out_M_C_W : Tensor
        first_M : int64 [M]
            Position of each row's first column; the columns follow each other.
        missing_M_C : Tensor, bool, optional
            Columns of which only the old hidden state is right.
        """
        size, old = self.engine.vocab_size, self._hidden
        self._hidden = None
        if out_M_C_W.shape[-1] == size:
            return out_M_C_W
        states_M_C_D = out_M_C_W[..., size:].clone()  # not holding on to the logits
        if missing_M_C is None or not bool(missing_M_C.any()):
            self._hidden = Hidden(states_M_C_D, first_M, self._stored - 1)
        elif old is not None:
            place = missing_M_C.to(states_M_C_D.device)[:, :, None]
            states_M_C_D = torch.where(place, old.last[:, None], states_M_C_D)
            self._hidden = Hidden(states_M_C_D, first_M, self._stored - 1)
        return out_M_C_W[..., :size]

    def _extend(
        self, block_M_B: Tensor, counts_M: NDArray[np.int64], columns_C: NDArray[np.int64]
    ) -> Tensor:
        """Store a block, which empties the queue; logits of some of its columns, [M, C, V].

        Rows that hold the same pages and take the same tokens are run once, and go on
        sharing all their pages.
        """
        place_M = self._twins(block_M_B, counts_M)
        if place_M is None:
            return self._extend_rows(block_M_B, counts_M, columns_C)
        _, first_U = np.unique(place_M, return_index=True)
        self._narrow(first_U)
        try:
            logits_U_C_V = self._extend_rows(
                block_M_B[torch.from_numpy(first_U)], counts_M[first_U], columns_C
            )
        finally:
            self._widen(place_M, first_U)
        return logits_U_C_V.index_select(0, torch.from_numpy(place_M))

    def _twins(self, block_M_B: Tensor, counts_M: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """For each row the number of its kind, int64 [M]; None where all rows differ."""
        if self.n < 2 or self.engine.device.type != "cpu":  # elsewhere tokens are not on the host
            return None
        size = self.engine.page_size
        column = np.arange(self._tables.shape[1])
        pages_M_W = np.where(column < -(-self._stored // size)[:, None], self._tables, 0)
        lengths_M_3 = np.stack([self._stored, self._queued, counts_M], axis=1)
        every = np.concatenate([lengths_M_3, pages_M_W, block_M_B.numpy()], axis=1)
        kinds: dict[bytes, int] = {}
        place = [kinds.setdefault(row.tobytes(), len(kinds)) for row in every]
        return None if len(kinds) == self.n else np.array(place, dtype=np.int64)

    def _narrow(self, first_U: NDArray[np.int64]) -> None:
        """Keep some rows only; the others' references go."""
        others = np.ones(self.n, dtype=bool)
        others[first_U] = False
        with self.engine.lock:
            size = self.engine.page_size
            pages = _live_pages(self._tables[others], self._stored[others], size)
            self.engine.pages().release(pages)
            self._take_rows(first_U)

    def _widen(self, place_M: NDArray[np.int64], first_U: NDArray[np.int64]) -> None:
        """Undo `_narrow`: row m is a twin of row ``place_M[m]`` of those that were kept."""
        others = np.ones(len(place_M), dtype=bool)
        others[first_U] = False
        with self.engine.lock:
            self._take_rows(place_M)
            size = self.engine.page_size
            pages = _live_pages(self._tables[others], self._stored[others], size)
            self.engine.pages().retain(pages)

    def _take_rows(self, index: NDArray[np.int64]) -> None:
        self._tables, self._stored = self._tables[index], self._stored[index]
        self._queued, self._queue = self._queued[index], self._queue[torch.from_numpy(index)]
        self.n = len(index)

    def _extend_rows(
        self, block_M_B: Tensor, counts_M: NDArray[np.int64], columns_C: NDArray[np.int64]
    ) -> Tensor:
        tables, logits = self.engine.extend(
            self._tables, self._stored, block_M_B, counts_M, columns_C
        )
        self._tables = tables
        self._stored = self._stored + counts_M
        self._queued = np.zeros_like(self._queued)
        self._queue = self._queue[:, :0]
        return logits

    def _pick(
        self, block_M_B: Tensor, counts_M: NDArray[np.int64], wanted_M_K: NDArray[np.int64]
    ) -> Tensor:
        """As `_extend`, with columns wanted by row (any logits where one is < 0), [M, K, V]."""
        wanted_M_K = np.maximum(wanted_M_K, 0)
        columns, place = np.unique(wanted_M_K, return_inverse=True)
        logits = self._extend(block_M_B, counts_M, columns)
        if len(columns) == wanted_M_K.shape[1] == 1:
            return logits
        flat = np.arange(self.n)[:, None] * len(columns) + place.reshape(wanted_M_K.shape)
        index = torch.from_numpy(flat.reshape(-1)).to(logits.device, non_blocking=True)
        picked = logits.flatten(0, 1).index_select(0, index)
        return picked.view(*wanted_M_K.shape, logits.shape[-1])


def _last(logits_M_T_V: Tensor) -> Tensor:
    """Logits of the last column, not holding on to the others' memory."""
    last = logits_M_T_V[:, -1]
    return last if logits_M_T_V.shape[1] == 1 else last.clone()


def _live_pages(
    tables_M_W: NDArray[np.int32], stored_M: NDArray[np.int64], page_size: int
) -> NDArray[np.int32]:
    used_M = -(-stored_M // page_size)
    return tables_M_W[np.arange(tables_M_W.shape[1]) < used_M[:, None]]


def _host(values: Any) -> NDArray[np.int64]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.int64)


def _pad_columns(tables: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    width = max(t.shape[1] for t in tables)
    return np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1]))) for t in tables])


def _pad_queue(queues: Sequence[Tensor]) -> Tensor:
    width = max(q.shape[1] for q in queues)
    return torch.cat([torch.nn.functional.pad(q, (0, width - q.shape[1])) for q in queues])
