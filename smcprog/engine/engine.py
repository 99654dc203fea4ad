"""A model together with its pages: growing rows by tokens, in one guarded transaction."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention import BATCH_ARGUMENT, Layout, PagedAttention, PagedBatch
from smcprog.engine import batching
from smcprog.engine.pages import PageAllocator
from smcprog.errors import ModelError, SettingError

if TYPE_CHECKING:
    from smcprog.engine.prefix import PrefixStore
    from smcprog.engine.sequences import PagedSequences

__all__ = ["Engine", "Growth"]

TOKENS_PER_PASS = 4096
"""Most tokens (rows times columns) of one forward; wider blocks run in pieces."""
COLUMNS_PER_PASS = 512
"""Most columns of one forward."""


@dataclasses.dataclass(frozen=True, eq=False)
class Growth:
    """Pages taken for rows that are about to grow, until that is done or given up.

    Attributes
    ----------
    tables_M_W : int32 [M, W]
        The grown tables.
    fresh, target : int32
        New pages: empty ones, and copies of the tail pages in `source`.
    source : int32
        Tail pages whose reference goes back once the growth is done.
    """

    tables_M_W: NDArray[np.int32]
    fresh: NDArray[np.int32]
    source: NDArray[np.int32]
    target: NDArray[np.int32]


class Engine:
    """Runs forwards of one model over paged rows.

    All that touches pages or the model happens under one lock, so threads may use different
    sequences of one engine at the same time; one `PagedSequences` belongs to one thread.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With our attention implementation set.
    attention : PagedAttention
    max_context : int
        Longest row, in tokens.
    vocab_size : int
        V, the width of the logits.

    Attributes
    ----------
    hidden_size : int
        D once `keep_hidden` was called, and 0 before.
    """

    def __init__(
        self, model: Any, attention: PagedAttention, max_context: int, vocab_size: int
    ) -> None:
        self.model = model
        self.attention = attention
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.hidden_size = 0
        self.device: torch.device = model.device
        self.page_size = attention.page_size
        self.lock = threading.RLock()
        self.live: weakref.WeakSet[PagedSequences] = weakref.WeakSet()
        self.prefixes: PrefixStore | None = None
        self._growing: set[Growth] = set()
        self.handed: set[Growth] = set()  # done, and about to be taken up by their rows
        self._pages = PageAllocator(attention.num_pages, attention.page_size)
        # Finalizers may run anywhere, also inside an allocation: they only append here.
        self._dropped: collections.deque[NDArray[np.int32]] = collections.deque()
        self._trims_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def keep_hidden(self) -> None:
        """From now on, logits come with the hidden states that the output head made them of.

        The results of `extend` then are V + D wide, the hidden state after the logits. There is
        no way back: others may rely on it.

        Raises
        ------
        ModelError
            If the model has no part that gives them.
        """
        with self.lock:
            if self.hidden_size:
                return
            if self.model.base_model is self.model:
                kind = self.model.config.model_type
                raise ModelError(f"a model of type {kind!r} does not show its last hidden state")
            self.hidden_size = int(self.model.config.get_text_config().hidden_size)

    def pages(self) -> PageAllocator:
        """The allocator, after giving back what was dropped. Hold the lock."""
        while self._dropped:
            self._pages.release(self._dropped.popleft())
        return self._pages

    def drop(self, pages: NDArray[np.int32]) -> None:
        """Give references back at the next occasion; safe in a finalizer."""
        self._dropped.append(pages)

    def check(self) -> None:
        """Raise AssertionError unless reference counts add up to the live table entries."""
        with self.lock:
            held = [rows.live_pages() for rows in self.live]
            held += [p for g in self._growing | self.handed for p in (g.fresh, g.target)]
            if self.prefixes is not None:
                held.append(self.prefixes.held())
            self.pages().check(held, [g.source for g in self.handed])

    def extend(
        self,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        tokens_M_T: Tensor,
        counts_M: NDArray[np.int64],
        keep: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], Tensor]:
        """Run the model over new tokens of every row and store their keys and values.

        Either all of it happens, or an error is raised and the pages are as before. Under a
        runner (`batching`) the passes may be shared with rows of others.

        Parameters
        ----------
        tables_M_W : int32 [M, W]
            Not changed.
        stored_M : int64 [M]
        tokens_M_T : Tensor, int64, [M, T]
            Padded on the right with any valid id.
        counts_M : int64 [M]
            Real tokens of each row.
        keep : int64 [C]
            Columns whose logits are wanted, ascending.

        Returns
        -------
        tables_M_W : int32 [M, W']
            References of the old table have moved to this one.
        logits_M_C_V : Tensor
            V + D wide after `keep_hidden`.

        Raises
        ------
        SettingError
            If a row would grow beyond the model's context.
        PagesExhaustedError
            If the pool is too small.
        """
        runner = batching.current_runner()
        if runner is not None:
            work = batching.Work(self, tables_M_W, stored_M, tokens_M_T, counts_M, keep)
            return runner.run(work)
        return self.extend_alone(tables_M_W, stored_M, tokens_M_T, counts_M, keep)

    def extend_alone(
        self,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        tokens_M_T: Tensor,
        counts_M: NDArray[np.int64],
        keep: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], Tensor]:
        """`extend` at once and in passes of its own, whoever else has work for the model."""
        with self.lock, torch.inference_mode():
            growth = self.begin(tables_M_W, stored_M, counts_M)
            try:
                logits = self._run(growth.tables_M_W, stored_M, tokens_M_T, counts_M, keep)
            except BaseException:
                self.abort(growth)
                raise
            self.finish(growth)
            return growth.tables_M_W, logits

    def begin(
        self,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        counts_M: NDArray[np.int64],
    ) -> Growth:
        """Take the pages that rows need to grow; `finish` or `abort` it. Hold the lock.

        Raises
        ------
        SettingError, PagesExhaustedError
            As `extend` does.
        """
        longest = int((stored_M + counts_M).max())
        if longest > self.max_context:
            raise SettingError(
                f"a sequence would reach {longest} tokens, and the model's context is "
                f"{self.max_context}; use a shorter prompt or fewer max_tokens"
            )
        self.pages()
        growth = self._grow(tables_M_W, stored_M, counts_M)
        self._growing.add(growth)
        try:
            if len(growth.fresh):
                self.attention.clear_pages(growth.fresh)
            if len(growth.source):
                self.attention.copy_pages(growth.source, growth.target)
        except BaseException:
            self.abort(growth)
            raise
        return growth

    def finish(self, growth: Growth) -> None:
        """The grown tables replace the old ones. Hold the lock."""
        self._growing.discard(growth)
        self._pages.release(growth.source)

    def abort(self, growth: Growth) -> None:
        """The old tables stay. Hold the lock."""
        self._growing.discard(growth)
        self._pages.release(np.concatenate([growth.fresh, growth.target]))

    def _grow(
        self,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        counts_M: NDArray[np.int64],
    ) -> Growth:
        pages, size, rows = self._pages, self.page_size, len(stored_M)
        used_M = -(-stored_M // size)
        needed_M = -(-(stored_M + counts_M) // size)

        # A partial tail page that somebody else holds too is copied before it is written;
        # if all its holders are rows of this batch, the first of them keeps it.
        writes = np.flatnonzero((stored_M % size != 0) & (counts_M > 0))
        tails = tables_M_W[writes, used_M[writes] - 1]
        page_U, first_U, which, count_U = np.unique(
            tails, return_index=True, return_inverse=True, return_counts=True
        )
        copies = (pages.refs[page_U] > 1)[which.reshape(-1)]
        copies[first_U[pages.refs[page_U] == count_U]] = False
        copying, source = writes[copies], tails[copies]

        more_M = needed_M - used_M
        total = int(more_M.sum())
        taken = pages.alloc(total + len(copying))
        fresh, target = taken[:total], taken[total:]
        width = max(int(needed_M.max()), tables_M_W.shape[1])
        grown = np.zeros((rows, width), dtype=np.int32)
        grown[:, : tables_M_W.shape[1]] = tables_M_W
        row = np.repeat(np.arange(rows), more_M)
        column = np.arange(total) - np.repeat(np.cumsum(more_M) - more_M - used_M, more_M)
        grown[row, column] = fresh
        grown[copying, used_M[copying] - 1] = target
        return Growth(grown, fresh, source, target)

    def _run(
        self,
        tables_M_W: NDArray[np.int32],
        stored_M: NDArray[np.int64],
        tokens_M_T: Tensor,
        counts_M: NDArray[np.int64],
        keep: NDArray[np.int64],
    ) -> Tensor:
        rows, width = tokens_M_T.shape
        step = min(COLUMNS_PER_PASS, max(16, TOKENS_PER_PASS // rows))
        kept = []
        for begin in range(0, width, step):
            end = min(begin + step, width)
            layout = Layout(
                tables_M_W,
                stored_M + np.minimum(counts_M, begin),
                np.clip(counts_M - begin, 0, end - begin),
                end - begin,
            )
            columns = keep[(keep >= begin) & (keep < end)] - begin
            logits = self._forward(layout, tokens_M_T[:, begin:end], columns)
            if len(columns):
                kept.append(logits)
        return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)

    def _forward(self, layout: Layout, tokens_M_T: Tensor, columns: NDArray[np.int64]) -> Tensor:
        """One pass of the model; logits of the given columns (of any one column if none)."""
        plan = self.attention.plan(layout)
        width, count = layout.width, max(1, len(columns))
        trailing = len(columns) == 0 or int(columns[0]) == width - count
        keep = count if trailing else torch.from_numpy(columns).to(self.device)
        batch = PagedBatch(self.attention, plan)
        return self.call_model(tokens_M_T, plan.positions_M_T, batch, keep)

    @contextlib.contextmanager
    def _seen_hidden(self) -> Iterator[list[Tensor]]:
        """Last hidden states of the forwards made while this lasts, if they are kept."""
        seen: list[Tensor] = []
        if not self.hidden_size:
            yield seen
            return
        # Not for good: copies of the model, which share no engine, would copy the hook.
        handle = self.model.base_model.register_forward_hook(
            lambda module, inputs, output: seen.append(output[0])
        )
        try:
            yield seen
        finally:
            handle.remove()

    def call_model(
        self, ids_M_T: Tensor, positions_M_T: Tensor, batch: PagedBatch, keep: int | Tensor
    ) -> Tensor:
        """Logits of the last `keep` columns (0: all), or of the columns that `keep` lists.

        After `keep_hidden` they are V + D wide.
        """
        arguments: dict[str, Any] = {BATCH_ARGUMENT: batch}
        if self._trims_logits:
            arguments["logits_to_keep"] = keep
        with self._seen_hidden() as seen:
            logits = self.model(
                input_ids=ids_M_T, position_ids=positions_M_T, use_cache=False, **arguments
            ).logits
        if seen and self._trims_logits:
            kept = seen[0][:, -keep:] if isinstance(keep, int) else seen[0].index_select(1, keep)
            logits = torch.cat([logits, kept.to(logits.dtype)], dim=-1)
        elif seen:
            logits = torch.cat([logits, seen[0].to(logits.dtype)], dim=-1)
        if not self._trims_logits:
            logits = logits.index_select(1, keep) if isinstance(keep, Tensor) else logits[:, -keep:]
        return logits
