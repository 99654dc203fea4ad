"""One round as a program over tensors that stay where they are: what is captured and replayed.

It knows shapes and laws, and no request: what belongs to a wave is loaded into its tensors. A
round is a list of *pieces*. Without masks they run one after the other, as one launch; with masks
the host fills in a mask between them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.potentials.models.local import LocalDistribution
from smcprog.resampling import SCHEMES
from smcprog.smc.block import DEAD, RUNNING
from smcprog.smc.device.blocks import coupled, plain
from smcprog.smc.device.books import Books, Drafted, Rules, Uniforms
from smcprog.smc.device.form import Form
from smcprog.smc.device.law import Law
from smcprog.smc.device.rows import RowsOf
from smcprog.smc.device.state import FIELDS, RowState
from smcprog.smc.wave import ROUNDING

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["REPORT", "RoundProgram"]

REPORT = (*FIELDS, "ancestors", "active", "resampled")
"""What a round tells of every row, before it becomes another's copy; then come the B tokens of its
block, and their B log-probabilities: int64 [X, M], real numbers bit by bit."""


class RoundProgram:
    """Rounds of one form over a target and a draft.

    Parameters
    ----------
    target : LM
    draft : LM or None
    form : Form

    Attributes
    ----------
    state : RowState
    target, draft : RowsOf
    report_X_M : Tensor, int64
        Of the last round; see `REPORT`.
    mask_B_M_W : Tensor, int32, or None
        Packed masks of each position, for the host to fill.
    extra_M, extra_blame_M : Tensor
        What other factors' log ψ gained in the block, float64; and which of them killed a row,
        −1 for none.
    books : Books
        Of the last round but the first of all.
    pieces : list of callable
        A round, in order.
    """

    def __init__(self, target: LM, draft: LM | None, form: Form) -> None:
        self.form = form
        k, device = form.draft_tokens, target.device
        vocab = target.vocab
        self.state = RowState.empty(form.requests, form.particles, device)
        self.law = Law(target, form.local, form.power, vocab.size)
        self.target = RowsOf(target, form, form.pages, 1, [k + 1])
        self.draft: RowsOf | None = None
        if k:
            assert draft is not None
            cold = LocalDistribution(form.draft_temperature)
            self.draft_law = Law(draft, cold, 1.0, vocab.size)
            self.draft = RowsOf(draft, form, form.draft_pages, 2, [2, *[1] * (k - 1)])
        self.eos_V = torch.zeros(vocab.size, dtype=torch.bool, device=device)
        self.eos_V[list(vocab.eos_ids)] = True
        rows = form.rows
        told = len(REPORT) + 2 * form.width
        self.report_X_M = torch.zeros((told, rows), dtype=torch.int64, device=device)
        self.mask_B_M_W: Tensor | None = None
        if form.masked:
            words = -(-vocab.size // 32)
            self.mask_B_M_W = torch.full(
                (form.width, rows, words), -1, dtype=torch.int32, device=device
            )
        self.extra_M = torch.zeros(rows, dtype=torch.float64, device=device)
        self.extra_blame_M = torch.full((rows,), -1, dtype=torch.int64, device=device)
        self._rules = Rules(self.law, form.lead, self.eos_V, form.truncate, form.joint)
        self._first_R = torch.arange(form.requests, device=device).unsqueeze(1) * form.particles
        self._self_R_N = torch.arange(form.particles, device=device).expand(form.requests, -1)
        particles_M = self._self_R_N.reshape(-1)
        self._uniforms = Uniforms(particles_M, form.width, not form.fixed_steps)
        self._column_2 = torch.arange(2, device=device)
        self.books: Books
        self._drafted: Drafted | None = None
        self._logits: Tensor
        self.pieces = self._pieces()

    def _pieces(self) -> list[Callable[[], None]]:
        """The draft's first pass; K times a draw and the next pass, the last of them the target's.

        The last piece but one makes the block, the last one weighs it and resamples. A draw and the
        pass after it are two pieces, so that the host has the tokens while the pass runs. The mask
        of a position must be there before its draw; that of the last one, before the block is made.
        """
        k = self.form.draft_tokens
        if not k:
            return [self._begin_and_score, self._finish_block, self._settle]
        steps = [piece for i in range(k) for piece in (self._drawing(i), self._passing(i + 1))]
        return [self._begin, *steps, self._finish_block, self._settle]

    def play(self) -> None:
        """A whole round, where nothing comes from the host."""
        for piece in self.pieces:
            piece()

    def schedule(self, length_M: NDArray[np.int64]) -> None:
        """What kernels plan on the host for the next round, given the rows' lengths."""
        for rows in (self.target, self.draft):
            if rows is not None:
                rows.schedule(length_M, rows.shared_host_R)

    def part(self, request: int) -> RoundProgram:
        """One request of the program, for what is done to it alone: `first`, `settle`, its tensors.

        It shares the memory, and has no pieces.
        """
        n, twin = self.form.particles, copy.copy(self)
        rows = slice(request * n, (request + 1) * n)
        twin.form = dataclasses.replace(self.form, requests=1)
        twin.state = self.state.part(request)
        twin.target = self.target.part(request)
        twin.draft = None if self.draft is None else self.draft.part(request)
        twin.report_X_M = self.report_X_M[:, rows]
        twin.extra_M, twin.extra_blame_M = self.extra_M[rows], self.extra_blame_M[rows]
        if self.mask_B_M_W is not None:
            twin.mask_B_M_W = self.mask_B_M_W[:, rows]
        twin._first_R, twin._self_R_N = self._first_R[:1], self._self_R_N[:1]
        twin._uniforms = self._uniforms.part(rows)
        twin.pieces = []
        return twin

    def drafted_tokens(self, position: int) -> Tensor:
        """What every row drafted at a position of this round under a mask, [M]; −1 for nothing."""
        assert self._drafted is not None
        return self._drafted.told[position]

    def clear(self) -> None:
        """All rows become padding, and hold no page."""
        self.state.clear()
        for rows in (self.target, self.draft):
            if rows is not None:
                rows.clear()

    def forget(self) -> None:
        """Let go of what the last round made on its way; the next one makes its own."""
        self._drafted = None
        for name in ("books", "_logits"):
            self.__dict__.pop(name, None)

    # ------------------------------------------------------------------ pieces

    def new_books(self, width: int) -> Books:
        """Empty books of a block."""
        return Books(self._rules, self.state, self._uniforms, width)

    def _begin(self) -> None:
        self.books = self.new_books(self.form.width)
        self._drafted = Drafted(self.books, self.draft_law, not self.form.fixed_steps)
        self._draft_forward(0, self.state.recent_M_2)

    def _drawing(self, position: int) -> Callable[[], None]:
        def draw() -> None:
            assert self._drafted is not None
            self._drafted.draw(self._logits, self._mask(position))

        return draw

    def _passing(self, number: int) -> Callable[[], None]:
        def run() -> None:
            assert self._drafted is not None
            self._draft_forward(number, self._drafted.tokens[-1].unsqueeze(1))

        return self._score_drafted if number == self.form.draft_tokens else run

    def _draft_forward(self, number: int, ids_M_T: Tensor) -> None:
        assert self.draft is not None
        self._logits = self.draft.forward(number, ids_M_T, self.state.length_M, 1)[:, 0]

    def _score_drafted(self) -> None:
        assert self._drafted is not None
        last_M_1 = self.state.recent_M_2[:, 1:]
        self._score(torch.cat([last_M_1, torch.stack(self._drafted.tokens, dim=1)], dim=1))

    def _begin_and_score(self) -> None:
        self.books = self.new_books(1)
        self._drafted = None
        self._score(self.state.recent_M_2[:, 1:])

    def _score(self, ids_M_B: Tensor) -> None:
        self._logits = self.target.forward(0, ids_M_B, self.state.length_M, 0)

    def _finish_block(self) -> None:
        if self.form.fixed_steps:
            plain(self.books, self._drafted, self._logits, self._bonus_mask())
        else:
            assert self._drafted is not None
            coupled(self.books, self._drafted, self._logits, self.mask_B_M_W, self.form.coupling)

    def _mask(self, position: int) -> Tensor | None:
        return None if self.mask_B_M_W is None else self.mask_B_M_W[position]

    def _bonus_mask(self) -> Tensor | None:
        if self.mask_B_M_W is None:
            return None
        return self.mask_B_M_W[self.books.drafts_M, self.books.row_M]

    # ------------------------------------------------------------------ settle

    def first(self, logits_M_1_V: Tensor) -> Books:
        """The block of the first round: one token a row, after the prompts' own passes.

        Its books are its own: `books` are those that a captured round writes to.
        """
        books = self.new_books(1)
        plain(books, None, logits_M_1_V, self._mask(0))
        return books

    def _settle(self) -> None:
        self.settle(self.books)

    def settle(self, books: Books) -> None:
        """Book a block, weigh it, resample where ESS is low, and open the next one's pages."""
        form, state = self.form, self.state
        # The books stay as the block left them: the host reads them between two pieces.
        finish_M, blame_M = books.finish_M, books.blame_M
        if form.weighed:
            # Whatever the model made of tokens that came after.
            killed_M = books.active_M & (self.extra_blame_M >= 0)
            finish_M = finish_M.masked_fill(killed_M, DEAD)
            blame_M = torch.where(killed_M, self.extra_blame_M, blame_M)
        dead_M = finish_M == DEAD
        gained_M = books.log_psi_M + self.extra_M if form.weighed else books.log_psi_M
        delta_M = (gained_M - books.log_q_M).masked_fill(dead_M, -torch.inf)
        gamma_M = (state.log_gamma_M + gained_M).masked_fill(dead_M, -torch.inf)
        active_M = books.active_M
        state.log_w_M.copy_(torch.where(active_M, state.log_w_M + delta_M, state.log_w_M))
        state.log_gamma_M.copy_(torch.where(active_M, gamma_M, state.log_gamma_M))
        state.finish_M.copy_(finish_M)
        state.blame_M.copy_(blame_M)
        self._book(books)

        need_R_1, ancestors_M = self._resample(books.ancestor_u_M)
        self._tell(books, ancestors_M, need_R_1)
        state.fork(ancestors_M)
        log_w_R_N = state.log_w_M.view(need_R_1.shape[0], -1)
        log_w_R_N.masked_fill_(need_R_1, 0.0)
        state.round_R.add_(active_M.view_as(log_w_R_N).any(1))
        self.target.arena.open(ancestors_M, state.length_M)
        if self.draft is not None:
            self.draft.arena.open(ancestors_M, state.length_M)

    def _book(self, books: Books) -> None:
        """Tokens, lengths and keys of the rows, before any becomes another's copy."""
        state, grown_M = self.state, books.count_M
        state.keys_M.copy_(books.keys_M)
        if self.form.fixed_steps:
            grown_M = torch.minimum(books.drafts_M + 1, books.room_M.clamp(min=0))
        both = torch.cat([state.recent_M_2, books.tokens_M_B], dim=1)
        last_M_2 = grown_M.unsqueeze(1) + self._column_2
        state.recent_M_2.copy_(both.gather(1, last_M_2))
        state.length_M.add_(grown_M)
        state.out_M.add_(books.count_M)

    def _resample(self, u_M: Tensor) -> tuple[Tensor, Tensor]:
        """Which populations resample, [R, 1], and the row that each row continues, [M].

        They do that go on, are alive, and have a low ESS. As in `particles`, weights are taken
        relative to the largest.
        """
        form, state = self.form, self.state
        log_w_R_N = state.log_w_M.view(form.requests, form.particles)
        top_R_1 = log_w_R_N.amax(dim=1, keepdim=True)
        alive_R_1 = top_R_1 > -torch.inf
        w_R_N = (log_w_R_N - torch.where(alive_R_1, top_R_1, 0.0)).exp()
        total_R_1 = w_R_N.sum(dim=1, keepdim=True)
        ess_R_1 = total_R_1.square() / w_R_N.square().sum(dim=1, keepdim=True).clamp(min=1.0)
        low_R_1 = ess_R_1 < form.ess_threshold * form.particles * (1 - ROUNDING)
        running_R_N = state.finish_M.view_as(log_w_R_N) == RUNNING
        need_R_1 = running_R_N.any(dim=1, keepdim=True) & low_R_1 & alive_R_1
        drawn_R_N = SCHEMES[form.resampling](
            w_R_N / total_R_1.clamp(min=1.0), u_M.reshape(log_w_R_N.shape)
        )
        own_R_N = torch.where(need_R_1, drawn_R_N, self._self_R_N)
        return need_R_1, (own_R_N + self._first_R).view(-1)

    def _tell(self, books: Books, ancestors_M: Tensor, need_R_1: Tensor) -> None:
        report, width, begin = self.report_X_M, books.width, len(FIELDS)
        report[:begin].copy_(self.state.all_F_M)
        report[begin].copy_(ancestors_M)
        report[begin + 1].copy_(books.active_M)
        report[begin + 2].copy_(need_R_1.expand(-1, self.form.particles).reshape(-1))
        begin = len(REPORT)
        report[begin : begin + width].copy_(books.tokens_M_B.T)
        begin += self.form.width
        report[begin : begin + width].copy_(books.logp_M_B.view(torch.int64).T)
