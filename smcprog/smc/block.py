"""One round's block for some running rows: draft K tokens, score them, draw the bonus.

The weight of a block is what the target gained over what was really drawn,

    Δ log w = Σ_j [log ψ_j(new) − log ψ_j(old)] − Σ_i log q̃(b_i) − log r(b_{K+1}),

with q̃ the draft's density under the mask and r(v) ∝ Π_j ψ_j(xv)/ψ_j(x) · m(v) over the
LM-like factors j, normalised by Z̃. For one language model, log ψ's share of the bonus
and log r cancel to log Z̃. Everything after the first EOS, stop string or death in the
block is cut: it is neither scored nor charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smcprog.potentials.bitmask import restrict
from smcprog.smc.draft import AnyDraft
from smcprog.smc.draws import Draw, Draws
from smcprog.smc.factors import Factor
from smcprog.smc.rejection import draw_by_rejection
from smcprog.smc.stops import StopStrings

__all__ = ["DEAD", "EOS", "FINISH_REASONS", "LENGTH", "RUNNING", "STOP", "Block", "Progress"]

RUNNING, EOS, STOP, LENGTH, DEAD = range(5)
FINISH_REASONS = {EOS: "eos", STOP: "stop", LENGTH: "length", DEAD: "dead"}


class Progress:
    """What some running rows take in one round, and what it does to their weights.

    The base of the two kinds of block; it keeps the books and knows nothing of drafts.

    Parameters
    ----------
    factors : sequence of Factor
        `factors[lead]` is the target model, whose log-probabilities are reported.
    lead : int
    draws : Draws
    stops : StopStrings or None
    eos_V : Tensor, bool, [V]
    width : int
        B, the most tokens a row can take.
    room_M : Tensor, int64
        Tokens left to each row until `max_tokens`, at least 1. On the host.
    truncate : bool
        Whether a row may end at `max_tokens` without EOS.

    Attributes
    ----------
    factors : sequence of Factor
    tokens_M_B : Tensor, int64
        The block; only the first `lengths_M` of a row are real.
    logp_M_B : Tensor, float64
        Log-probabilities of the tokens under the lead model.
    finish_M : Tensor, int8
        RUNNING, EOS, STOP, LENGTH or DEAD.
    delta_M : Tensor, float64
        Increment of the log-weight; −∞ where dead.
    log_gamma_M : Tensor, float64
        log γ of the rows after the block.
    blame_M : Tensor, int64
        Number of the factor that killed a dead row; −1 where no token had any weight.
    """

    #: Whether factors that can are asked about each token before it is taken.
    by_rejection = False

    def __init__(
        self,
        factors: Sequence[Factor],
        lead: int,
        draws: Draws,
        stops: StopStrings | None,
        eos_V: Tensor,
        width: int,
        room_M: Tensor,
        truncate: bool,
    ) -> None:
        self.factors = self._factors = factors
        self._lead = lead
        self._draws = draws
        self._stops = stops
        self._eos_V = eos_V
        self._room_M = room_M
        self._truncate = truncate
        rows = factors[0].log_psi_M.shape[0]
        device = eos_V.device
        self.tokens_M_B = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self.logp_M_B = torch.zeros((rows, width), dtype=torch.float64, device=device)
        self.lengths_M = torch.zeros(rows, dtype=torch.int64, device=device)
        self.finish_M = torch.full((rows,), RUNNING, dtype=torch.int8, device=device)
        self.blame_M = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._log_q_M = torch.zeros(rows, dtype=torch.float64, device=device)
        self._old_F_M = [f.log_psi_M for f in factors]
        # A factor with a mask or a check must follow every token; a model scores the drafts in one
        # pass; the rest see the whole block once.
        self._checks = [(i, f) for i, f in enumerate(factors) if f.rejects and self.by_rejection]
        asked = [f for _, f in self._checks]
        self._eos_ids: frozenset[int] = frozenset()
        if asked:
            self._eos_ids = frozenset(torch.nonzero(eos_V).flatten().tolist())
        self._stepwise = [f for f in factors if f.masks or f in asked]
        self._scored = [f for f in factors if f.lm_like and f not in self._stepwise]
        self._rest = [f for f in factors if not f.lm_like and f not in self._stepwise]

    def _book(self, tokens_M: Tensor, took_M: Tensor, position: int) -> None:
        """Rows take one token each, and end where it ends them."""
        self.tokens_M_B[:, position] = torch.where(took_M, tokens_M, 0)
        self.lengths_M = self.lengths_M + took_M  # factors may keep the old one
        full_M = took_M & (self._room_M == position + 1).to(took_M.device)
        self.finish_M = self.finish_M.masked_fill(full_M, LENGTH)
        if self._stops is not None:
            hit = self._stops.take(tokens_M.tolist(), took_M.tolist())
            hit_M = torch.tensor(hit, device=took_M.device)
            self.finish_M = self.finish_M.masked_fill(hit_M, STOP)
        self.finish_M = self.finish_M.masked_fill(took_M & self._eos_V[tokens_M], EOS)

    def _only_eos(self, position: int, rows: Tensor | None = None) -> Tensor | None:
        """Mask of rows that must end now, [M, V], or None where no row must."""
        room_M = self._room_M if rows is None else self._room_M[rows.cpu()]
        must_M = room_M == position + 1
        if self._truncate or not bool(must_M.any()):
            return None
        return self._eos_V | ~must_M.to(self._eos_V.device).unsqueeze(1)

    def _would_end(self, rows: Sequence[int], tokens: Sequence[int], position: int) -> list[bool]:
        """Whether each of some rows would be complete with its token."""
        room, eos = self._room_M.tolist(), self._eos_ids
        ended = [t in eos or room[r] == position + 1 for r, t in zip(rows, tokens, strict=True)]
        if self._stops is not None:
            hits = self._stops.hits(rows, tokens)
            ended = [e or h for e, h in zip(ended, hits, strict=True)]
        return ended

    def _advance(self, factor: Factor, tokens_M_T: Tensor, lengths_M: Tensor) -> None:
        """Move a factor; rows that took nothing keep their value, rows at zero are dead."""
        # The dead are past caring: a factor must not be asked about their half-made outputs.
        alive_M = self.finish_M != DEAD
        lengths_M = lengths_M * alive_M
        value_M = factor.advance(tokens_M_T, lengths_M, alive_M & (self.finish_M != RUNNING))
        factor.log_psi_M = torch.where(lengths_M > 0, value_M, factor.log_psi_M)
        killed_M = (factor.log_psi_M == -math.inf) & alive_M
        self.finish_M = self.finish_M.masked_fill(killed_M, DEAD)
        self.blame_M = self.blame_M.masked_fill(killed_M, self._factors.index(factor))

    def _weigh(self) -> None:
        self.log_gamma_M = torch.stack([f.log_psi_M for f in self._factors]).sum(0)
        old_M = torch.stack(self._old_F_M).sum(0)
        dead_M = self.finish_M == DEAD
        delta_M = self.log_gamma_M - old_M - self._log_q_M
        self.delta_M = delta_M.masked_fill(dead_M, -math.inf)
        self.log_gamma_M = self.log_gamma_M.masked_fill(dead_M, -math.inf)


def allowed_by(factors: Sequence[Factor], size: int) -> Tensor | None:
    """Conjunction of the factors' masks, bool [M, V], or None where none has a say."""
    mask_M_V: Tensor | None = None
    for factor in factors:
        allowed_M_V = factor.allowed(size)
        if allowed_M_V is not None:
            mask_M_V = allowed_M_V if mask_M_V is None else mask_M_V & allowed_M_V
    return mask_M_V


class Block(Progress):
    """Propose and weigh K + 1 tokens for M rows that all have the same room.

    Parameters
    ----------
    draft : AnyDraft or None
        Needed for `draft_tokens` › 0.
    draft_tokens : int
        K of this round; less than every row's room.
    others
        As for `Progress`.
    """

    by_rejection = True

    def __init__(
        self,
        factors: Sequence[Factor],
        lead: int,
        draft: AnyDraft | None,
        draws: Draws,
        stops: StopStrings | None,
        eos_V: Tensor,
        draft_tokens: int,
        room_M: Tensor,
        truncate: bool,
    ) -> None:
        super().__init__(factors, lead, draws, stops, eos_V, draft_tokens + 1, room_M, truncate)
        self._draft = draft
        for position in range(draft_tokens):
            self._draft_token(position)
        if draft_tokens:
            self._score_drafts(draft_tokens)
        self._bonus_token(draft_tokens)
        for factor in self._rest:
            self._advance(factor, self.tokens_M_B, self.lengths_M)
        self._weigh()

    def _draft_token(self, position: int) -> None:
        assert self._draft is not None
        logq_M_V = self._draft.log_probs()
        drawn = self._draw(logq_M_V, allowed_by(self._stepwise, logq_M_V.shape[1]), position)
        stepped_M = self._take(drawn, position)
        self._draft.append(drawn.tokens_M)
        self._step(self._stepwise, position, stepped_M)

    def _score_drafts(self, count: int) -> None:
        drafted_M_K = self.tokens_M_B[:, :count]
        for factor in self._scored:
            self._advance(factor, drafted_M_K, self.lengths_M)
        logp_M_K = self._factors[self._lead].token_logprobs()
        if logp_M_K is not None:
            self.logp_M_B[:, :count] = logp_M_K

    def _bonus_token(self, position: int) -> None:
        size = self._eos_V.shape[0]
        logw_M_V = self._lm_logw(size)
        mask_M_V = allowed_by(self._stepwise, size)
        last_V = self._only_eos(position)
        if last_V is not None:
            mask_M_V = last_V if mask_M_V is None else mask_M_V & last_V
        drawn = self._draw(logw_M_V, mask_M_V, position)
        stepped_M = self._take(drawn, position)
        if self._draft is not None:
            self._draft.append(drawn.tokens_M)
        self._step(self._stepwise + self._scored, position, stepped_M)
        logp_M_1 = self._factors[self._lead].token_logprobs()
        if logp_M_1 is not None:
            self.logp_M_B[:, position] = torch.where(stepped_M, logp_M_1[:, -1], 0.0)

    def _lm_logw(self, size: int) -> Tensor:
        parts = [f.next_logw(size) for f in self._factors if f.lm_like]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _draw(self, logw_M_V: Tensor, mask_M_V: Tensor | None, position: int) -> Draw:
        if mask_M_V is not None:
            logw_M_V = restrict(logw_M_V, mask_M_V)
        drawn = self._draws.draw(logw_M_V, position)
        if not self._checks:
            return drawn
        return draw_by_rejection(
            self._draws,
            logw_M_V,
            drawn,
            position,
            self.finish_M == RUNNING,
            self._checks,
            lambda rows, tokens: self._would_end(rows, tokens, position),
        )

    def _take(self, drawn: Draw, position: int) -> Tensor:
        """Book one drawn token of the running rows; which rows took it."""
        empty_M = (self.finish_M == RUNNING) & (drawn.log_total_M == -math.inf)
        self.finish_M = self.finish_M.masked_fill(empty_M, DEAD)
        took_M = self.finish_M == RUNNING
        self._log_q_M += torch.where(took_M, drawn.log_density_M, 0.0)
        self._book(drawn.tokens_M, took_M, position)
        if drawn.refused_by_M is not None:  # the last candidate stands for all that were refused
            refused_M = took_M & (drawn.refused_by_M >= 0)
            self.finish_M = self.finish_M.masked_fill(refused_M, DEAD)
            self.blame_M = torch.where(refused_M, drawn.refused_by_M, self.blame_M)
        self._draws.took(drawn.tokens_M)
        return took_M

    def _step(self, factors: Sequence[Factor], position: int, took_M: Tensor) -> None:
        token_M_1 = self.tokens_M_B[:, position : position + 1]
        for factor in factors:
            self._advance(factor, token_M_1, took_M.long())
