"""Tapes: the rows of a model that follow a population from verb to verb.

A tape holds, for every particle, the prompt and the first few pieces of its text. What came
since, from verbs that another model served, is appended when the model is next asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences

__all__ = ["Key", "Tape", "Tapes", "joined"]

Key = tuple["LM", tuple[int, ...]]
"""A model and the tokens of the prompt it continues."""


@dataclasses.dataclass
class Tape:
    """Rows of one model.

    Attributes
    ----------
    rows : Sequences
        One a particle.
    pieces_N : int64 [N]
        How many pieces of each particle's text they hold.
    """

    rows: Sequences
    pieces_N: NDArray[np.int64]

    @classmethod
    def new(cls, key: Key, n: int) -> Tape:
        """`n` rows that hold the prompt alone."""
        lm, prompt_tokens = key
        return cls(lm.sequences(prompt_tokens, n), np.zeros(n, dtype=np.int64))

    def fork(self, index_M: NDArray[np.int64]) -> Tape:
        """Rows that continue the given ones; these stay."""
        return Tape(self.rows.fork(index_M), self.pieces_N[index_M])

    def become(self, index_M: NDArray[np.int64]) -> None:
        """Row i now continues row ``index_M[i]``."""
        if len(index_M) == len(self.pieces_N) and (index_M == np.arange(len(index_M))).all():
            return
        old = self.rows
        self.rows, self.pieces_N = old.fork(index_M), self.pieces_N[index_M]
        old.close()


class Tapes:
    """All tapes of one population of N particles."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.by_key: dict[Key, Tape] = {}

    def take(self, key: Key) -> Tape:
        """A tape, which is the caller's from now on; a new one if there is none."""
        tape = self.by_key.pop(key, None)
        return Tape.new(key, self.n) if tape is None else tape

    def become(self, index_M: NDArray[np.int64]) -> None:
        """Particle i now continues particle ``index_M[i]``."""
        for tape in self.by_key.values():
            tape.become(index_M)
        self.n = len(index_M)

    def split(self, index_M: NDArray[np.int64]) -> Tapes:
        """Tapes of some particles; these stay."""
        part = Tapes(len(index_M))
        for key, tape in self.by_key.items():
            part.by_key[key] = tape.fork(index_M)
        return part

    def merge(self, parts: Sequence[Tapes], order_N: NDArray[np.int64]) -> None:
        """Take over the tapes of parts: particle i is number ``order_N[i]`` of all, in order."""
        self.close()
        self.n = len(order_N)
        for key in dict.fromkeys(k for part in parts for k in part.by_key):
            tapes = [part.take(key) for part in parts if part.n]
            pieces_N = np.concatenate([t.pieces_N for t in tapes])
            whole = Tape(joined(key[0], [t.rows for t in tapes]), pieces_N)
            whole.become(order_N)
            self.by_key[key] = whole

    def close(self) -> None:
        """Give all memory back."""
        while self.by_key:
            self.by_key.popitem()[1].rows.close()


def joined(lm: LM, parts: Sequence[Sequences]) -> Sequences:
    """The rows of several, in order; consumes them."""
    return parts[0] if len(parts) == 1 else lm.join(parts)
