"""What rows of fixed shape draw and take in one round, as tensors.

Rows that have ended go on as if they had not, and what they do is not booked. What differs by
row (how many tokens are drafted, where a coupling ends the block) is a tensor, never a shape.
Uniforms and joint draws are those of `Draws`, so that the tokens are. Operations are few where
they come once a token: on a small batch each one costs as much as what it computes.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from smcprog.potentials.bitmask import restrict, unpack_words
from smcprog.rng import STREAM_ACCEPT, STREAM_REDRAW, STREAM_RESAMPLE, STREAM_TOKEN, uniforms
from smcprog.smc.block import DEAD, EOS, LENGTH, RUNNING
from smcprog.smc.device.law import Law
from smcprog.smc.device.state import RowState
from smcprog.smc.draws import Draw, categorical, drawn
from smcprog.smc.strata import extend_keys, spread

__all__ = ["Books", "Drafted", "Rules", "Uniforms", "masked"]

MOST_PAIRS = 256
"""Up to so many particles, rows of one history are found by comparing all pairs."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """What holds in every round of a program.

    Attributes
    ----------
    law : Law
        Of the target's model.
    lead : int
        Its number among the factors.
    eos_V : Tensor, bool
    truncate, joint : bool
        As in the settings.
    """

    law: Law
    lead: int
    eos_V: Tensor
    truncate: bool
    joint: bool


class Uniforms:
    """All random numbers of a round, made at once: the coordinates of each, for M rows.

    Parameters
    ----------
    particles_M : Tensor, int64
    width : int
        B, positions of a block.
    coupled : bool
        Whether drafted tokens are accepted and drawn anew.
    """

    def __init__(self, particles_M: Tensor, width: int, coupled: bool) -> None:
        device = particles_M.device
        streams = [STREAM_TOKEN, *([STREAM_ACCEPT, STREAM_REDRAW] if coupled else [])]
        self._width = width
        at_X = torch.arange(width, device=device).repeat(len(streams))
        stream_X = torch.tensor(streams, device=device).repeat_interleave(width)
        # The last column draws ancestors: one number a particle, which is its position there.
        one_M = particles_M.unsqueeze(1)
        self.particles_M_X = torch.cat([one_M.expand(-1, len(at_X)), one_M * 0], dim=1)
        at_M_X = torch.cat([at_X.expand(len(particles_M), -1), one_M], dim=1)
        self.positions_M_X_1 = at_M_X.unsqueeze(2)
        resample = torch.full((1,), STREAM_RESAMPLE, device=device)
        self.stream_X_1 = torch.cat([stream_X, resample]).unsqueeze(1)

    def part(self, rows: slice) -> Uniforms:
        """Those of some rows."""
        twin = object.__new__(Uniforms)
        twin._width = self._width
        twin.particles_M_X = self.particles_M_X[rows]
        twin.positions_M_X_1 = self.positions_M_X_1[rows]
        twin.stream_X_1 = self.stream_X_1
        return twin

    def draw(self, seeds_M: Tensor, round_M: Tensor) -> tuple[Tensor, ...]:
        """For tokens (and acceptance, and redraws), each [M, B]; the last for ancestors, [M]."""
        shape = self.particles_M_X.shape
        u_M_X = uniforms(
            seeds_M.unsqueeze(1).expand(shape),
            self.particles_M_X,
            round_M.unsqueeze(1).expand(shape),
            self.positions_M_X_1,
            self.stream_X_1,
        ).squeeze(2)
        return (*u_M_X[:, :-1].split(self._width, dim=1), u_M_X[:, -1])


def masked(logw_M_V: Tensor, mask_M_W: Tensor | None) -> Tensor:
    """Log-weights under a packed mask, if there is one."""
    if mask_M_W is None:
        return logw_M_V
    return restrict(logw_M_V, unpack_words(mask_M_W)[:, : logw_M_V.shape[1]])


class Books:
    """What rows take in one round, as it is found.

    Parameters
    ----------
    rules : Rules
    state : RowState
        Read only, here.
    uniforms : Uniforms
    width : int
        B = K + 1.

    Attributes
    ----------
    drafts_M : Tensor, int64
        Tokens to draft: K, or what is left to a row but one.
    tokens_M_B, logp_M_B, count_M, finish_M, blame_M, log_q_M, log_psi_M, keys_M : Tensor
        Tokens and their local log p; how many are real; how and by whom rows ended; the log-density
        of what was drawn; what log ψ of the target's model gained; keys of the histories, which
        mean nothing where a row has ended.
    """

    def __init__(self, rules: Rules, state: RowState, uniforms: Uniforms, width: int) -> None:
        self.rules = rules
        self.width = width
        self.active_M = state.finish_M == RUNNING
        self.room_M = state.limit_M - state.length_M
        self.drafts_M = (self.room_M - 1).clamp(min=0, max=width - 1)
        rows, device = len(self.room_M), rules.eos_V.device
        self.row_M = torch.arange(rows, device=device)
        # A row that has ended draws for itself: it must not move the draws of others.
        self.own_keys_M = -1 - self.row_M
        self.keys_M = torch.where(self.active_M, state.keys_M, self.own_keys_M)
        self._particles = rows // len(state.round_R)
        round_M = state.round_R.repeat_interleave(self._particles, output_size=rows)
        self.u_M_B, *others, self.ancestor_u_M = uniforms.draw(state.seeds_M, round_M)
        #: For acceptance and for redraws, [M, B] both, where there are such.
        self.trial_u = others
        self.at_B = torch.arange(width, device=device)
        self.tokens_M_B = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self.logp_M_B = torch.zeros((rows, width), dtype=torch.float64, device=device)
        self.count_M = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finish_M = state.finish_M.clone()
        self.blame_M = state.blame_M.clone()
        self.log_q_M = torch.zeros(rows, dtype=torch.float64, device=device)
        self.log_psi_M = torch.zeros(rows, dtype=torch.float64, device=device)

    def draw(self, logw_M_V: Tensor, u_M: Tensor, keys_M: Tensor) -> Draw:
        """One token a row; rows of one request with equal keys draw jointly."""
        if self.rules.joint and self._particles > 1:
            u_M = self._joint(u_M, keys_M)
        return drawn(logw_M_V, lambda weights_M_V: categorical(weights_M_V, u_M))

    def _joint(self, u_M: Tensor, keys_M: Tensor) -> Tensor:
        """`strata.spread` within each request."""
        n = self._particles
        if n > MOST_PAIRS:  # requests that know nothing of each other do not draw jointly
            return spread(u_M, extend_keys(keys_M, self.row_M // n))
        keys_R_N, u_R_N = keys_M.view(-1, n), u_M.reshape(-1, n)
        same_R_N_N = keys_R_N.unsqueeze(2) == keys_R_N.unsqueeze(1)
        first_R_N = same_R_N_N.to(torch.int8).argmax(2)
        earlier_R_N = same_R_N_N.tril(-1).sum(2)
        share_R_N = earlier_R_N.double() / same_R_N_N.sum(2)
        return torch.remainder(u_R_N.gather(1, first_R_N) + share_R_N, 1.0).view(-1)

    def die(self, dead_M: Tensor, blame: int) -> None:
        """Rows end without weight."""
        dead_M = dead_M & (self.finish_M != DEAD) & self.active_M
        self.finish_M = self.finish_M.masked_fill(dead_M, DEAD)
        self.blame_M = self.blame_M.masked_fill(dead_M, blame)

    def take(self, tokens_M: Tensor, took_M: Tensor, position: int | Tensor) -> None:
        """Rows take a token at their `position`, and end where it ends them."""
        at_M_1 = torch.zeros_like(self.count_M).unsqueeze(1)
        at_M_1 = at_M_1 + (position.unsqueeze(1) if isinstance(position, Tensor) else position)
        place_M_B = (self.at_B == at_M_1) & took_M.unsqueeze(1)
        self.tokens_M_B = torch.where(place_M_B, tokens_M.unsqueeze(1), self.tokens_M_B)
        self.count_M = self.count_M + took_M
        full_M = took_M & (self.room_M == at_M_1.squeeze(1) + 1)
        self.finish_M = self.finish_M.masked_fill(full_M, LENGTH)
        self.finish_M = self.finish_M.masked_fill(took_M & self.rules.eos_V[tokens_M], EOS)

    def only_eos(self, logw_M_V: Tensor, position: int | Tensor) -> Tensor:
        """What is left where a row must end with its next token."""
        if self.rules.truncate:
            return logw_M_V
        must_M = self.room_M == position + 1
        return restrict(logw_M_V, self.rules.eos_V | ~must_M.unsqueeze(1))

    def weigh(self, logits_M_C_V: Tensor, took_M_C: Tensor) -> None:
        """Book log p of the tokens of the first C positions, given logits at each."""
        law, width = self.rules.law, logits_M_C_V.shape[1]
        logp_M_C = law.log_prob_of(logits_M_C_V, self.tokens_M_B[:, :width])
        logp_M_C = torch.where(took_M_C, logp_M_C, 0.0)
        self.logp_M_B = torch.cat([logp_M_C, self.logp_M_B[:, width:]], dim=1)
        self.log_psi_M = self.log_psi_M + law.raised(logp_M_C).sum(1)
        self.die(self.log_psi_M == -math.inf, self.rules.lead)


class Drafted:
    """The drafted tokens of a block, drawn one position after the other.

    With a finite coupling they are on trial: a row stops where its draft ends or finds nothing,
    and their densities are kept. Without, `book` books them all.
    """

    def __init__(self, books: Books, law: Law, trial: bool) -> None:
        self.books = books
        self.law = law
        self.trial = trial
        self.on_M = books.active_M
        self.keys_M = books.keys_M
        self.count_M = torch.zeros_like(books.count_M)
        self.ended_M = torch.zeros_like(books.active_M)
        self.tokens: list[Tensor] = []
        self.told: list[Tensor] = []  # to those who make masks: −1 where nothing could be drawn
        self.densities: list[Tensor] = []
        self.logq: list[Tensor] = []
        self.total: list[Tensor] = []

    def draw(self, logits_M_V: Tensor, mask_M_W: Tensor | None) -> Tensor:
        """The next drafted token of every row, [M], given the draft's logits."""
        books, position = self.books, len(self.tokens)
        logq_M_V = masked(self.law.log_probs(logits_M_V), mask_M_W)
        u_M, on_M = books.u_M_B[:, position], self.on_M & (books.drafts_M > position)
        # Rows that draft no more draw for themselves.
        keys_M = torch.where(on_M, self.keys_M, books.own_keys_M) if self.trial else self.keys_M
        found = books.draw(logq_M_V, u_M, keys_M)
        self.tokens.append(found.tokens_M)
        self.total.append(found.log_total_M)
        # Nothing is offered by a draft that says NaN: on trial it can do no harm.
        some_M = found.log_total_M > -math.inf
        if mask_M_W is not None:
            nothing_M = ~some_M if self.trial else found.log_total_M == -math.inf
            self.told.append(torch.where(nothing_M, -1, found.tokens_M))
        if self.trial:
            self.logq.append(logq_M_V)
            on_M = on_M & some_M
            self.count_M = self.count_M + on_M
            ended_M = on_M & books.rules.eos_V[found.tokens_M]
            self.ended_M = self.ended_M | ended_M
            self.on_M = on_M & ~ended_M
        else:
            self.densities.append(found.log_density_M)
        self.keys_M = torch.where(on_M, extend_keys(self.keys_M, found.tokens_M), self.keys_M)
        return found.tokens_M

    def book(self) -> None:
        """Book what was drafted, up to where a row ended or found no token."""
        books = self.books
        tokens_M_K, total_M_K = torch.stack(self.tokens, dim=1), torch.stack(self.total, dim=1)
        on_M_K = books.active_M.unsqueeze(1) & (books.at_B[:-1] < books.drafts_M.unsqueeze(1))
        eos_M_K, empty_M_K = books.rules.eos_V[tokens_M_K], total_M_K == -math.inf
        stops_M_K = (eos_M_K | empty_M_K).long()
        on_M_K = on_M_K & (stops_M_K.cumsum(1) == stops_M_K)  # nothing stopped it before
        took_M_K = on_M_K & ~empty_M_K
        books.die((on_M_K & empty_M_K).any(1), -1)
        log_q_M_K = torch.where(took_M_K, torch.stack(self.densities, dim=1), 0.0)
        books.log_q_M = books.log_q_M + log_q_M_K.sum(1)
        books.count_M = took_M_K.sum(1)
        books.finish_M = books.finish_M.masked_fill((took_M_K & eos_M_K).any(1), EOS)
        tokens_M_K = torch.where(took_M_K, tokens_M_K, 0)
        books.tokens_M_B = torch.cat([tokens_M_K, books.tokens_M_B[:, -1:]], dim=1)
