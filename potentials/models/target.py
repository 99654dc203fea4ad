"""The language model as a potential: ψ(y₁..t) = Π p(y_i | prompt, y‹i)^α."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.potentials.base import Request
from smcprog.potentials.models.factor import MAX_POWER, ModelFactor, own_prompt, show_prompt
from smcprog.potentials.models.local import Local, LocalDistribution
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences

__all__ = ["Target"]


@dataclasses.dataclass
class Ahead:
    """Tokens that were scored on trial: the model's rows hold them, the potential's do not.

    Attributes
    ----------
    tokens_N_T, lengths_N : Tensor, int64
    begin_N : int64 [N]
        Length of the model's rows without them; a host array.
    logits_N_B_V, logp_N_B_V : Tensor
        Before and after each of them, B = T + 1; as the model and the local distribution say.
    """

    tokens_N_T: Tensor
    lengths_N: Tensor
    begin_N: NDArray[np.int64]
    logits_N_B_V: Tensor
    logp_N_B_V: Tensor

    def fork(self, index_M: Tensor) -> Ahead:
        return Ahead(
            self.tokens_N_T[index_M],
            self.lengths_N[index_M],
            self.begin_N[index_M.cpu().numpy()],
            self.logits_N_B_V[index_M],
            self.logp_N_B_V[index_M],
        )


@dataclasses.dataclass
class TargetState:
    """Rows of one model, with what their next token may be."""

    sequences: Sequences
    log_psi_N: Tensor  # float64
    next_logp_N_V: Tensor | None = None  # local log p of the next token, once computed
    token_logp_N_T: Tensor | None = None  # of the tokens last advanced
    ahead: Ahead | None = None


class Target(Local, ModelFactor):
    """A language model as a factor.

    Parameters
    ----------
    lm : LM
        The model.
    prompt : str, list of messages, list of token ids, or callable, optional
        A prompt that this factor has for itself, in place of the request's; a function makes
        it from the request's. So one model may be a factor twice, each time with another
        prompt, and ``sample()`` needs none where the lead has one.
    temperature : float
        Local temperature τ: p = softmax(logits/τ) at every step. 0 is greedy decoding,
        which is sampled autoregressively or without loss only (``coupling=1``).
    top_k, top_p, min_p : optional
        Local truncation, renormalised (see `LocalDistribution`).
    power : float
        Global power α › 0 of the sequence's probability: ψ = Πp^α. ``Target(lm) ** 4``
        is the same. Not to be confused with temperature: p^α of the sequence is not
        softmax(α·logits) per step. Dividing by a model, ``/ Target(b) ** 0.5``, makes a
        negative one, which an untruncated model allows.

    Notes
    -----
    *Proposal.* Tokens are drawn from p^α times whatever else has a weight for every next token,
    restricted by masks and normalised; drafted tokens from the draft under the masks.

    Ids that the model has a logit for but the tokenizer has no token for (padded
    vocabularies) get probability zero, whatever the power.

    Raises
    ------
    SettingError
        A setting out of range.
    PromptError
        `prompt` is none.
    """

    def __init__(
        self,
        lm: LM,
        *,
        prompt: Any = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        power: float = 1.0,
    ) -> None:
        if not hasattr(lm, "sequences"):
            raise SettingError(
                f"Target takes an LM, got {type(lm).__name__}: write Target(LM(...))"
            )
        self.lm = lm
        self.prompt = own_prompt(lm, prompt)
        self.local = LocalDistribution(temperature, top_k, top_p, min_p)
        self.power = self._checked_power(real("power", power, 0, MAX_POWER))

    @property
    def name(self) -> str:
        own = "" if self.prompt is None else f", prompt={show_prompt(self.prompt)}"
        return f"Target({self.lm.name}{own})"

    def __repr__(self) -> str:
        shown = [
            f"{f.name}={value}"
            for f in dataclasses.fields(self.local)
            if (value := getattr(self.local, f.name)) != f.default
        ]
        if self.prompt is not None:
            shown.insert(0, f"prompt={show_prompt(self.prompt)}")
        inner = ", ".join([self.lm.name, *shown])
        return f"Target({inner})" + (f" ** {self.power:g}" if self.power != 1 else "")

    @property
    def models(self) -> tuple[tuple[LM, Any], ...]:
        return ((self.lm, self.prompt),)

    @property
    def proposal(self) -> str:
        own = "" if self.prompt is None else f" after its own prompt {show_prompt(self.prompt)}"
        return f"{self.local.describe()} of {self.lm.name}{own}"

    def start(self, request: Request, n: int) -> TargetState:
        sequences = request.sequences(self.lm, n, self.prompt)
        log_psi_N = torch.zeros(n, dtype=torch.float64, device=self.lm.device)
        return TargetState(sequences, log_psi_N)

    def advance(
        self, state: TargetState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[TargetState, Tensor]:
        width = tokens_N_T.shape[1]
        if width == 0:
            return state, state.log_psi_N
        device = self.lm.device
        tokens_N_T, lengths_N = tokens_N_T.to(device), lengths_N.to(device)
        if state.ahead is not None:
            return self._advance_into(state, state.ahead, tokens_N_T, lengths_N)
        # Rows that ended are dropped by the caller, so only the others must be ragged-exact.
        full = bool(((lengths_N == width) | ended_N.to(device)).all())
        counts_N = None if full else lengths_N
        if width == 1 and state.sequences.has_next:
            # The distribution is known already: no forward, the token waits for the next one.
            logp_N_T = self._next_logp(state).gather(1, tokens_N_T)
            state.sequences.append(tokens_N_T, counts_N)
        else:
            logits_N_T_V = self._known(state.sequences.score(tokens_N_T, counts_N))
            logp_N_T = self.local.log_prob_of(logits_N_T_V, tokens_N_T)
        real_N_T = torch.arange(width, device=device) < lengths_N.unsqueeze(1)
        logp_N_T = torch.where(real_N_T, logp_N_T.double(), 0.0)
        state.token_logp_N_T = logp_N_T
        state.log_psi_N = state.log_psi_N + self._raised(logp_N_T, tokens_N_T).sum(1)
        state.next_logp_N_V = None
        return state, state.log_psi_N

    def lookahead(self, state: TargetState, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor:
        """One pass over the tokens, which `advance` then takes over or drops."""
        if state.ahead is not None:
            self._drop_ahead(state)
        device = self.lm.device
        tokens_N_T, lengths_N = tokens_N_T.to(device), lengths_N.to(device)
        begin_N = np.array(state.sequences.lengths)
        if tokens_N_T.shape[1]:
            scored = state.sequences.score(tokens_N_T, lengths_N)
            last = state.sequences.next_logits()
            logits_N_B_V = torch.cat([scored, last.unsqueeze(1)], dim=1)
        else:
            logits_N_B_V = state.sequences.next_logits().unsqueeze(1)
        logp_N_B_V = self.local.log_probs(self._known(logits_N_B_V))
        state.ahead = Ahead(tokens_N_T, lengths_N, begin_N, logits_N_B_V, logp_N_B_V)
        state.next_logp_N_V = logp_N_B_V[:, 0]
        return self._raised(logp_N_B_V)

    def _advance_into(
        self, state: TargetState, ahead: Ahead, tokens_N_T: Tensor, lengths_N: Tensor
    ) -> tuple[TargetState, Tensor]:
        """Keep those of the scored tokens that really come, drop the rest, add what is new."""
        device = self.lm.device
        rows, width = tokens_N_T.shape
        both = min(width, ahead.tokens_N_T.shape[1])
        most_N = torch.minimum(lengths_N, ahead.lengths_N)
        same_N_T = tokens_N_T[:, :both] == ahead.tokens_N_T[:, :both]
        same_N_T &= torch.arange(both, device=device) < most_N.unsqueeze(1)
        kept_N = same_N_T.long().cumprod(1).sum(1)
        row_N = torch.arange(rows, device=device)
        state.sequences.truncate(
            ahead.begin_N + kept_N.cpu().numpy(), ahead.logits_N_B_V[row_N, kept_N]
        )
        state.ahead = None
        state.next_logp_N_V = ahead.logp_N_B_V[row_N, kept_N]
        kept_logp_N_T = ahead.logp_N_B_V[:, :both].gather(2, tokens_N_T[:, :both].unsqueeze(2))
        logp_N_T = torch.zeros((rows, width), dtype=torch.float64, device=device)
        known_N_T = torch.arange(both, device=device) < kept_N.unsqueeze(1)
        logp_N_T[:, :both] = torch.where(known_N_T, kept_logp_N_T.squeeze(2).double(), 0.0)
        for step in range(int((lengths_N - kept_N).amax())):  # one, as the core calls it
            at_N_1 = (kept_N + step).clamp(max=width - 1).unsqueeze(1)
            token_N_1 = tokens_N_T.gather(1, at_N_1)
            new_N = kept_N + step < lengths_N
            new_logp_N_1 = self._next_logp(state).gather(1, token_N_1).double()
            old_logp_N_1 = logp_N_T.gather(1, at_N_1)
            chosen_N_1 = torch.where(new_N.unsqueeze(1), new_logp_N_1, old_logp_N_1)
            logp_N_T.scatter_(1, at_N_1, chosen_N_1)
            state.sequences.append(token_N_1, new_N.long())
            state.next_logp_N_V = None
        state.token_logp_N_T = logp_N_T
        state.log_psi_N = state.log_psi_N + self._raised(logp_N_T, tokens_N_T).sum(1)
        return state, state.log_psi_N

    def _drop_ahead(self, state: TargetState) -> None:
        assert state.ahead is not None
        state.sequences.truncate(state.ahead.begin_N, state.ahead.logits_N_B_V[:, 0])
        state.ahead = None

    def fork(self, state: TargetState, ancestors_M: Tensor) -> TargetState:
        index_M = ancestors_M.to(self.lm.device)
        cached = state.next_logp_N_V
        return TargetState(
            state.sequences.fork(ancestors_M),
            state.log_psi_N[index_M],
            None if cached is None else cached[index_M],
            ahead=None if state.ahead is None else state.ahead.fork(index_M),
        )

    def join(self, states: Sequence[TargetState]) -> TargetState:
        for state in states:
            if state.ahead is not None:
                self._drop_ahead(state)
        sequences = self.lm.join([s.sequences for s in states])
        return TargetState(sequences, torch.cat([s.log_psi_N for s in states]))

    def release(self, state: TargetState) -> None:
        state.sequences.close()

    def next_logw(self, state: TargetState) -> Tensor:
        return self._raised(self._next_logp(state))

    def rows(self, state: TargetState) -> list[Sequences]:
        if state.ahead is not None:
            self._drop_ahead(state)
        return [state.sequences.fork(torch.arange(len(state.log_psi_N)))]

    def hidden(self, state: TargetState) -> tuple[Tensor, NDArray[np.int64]]:
        """Last hidden state of the last token that was run, [N, D]; and how many came since, [N].

        Raises ValueError unless the engine keeps hidden states.
        """
        if state.ahead is not None:
            self._drop_ahead(state)
        return state.sequences.last_hidden, state.sequences.pending

    def token_logprobs(self, state: TargetState) -> Tensor | None:
        """Local log p of the tokens last advanced (temperature and truncation in, α out)."""
        return state.token_logp_N_T

    def _next_logp(self, state: TargetState) -> Tensor:
        if state.next_logp_N_V is None:
            logits_N_V = self._known(state.sequences.next_logits())
            state.next_logp_N_V = self.local.log_probs(logits_N_V)
        return state.next_logp_N_V

    def _known(self, logits: Tensor) -> Tensor:
        known_V = self.lm.vocab.known_V
        if known_V is None:
            return logits
        return logits.masked_fill(~known_V.to(logits.device), -math.inf)
