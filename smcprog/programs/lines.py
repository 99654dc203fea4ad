"""Where models begin their rows during a verb, and what is left of the rows afterwards.

A *line* is a tape in use. The model's factor owns the rows and may fork them as it likes, for
drafts on trial for instance, or join those of several lines of one model; between rounds exactly
one set of them is open, and that is where finished particles are *parked* before the factor
forgets them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import SettingError
from smcprog.potentials.base import Request
from smcprog.programs.line import NOWHERE, Line, LineRows, catch_up
from smcprog.programs.pieces import History
from smcprog.programs.tapes import Key, Tape, Tapes, joined

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences

__all__ = ["Lines", "ProgramRequest"]


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramRequest(Request):
    """A request whose models go on from the rows of a population."""

    lines: Lines | None = None

    def sequences(self, lm: LM, n: int, prompt: Any = None) -> Sequences:
        assert self.lines is not None
        return self.lines.open((lm, tuple(lm.encode(self.prompt_for(prompt)))), n)

    def draft_sequences(self, lm: LM, n: int) -> Sequences:
        assert self.lines is not None
        return self.lines.open((lm, self.prompt_tokens), n)


class Lines:
    """The lines of one verb.

    Parameters
    ----------
    tapes : Tapes
    histories : sequence of History, [N]
        What each particle says; it goes on, so no EOS is at its end.
    index_M : int64 [M]
        The particles that take part, in order.
    max_tokens : int
        Most tokens after the prompt.
    """

    def __init__(
        self,
        tapes: Tapes,
        histories: Sequence[History],
        index_M: NDArray[np.int64],
        max_tokens: int,
    ) -> None:
        self._tapes = tapes
        self._histories = [histories[i] for i in index_M]
        self._index_M = index_M
        self._rest = np.setdiff1d(np.arange(tapes.n), index_M)
        self._max_tokens = max_tokens
        self._lines: dict[Key, Line] = {}
        self.open_rows: list[LineRows] = []

    def open(self, key: Key, n: int) -> Any:
        """Rows of a model that hold all that the particles say."""
        lm, prompt_tokens = key
        if n != len(self._index_M):
            raise ValueError(f"{n} rows were asked for, and {len(self._index_M)} take part")
        if len(prompt_tokens) + self._max_tokens > lm.max_context:
            raise SettingError(
                f"a prompt of {len(prompt_tokens)} tokens and the program's max_tokens="
                f"{self._max_tokens} exceed the context of {lm.name}, {lm.max_context} tokens: "
                f"max_tokens may be at most {lm.max_context - len(prompt_tokens)}"
            )
        line = self._lines.get(key)
        if line is not None:  # the second factor with this model: its rows are nobody's tape
            twin = line.copy_of_start()
            if twin is None:
                tape = Tape.new(key, n)
                catch_up(lm, tape, self._histories)
                twin = tape.rows
            return LineRows(self, twin, np.full(n, NOWHERE))
        tape = self._tapes.take(key)
        rest = None
        if len(self._rest):
            rest = tape.fork(self._rest)
            tape.become(self._index_M)
        last_M = catch_up(lm, tape, self._histories)
        line = Line(self, len(self._lines), key, tape.rows, rest, last_M)
        self._lines[key] = line
        return LineRows(self, tape.rows, np.full(n, line.number))

    def park(
        self,
        live_L: NDArray[np.int64],
        parked_M: NDArray[np.bool_],
        ancestors_M: NDArray[np.int64],
        kept_M: NDArray[np.int64],
        last_M: NDArray[np.int64],
    ) -> None:
        """Particles have moved on; keep the rows of those that the factors will forget.

        Parameters
        ----------
        live_L : int64 [L]
            Particles that the factors' rows stand for, numbered as before this move.
        parked_M : bool [M]
            Particles that are complete, as after it.
        ancestors_M : int64 [M]
            Particle i continues particle ``ancestors_M[i]``.
        kept_M : int64 [M]
            Tokens of each since the lines began that belong to its text.
        last_M : int64 [M]
            The last of these tokens.
        """
        for line in self._lines.values():
            line.park(live_L, parked_M, ancestors_M, kept_M, last_M)

    def keep_all(self) -> None:
        """The verb is done, and all rows are as they shall be."""
        for line in self._lines.values():
            line.keep_all()

    def commit(self, pieces_M: NDArray[np.int64], alive_M: NDArray[np.bool_]) -> None:
        """The rows are the population's tapes again, and hold so many pieces."""
        order_N = np.argsort(np.concatenate([self._index_M, self._rest]), kind="stable")
        while self._lines:
            key, line = self._lines.popitem()
            try:
                tape = line.collect(pieces_M, alive_M)
                if tape is not None and line.rest is not None:
                    pieces_N = np.concatenate([tape.pieces_N, line.rest.pieces_N])
                    tape = Tape(joined(key[0], [tape.rows, line.rest.rows]), pieces_N)
                    line.rest = None
                    tape.become(order_N)
                if tape is not None:
                    self._tapes.by_key[key] = tape
            finally:
                line.close()

    def close(self) -> None:
        """Give back all that was not committed."""
        while self._lines:
            self._lines.popitem()[1].close()
        for rows in list(self.open_rows):
            rows.close()

    def rows_of(self, number: int, count: int) -> tuple[LineRows, NDArray[np.int64]] | None:
        """What the factor holds of a line now, and which rows of it, if it is so many."""
        found = [(rows, np.flatnonzero(rows.line_R == number)) for rows in self.open_rows]
        found = [(rows, at) for rows, at in found if len(at)]
        return found[0] if len(found) == 1 and len(found[0][1]) == count else None
