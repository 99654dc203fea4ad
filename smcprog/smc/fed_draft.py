"""A draft that is fed with the target's own last hidden state, and keeps no past of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from smcprog.potentials.models.local import LocalDistribution
from smcprog.smc.factors import Factor, fit_width

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.smc.draft import AnyDraft

__all__ = ["FedDraftRows", "is_fed", "last_tokens"]


def is_fed(draft: object) -> TypeGuard[FedDraft]:
    """Whether a draft is a `FedDraft`; without importing what makes them."""
    return hasattr(draft, "fed_by")


def last_tokens(
    count: int,
    tokens_M_T: Tensor,
    lengths_M: Tensor,
    owners_M: Tensor,
    prompts: Sequence[Sequence[int]],
) -> Tensor:
    """The last `count` tokens of outputs, their prompts before them, int64 [M, count].

    Where there are fewer, zeros stand before them.

    Parameters
    ----------
    tokens_M_T, lengths_M : Tensor, int64
        Outputs, and how many of their tokens are real.
    owners_M : Tensor, int64
        Which of the prompts each continues.
    prompts : sequence of sequence of int
    """
    before_R_C = torch.zeros((len(prompts), count), dtype=torch.int64)
    for r, prompt in enumerate(prompts):
        last = prompt[-count:]
        before_R_C[r, count - len(last) :] = torch.tensor(last)
    # Place p ‹ 0 of an output is in its prompt.
    place_M_C = lengths_M.unsqueeze(1) - count + torch.arange(count)
    new_M_C = tokens_M_T.gather(1, place_M_C.clamp(min=0))
    old_M_C = before_R_C[owners_M].gather(1, (place_M_C + count).clamp(max=count - 1))
    return torch.where(place_M_C >= 0, new_M_C, old_M_C)


class FedDraftRows:
    """Rows of a `FedDraft`, made afresh each round from the target's rows.

    A row is one vector, the hidden state at the last token that the target has run, moved on by
    the tokens since, and the last few tokens. So what is drafted is a function of the row's own
    past.

    Parameters
    ----------
    model : FedDraft
    temperature : float
        τ_d › 0.
    lead : Factor
        The target model's factor, whose rows are those of the draft.
    recent : callable
        Gives the last so many tokens of those rows, [M, count].
    size : int
        Width of the target's logits.
    """

    def __init__(
        self,
        model: FedDraft,
        temperature: float,
        lead: Factor,
        recent: Callable[[int], Tensor],
        size: int,
    ) -> None:
        self._model = model
        self._local = LocalDistribution(temperature)
        self._lead = lead
        self._recent = recent
        self._size = size
        self._state_M_D: Tensor | None = None
        self._last_M_C: Tensor | None = None  # the last tokens
        self._behind_M: Tensor | None = None  # rows whose state lacks the newest one
        self._logp_M_V: Tensor | None = None

    def start_round(self) -> None:
        """Take over where the target's rows are now."""
        width = self._model.tokens
        state_M_D, pending_M = self._lead.hidden()
        most = int(pending_M.max())
        recent_M_T = self._recent(width + most - 1) if most else self._recent(width)
        for since in range(most, 0, -1):  # one, as rounds go
            end = width + most - since
            moved_M_D = self._model.step(state_M_D, recent_M_T[:, end - width : end])
            if (pending_M >= since).all():
                state_M_D = moved_M_D
            else:
                took_M = torch.from_numpy(pending_M >= since).to(state_M_D.device)
                state_M_D = torch.where(took_M[:, None], moved_M_D, state_M_D)
        self._state_M_D, self._last_M_C = state_M_D, recent_M_T[:, -width:]
        self._behind_M = self._logp_M_V = None

    def begin(self) -> None:
        """Tokens are always on trial: the next round begins from the target's rows."""

    def log_probs(self, rows: Tensor | None = None) -> Tensor:
        """Log q of the next token before any mask, [M, V]; of some rows, if given."""
        if self._logp_M_V is None:
            logits_M_V = self._model.logits(self._moved())
            known_V = self._model.vocab.known_V
            if known_V is not None:
                logits_M_V = logits_M_V.masked_fill(~known_V.to(logits_M_V.device), -math.inf)
            self._logp_M_V = fit_width(self._local.log_probs(logits_M_V), self._size)
        return self._logp_M_V if rows is None else self._logp_M_V[rows]

    def append(self, tokens_M: Tensor, took_M: Tensor | None = None) -> None:
        """Every row (or every row that took one) gets one token; nothing is computed yet."""
        if self._last_M_C is None:  # a round without drafts
            return
        self._moved()
        longer_M_C = torch.cat([self._last_M_C[:, 1:], tokens_M[:, None]], dim=1)
        if took_M is None:
            took_M = torch.ones_like(tokens_M, dtype=torch.bool)
        self._last_M_C = torch.where(took_M[:, None], longer_M_C, self._last_M_C)
        self._behind_M, self._logp_M_V = took_M, None

    def settle(self, kept_M: Tensor) -> None:
        """Nothing of the trial is kept."""
        self.release()

    def fork(self, ancestors_M: Tensor) -> None:
        """Rows become copies of their ancestors."""
        for name in ("_state_M_D", "_last_M_C", "_behind_M", "_logp_M_V"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value.index_select(0, ancestors_M.to(value.device)))

    def beside(self, lead: Factor, recent: Callable[[int], Tensor]) -> FedDraftRows:
        """The same draft for other rows of the target, between blocks."""
        return FedDraftRows(self._model, self._local.temperature, lead, recent, self._size)

    def merge(self, other: AnyDraft, index_M: Tensor) -> None:
        """Rows become others; they begin the next block from the target's rows."""
        self.release()

    def release(self) -> None:
        """Nothing is held between rounds."""
        self._state_M_D = self._last_M_C = self._behind_M = self._logp_M_V = None

    def _moved(self) -> Tensor:
        """The state after all tokens, [M, D]."""
        assert self._state_M_D is not None and self._last_M_C is not None  # a round was started
        if self._behind_M is not None:
            moved_M_D = self._model.step(self._state_M_D, self._last_M_C)
            self._state_M_D = torch.where(self._behind_M[:, None], moved_M_D, self._state_M_D)
            self._behind_M = None
        return self._state_M_D
