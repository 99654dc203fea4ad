"""The draft: a second model that proposes the tokens of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from smcprog.potentials.local import LocalDistribution
from smcprog.smc.factors import StartGroup, fit_width

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Draft"]


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
    """

    def __init__(
        self,
        lm: LM,
        temperature: float,
        groups: Sequence[StartGroup],
        particles: int,
        size: int,
    ) -> None:
        self._lm = lm
        self._local = LocalDistribution(temperature)
        self._size = size
        parts = [lm.sequences(g.request.prompt_tokens, particles * len(g.members)) for g in groups]
        self._sequences = parts[0] if len(parts) == 1 else lm.join(parts)

    def log_probs(self) -> Tensor:
        """Log q of the next token before any mask, [M, V]."""
        logits_M_V = self._sequences.next_logits()
        known_V = self._lm.vocab.known_V
        if known_V is not None:
            logits_M_V = logits_M_V.masked_fill(~known_V.to(logits_M_V.device), -math.inf)
        return fit_width(self._local.log_probs(logits_M_V), self._size)

    def append(self, tokens_M: Tensor) -> None:
        """Every row takes one token; no forward yet."""
        self._sequences.append(tokens_M.unsqueeze(1).to(self._lm.device))

    def fork(self, ancestors_M: Tensor) -> None:
        """Rows become copies of their ancestors."""
        old = self._sequences
        self._sequences = old.fork(ancestors_M)
        old.close()

    def release(self) -> None:
        """Give the pages back."""
        self._sequences.close()
