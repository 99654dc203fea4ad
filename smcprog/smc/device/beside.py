"""Factors that live on the host, beside rounds of fixed shape: masks, rewards, any potential.

Their masks travel through pinned memory while the device runs the model; what they think of a block
goes to the device before it is weighed. They follow running rows only, as in `smc.wave`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.smc.block import DEAD, RUNNING
from smcprog.smc.device.program import RoundProgram
from smcprog.smc.factors import Factor

__all__ = ["Beside"]


class Beside:
    """The other factors of a wave's target, while a program plays its rounds.

    Parameters
    ----------
    factors : list of (int, Factor)
        With their numbers in the target; their values lie on the host.
    program : RoundProgram
        With masks or values from the host.
    eos_ids : sequence of int
    size : int
        V.

    Attributes
    ----------
    killer_M, killed_at_M : Tensor, int64
        Of the live rows of this round: number of the factor that killed it, −1 for none, and at
        which token of the block.
    """

    def __init__(
        self,
        factors: Sequence[tuple[int, Factor]],
        program: RoundProgram,
        eos_ids: Sequence[int],
        size: int,
    ) -> None:
        self._factors = list(factors)
        self._masking = [(i, f) for i, f in factors if f.masks]
        self._rest = [(i, f) for i, f in factors if not f.masks]
        self._program = program
        self._size = size
        self._eos_V = torch.zeros(size, dtype=torch.bool)
        self._eos_V[list(eos_ids)] = True
        form = program.form
        pin = program.eos_V.device.type == "cuda"
        self._masks: list[Tensor] = []  # one buffer a position, so that none is overwritten
        if program.mask_B_M_W is not None:
            _, rows, words = program.mask_B_M_W.shape
            self._masks = [
                torch.full((rows, words), -1, dtype=torch.int32, pin_memory=pin)
                for _ in range(form.width)
            ]
        self._extra_M = torch.zeros(form.rows, dtype=torch.float64, pin_memory=pin)
        self._blame_M = torch.full((form.rows,), -1, dtype=torch.int64, pin_memory=pin)
        self._on_trial = not form.fixed_steps
        self._stepping: list[Factor] = []

    @property
    def masking(self) -> bool:
        """Whether any factor must follow every token."""
        return bool(self._masking)

    def begin(self, live_M: Tensor, room_M: Tensor, drafts: int) -> None:
        """A round of K drafts begins, for some rows of the program with so many tokens left."""
        self._live_M = live_M
        self._old = [f.log_psi_M.clone() for _, f in self._factors]
        self.killer_M = torch.full((len(live_M),), -1, dtype=torch.int64)
        self.killed_at_M = torch.zeros(len(live_M), dtype=torch.int64)
        self._ended_M = torch.zeros(len(live_M), dtype=torch.bool)
        self._most_M = torch.full((len(live_M),), self._program.form.width)
        # With a coupling, tokens are on trial: masks follow them in states of their own.
        self._stepping = [f.copy() for _, f in self._masking] if self._on_trial else []
        self._drafts_M = (room_M - 1).clamp(min=0, max=drafts)

    def send_mask(self, position: int) -> None:
        """The masks of one position are on their way to the device."""
        if not self._masks:
            return
        stepping = self._stepping if self._on_trial else [f for _, f in self._masking]
        words: NDArray[np.int32] | None = None
        for factor in stepping:
            packed = factor.packed_mask(self._size)
            if packed is not None:
                words = packed if words is None else words & packed
        buffer, target = self._masks[position], self._program.mask_B_M_W
        assert target is not None
        buffer.fill_(-1)
        if words is not None:
            buffer[self._live_M] = torch.from_numpy(words)
            buffer[self._live_M[self._ended_M]] = -1  # past its end, a row's mask is not asked for
        target[position].copy_(buffer, non_blocking=True)

    def took(self, tokens_M: Tensor, position: int) -> None:
        """The device drafted a token for every row of the program; on the host."""
        tokens_M = tokens_M[self._live_M]
        nothing_M = tokens_M < 0
        tokens_M = tokens_M.clamp(min=0)
        on_M = ~self._ended_M & ~nothing_M & (self._drafts_M > position) & (self.killer_M < 0)
        ended_M = on_M & self._eos_V[tokens_M]
        if self._on_trial:
            for factor in self._stepping:
                value_M = factor.advance(tokens_M.unsqueeze(1), on_M.long(), ended_M)
                zero_M = on_M & (value_M == -math.inf)
                ended_M = ended_M | zero_M
                self._most_M = self._most_M.masked_fill(zero_M, position + 1)
        else:
            at_M = torch.full_like(tokens_M, position)
            for number, factor in self._masking:
                self._advance(number, factor, tokens_M.unsqueeze(1), on_M.long(), ended_M, at_M)
        self._ended_M |= ended_M | nothing_M | (self.killer_M >= 0)

    def commit(self, tokens_M_B: Tensor, count_M: Tensor, finish_M: Tensor) -> Tensor:
        """The block is made, and all factors follow it; what log ψ of the live rows gained.

        The arguments are of the rows of the program, on the host.
        """
        self._release_trial()
        live_M = self._live_M
        tokens_M_B, count_M, finish_M = tokens_M_B[live_M], count_M[live_M], finish_M[live_M]
        # A block ends with a token on trial that is kept and has no weight: what the device made
        # of those after it does not count.
        dead_M = (finish_M == DEAD) & (count_M < self._most_M)
        ended_M = (finish_M != RUNNING) & (finish_M != DEAD) & (count_M <= self._most_M)
        count_M = torch.minimum(count_M, self._most_M)
        followers = self._factors
        if not self._on_trial:
            at_M = (count_M - 1).clamp(min=0)
            last_M_1 = tokens_M_B.gather(1, at_M.unsqueeze(1))
            bonus_M = (count_M > self._drafts_M) & ~dead_M
            for number, factor in self._masking:
                self._advance(number, factor, last_M_1, bonus_M.long(), ended_M, at_M)
            followers = self._rest
        for number, factor in followers:
            lengths_M = count_M * ~dead_M
            self._advance(number, factor, tokens_M_B, lengths_M, ended_M, (lengths_M - 1))
        gained_M = torch.zeros(len(live_M), dtype=torch.float64)
        for (_, factor), old_M in zip(self._factors, self._old, strict=True):
            gained_M += torch.where(self.killer_M < 0, factor.log_psi_M - old_M, 0.0)
        return torch.where(dead_M, 0.0, gained_M)

    def send(self, gained_M: Tensor, failed_M: Tensor) -> None:
        """What log ψ of the live rows gained, and who is dead, are on their way to the device.

        Rows of requests that failed are dead, too.
        """
        self._extra_M.zero_()
        self._blame_M.fill_(-1)
        self._extra_M[self._live_M] = gained_M.masked_fill(failed_M, 0.0)
        killer_M = torch.where(failed_M & (self.killer_M < 0), 0, self.killer_M)
        self._blame_M[self._live_M] = killer_M
        self._program.extra_M.copy_(self._extra_M, non_blocking=True)
        self._program.extra_blame_M.copy_(self._blame_M, non_blocking=True)

    def lengths(self, out_M: Tensor, old_M: Tensor) -> Tensor:
        """How long the outputs of the live rows are: the token that killed one is its last.

        The device, which hears of it later, may have gone on; `old_M` is from before the round.
        """
        return torch.where(self.killer_M >= 0, old_M + self.killed_at_M + 1, out_M)

    def _advance(
        self,
        number: int,
        factor: Factor,
        tokens_M_T: Tensor,
        lengths_M: Tensor,
        ended_M: Tensor,
        at_M: Tensor,
    ) -> None:
        """Move a factor; rows that took nothing keep their value, rows at zero are dead."""
        alive_M = self.killer_M < 0
        lengths_M = lengths_M * alive_M
        value_M = factor.advance(tokens_M_T, lengths_M, ended_M & alive_M)
        factor.log_psi_M = torch.where(lengths_M > 0, value_M, factor.log_psi_M)
        killed_M = (factor.log_psi_M == -math.inf) & alive_M
        self.killer_M = self.killer_M.masked_fill(killed_M, number)
        self.killed_at_M = torch.where(killed_M, at_M, self.killed_at_M)

    def _release_trial(self) -> None:
        for factor in self._stepping:
            factor.release()
        self._stepping = []

    def fork(self, index_M: Tensor, sizes_R: Sequence[int]) -> None:
        """Rows that still run become copies of their ancestors among those of this round."""
        for _, factor in self._factors:
            factor.fork(index_M, sizes_R)

    def release(self) -> None:
        """Give back everything the states hold."""
        self._release_trial()
        for _, factor in self._factors:
            factor.release()
