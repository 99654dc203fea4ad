"""A potential to a power: log ψ^c = c · log ψ. `potential ** c` makes one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from smcprog.errors import SettingError
from smcprog.potentials.base import Potential, Request, State
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["MAX_POWER", "Power", "powered"]

MAX_POWER = 1e4


def powered(potential: Potential, power: float) -> Potential:
    """`potential ** power`, for potentials that do not scale themselves.

    Raises
    ------
    SettingError
        The power is 0, not finite or too large; or negative, and ψ may be zero.
    """
    power = real("power", power, -MAX_POWER, MAX_POWER)
    if power == 0:
        raise SettingError(f"the power 0 forgets {potential.name}: leave the factor out")
    if power < 0 and not potential.positive:
        raise SettingError(
            f"{potential.name} ** {power:g} would be infinite where {potential.name} is zero: only "
            "what is positive everywhere can be divided by (a model without truncation, a "
            "Reward, or a potential that says so with `positive = True`)"
        )
    if power == 1 or (potential.indicator and power > 0):
        return potential
    return Power(potential, power)


class Power(Potential):
    """ψ^c of another potential.

    Parameters
    ----------
    potential : Potential
    power : float
        c, not 0; negative only where ψ is never zero.
    """

    def __init__(self, potential: Potential, power: float) -> None:
        self.potential = potential
        self.power = power
        self.joins = potential.joins
        self.masks = potential.masks
        self.rejects = potential.rejects
        self.max_checks = potential.max_checks
        self.positive = potential.positive

    @property
    def name(self) -> str:
        return f"{self.potential.name} ** {self.power:g}"

    def __repr__(self) -> str:
        return f"{self.potential!r} ** {self.power:g}"

    @property
    def lm_like(self) -> bool:
        return self.potential.lm_like

    def __pow__(self, power: float) -> Potential:
        return powered(self.potential, self.power * real("power", power, -MAX_POWER, MAX_POWER))

    def explain(self) -> str:
        return f"{self.potential.explain()}, to the power {self.power:g}"

    def memory(self, request: Request, n: int) -> dict[LM, int]:
        return self.potential.memory(request, n)

    def start(self, request: Request, n: int) -> State:
        return self.potential.start(request, n)

    def advance(
        self, state: State, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[State, Tensor]:
        state, log_psi_N = self.potential.advance(state, tokens_N_T, lengths_N, ended_N)
        return state, self.power * log_psi_N

    def fork(self, state: State, ancestors_M: Tensor) -> State:
        return self.potential.fork(state, ancestors_M)

    def join(self, states: Sequence[State]) -> State:
        return self.potential.join(states)

    def release(self, state: State) -> None:
        self.potential.release(state)

    def mask(self, state: State) -> Tensor | None:
        return self.potential.mask(state)

    def next_logw(self, state: State) -> Tensor | None:
        logw_N_V = self.potential.next_logw(state)
        return None if logw_N_V is None else self._scaled(logw_N_V)

    def lookahead(self, state: State, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor | None:
        logw_N_B_V = self.potential.lookahead(state, tokens_N_T, lengths_N)
        return None if logw_N_B_V is None else self._scaled(logw_N_B_V)

    def admits(
        self, state: State, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> Sequence[bool]:
        return self.potential.admits(state, rows, tokens, ended)

    def token_logprobs(self, state: State) -> Tensor | None:
        return self.potential.token_logprobs(state)

    def _scaled(self, logw: Tensor) -> Tensor:
        scaled = self.power * logw
        if self.power < 0:  # what no token stands for stays impossible
            scaled = scaled.masked_fill(logw == -math.inf, -math.inf)
        return scaled
