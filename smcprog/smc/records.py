"""What a wave is given and what it writes down."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from smcprog.potentials.base import Request

__all__ = ["RoundRecord", "WaveRequest"]


@dataclasses.dataclass(frozen=True)
class WaveRequest:
    """One request: its number in the call, what potentials may know, and its seed."""

    index: int
    request: Request
    seed: int


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One round of every request of the wave, on the host.

    `log_w_R_N` are the weights before resampling; `active_R` tells which requests played;
    `moves_R` and `accepted_R` count the moves after it.
    """

    active_R: Tensor
    ess_R: Tensor
    resampled_R: Tensor
    ancestors_R_N: Tensor
    log_w_R_N: Tensor
    log_evidence_R: Tensor
    alive_R: Tensor
    length_R: Tensor
    moves_R: Tensor | None = None
    accepted_R: Tensor | None = None
