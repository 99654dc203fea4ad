"""Rounds of our engine for contexts that somebody else keeps, weighs and resamples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.target import Target
from smcprog.smc.block import DEAD, RUNNING, Block
from smcprog.smc.draft import Draft
from smcprog.smc.draws import Draws
from smcprog.smc.factors import Factor, StartGroup

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["ROOM", "Rounds", "Tokens", "Unit", "gain_of_eos"]

Tokens = tuple[int, ...]
ROOM = 1 << 30  # how long an output may get is for others to say


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one context takes in a round.

    Attributes
    ----------
    tokens : tuple of int
        EOS included, if it came.
    log_w : float
        What the target gained, less the log-density of the draw; −∞ where dead.
    log_q : float
        Log-density of the draw.
    """

    tokens: Tokens
    log_w: float
    log_q: float


class Rounds:
    """Blocks of K drafted tokens and one bonus token for contexts after one prompt.

    The states of the last round's contexts are kept: contexts that continue them are copies
    of rows (a fork), any other is run anew.

    Parameters
    ----------
    model : Target
        Draws the last token of each block, and scores the drafts.
    factors : sequence of Potential
        What else the target has.
    prompt : sequence of int
    draft : LM, optional
        Without it, a unit is one token.
    draft_tokens : int
    draft_temperature : float, optional
    seed : int
    make_draws : callable, optional
        In place of `Draws`, for tests that enumerate every draw.
    """

    def __init__(
        self,
        model: Target,
        factors: Sequence[Potential],
        prompt: Sequence[int],
        draft: LM | None,
        draft_tokens: int,
        draft_temperature: float | None,
        seed: int,
        make_draws: Callable[..., Draws] = Draws,
    ) -> None:
        self._potentials: list[Potential] = [model, *factors]
        self._small = draft
        self._draft_tokens = draft_tokens if draft is not None else 0
        self._temperature = draft_temperature or model.draft_temperature
        self._seed = seed
        self._make_draws = make_draws
        vocab = model.lm.vocab
        self.request = Request(list(prompt), tuple(prompt), vocab, ROOM)
        self._eos_V = torch.zeros(vocab.size, dtype=torch.bool, device=model.lm.device)
        self._eos_V[list(vocab.eos_ids)] = True
        self._played = 0
        self._factors: list[Factor] = []
        self._draft: Draft | None = None
        self._rows: dict[Tokens, int] = {}

    def play(self, contexts: Sequence[Tokens]) -> list[Unit]:
        """A unit for each context, drawn independently.

        Raises
        ------
        PotentialError
            If a factor raised, or its values are no weights.
        """
        try:
            self._go_to(contexts)
            units = self._block(contexts)
        except BaseException:
            self.release()
            raise
        return units

    def release(self) -> None:
        """Give back all states."""
        for factor in self._factors:
            factor.release()
        if self._draft is not None:
            self._draft.release()
        self._factors, self._draft, self._rows = [], None, {}

    # ------------------------------------------------------------------ inside

    def _go_to(self, contexts: Sequence[Tokens]) -> None:
        """States whose rows are the contexts."""
        if self._rows and all(c in self._rows for c in contexts):
            ancestors_M = torch.tensor([self._rows[c] for c in contexts])
            for factor in self._factors:
                factor.fork(ancestors_M, [len(contexts)])
            if self._draft is not None:
                self._draft.fork(ancestors_M)
            return
        self.release()
        group = [StartGroup(self.request, (0,))]
        device, n = self._eos_V.device, len(contexts)
        for potential in self._potentials:
            self._factors.append(Factor(potential, group, n, device))
        if self._small is not None:
            size = self._eos_V.shape[0]
            self._draft = Draft(self._small, self._temperature, group, n, size, device)
        lengths_N = torch.tensor([len(c) for c in contexts], device=device)
        width = int(lengths_N.max())
        tokens_N_T = torch.tensor(
            [[*c, *[0] * (width - len(c))] for c in contexts], dtype=torch.int64, device=device
        ).view(n, width)
        running_N = torch.zeros(n, dtype=torch.bool, device=device)
        none_N = torch.zeros_like(lengths_N)
        for factor in self._factors:
            factor.log_psi_M = factor.advance(tokens_N_T[:, :0], none_N, running_N)
            if width:
                factor.log_psi_M = factor.advance(tokens_N_T, lengths_N, running_N)
        if self._draft is not None:
            for t in range(width):
                self._draft.append(tokens_N_T[:, t], t < lengths_N)
        self._check()

    def _block(self, contexts: Sequence[Tokens]) -> list[Unit]:
        n, device = len(contexts), self._eos_V.device
        draws = self._make_draws(
            torch.full((n,), self._seed, device=device),
            torch.arange(n, device=device),
            self._played,
            self._draft_tokens + 1,
        )
        self._played += 1
        old_M = torch.stack([f.log_psi_M for f in self._factors]).sum(0)
        block = Block(
            self._factors, 0, self._draft, draws, None, self._eos_V,
            self._draft_tokens, torch.full((n,), ROOM), True,
        )  # fmt: skip
        self._check()
        dead_M = (block.finish_M == DEAD).cpu()
        log_w_M = block.delta_M.cpu()
        log_q_M = (block.log_gamma_M - old_M).cpu() - log_w_M
        tokens, lengths = block.tokens_M_B.tolist(), block.lengths_M.tolist()
        units = [
            Unit(tuple(row[:k]), w, float("-inf") if gone else q)
            for row, k, w, q, gone in zip(
                tokens, lengths, log_w_M.tolist(), log_q_M.tolist(), dead_M.tolist(), strict=True
            )
        ]
        running = (block.finish_M == RUNNING).tolist()
        self._rows = {
            (*context, *unit.tokens): i
            for i, (context, unit) in enumerate(zip(contexts, units, strict=True))
            if running[i]
        }
        if not self._rows:
            self.release()
        return units

    def _check(self) -> None:
        for factor in self._factors:
            for error in factor.failed.values():
                raise error


def gain_of_eos(potential: Potential, request: Request, context: Tokens) -> float:
    """log φ of a context as a complete output, less log ψ of it as an unfinished one."""
    state = potential.start(request, 1)
    no, yes = torch.tensor([False]), torch.tensor([True])
    state, before_1 = potential.advance(state, torch.zeros((1, 0)).long(), torch.tensor([0]), no)
    if context:
        state, before_1 = potential.advance(
            state, torch.tensor([context]), torch.tensor([len(context)]), no
        )
    eos_1_1 = torch.tensor([[request.vocab.eos_ids[0]]])
    state, after_1 = potential.advance(state, eos_1_1, torch.tensor([1]), yes)
    potential.release(state)
    return float(after_1) - float(before_1)
