"""Next-token log-probabilities of token histories that grow: each new token is run once.

The keys and values of the last histories stay in pages of the engine. A history that begins
as one of them does starts from its row, cut back if need be; so one that is a token longer
than before costs one token, and many in one call cost one pass.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.sequences import PagedSequences
from smcprog.errors import PagesExhaustedError
from smcprog.limits import MAX_ROUND_ELEMENTS

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Histories"]

Tokens = tuple[int, ...]


@dataclasses.dataclass(eq=False)
class _Part:
    """Rows of one pass that no later one has continued."""

    sequences: PagedSequences
    histories: list[Tokens]


@dataclasses.dataclass(eq=False)
class _Job:
    """A history to be run, and after how many tokens log-probabilities are wanted."""

    tokens: Tokens
    wanted: list[int]
    part: _Part | None = None
    row: int = 0
    begin: int = 0  # tokens that the row has already


class Histories:
    """Log-probabilities after token histories of one model.

    Safe to use from several threads.

    Parameters
    ----------
    lm : LM
    rows : int
        Most histories whose keys and values are kept for later.
    cache_bytes : int
        Most bytes of log-probabilities kept for later.

    Attributes
    ----------
    tokens_run : int
        Tokens that were put through the model so far, prompts included.
    """

    def __init__(self, lm: LM, rows: int, cache_bytes: int) -> None:
        self.lm = lm
        self.tokens_run = 0
        self._rows = rows
        self._cache_bytes = cache_bytes
        self._parts: list[_Part] = []
        self._known: collections.OrderedDict[Tokens, Tensor] = collections.OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()

    def clear(self) -> None:
        """Forget everything; the pages are free."""
        with self._lock:
            for part in self._parts:
                part.sequences.close()
            self._parts.clear()
            self._known.clear()
            self._bytes = 0

    def known(self, history: Tokens) -> Tensor | None:
        """What was found out before and is still kept."""
        with self._lock:
            found = self._known.get(history)
            if found is not None:
                self._known.move_to_end(history)
            return found

    def logprobs(self, histories: Sequence[Tokens]) -> list[Tensor]:
        """Log-probabilities after each history, [V]; float32 or wider, read only.

        Raises
        ------
        SettingError
            If a history is longer than the model's context.
        PagesExhaustedError
            If the pool is too small for them.
        """
        with self._lock:
            found = {h: p for h in histories if (p := self.known(h)) is not None}
            jobs = _jobs([h for h in dict.fromkeys(histories) if h not in found])
            while jobs:
                batch = self._batch(jobs)
                jobs = jobs[len(batch) :]
                try:
                    found |= self._run(batch)
                except PagesExhaustedError:
                    if not self._parts:
                        raise
                    for part in self._parts:  # once more, with all the room there is
                        part.sequences.close()
                    self._parts.clear()
                    found |= self._run(batch)
            return [found[h] for h in histories]

    # ------------------------------------------------------------------ inside

    def _batch(self, jobs: list[_Job]) -> list[_Job]:
        """As many of the jobs as one pass should hold, at least one."""
        width, size = 0, self.lm.vocab.size
        for n, job in enumerate(jobs):
            width = max(width, len(job.tokens) - job.wanted[0] + 1)
            if n and (n + 1) * width * size > MAX_ROUND_ELEMENTS:
                return jobs[:n]
        return jobs

    def _run(self, jobs: list[_Job]) -> dict[Tokens, Tensor]:
        """One pass for some histories, whose rows are then kept."""
        self._find_rows(jobs)
        sequences = self._rows_for(jobs)
        try:
            found = self._score(sequences, jobs)
        except BaseException:
            sequences.close()
            raise
        self._parts.append(_Part(sequences, [job.tokens for job in jobs]))
        while len(self._parts) > 1 and sum(len(p.histories) for p in self._parts) > self._rows:
            self._parts.pop(0).sequences.close()
        for history, logp_V in found.items():
            self._bytes += logp_V.nbytes
            self._known[history] = logp_V
        while self._bytes > self._cache_bytes and len(self._known) > 1:
            self._bytes -= self._known.popitem(last=False)[1].nbytes
        return found

    def _find_rows(self, jobs: list[_Job]) -> None:
        """Give each job the kept row that has most of its tokens."""
        where = {h: (p, i) for p in self._parts for i, h in enumerate(p.histories)}
        for job in jobs:
            job.part, job.row, job.begin = None, 0, 0
            # The logits after a row that was cut are gone: its last token is run again.
            most = job.wanted[0] - 1
            exact = where.get(job.tokens[:most])
            if exact is not None:
                job.part, job.row = exact
                job.begin = most
                continue
            for part in self._parts:
                for i, history in enumerate(part.histories):
                    shared = min(_common(history, job.tokens), most)
                    if shared > job.begin:
                        job.part, job.row, job.begin = part, i, shared

    def _rows_for(self, jobs: list[_Job]) -> PagedSequences:
        """Rows at which the jobs begin, in order; rows that are now continued are given up."""
        parts: list[PagedSequences] = []
        order: list[_Job] = []
        try:
            for kept in self._parts:
                users = [job for job in jobs if job.part is kept]
                if users:
                    parts.append(kept.sequences.fork([job.row for job in users]))
                    order += users
            fresh = [job for job in jobs if job.part is None]
            for group in _by_start(fresh):
                start = group[0].begin
                parts.append(self.lm.sequences(group[0].tokens[:start], len(group)))
                self.tokens_run += start
                order += group
            self._drop_continued(jobs)
            sequences = self.lm.join(parts)
        except BaseException:
            for part in parts:
                part.close()
            raise
        jobs[:] = order
        begin_M = np.array([job.begin for job in jobs])
        if (begin_M < sequences.lengths).any():
            sequences.truncate(begin_M, sequences.next_logits())  # of no use where it was cut
        return sequences

    def _drop_continued(self, jobs: list[_Job]) -> None:
        for part in list(self._parts):
            gone = {
                job.row
                for job in jobs
                if job.part is part and job.begin == len(part.histories[job.row])
            }
            if not gone:
                continue
            left = [i for i in range(len(part.histories)) if i not in gone]
            old = part.sequences
            if left:
                part.sequences = old.fork(left)
                part.histories = [part.histories[i] for i in left]
            else:
                self._parts.remove(part)
            old.close()

    def _score(self, sequences: PagedSequences, jobs: list[_Job]) -> dict[Tokens, Tensor]:
        """Run what the rows lack; log-probabilities after every wanted length."""
        silent = [job.tokens[job.begin : max(job.begin, job.wanted[0])] for job in jobs]
        heard = [job.tokens[job.begin + len(s) :] for job, s in zip(jobs, silent, strict=True)]
        self.tokens_run += sum(map(len, silent)) + sum(map(len, heard))
        if any(silent):
            sequences.append(*_padded(silent))
        scored_M_T_V = sequences.score(*_padded(heard)) if any(heard) else None
        last_M_V = self._log_probs(sequences.next_logits())
        found: dict[Tokens, Tensor] = {}
        for i, (job, tokens) in enumerate(zip(jobs, heard, strict=True)):
            found[job.tokens] = last_M_V[i]
            if tokens:
                assert scored_M_T_V is not None
                first = len(job.tokens) - len(tokens)
                lengths = job.wanted[:-1]
                at = torch.tensor([n - first for n in lengths])
                logp_T_V = self._log_probs(scored_M_T_V[i, at.to(scored_M_T_V.device)])
                found |= {job.tokens[:n]: logp_T_V[k] for k, n in enumerate(lengths)}
        return found

    def _log_probs(self, logits: Tensor) -> Tensor:
        known_V = self.lm.vocab.known_V
        if known_V is not None:
            logits = logits.masked_fill(~known_V.to(logits.device), -torch.inf)
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        return torch.log_softmax(logits, dim=-1, dtype=dtype)


def _jobs(histories: Sequence[Tokens]) -> list[_Job]:
    """Histories that begin another one are passed on its way, so that they are no job."""
    jobs: list[_Job] = []
    lengths: list[int] = []
    ordered = sorted(histories)  # one that begins others stands right before them
    for i, history in enumerate(ordered):
        lengths.append(len(history))
        following = ordered[i + 1] if i + 1 < len(ordered) else ()
        if following[: len(history)] != history:
            jobs.append(_Job(history, lengths))
            lengths = []
    return jobs


def _by_start(jobs: Sequence[_Job]) -> list[list[_Job]]:
    """Jobs without a row, those together that can begin with one run of a common prefix."""
    groups: dict[int, list[_Job]] = {}
    for job in jobs:
        groups.setdefault(job.tokens[0], []).append(job)
    for group in groups.values():
        shared = min(job.wanted[0] for job in group)
        for job in group[1:]:
            shared = min(shared, _common(group[0].tokens, job.tokens))
        for job in group:
            job.begin = shared
    return list(groups.values())


def _common(a: Tokens, b: Tokens) -> int:
    """How many tokens two histories begin with in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _padded(rows: Sequence[Tokens]) -> tuple[Tensor, NDArray[np.int64]]:
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.int64)
    return tokens, np.array([len(row) for row in rows])
