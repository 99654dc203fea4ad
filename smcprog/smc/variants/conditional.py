"""Conditional SMC: a population in which particle 0 follows a given output.

Particle 0 takes the tokens of a *retained* output, each weighed with the density that it would
have been drawn with; resampling is multinomial, but that particle 0 is always its own ancestor;
everything else is as in any run. Drawing one of the final particles in proportion to its weight
is then a step of a Markov chain on outputs which leaves the target invariant, for two particles
or more (C. Andrieu, A. Doucet and R. Holenstein, "Particle Markov chain Monte Carlo methods",
JRSS B 72(3), 2010). Resampling only where ESS is low keeps that true, since ESS does not depend
on how the particles are numbered. Joint draws would not: particles must be independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from smcprog.potentials.product import Product
from smcprog.smc.draws import Draw, Draws, pick
from smcprog.smc.settings import Settings
from smcprog.smc.wave import Wave, WaveRequest

__all__ = ["ConditionalWave", "ForcedDraws"]


class ForcedDraws(Draws):
    """Draws in which some rows take given tokens.

    Parameters
    ----------
    inner : Draws or None
        The draws of the other rows; None where there are none.
    forced_M : Tensor, bool
    tokens_F_B : Tensor, int64
        Of the forced rows; without meaning after the end of an output.
    """

    by_rejection = False

    def __init__(self, inner: Draws | None, forced_M: Tensor, tokens_F_B: Tensor) -> None:
        self._inner = inner
        self._free = torch.nonzero(~forced_M).flatten()
        self._forced = torch.nonzero(forced_M).flatten()
        self._tokens_F_B = tokens_F_B

    def draw(self, logw_M_V: Tensor, position: int, rows: Tensor | None = None) -> Draw:
        """One token a row, and its density as if it had been drawn."""
        tokens_M = torch.zeros(len(logw_M_V), dtype=torch.int64, device=logw_M_V.device)
        tokens_M[self._forced] = self._tokens_F_B[:, position]
        log_total_M = logw_M_V.double().logsumexp(1)
        if self._inner is not None:
            drawn = self._inner.draw(logw_M_V[self._free], position)
            tokens_M[self._free] = drawn.tokens_M
            log_total_M[self._free] = drawn.log_total_M
        log_density_M = pick(logw_M_V, tokens_M).double() - log_total_M
        empty_M = log_total_M == -torch.inf
        return Draw(tokens_M, log_density_M.masked_fill(empty_M, -torch.inf), log_total_M)

    def took(self, tokens_M: Tensor, rows: Tensor | None = None) -> None:
        if self._inner is not None:
            self._inner.took(tokens_M[self._free])


class ConditionalWave(Wave):
    """A wave whose requests each have a retained output, which particle 0 follows.

    Parameters
    ----------
    retained : sequence of sequence of int
        One complete output a request, of positive weight: tokens with their EOS, if they end
        in one.
    others
        As for `Wave`.
    """

    def __init__(
        self,
        target: Product,
        requests: Sequence[WaveRequest],
        settings: Settings,
        truncate: bool,
        retained: Sequence[Sequence[int]],
        make_draws: Callable[..., Draws] = Draws,
    ) -> None:
        super().__init__(target, requests, settings, truncate, make_draws)
        # A block may reach beyond the end of the output.
        width = settings.max_tokens + settings.most_draft_tokens + 1
        self._retained_R_T = torch.zeros((len(retained), width), dtype=torch.int64)
        for r, tokens in enumerate(retained):
            self._retained_R_T[r, : len(tokens)] = torch.tensor(tokens)

    def draws(self, seeds_M: Tensor, particles_M: Tensor, positions: int, keys_M: Tensor) -> Draws:
        """As for `Wave`, of the running rows, particle 0 forced."""
        forced_M = particles_M == 0
        rows_F = self._live_M[forced_M]
        at_F_B = self.lengths_B[rows_F].unsqueeze(1) + torch.arange(positions)
        tokens_F_B = self._retained_R_T[rows_F // self.settings.particles].gather(1, at_F_B)
        inner = None
        if not bool(forced_M.all()):
            inner = super().draws(
                seeds_M[~forced_M], particles_M[~forced_M], positions, keys_M[~forced_M]
            )
        return ForcedDraws(inner, forced_M.to(self._device), tokens_F_B.to(self._device))

    def _ancestors(self, log_v_R_N: Tensor, need_R: Tensor) -> Tensor:
        ancestors_R_N = super()._ancestors(log_v_R_N, need_R)
        ancestors_R_N[:, 0] = 0
        return ancestors_R_N
