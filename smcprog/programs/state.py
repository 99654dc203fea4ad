"""What a population is made of, and how its parts are kept together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.particles import ess
from smcprog.programs.pieces import (
    History,
    Piece,
    same_vocabulary,
    settled,
    text_of,
    tokens_for,
)
from smcprog.programs.run import ProgramEnded, Run
from smcprog.programs.tapes import Tapes

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.potentials.product import Product

__all__ = ["PopulationState"]


class PopulationState:
    """The particles of a program: texts, weights, what ended them, and the models' rows.

    The base of `Population`, which has the verbs.

    Parameters
    ----------
    run : Run
    n : int
    parent : PopulationState, optional
        That this is a branch of.
    """

    def __init__(self, run: Run, n: int, parent: PopulationState | None = None) -> None:
        self.run = run
        self.parent = parent
        self.histories: list[History] = [()] * n
        self.log_w_N = torch.zeros(n, dtype=torch.float64)
        self.log_gamma_N = torch.zeros(n, dtype=torch.float64)
        self.done: list[str | None] = [None] * n
        #: The initial particle that each descends from, and the one at the start of a branch.
        self.eve_N: NDArray[np.int64] = np.arange(n)
        self.origin_N: NDArray[np.int64] = np.arange(n)
        self.tapes = run.keep(Tapes(n))
        # The last target of an extension. What a branch uses is its own: whether anybody took
        # the branch must not change what the whole is weighed by.
        self.target: Product | None = None if parent is None else parent.target
        self.busy = ""  # why no verb can act on it now

    # ------------------------------------------------------------------- look

    @property
    def n(self) -> int:
        """N, the number of particles."""
        return len(self.histories)

    def __len__(self) -> int:
        return self.n

    @property
    def texts(self) -> list[str]:
        """All that came after the prompt, one text a particle: generated, observed or mapped."""
        return [text_of(history) for history in self.histories]

    @property
    def last(self) -> list[str]:
        """Text of each particle's last extension; empty where there was none."""
        found = []
        for history in self.histories:
            piece = next((p for p in reversed(history) if p.kind == "extend"), None)
            found.append("" if piece is None else text_of([piece]))
        return found

    @property
    def lengths(self) -> Tensor:
        """Tokens of each text, int64 [N]."""
        counts = [sum(len(piece.tokens) for piece in h) for h in self.histories]
        return torch.tensor(counts, dtype=torch.int64)

    @property
    def log_weights(self) -> Tensor:
        """Log-weights since the beginning, float64 [N]; −∞ where dead. A copy."""
        return self.log_w_N.clone()

    @property
    def alive(self) -> Tensor:
        """Which particles have positive weight, bool [N]."""
        return self.log_w_N > -math.inf

    @property
    def finished(self) -> Tensor:
        """Which particles are finished and alive: verbs pass them by. Bool [N]."""
        return torch.tensor([d is not None for d in self.done]) & self.alive

    @property
    def running(self) -> int:
        """How many particles are alive and go on."""
        return int((self.alive & ~self.finished).sum())

    @property
    def ess(self) -> float:
        """Effective sample size 1 / Σ w̄², from 1 to N; 0 if all are dead."""
        return float(ess(self.log_w_N[None])[0])

    # ----------------------------------------------------------------- inside

    def begin(self, verb: str) -> NDArray[np.int64]:
        """A verb begins: the particles that it acts on (dead ones included), int64 [M].

        Raises
        ------
        ProgramEnded
            If nobody goes on.
        """
        if self.busy:
            raise SettingError(f"{verb}: this population {self.busy}")
        self.run.step(verb)
        if not self.running:
            self.run.check_alive(self)
            raise ProgramEnded(self)
        return np.array(self.going(), dtype=np.int64)

    @contextlib.contextmanager
    def occupied(self, why: str) -> Iterator[None]:
        """No verb can act on it meanwhile."""
        self.busy = why
        try:
            yield
        finally:
            self.busy = ""

    def going(self) -> list[int]:
        """Particles that are not finished; dead ones are among them."""
        return [i for i, done in enumerate(self.done) if done is None]

    def living(self, index_M: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some particles that are alive."""
        return index_M[self.alive.numpy()[index_M]]

    def rows_now(self, index_M: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many pieces particles say, int64 [M], and whether they are alive, bool [M]."""
        pieces_M = np.array([len(self.histories[i]) for i in index_M], dtype=np.int64)
        return pieces_M, self.alive.numpy()[index_M]

    def settle(self, index_M: NDArray[np.int64]) -> None:
        """Texts go on: what ended them is no part of them."""
        for i in index_M:
            self.histories[i] = settled(self.histories[i])

    def room(self, index_M: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens that particles may still take."""
        return self.run.options.max_tokens - self.lengths.numpy()[index_M]

    def fitting(self, index_M: NDArray[np.int64], need_M: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which particles have room for so many tokens; the others end here."""
        fits_M: NDArray[np.bool_] = self.room(index_M) >= need_M
        for i in self.living(index_M[~fits_M]):
            if self.run.options.truncate:
                self.done[i] = "length"
            else:
                self.kill(i, f"max_tokens={self.run.options.max_tokens}")
        return fits_M

    def kill(self, i: int, blame: str) -> None:
        """A particle has weight zero."""
        self.log_w_N[i] = self.log_gamma_N[i] = -math.inf
        self.run.note_death(blame, int(self.lengths[i]))

    def append(self, i: int, piece: Piece) -> None:
        """One more piece of a particle's text."""
        self.histories[i] = (*settled(self.histories[i]), piece)

    def become(self, index_M: NDArray[np.int64]) -> None:
        """Particle i now continues particle ``index_M[i]``, weight included."""
        self.histories = [self.histories[i] for i in index_M]
        self.done = [self.done[i] for i in index_M]
        at = torch.from_numpy(index_M)
        self.log_w_N, self.log_gamma_N = self.log_w_N[at], self.log_gamma_N[at]
        self.eve_N, self.origin_N = self.eve_N[index_M], self.origin_N[index_M]
        self.tapes.become(index_M)

    def finish_reason(self, i: int) -> str:
        """What ended a particle, if nothing follows."""
        history = self.histories[i]
        return history[-1].finish if history else "stop"

    def tokens(self, lm: LM, i: int) -> list[int]:
        """Tokens of a particle's text as a model reads them, an EOS at its end included."""
        history = self.histories[i]
        out = tokens_for(lm, history)
        if history and history[-1].end is not None:
            vocab, end = history[-1].vocab, history[-1].end[0]
            same = vocab is None or same_vocabulary(vocab, lm.vocab)
            out.append(end if same else lm.vocab.eos_ids[0])
        return out
