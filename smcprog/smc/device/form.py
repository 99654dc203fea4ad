"""What is fixed in a program of rounds: shapes and laws."""

from __future__ import annotations

import dataclasses

import torch

from smcprog.potentials.models.local import LocalDistribution

__all__ = ["Form"]


@dataclasses.dataclass(frozen=True)
class Form:
    """All that is fixed in a program, besides its models.

    Attributes
    ----------
    requests, particles : int
        R and N; requests that are not there are padding.
    draft_tokens : int
        K.
    context : int
        Most tokens of a row, prompt included.
    pages, draft_pages : int
        Of each request's arenas.
    lead : int
        Number of the target's model among the factors.
    masked, weighed : bool
        Whether masks come from the host, and whether other factors' values do.
    shared : bool
        Whether a prompt's pages are read once for all its rows.
    """

    requests: int
    particles: int
    draft_tokens: int
    context: int
    pages: int
    draft_pages: int
    local: LocalDistribution
    power: float
    draft_temperature: float
    coupling: float
    truncate: bool
    joint: bool
    ess_threshold: float
    resampling: str
    lead: int = 0
    masked: bool = False
    weighed: bool = False
    shared: bool = False

    @property
    def rows(self) -> int:
        """M."""
        return self.requests * self.particles

    @property
    def width(self) -> int:
        """B, the tokens of a block."""
        return self.draft_tokens + 1

    @property
    def fixed_steps(self) -> bool:
        """Whether rows of equal prompts are always equally long."""
        return self.coupling == torch.inf or self.draft_tokens == 0
