"""A model together with its pages: growing rows by tokens, in one guarded transaction."""

from __future__ import annotations

import collections
import contextlib
import inspect
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention import BATCH_ARGUMENT, Layout, PagedAttention, PagedBatch, StaticPlan
from smcprog.attention.torch_pool import PoolMemoryError
from smcprog.engine import batching
from smcprog.engine.growth import Growth, grow
from smcprog.engine.halves import in_halves, some_columns
from smcprog.engine.pages import PageAllocator
from smcprog.engine.prefix import PrefixStore
from smcprog.errors import ModelError, SettingError

if TYPE_CHECKING:
    from smcprog.engine.parallel.mirror import Mirror
    from smcprog.engine.parallel.ranks import Ranks
    from smcprog.engine.sequences import PagedSequences
    from smcprog.engine.sizing import PoolSize

__all__ = ["Engine"]

TOKENS_PER_PASS = 4096
"""Most tokens (rows times columns) of one forward; wider blocks run in pieces."""
COLUMNS_PER_PASS = 512
"""Most columns of one forward."""


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
    pool_size : PoolSize, optional
        How many pages there are to be, once it is settled.

    Attributes
    ----------
    hidden_size : int
        D once `keep_hidden` was called, and 0 before.
    ranks : Ranks or None
        Processes of a launcher that hold the other parts of the model, and decide alike.
    mirror : Mirror or None
        Tells followers, who hold the other parts, what this engine does.
    """

    def __init__(
        self,
        model: Any,
        attention: PagedAttention,
        max_context: int,
        vocab_size: int,
        pool_size: PoolSize | None = None,
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
        # What callers made for this engine and may want again, the oldest first; it can be closed.
        self.kept: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._growing: set[Growth] = set()
        self.handed: set[Growth] = set()  # done, and about to be taken up by their rows
        self._pages = PageAllocator(attention.num_pages, attention.page_size)
        self.pool_size = pool_size
        self._unsized = pool_size is not None and not pool_size.settled
        if pool_size is not None:
            pool_size.watch(attention)
        self.ranks: Ranks | None = None
        self.mirror: Mirror | None = None
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
        """The allocator, after giving back what was dropped. Hold the lock.

        Raises
        ------
        PagesExhaustedError
            If the pool gets its size now, and there is no room for it.
        """
        if self._unsized:
            assert self.pool_size is not None
            self.resize(self.pool_size.settle())
        while self._dropped:
            self._pages.release(self._dropped.popleft())
        return self._pages

    @property
    def split(self) -> bool:
        """Whether other processes hold parts of the model."""
        return self.ranks is not None or self.mirror is not None

    @property
    def follows(self) -> bool:
        """Whether followers repeat each operation; what they cannot be told must not be done."""
        return self.mirror is not None

    @property
    def sized(self) -> bool:
        """Whether the pool has its size for good."""
        return not self._unsized

    @property
    def capacity(self) -> int:
        """Pages for tokens: those of the pool, or as many as it would have if it were made now."""
        if self._unsized and self.pool_size is not None:
            return self.pool_size.pages
        return self._pages.num_pages - 1

    def keep_prefixes(self) -> None:
        """From now on, find the pages of prompts that were run before."""
        self.prefixes = PrefixStore(self._pages, (self._pages.num_pages - 1) // 4)

    def resize(self, pages: int) -> None:
        """Have a pool of another size, which is empty. Hold the lock.

        Raises
        ------
        SettingError
            If a sequence holds pages.
        """
        store = self.prefixes
        if store is not None:
            store.clear()
        while self._dropped:
            self._pages.release(self._dropped.popleft())
        if self._pages.in_use:
            raise SettingError(
                f"kv_pages cannot change while sequences hold {self._pages.in_use} pages: close "
                "them first"
            )
        self.close_kept()
        self.attention.forget()
        self.attention.num_pages = pages + 1  # the scratch page
        self._pages = PageAllocator(pages + 1, self.page_size)
        self._unsized = False
        if store is not None:
            self.keep_prefixes()

    def close_kept(self) -> None:
        """Give back the memory of what is kept for later. Hold the lock."""
        while self.kept:
            self.kept.popitem(last=False)[1].close()

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
        if runner is not None and self.ranks is not None:
            raise SettingError(
                "a scheduler (asample, submit, map) goes by the clock, which the processes of a "
                "launcher do not share: call sample, or start the script as one process, "
                f"LM(..., tensor_parallel={self.ranks.size})"
            )
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
        growth = grow(self._pages, tables_M_W, stored_M, counts_M)
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
            layout = some_columns(Layout(tables_M_W, stored_M, counts_M, width), begin, end)
            columns = keep[(keep >= begin) & (keep < end)] - begin
            logits = self.forward(layout, tokens_M_T[:, begin:end], columns)
            if len(columns):
                kept.append(logits)
        return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)

    def forward(self, layout: Layout, tokens_M_T: Tensor, columns: NDArray[np.int64]) -> Tensor:
        """A pass of the model, or as many as memory asks for. Hold the lock.

        Parameters
        ----------
        layout : Layout
        tokens_M_T : Tensor, int64, [M, T]
        columns : int64 [C]
            Whose logits are wanted, ascending.

        Returns
        -------
        Tensor, [M, C, V]
            Where no columns are wanted, of any one.

        Raises
        ------
        torch.OutOfMemoryError
            One token does not get through.
        """
        try:
            return self._forward(layout, tokens_M_T, columns)
        except torch.OutOfMemoryError:
            # The processes that hold other parts of the model are in the middle of this pass.
            if tokens_M_T.numel() == 1 or self.split:
                raise
        self.close_kept()
        # What was stored already is stored again, and is the same.
        return in_halves(self.forward, layout, tokens_M_T, columns)

    def _forward(self, layout: Layout, tokens_M_T: Tensor, columns: NDArray[np.int64]) -> Tensor:
        """One pass of the model; logits of the given columns (of any one column if none)."""
        plan = self.attention.plan(layout)
        width, count = layout.width, max(1, len(columns))
        trailing = len(columns) == 0 or int(columns[0]) == width - count
        keep = count if trailing else torch.from_numpy(columns).to(self.device)
        batch = PagedBatch(self.attention, plan)
        return self.call_model(tokens_M_T, plan.positions_M_T, batch, keep)

    def run_static(self, ids_M_T: Tensor, plan: StaticPlan, keep: int) -> Tensor:
        """Logits of the last `keep` columns (0: all) of a pass of fixed shape, [M, C, V].

        What it writes to are pages that the caller holds. Nothing waits for the device.
        """
        # A pass may run past the end of the context with tokens that nobody will look at.
        positions_M_T = plan.positions_M_T.clamp(max=self.max_context - 1)
        logits = self.call_model(ids_M_T, positions_M_T, PagedBatch(self.attention, plan), keep)
        return logits[..., : self.vocab_size]

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
        mirror = self.mirror
        told = contextlib.nullcontext() if not mirror else mirror.forward(ids_M_T, batch, keep)
        try:
            with told, self._seen_hidden() as seen:
                logits = self.model(
                    input_ids=ids_M_T, position_ids=positions_M_T, use_cache=False, **arguments
                ).logits
        except PoolMemoryError as error:
            if self.pool_size is None:
                raise
            raise self.pool_size.no_memory(f"layer {error.layer}") from error
        if seen and self._trims_logits:
            kept = seen[0][:, -keep:] if isinstance(keep, int) else seen[0].index_select(1, keep)
            logits = torch.cat([logits, kept.to(logits.dtype)], dim=-1)
        elif seen:
            logits = torch.cat([logits, seen[0].to(logits.dtype)], dim=-1)
        if not self._trims_logits:
            logits = logits.index_select(1, keep) if isinstance(keep, Tensor) else logits[:, -keep:]
        return logits
