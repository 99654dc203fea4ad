"""Lookahead: before a resampling, short rollouts tell which particles have a future.

From copies of each running row, R rollouts of up to L tokens are drawn as the run itself would
draw them: without a draft token by token from the target's local distribution (all models and
masks in), with one as a block of L − 1 drafted tokens and one of the target, uncoupled. Each
comes with the weight exp(Δ) that those tokens would add; η̂ = mean exp(Δ) estimates what the
next tokens will do to the row's weight. Ancestors are drawn in proportion to w·η, and weigh
1/η afterwards, so E[Ẑ] = Z whatever the rollouts say (an auxiliary particle filter, Pitt and
Shephard, JASA 94, 1999, with η estimated).

Few rollouts are a noisy estimate, and weights 1/η̂ would carry that noise. So η̂ is drawn towards
its mean over the population's running rows by the share of its spread that the spread between
rollouts of one row explains (empirical Bayes), and is at least a twentieth of that mean, for a row
whose rollouts all die may live. Finished rows have η = 1. The rollouts are thrown away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.smc.block import RUNNING
from smcprog.smc.strata import extend_keys
from smcprog.smc.variants.row_states import RowStates

if TYPE_CHECKING:
    from smcprog.smc.wave import Wave

__all__ = ["Lookahead"]

LEAST_SHARE = 0.05


def shrunk(log_gains_P_C: Tensor, owners_P: Tensor, requests: int) -> Tensor:
    """log η of rows with C rollouts each, finite, [P].

    Parameters
    ----------
    log_gains_P_C : Tensor, float64
        Δ; −∞ where a rollout died. C is at least 2.
    owners_P : Tensor, int64
        Request of each row.
    requests : int
    """

    def mean_over_rows(values_P: Tensor) -> Tensor:
        return torch.zeros(requests, dtype=torch.float64).index_add(0, owners_P, values_P) / rows_R

    rows_R = torch.bincount(owners_P, minlength=requests).clamp(min=1)
    top_R = torch.full((requests,), -torch.inf, dtype=torch.float64).scatter_reduce(
        0, owners_P, log_gains_P_C.amax(1), "amax"
    )
    top_R = top_R.masked_fill(top_R == -torch.inf, 0.0)
    gains_P_C = (log_gains_P_C - top_R[owners_P].unsqueeze(1)).exp()
    eta_P = gains_P_C.mean(1)
    mean_R = mean_over_rows(eta_P)
    off_P = eta_P - mean_R[owners_P]
    noise_R = mean_over_rows(gains_P_C.var(1)) / gains_P_C.shape[1]
    spread_R = mean_over_rows(off_P.square()) * rows_R / (rows_R - 1).clamp(min=1)
    kept_R = (1 - noise_R / spread_R.clamp(min=1e-300)).clamp(min=0)
    eta_P = mean_R[owners_P] + kept_R[owners_P] * off_P
    eta_P = torch.maximum(eta_P, LEAST_SHARE * mean_R[owners_P])
    # Where every rollout of every row died, they tell nothing.
    return torch.where(eta_P > 0, eta_P.log() + top_R[owners_P], 0.0)


class Lookahead:
    """Rollouts of a wave: `Settings.rollouts` of `Settings.lookahead` tokens a row."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave

    def log_eta(self, need_R: Tensor) -> tuple[Tensor, Tensor]:
        """The requests that resample, and log η of every particle, [R, N]."""
        wave = self._wave
        r, n = wave.log_w_R_N.shape
        log_eta_R_N = torch.zeros((r, n), dtype=torch.float64)
        rows_M = wave._live_M  # as before the round's block; some have finished since
        running_M = (wave.finish_B[rows_M] == RUNNING) & need_R[rows_M // n]
        if bool(running_M.any()):
            index_P = torch.nonzero(running_M).flatten()
            rows_P = rows_M[index_P]
            gains_P_C = self._gains(index_P, rows_P)
            log_eta_R_N.view(-1)[rows_P] = shrunk(gains_P_C, rows_P // n, r)
        return need_R, log_eta_R_N

    def _gains(self, index_P: Tensor, rows_P: Tensor) -> Tensor:
        """Δ of each rollout of some rows, [P, C]."""
        wave = self._wave
        drafts_P = torch.zeros_like(rows_P)
        if wave.states().draft is not None:
            room_P = wave._limit_B[rows_P] - wave.lengths_B[rows_P]
            drafts_P = room_P.clamp(max=wave.settings.lookahead) - 1
        gains_P_C = torch.zeros((len(rows_P), wave.settings.rollouts), dtype=torch.float64)
        # Near the limit rows draft less; how many depends on the row alone, not on its company.
        for drafts in drafts_P.unique().tolist():
            of = torch.nonzero(drafts_P == drafts).flatten()
            gains_P_C[of] = self._gains_of(index_P[of], rows_P[of], drafts)
        return gains_P_C

    def _gains_of(self, index_P: Tensor, rows_P: Tensor, drafts: int) -> Tensor:
        """The same, of rows that draft alike."""
        wave = self._wave
        count = wave.settings.rollouts
        rows_S, index_S = rows_P.repeat_interleave(count), index_P.repeat_interleave(count)
        states = wave.states().select(wave, rows_S, index_S, wave.lengths_B[rows_S])
        try:
            delta_S = self._roll(states, rows_S, torch.arange(count).repeat(len(rows_P)), drafts)
        finally:
            states.release()
        return delta_S.view(-1, count)

    def _roll(self, states: RowStates, rows_S: Tensor, number_S: Tensor, drafts: int) -> Tensor:
        """Δ of one rollout a row, [S]; `states` are used up."""
        wave = self._wave
        s = wave.settings
        delta_S = torch.zeros(len(rows_S), dtype=torch.float64)
        keys_S = extend_keys(wave._keys_B[rows_S], number_S)  # rollouts of one row are independent
        on_S = torch.arange(len(rows_S))
        for step in range(s.lookahead if states.draft is None else 1):
            room_S = wave._limit_B[rows_S[on_S]] - wave.lengths_B[rows_S[on_S]] - step
            draws = wave.draws(
                wave._seeds_B[rows_S[on_S]],
                rows_S[on_S] % s.particles + s.particles * (1 + step * s.rollouts + number_S[on_S]),
                drafts + 1,
                keys_S[on_S],
            )
            block = wave.block(
                states.factors, states.draft, states.stops, draws,
                torch.full_like(room_S, drafts), room_S, coupled=False,
            )  # fmt: skip
            gained_S = block.delta_M.cpu()
            wave.check_values(gained_S, rows_S[on_S], states.factors)
            delta_S[on_S] += gained_S
            keys_S[on_S] = extend_keys(keys_S[on_S], block.tokens_M_B.cpu()[:, 0])
            goes_on_S = block.finish_M.cpu() == RUNNING
            left = torch.nonzero(goes_on_S).flatten()
            on_S = on_S[left]
            if not len(on_S):
                break
            if len(left) < len(goes_on_S):
                states.keep(wave, rows_S[on_S], left)
        wave._drop_failed()
        return delta_S
