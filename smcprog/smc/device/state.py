"""Everything about the rows of a program, on the device, in tensors that stay where they are."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from smcprog.smc.block import DEAD

__all__ = ["FIELDS", "RowState"]

FIELDS = (
    "length", "limit", "recent_0", "recent_1", "out", "finish", "blame", "keys", "log_gamma",
    "log_w", "seeds",
)  # fmt: skip
"""Rows of `RowState.all_F_M`. All but the last two follow a row's ancestor."""
OWN = 2
REAL = ("log_gamma", "log_w")


@dataclasses.dataclass(frozen=True, eq=False)
class RowState:
    """M = R·N rows; a row of padding is dead from the start, in a population of its own.

    Attributes
    ----------
    all_F_M : int64
        All that follows but the last, a line each (`FIELDS`), so that a fork is one operation.
    length_M : int64
        Tokens of the row, prompt included. Where no coupling is played it goes on growing after
        the row has ended, so that it depends on the round alone.
    limit_M : int64
        `length_M` at `max_tokens`.
    recent_M_2 : int64
        The last two tokens.
    out_M : int64
        Tokens of the output, as far as it is real. The tokens themselves are with the host.
    finish_M, blame_M : int64
        How the row ended; number of the factor that killed it, −1 where no token had any weight.
    keys_M : int64
        Hash of the history (`strata`).
    log_gamma_M, log_w_M : float64
    seeds_M : int64
    round_R : int64
        Number of each request's round: what moves the random numbers on.
    """

    all_F_M: Tensor
    length_M: Tensor
    limit_M: Tensor
    recent_M_2: Tensor
    out_M: Tensor
    finish_M: Tensor
    blame_M: Tensor
    keys_M: Tensor
    log_gamma_M: Tensor
    log_w_M: Tensor
    seeds_M: Tensor
    round_R: Tensor

    @classmethod
    def over(cls, all_F_M: Tensor, round_R: Tensor) -> RowState:
        """The state that lies in given memory."""
        lines = dict(zip(FIELDS, all_F_M, strict=True))
        for name in REAL:
            lines[name] = lines[name].view(torch.float64)
        del lines["recent_0"], lines["recent_1"]
        at = FIELDS.index("recent_0")
        return cls(
            all_F_M=all_F_M,
            recent_M_2=all_F_M[at : at + 2].T,
            round_R=round_R,
            **{f"{name}_M": line for name, line in lines.items()},
        )

    @classmethod
    def empty(cls, requests: int, particles: int, device: torch.device) -> RowState:
        """All padding."""
        rows = requests * particles
        state = cls.over(
            torch.zeros((len(FIELDS), rows), dtype=torch.int64, device=device),
            torch.zeros(requests, dtype=torch.int64, device=device),
        )
        state.clear()
        return state

    def part(self, request: int) -> RowState:
        """The rows of one request, in the same memory."""
        n = self.all_F_M.shape[1] // len(self.round_R)
        rows = slice(request * n, (request + 1) * n)
        return RowState.over(self.all_F_M[:, rows], self.round_R[request : request + 1])

    def take_over(self, other: RowState) -> None:
        """Become a copy of as many rows."""
        self.all_F_M.copy_(other.all_F_M)
        self.round_R.copy_(other.round_R)

    def clear(self) -> None:
        """Become padding."""
        self.length_M.fill_(2)
        self.limit_M.fill_(2)
        self.finish_M.fill_(DEAD)
        self.blame_M.fill_(-1)
        self.log_w_M.fill_(-torch.inf)

    def fork(self, ancestors_M: Tensor) -> None:
        """Rows become copies of their ancestors, all but their seeds and weights."""
        followed = self.all_F_M[:-OWN]
        followed.copy_(followed.index_select(1, ancestors_M))
