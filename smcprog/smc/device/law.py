"""From logits to log-probabilities where nothing may wait for the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import Tensor

from smcprog.potentials.models.factor import fit_width
from smcprog.potentials.models.local import LocalDistribution

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Law"]


class Law:
    """p(v)^α of a model's next token, over the target's ids.

    Parameters
    ----------
    lm : LM
        Whose logits they are.
    local : LocalDistribution
        Its temperature is not 0.
    power : float
        α › 0.
    size : int
        V, of the target.
    """

    def __init__(self, lm: LM, local: LocalDistribution, power: float, size: int) -> None:
        self.local = local
        self.power = power
        self._size = size
        known_V = lm.vocab.known_V
        self._unknown_V = None if known_V is None else ~known_V.to(lm.device)

    @property
    def normalized(self) -> bool:
        """Whether `log_weights` are log-probabilities."""
        return self.power == 1

    def log_probs(self, logits: Tensor) -> Tensor:
        """Local log p, [..., V]; α left out."""
        return fit_width(self.local.log_probs(self._known(logits)), self._size)

    def log_prob_of(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Local log p of given tokens: logits [..., V], tokens [...] → float64 [...]."""
        # A token that only the target has an id for is impossible here; none is drawn so.
        return self.local.log_prob_of(self._known(logits), tokens).double()

    def raised(self, logp: Tensor) -> Tensor:
        """log p^α."""
        return logp if self.power == 1 else self.power * logp

    def _known(self, logits: Tensor) -> Tensor:
        if self._unknown_V is None:
            return logits
        return logits.masked_fill(self._unknown_V, -math.inf)
