"""The rounds of one `extend`: a wave that goes on with a population."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from smcprog.programs.lines import Lines, ProgramRequest
from smcprog.programs.until import Marks, Until
from smcprog.smc.block import DEAD, EOS, RUNNING
from smcprog.smc.call import Call
from smcprog.smc.draws import Draws
from smcprog.smc.wave import Wave, WaveRequest

__all__ = ["Beginning", "Extension"]


@dataclasses.dataclass(frozen=True)
class Beginning:
    """Where an extension of M particles begins.

    Attributes
    ----------
    log_w_M : Tensor, float64
    room_M : Tensor, int64
        Most tokens each may take, at least 1.
    keys_M : Tensor, int64
        Equal for particles that say the same.
    contexts : sequence of list of int
        Prompt and text of each particle, for drafts that look at the last few tokens.
    first_round : int
    """

    log_w_M: Tensor
    room_M: Tensor
    keys_M: Tensor
    contexts: Sequence[list[int]]
    first_round: int


class Extension(Wave):
    """A wave of one request whose particles weigh something, and say something, already.

    Attributes
    ----------
    origin_B : Tensor, int64
        The particle that each continues, numbered as at the beginning.
    """

    def __init__(
        self,
        call: Call,
        request: ProgramRequest,
        seed: int,
        beginning: Beginning,
        marks: Marks | None,
        make_draws: Callable[..., Draws] = Draws,
    ) -> None:
        super().__init__(
            call.product, [WaveRequest(0, request, seed)], call.settings, call.truncate, make_draws
        )
        assert request.lines is not None
        self._lines: Lines = request.lines
        self._contexts = beginning.contexts
        self._log_w_0_B = beginning.log_w_M
        self._limit_B = beginning.room_M
        self._keys_B = beginning.keys_M
        self._first_round = beginning.first_round
        self.origin_B = torch.arange(len(self._live_M))
        if marks is not None:
            self._stops = Until(marks, self.target_lm.vocab, len(self._live_M))

    @property
    def kept_B(self) -> Tensor:
        """Tokens of each particle that its text goes on with: all but an EOS."""
        return self.lengths_B - (self.finish_B == EOS).long()

    def _keep_running(self, ancestors_B: Tensor) -> None:
        kept_B = self.kept_B
        last_B = self.tokens_B_T.gather(1, (kept_B - 1).clamp(min=0)[:, None])[:, 0]
        self._lines.park(
            self._live_M.numpy(),
            ((self.finish_B != RUNNING) & (self.finish_B != DEAD)).numpy(),
            ancestors_B.numpy(),
            kept_B.numpy(),
            last_B.numpy(),
        )
        self.origin_B = self.origin_B[ancestors_B]
        self._limit_B = self._limit_B[ancestors_B]
        super()._keep_running(ancestors_B)

    def recent(self, count: int, live_M: Tensor, lengths_M: Tensor) -> Tensor:
        out_M_C = np.zeros((len(live_M), count), dtype=np.int64)
        for m, (row, length) in enumerate(zip(live_M.tolist(), lengths_M.tolist(), strict=True)):
            new = self.tokens_B_T[row, :length].tolist()
            last = [*self._contexts[int(self.origin_B[row])][-count:], *new][-count:]
            out_M_C[m, count - len(last) :] = last
        return torch.from_numpy(out_M_C).to(self._device)
