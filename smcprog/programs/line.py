"""One tape in use, and the rows of it that a factor holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.programs.pieces import History, tokens_for
from smcprog.programs.tapes import Key, Tape, joined

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences
    from smcprog.programs.lines import Lines

__all__ = ["NOWHERE", "Line", "LineRows", "catch_up"]

NOWHERE = -1


class Line:
    """One tape in use.

    Attributes
    ----------
    number : int
        Of this line among those of the verb.
    rest : Tape or None
        Rows of the particles that take no part.
    """

    def __init__(
        self,
        lines: Lines,
        number: int,
        key: Key,
        rows: Sequences,
        rest: Tape | None,
        last_M: NDArray[np.int64],
    ) -> None:
        self._lines = lines
        self.number = number
        self._key = key
        self.rest = rest
        self._base_M = np.array(rows.lengths)
        self._last_M = last_M  # the last token of each text so far, or NOWHERE
        self._segments: list[Sequences] = []
        # Where the row of a parked particle is: segment and row.
        self._place_M_2 = np.full((len(self._base_M), 2), NOWHERE)

    def copy_of_start(self) -> Sequences | None:
        """The same rows once more, if nothing has happened to them yet."""
        found = self._lines.rows_of(self.number, len(self._base_M))
        if found is None or not np.array_equal(found[0].inner.lengths[found[1]], self._base_M):
            return None
        return found[0].inner.fork(found[1])

    def park(
        self,
        live_L: NDArray[np.int64],
        parked_M: NDArray[np.bool_],
        ancestors_M: NDArray[np.int64],
        kept_M: NDArray[np.int64],
        last_M: NDArray[np.int64],
    ) -> None:
        """See `Lines.park`."""
        row_M = np.full(len(self._base_M), NOWHERE)
        row_M[live_L] = np.arange(len(live_L))
        row_M = row_M[ancestors_M]
        self._place_M_2 = self._place_M_2[ancestors_M]
        self._base_M, self._last_M = self._base_M[ancestors_M], self._last_M[ancestors_M]
        last_M = np.where(kept_M > 0, last_M, self._last_M)
        # Rows of length 1 cannot be cut back; they are begun anew, as those without a place.
        new = np.flatnonzero(parked_M & (row_M >= 0) & (last_M != NOWHERE))
        found = self._lines.rows_of(self.number, len(live_L)) if len(new) else None
        if found is None:
            return
        rows_S, first_S, which = np.unique(row_M[new], return_index=True, return_inverse=True)
        parked = found[0].inner.fork(found[1][rows_S])
        want_S = (self._base_M + kept_M)[new[first_S]]
        if not _cut(parked, want_S, last_M[new[first_S]]):
            parked.close()
            return
        self._place_M_2[new, 0] = len(self._segments)
        self._place_M_2[new, 1] = which.reshape(-1)
        self._segments.append(parked)

    def keep_all(self) -> None:
        """See `Lines.keep_all`."""
        rows = len(self._base_M)
        found = self._lines.rows_of(self.number, rows)
        if found is not None:
            self._segments.append(found[0].inner.fork(found[1]))
            self._place_M_2[:, 0] = len(self._segments) - 1
            self._place_M_2[:, 1] = np.arange(rows)

    def collect(self, pieces_M: NDArray[np.int64], alive_M: NDArray[np.bool_]) -> Tape | None:
        """All rows in order; None where none was kept. Rows without a place begin anew."""
        if not self._segments:
            return None
        sizes = [rows.n for rows in self._segments]
        first = np.concatenate([[0], np.cumsum(sizes)])
        # The dead need no row of their own: they never go on.
        self._place_M_2[(self._place_M_2[:, 0] < 0) & ~alive_M] = 0
        kept_M = self._place_M_2[:, 0] >= 0
        at_M = first[np.where(kept_M, self._place_M_2[:, 0], 0)] + self._place_M_2[:, 1]
        parts, self._segments = self._segments, []
        missing = int((~kept_M).sum())
        if missing:
            parts.append(Tape.new(self._key, missing).rows)
            at_M[~kept_M] = first[-1] + np.arange(missing)
        tape = Tape(joined(self._key[0], parts), np.zeros(first[-1] + missing, dtype=np.int64))
        tape.become(at_M)
        tape.pieces_N = np.where(kept_M, pieces_M, 0)
        return tape

    def close(self) -> None:
        """Give back what was not collected."""
        for rows in self._segments:
            rows.close()
        self._segments = []
        if self.rest is not None:
            self.rest.rows.close()


class LineRows:
    """Rows of lines in the hands of a factor: `Sequences` of which it is known what becomes.

    Attributes
    ----------
    inner : Sequences
    line_R : int64 [R]
        The line that each row belongs to, or NOWHERE.
    """

    def __init__(self, lines: Lines, inner: Sequences, line_R: NDArray[np.int64]) -> None:
        self.inner = inner
        self.line_R = line_R
        self._lines = lines
        lines.open_rows.append(self)

    def fork(self, ancestors_K: Any) -> LineRows:
        """New rows that continue the given ones."""
        inner = self.inner.fork(ancestors_K)
        index_K = torch.as_tensor(ancestors_K).cpu().numpy()
        return LineRows(self._lines, inner, self.line_R[index_K])

    def join_rows(self, lm: LM, parts: Sequence[LineRows]) -> LineRows:
        """The rows of several, in order; consumes them."""
        inner = lm.join([part.inner for part in parts])
        for part in parts:
            part.close()  # there is nothing left to give back
        return LineRows(self._lines, inner, np.concatenate([part.line_R for part in parts]))

    def close(self) -> None:
        """Give the memory back."""
        self.inner.close()
        if self in self._lines.open_rows:
            self._lines.open_rows.remove(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def catch_up(lm: LM, tape: Tape, histories: Sequence[History]) -> NDArray[np.int64]:
    """Append what the rows lack; the last token of each text, or NOWHERE."""
    missing: list[list[int]] = []
    last: list[int] = []
    for history, pieces in zip(histories, tape.pieces_N.tolist(), strict=True):
        tokens = tokens_for(lm, history[pieces:])
        missing.append(tokens)
        if not tokens and pieces:
            tokens = tokens_for(lm, history)
        last.append(tokens[-1] if tokens else NOWHERE)
    width = max(map(len, missing))
    if width:
        tokens_M_T = torch.zeros((len(missing), width), dtype=torch.int64)
        for i, tokens in enumerate(missing):
            tokens_M_T[i, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        counts_M = torch.tensor([len(tokens) for tokens in missing])
        tape.rows.append(tokens_M_T.to(lm.device), counts_M)
    tape.pieces_N = np.array([len(history) for history in histories], dtype=np.int64)
    return np.array(last, dtype=np.int64)


def _cut(rows: Sequences, want_S: NDArray[np.int64], last_S: NDArray[np.int64]) -> bool:
    """Drop what was drafted beyond the end, and an EOS; False where rows are too short.

    The last token of the text is run again, with what follows: the logits after it are gone.
    """
    have_S = np.array(rows.lengths)
    if (have_S < want_S).any():
        return False
    if (have_S > want_S).any():
        rows.truncate(want_S - 1, torch.empty((rows.n, 0)))
        rows.append(torch.from_numpy(last_S)[:, None])
    return True
