"""Forwards shared by rows that know nothing of each other.

A *runner* of this thread, if there is one, is handed the work that would otherwise run at
once; it collects work of several requests and calls `run_pass`, which runs as much of it as
one forward should hold. Work that is wide (a prompt) is done in pieces, so that others need
not wait for all of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention import Layout, PagedBatch
from smcprog.attention.packing import PackedAttention, Segment
from smcprog.limits import MAX_ROUND_ELEMENTS

if TYPE_CHECKING:
    from smcprog.engine.engine import Engine
    from smcprog.engine.growth import Growth

__all__ = ["Runner", "Work", "current_runner", "run_pass", "use_runner"]

NARROW = 32
"""Blocks of up to this many columns are done whole, and before wider ones."""
TOKENS_PER_PASS = 4096
"""Most tokens of the narrow blocks of one forward."""
WIDE_TOKENS = 512
"""Most tokens of wide blocks in a forward of their own ..."""
WIDE_TOKENS_BESIDE = 128
"""... and in one that narrow blocks wait for."""
SHORT_ROW, LENGTH_STEP = 128, 4
"""Rows attend together where both are at most SHORT_ROW tokens long, or lengths differ less
than by this factor: shorter ones are padded to the longest."""


class Runner(Protocol):
    """What runs the engine's work in a thread."""

    def run(self, work: Work) -> tuple[NDArray[np.int32], Tensor]:
        """Return the tables and logits of a work once it is done, or raise what it raised."""

    def wait(self, ready: Callable[[], bool]) -> None:
        """Return once `ready()` holds, which others of this runner, or other threads, bring about.

        Other threads call the runner's `wake` then, if it has one.
        """


_of_thread = threading.local()


def current_runner() -> Runner | None:
    """The runner of this thread."""
    return getattr(_of_thread, "runner", None)


@contextlib.contextmanager
def use_runner(runner: Runner | None) -> Iterator[None]:
    """Let a runner have the work of this thread; None: work runs at once again."""
    before = current_runner()
    _of_thread.runner = runner
    try:
        yield
    finally:
        _of_thread.runner = before


@dataclasses.dataclass(eq=False)
class Work:
    """One call of `Engine.extend`, whose arguments see; done in one pass or in several.

    Attributes
    ----------
    column : int
        Columns before this one have been run.
    logits_M_C_V : Tensor or None
        Set when it is done; then `growth.tables_M_W` are the new tables.
    error : BaseException or None
        Set when it failed; its pages are as before.
    """

    engine: Engine
    tables_M_W: NDArray[np.int32]
    stored_M: NDArray[np.int64]
    tokens_M_T: Tensor
    counts_M: NDArray[np.int64]
    keep_C: NDArray[np.int64]
    column: int = 0
    growth: Growth | None = None
    logits_M_C_V: Tensor | None = None
    error: BaseException | None = None
    _kept: list[Tensor] = dataclasses.field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.stored_M)

    @property
    def left(self) -> int:
        """Columns still to be run."""
        return int(self.tokens_M_T.shape[1]) - self.column

    @property
    def done(self) -> bool:
        return self.error is not None or self.logits_M_C_V is not None

    def result(self) -> tuple[NDArray[np.int32], Tensor]:
        """Tables and logits, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.growth is not None and self.logits_M_C_V is not None
        self.engine.handed.discard(self.growth)
        return self.growth.tables_M_W, self.logits_M_C_V

    def run_alone(self) -> None:
        """All of it at once, as if no one else were there; nothing may have been run yet."""
        engine = self.engine
        try:
            with engine.lock, torch.inference_mode():
                self._open()
                assert self.growth is not None
                tables_M_W = self.growth.tables_M_W
                self._kept = [
                    engine._run(
                        tables_M_W, self.stored_M, self.tokens_M_T, self.counts_M, self.keep_C
                    )
                ]
                self.column += self.left
                self._close()
        except BaseException as error:
            self.cancel(error)
            if not isinstance(error, Exception):
                raise

    def cancel(self, error: BaseException) -> None:
        """Give it up: its new pages go back, and the old ones are as they were."""
        if self.done:
            return
        self.error = error
        self._kept.clear()
        if self.growth is not None:
            with self.engine.lock:
                self.engine.abort(self.growth)

    def _open(self) -> None:
        if self.growth is None:
            self.growth = self.engine.begin(self.tables_M_W, self.stored_M, self.counts_M)

    def _close(self) -> None:
        """Once nothing is left: the growth counts, and there are logits."""
        if self.left:
            return
        assert self.growth is not None
        kept = self._kept[0] if len(self._kept) == 1 else torch.cat(self._kept, dim=1)
        self.engine.finish(self.growth)
        self.engine.handed.add(self.growth)
        self.logits_M_C_V = kept
        self._kept = []


def run_pass(works: Sequence[Work]) -> None:
    """One forward for some works of one engine, first come first served.

    Works that finish, or fail, are `done` afterwards. A work that does not get its pages
    fails alone; so does one that fails when run alone, where all of them failed together.
    Where the device has no memory for the pass, each is run in smaller ones.

    Parameters
    ----------
    works : sequence of Work
        In order of arrival, none of them done.
    """
    engine = works[0].engine
    if not engine.attention.layers:
        # The first forward of all makes the pools, and knows of one layout only.
        works[0].run_alone()
        return
    with engine.lock, torch.inference_mode():
        pieces = []
        for work, width in _share(works, engine.vocab_size):
            try:
                work._open()
            except Exception as error:
                work.cancel(error)
            else:
                pieces.append(_Piece(work, work.column, work.column + width))
        if not pieces:
            return
        try:
            _forward(engine, pieces)
            return
        except Exception as error:
            failure = error
        # Out of the handler, and without the frames: they hold what the next pass may need.
        if isinstance(failure, torch.OutOfMemoryError):
            failure.__traceback__ = None
        for piece in pieces:
            if piece.work.column >= piece.end:
                continue  # booked before it happened
            if isinstance(failure, torch.OutOfMemoryError):
                _run_piece_in_parts(engine, piece)
            elif len(pieces) == 1:
                piece.work.cancel(failure)
            else:
                _run_piece_alone(engine, piece)


def _share(works: Sequence[Work], vocab_size: int) -> list[tuple[Work, int]]:
    """Works of the next pass, and how many columns of each."""
    share: list[tuple[Work, int]] = []
    tokens = logits = 0
    for work in works:
        if work.left > NARROW:
            continue
        tokens += work.rows * work.left
        logits += work.rows * len(work.keep_C) * vocab_size
        if share and (tokens > TOKENS_PER_PASS or logits > MAX_ROUND_ELEMENTS):
            break
        share.append((work, work.left))
    room = WIDE_TOKENS_BESIDE if share else WIDE_TOKENS
    for work in works:
        if work.left > NARROW:
            if room < work.rows and share:
                break
            width = min(work.left, max(1, room // work.rows))
            share.append((work, width))
            room -= work.rows * width
    return share


@dataclasses.dataclass(frozen=True, eq=False)
class _Piece:
    """Columns `begin` to `end` of a work."""

    work: Work
    begin: int
    end: int

    @property
    def width(self) -> int:
        return self.end - self.begin

    @property
    def stored_M(self) -> NDArray[np.int64]:
        return self.work.stored_M + np.minimum(self.work.counts_M, self.begin)

    @property
    def counts_M(self) -> NDArray[np.int64]:
        return np.clip(self.work.counts_M - self.begin, 0, self.width)

    @property
    def wanted_M_C(self) -> NDArray[np.bool_]:
        """Which of the columns whose logits are kept hold a token, [M, C of this piece]."""
        keep = self.work.keep_C
        keep = keep[(keep >= self.begin) & (keep < self.end)] - self.begin
        return keep[None, :] < self.counts_M[:, None]

    @property
    def shape(self) -> tuple[int, int]:
        """Pieces of equal shape attend together."""
        longest = int((self.stored_M + self.counts_M).max())
        step = 0
        while longest > SHORT_ROW * LENGTH_STEP**step:
            step += 1
        # A power of two, so that padding at most doubles a narrow piece; a wide one stays alone.
        width = 1 << (self.width - 1).bit_length() if self.width <= NARROW else -id(self)
        return step, width


def _forward(engine: Engine, pieces: Sequence[_Piece]) -> None:
    """Run pieces in one forward, and book what they want to know."""
    together: dict[tuple[int, int], list[_Piece]] = {}
    for piece in pieces:
        together.setdefault(piece.shape, []).append(piece)
    segments: list[Segment] = []
    ids: list[Tensor] = []
    wanted: list[NDArray[np.int64]] = []
    begin = 0
    for group in together.values():
        layout = _layout(group)
        segment = Segment.of(engine.attention, layout, begin)
        tokens_P = torch.cat([_columns(p, layout.width) for p in group]).reshape(-1)
        ids.append(tokens_P if segment.real_S is None else tokens_P.index_select(0, segment.real_S))
        first = begin
        for piece in group:
            wanted.append(_places(piece, first))
            first += int(piece.counts_M.sum())
        segments.append(segment)
        begin = segment.end
    logits_C_V = _call(engine, segments, torch.cat(ids), np.concatenate(wanted), begin)

    at = 0
    for piece in (p for group in together.values() for p in group):
        wanted_M_C = piece.wanted_M_C
        count = int(wanted_M_C.sum())
        _book(piece, wanted_M_C, logits_C_V[at : at + count], alone=len(pieces) == 1)
        at += count


def _call(
    engine: Engine, segments: list[Segment], ids_S: Tensor, wanted_C: NDArray[np.int64], size: int
) -> Tensor:
    """Logits of the wanted ones of S packed tokens, [C, V]."""
    batch = PagedBatch(PackedAttention(engine.attention), segments)
    positions_S = torch.cat([s.positions_S for s in segments])
    keep: int | Tensor = 1  # where none are wanted, one costs least
    if len(wanted_C) == size and (wanted_C == np.arange(size)).all():
        keep = 0  # all
    elif len(wanted_C):
        keep = torch.from_numpy(wanted_C).to(engine.device, non_blocking=True)
    return engine.call_model(ids_S.unsqueeze(0), positions_S.unsqueeze(0), batch, keep)[0]


def _layout(group: Sequence[_Piece]) -> Layout:
    tables = [p.work.growth.tables_M_W for p in group if p.work.growth is not None]
    width = max(t.shape[1] for t in tables)
    return Layout(
        np.concatenate([np.pad(t, ((0, 0), (0, width - t.shape[1]))) for t in tables]),
        np.concatenate([p.stored_M for p in group]),
        np.concatenate([p.counts_M for p in group]),
        max(p.width for p in group),
    )


def _columns(piece: _Piece, width: int) -> Tensor:
    tokens = piece.work.tokens_M_T[:, piece.begin : piece.end]
    return torch.nn.functional.pad(tokens, (0, width - piece.width))


def _places(piece: _Piece, first: int) -> NDArray[np.int64]:
    """Packed places of the tokens whose logits a piece wants, row after row."""
    keep = piece.work.keep_C
    keep = keep[(keep >= piece.begin) & (keep < piece.end)] - piece.begin
    counts_M = piece.counts_M
    begin_M = first + np.cumsum(counts_M) - counts_M
    return (begin_M[:, None] + keep[None, :])[piece.wanted_M_C]


def _book(piece: _Piece, wanted_M_C: NDArray[np.bool_], logits_C_V: Tensor, *, alone: bool) -> None:
    """A piece was run: keep its logits, and close its work if it was the last."""
    rows, columns = wanted_M_C.shape
    if columns:
        if wanted_M_C.all():
            # A copy, lest one request's logits keep those of all alive.
            kept = logits_C_V if alone else logits_C_V.clone()
        elif len(logits_C_V):
            # Columns without a token have no logits; they get some, which mean nothing.
            place = np.maximum(np.cumsum(wanted_M_C) - 1, 0)
            kept = logits_C_V.index_select(0, torch.from_numpy(place).to(logits_C_V.device))
        else:
            kept = logits_C_V.new_zeros((rows * columns, logits_C_V.shape[1]))
        piece.work._kept.append(kept.view(rows, columns, -1))
    piece.work.column = piece.end
    piece.work._close()


def _run_piece_in_parts(engine: Engine, piece: _Piece) -> None:
    """Alone, and in as many passes as memory asks for."""
    work = piece.work
    keep_C = work.keep_C
    columns = keep_C[(keep_C >= piece.begin) & (keep_C < piece.end)] - piece.begin
    try:
        tokens_M_T = work.tokens_M_T[:, piece.begin : piece.end]
        logits_M_C_V = engine.forward(_layout([piece]), tokens_M_T, columns)
        if len(columns):
            work._kept.append(logits_M_C_V)
        work.column = piece.end
        work._close()
    except Exception as error:
        work.cancel(error)


def _run_piece_alone(engine: Engine, piece: _Piece) -> None:
    try:
        _forward(engine, [piece])
    except Exception as error:
        piece.work.cancel(error)
