"""The draft: a second model that proposes the tokens of a block."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.potentials.models.local import LocalDistribution
from smcprog.smc.factors import StartGroup, fit_width

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["AnyDraft", "Draft"]


class AnyDraft(Protocol):
    """Rows that propose tokens, in step with the target's."""

    def start_round(self) -> None:
        """The target's rows are where a block is to begin."""

    def begin(self) -> None:
        """From here on, tokens are on trial until `settle`."""

    def log_probs(self, rows: Tensor | None = None) -> Tensor:
        """Log q of the next token before any mask, [M, V]; of some rows, if given."""

    def append(self, tokens_M: Tensor, took_M: Tensor | None = None) -> None:
        """Every row (or every row that took one) gets one token."""

    def settle(self, kept_M: Tensor) -> None:
        """Of the tokens since `begin`, rows keep the first few; the rest are taken back."""

    def fork(self, ancestors_M: Tensor) -> None:
        """Rows become copies of their ancestors."""

    def merge(self, other: AnyDraft, index_M: Tensor) -> None:
        """Row i goes on from row ``index_M[i]`` of these rows followed by the other's."""

    def release(self) -> None:
        """Give back all memory."""


class Draft:
    """Rows of the draft model, in step with the target's.

    Parameters
    ----------
    lm : LM
        Shares the target's token-id map.
    temperature : float
        τ_d › 0; the draft is never truncated, so q̃ › 0 wherever the mask allows.
    groups, particles
        As for `Factor`.
    size : int
        Width of the target's logits; the draft's may be padded to another one.
    device : torch.device, optional
        That of the target, where log q is wanted; by default the draft's own.
    """

    def __init__(
        self,
        lm: LM,
        temperature: float,
        groups: Sequence[StartGroup],
        particles: int,
        size: int,
        device: torch.device | None = None,
    ) -> None:
        self._lm = lm
        self._device = lm.device if device is None else device
        self._local = LocalDistribution(temperature)
        self._size = size
        self._begin_M: NDArray[np.int64] | None = None  # lengths at `begin`, while on trial
        self._logits: list[Tensor] = []  # of the steps since then
        parts = [g.request.draft_sequences(lm, particles * len(g.members)) for g in groups]
        self._sequences = parts[0] if len(parts) == 1 else lm.join(parts)

    def start_round(self) -> None:
        """Nothing to do: the rows follow every token."""

    def begin(self) -> None:
        """From here on, tokens are on trial until `settle`."""
        self._begin_M = np.array(self._sequences.lengths)
        self._logits = []

    def log_probs(self, rows: Tensor | None = None) -> Tensor:
        """Log q of the next token before any mask, [M, V]; of some rows, if given."""
        logits_M_V = self._sequences.next_logits()
        if self._begin_M is not None:
            self._logits.append(logits_M_V)
        if rows is not None:
            logits_M_V = logits_M_V[rows.to(logits_M_V.device)]
        known_V = self._lm.vocab.known_V
        if known_V is not None:
            logits_M_V = logits_M_V.masked_fill(~known_V.to(logits_M_V.device), -math.inf)
        logq_M_V = fit_width(self._local.log_probs(logits_M_V), self._size)
        return logq_M_V.to(self._device)

    def append(self, tokens_M: Tensor, took_M: Tensor | None = None) -> None:
        """Every row (or every row that took one) gets one token; no forward yet."""
        counts_M = None if took_M is None else took_M.long()
        self._sequences.append(tokens_M.unsqueeze(1).to(self._lm.device), counts_M)

    def settle(self, kept_M: Tensor) -> None:
        """Of the tokens since `begin`, rows keep the first few; the rest are taken back."""
        assert self._begin_M is not None
        kept_M = kept_M.to(self._lm.device)
        next_M_V = self._logits[0].clone()
        for at in range(1, len(self._logits)):
            rows = torch.nonzero(kept_M >= at).flatten()
            next_M_V[rows] = self._logits[at][rows]
        self._sequences.truncate(self._begin_M + kept_M.cpu().numpy(), next_M_V)
        self._begin_M, self._logits = None, []

    def fork(self, ancestors_M: Tensor) -> None:
        """Rows become copies of their ancestors."""
        old = self._sequences
        self._sequences = old.fork(ancestors_M)
        old.close()
        if self._begin_M is not None:
            index_M = ancestors_M.to(self._lm.device)
            self._logits = [logits_M_V[index_M] for logits_M_V in self._logits]
            self._begin_M = self._begin_M[ancestors_M.cpu().numpy()]

    def select(self, ancestors_M: Tensor) -> Draft:
        """A draft of its own whose rows continue the given ones, between blocks."""
        twin = copy.copy(self)
        twin._sequences = self._sequences.fork(ancestors_M)
        return twin

    def merge(self, other: AnyDraft, index_M: Tensor) -> None:
        """Row i goes on from row ``index_M[i]`` of these rows followed by the other's.

        The other is used up.
        """
        assert isinstance(other, Draft)
        both = self._lm.join([self._sequences, other._sequences])
        self._sequences = both.fork(index_M)
        both.close()

    def release(self) -> None:
        """Give the pages back."""
        self._sequences.close()
