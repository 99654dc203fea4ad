"""Resample–move: after each round, the last block of each particle is drawn anew.

A particle with prefix x and block b has weight exp(Δ) for the block, Δ = log γ(xb) − log γ(x)
− log q(b | x). A fresh block b' from the same x, drawn in the same way, has exp(Δ'). Accepting
b' in place of b with probability min(1, exp(Δ' − Δ)) is an independence sampler on the blocks of
x (Metropolis–Hastings with proposal q), which leaves the distribution with density γ(xb) over
prefixes and blocks unchanged. Copies of one ancestor so become different again. A particle keeps
its weight when it moves, whatever that is (1 after a resampling, 1/η for ancestors drawn by w·η):
E[Σ w f(x)] = γ(f) for every f implies E[Σ w (Kf)(x)] = γ(Kf) = γ(f), so E[Ẑ] = Z.

That takes a kernel K which does not depend on the blocks that it moves. Moving only where ESS is
low would: whether it is low depends on these very blocks, and Ẑ would be biased by O(1/N). So
would a K that leaves γ·η unchanged with an η tempered by their weights. Hence every round moves,
whether it resamples or not, and always for γ.

The argument needs no more than proper weights: where Δ is itself an estimate (tokens drawn by
rejection) or the block's length is random (coupled blocks), it holds on the larger space of all
that was drawn, where exp(Δ) is the ratio of two densities. Blocks that end the output move to
blocks that do not, and back; particles that finished in an earlier round stay as they are.

All moves of a round are proposed in one block, since the proposals do not depend on what is
accepted. W. R. Gilks and C. Berzuini, "Following a moving target", JRSS B 63(1), 2001.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.rng import STREAM_MOVE, uniforms
from smcprog.smc.block import DEAD, RUNNING, Progress
from smcprog.smc.strata import extend_keys
from smcprog.smc.variants.merging import merge
from smcprog.smc.variants.row_states import RowStates

if TYPE_CHECKING:
    from smcprog.smc.wave import Wave

__all__ = ["BlockMoves"]


@dataclasses.dataclass
class _Before:
    """The running rows as they were before the round's block."""

    live_M: Tensor
    lengths_M: Tensor
    keys_M: Tensor
    drafts_M: Tensor
    states: RowStates


class BlockMoves:
    """The moves of a wave; `Settings.moves` of them, or chains of `Settings.waste_free`."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._before: _Before | None = None

    def remember(self, drafts_M: Tensor) -> None:
        """Keep copies of all states before a block with K drafted tokens a row."""
        wave = self._wave
        live_M = wave._live_M
        lengths_M = wave.lengths_B[live_M]
        states = wave.states().select(wave, live_M, torch.arange(len(live_M)), lengths_M)
        keys_M = wave._keys_B[live_M]
        self._before = _Before(live_M, lengths_M, keys_M, drafts_M, states)

    def release(self) -> None:
        """Drop the copies."""
        if self._before is not None:
            self._before.states.release()
            self._before = None

    def play(self, ancestors_B: Tensor, delta_M: Tensor) -> None:
        """Move the rows that have just played, as they are after resampling.

        Parameters
        ----------
        ancestors_B : Tensor, int64
            The row that each row of the wave continues.
        delta_M : Tensor, float64
            Δ of the rows that played, numbered as before resampling.
        """
        try:
            self._play(ancestors_B, delta_M)
        finally:
            self.release()

    def _play(self, ancestors_B: Tensor, delta_M: Tensor) -> None:
        wave, before = self._wave, self._before
        assert before is not None
        s, record = wave.settings, wave.rounds[-1]
        rows = len(ancestors_B)
        place_B = torch.full((rows,), -1, dtype=torch.int64)
        place_B[before.live_M] = torch.arange(len(before.live_M))
        base_B = place_B[ancestors_B]
        moves_B = (base_B >= 0) & (wave.finish_B != DEAD)
        if s.first_tokens != "drawn" and len(wave.rounds) == 1:
            moves_B &= False  # those tokens were not drawn one by one
        if s.waste_free > 1:  # a chain moves as one, from its first row
            moves_B &= record.resampled_R.repeat_interleave(s.particles)
            moves_B &= torch.arange(rows) % s.particles % s.waste_free == 0
        heads_P = torch.nonzero(moves_B).flatten()
        if not len(heads_P):
            return
        base_P = base_B[heads_P]
        count = s.moves or s.waste_free - 1
        states, block = self._propose(before, heads_P, base_P, count)
        try:
            held_P_C = self._accept(block, delta_M[base_P], heads_P, count)
            self._adopt(before, states, block, heads_P, base_B, held_P_C)
        finally:
            states.release()

    def _propose(
        self, before: _Before, heads_P: Tensor, base_P: Tensor, count: int
    ) -> tuple[RowStates, Progress]:
        """`count` fresh blocks for each head, side by side, and the states after them."""
        wave = self._wave
        s = wave.settings
        rows_S, index_S = heads_P.repeat_interleave(count), base_P.repeat_interleave(count)
        number_S = torch.arange(count).repeat(len(heads_P))
        lengths_S = before.lengths_M[index_S]
        drafts_S = before.drafts_M[index_S]
        states = before.states.select(wave, rows_S, index_S, lengths_S)
        try:
            draws = wave.draws(
                wave._seeds_B[rows_S],
                rows_S % s.particles + s.particles * (1 + number_S),
                int(drafts_S.max()) + 1,
                # Proposals of one row must not be drawn jointly.
                extend_keys(before.keys_M[index_S], number_S),
            )
            room_S = wave._limit_B[rows_S] - lengths_S
            block = wave.block(states.factors, states.draft, states.stops, draws, drafts_S, room_S)
            wave.check_values(block.delta_M.cpu(), rows_S, states.factors)
            wave._drop_failed()
        except BaseException:
            states.release()
            raise
        return states, block

    def _accept(self, block: Progress, delta_P: Tensor, heads_P: Tensor, count: int) -> Tensor:
        """Which proposal each head holds after 0, 1, … moves, −1 for its own; [P, count + 1]."""
        score_P_C = block.delta_M.cpu().view(-1, count)
        held_P = torch.full_like(heads_P, -1)
        held = [held_P]
        for c in range(count):
            accepts_P = self._decide(score_P_C[:, c] - delta_P, heads_P, c)
            held_P = torch.where(accepts_P, c, held_P)
            delta_P = torch.where(accepts_P, score_P_C[:, c], delta_P)
            held.append(held_P)
        held_P_C = torch.stack(held, dim=1)
        self._count(heads_P, held_P_C)
        return held_P_C

    def _decide(self, log_chance_P: Tensor, heads_P: Tensor, move: int) -> Tensor:
        """Whether each head accepts, true with probability min(1, exp(log_chance))."""
        wave = self._wave
        seeds_P, particles_P = wave._seeds_B[heads_P], heads_P % wave.settings.particles
        u_P = uniforms(seeds_P, particles_P, wave.round_number, move, STREAM_MOVE)
        return u_P.log() < log_chance_P

    def _count(self, heads_P: Tensor, held_P_C: Tensor) -> None:
        """Note in the round's record how many moves there were, and how many were accepted."""
        wave = self._wave
        requests, owners_P = len(wave.requests), heads_P // wave.settings.particles
        tried_R = torch.bincount(owners_P, minlength=requests) * (held_P_C.shape[1] - 1)
        accepted_P = (held_P_C[:, 1:] != held_P_C[:, :-1]).sum(1)
        accepted_R = torch.zeros(requests, dtype=torch.int64).index_add(0, owners_P, accepted_P)
        wave.rounds[-1] = dataclasses.replace(
            wave.rounds[-1], moves_R=tried_R, accepted_R=accepted_R
        )

    def _adopt(
        self,
        before: _Before,
        states: RowStates,
        block: Progress,
        heads_P: Tensor,
        base_B: Tensor,
        held_P_C: Tensor,
    ) -> None:
        """Rows become what was accepted: books first, then states."""
        wave = self._wave
        count = held_P_C.shape[1] - 1
        if wave.settings.waste_free > 1:
            rows_S = (heads_P.unsqueeze(1) + torch.arange(count + 1)).flatten()
            held_S = held_P_C.flatten()
            first_S = (torch.arange(len(heads_P)) * count).repeat_interleave(count + 1)
        else:
            rows_S, held_S = heads_P, held_P_C[:, -1]
            first_S = torch.arange(len(heads_P)) * count
        took_S = (held_S >= 0) & (wave.finish_B[rows_S] != DEAD)  # a request may have failed
        rows_S, index_S = rows_S[took_S], (first_S + held_S)[took_S]
        if not len(rows_S):
            wave._keep_running(torch.arange(len(base_B)))
            return
        base_S = base_B[rows_S]
        wave.take_over(rows_S, block, index_S, before.lengths_M[base_S], before.keys_M[base_S])
        live_L = torch.nonzero(wave.finish_B == RUNNING).flatten()
        source_B = torch.full_like(base_B, -1)
        source_B[wave._live_M] = torch.arange(len(wave._live_M))
        own = len(wave.states().factors[0].log_psi_M)
        source_B[rows_S] = own + index_S
        source_L = source_B[live_L]
        if bool((source_L < own).all()):  # what was accepted has finished
            wave._keep_running(torch.arange(len(base_B)))
            return
        self._merge(before, states, live_L, source_L, base_B[live_L])

    def _merge(
        self, before: _Before, states: RowStates, live_L: Tensor, source_L: Tensor, base_L: Tensor
    ) -> None:
        """The wave's states become rows of its own and of the proposals'."""
        wave = self._wave
        mine = wave.states()
        at_L = before.lengths_M[base_L]
        lengths_L = wave.lengths_B[live_L] - at_L
        place_L_T = at_L.unsqueeze(1) + torch.arange(int(lengths_L.max()))
        place_L_T = place_L_T.clamp(max=wave.settings.max_tokens - 1)
        tokens_L_T = wave.tokens_B_T[live_L].gather(1, place_L_T)
        sizes_R = torch.bincount(
            live_L // wave.settings.particles, minlength=len(wave.requests)
        ).tolist()
        for factor, other, old in zip(
            mine.factors, states.factors, before.states.factors, strict=True
        ):
            merge(factor, other, source_L, sizes_R, old, base_L, tokens_L_T, lengths_L)
        if mine.draft is not None:
            assert states.draft is not None
            mine.draft.merge(states.draft, source_L)
        if mine.stops is not None:
            assert states.stops is not None
            mine.stops.merge(states.stops, source_L.tolist())
        wave._live_M = live_L
