"""Classifier-free guidance: a model under one prompt, held against itself under another."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.errors import PotentialError
from smcprog.potentials.base import Request
from smcprog.potentials.models.composite import Composite, CompositeState
from smcprog.potentials.models.factor import show_prompt
from smcprog.potentials.models.local import Local, LocalDistribution
from smcprog.potentials.models.target import Target
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Guidance"]

MAX_SCALE = 100.0


@dataclasses.dataclass
class GuidanceState(CompositeState):
    """Also what is known of the next token, and of tokens on trial.

    Attributes
    ----------
    next_logp_N_V : Tensor, optional
    ahead : tuple, optional
        tokens_N_T, lengths_N and logp_N_B_V of tokens that were looked at.
    """

    next_logp_N_V: Tensor | None = None
    ahead: tuple[Tensor, Tensor, Tensor] | None = None


class Guidance(Local, Composite):
    """p(v) ∝ p(v | prompt)^γ · p(v | negative prompt)^(1−γ) at every step.

    Parameters
    ----------
    lm : LM
    scale : float
        γ. 1 is the model as it is; above it, tokens are favoured that the prompt makes more
        probable than the negative prompt does; 0 is the model under the negative prompt.
    negative_prompt : str, list of messages, list of token ids, or callable, optional
        What is held against the prompt; a function makes it from the request's. By default the
        last token of the prompt, so that the model is held against itself without the prompt.
    prompt : optional
        The prompt, in place of the request's; as for `Target`.
    temperature, top_k, top_p, min_p : optional
        Of the guided distribution, as for `Target`.

    Notes
    -----
    This is what is usually called classifier-free guidance of language models (Sanchez et al.,
    arXiv 2306.17806): the two distributions are combined and *renormalised at every step*. The
    product ``Target(lm) ** γ / Target(lm, prompt=negative) ** (γ - 1)`` combines the
    probabilities of whole outputs: at each step it has the same ratios of tokens, but what
    a step's sum is counts too, as a weight. So the product favours outputs which go where
    the two can agree on something; guidance never looks further than one token.

    *Proposal.* Tokens are drawn from p (to the power, if there is one) under the masks. Both
    prompts' rows take one forward together.

    Raises
    ------
    SettingError
        A setting out of range.
    PotentialError
        While sampling: a token is impossible under one of the prompts and infinitely favoured
        for it.

    Examples
    --------
    >>> kind = Guidance(lm, 1.5, negative_prompt="You are a rude clerk.")  # doctest: +SKIP
    """

    def __init__(
        self,
        lm: LM,
        scale: float,
        *,
        negative_prompt: Any = None,
        prompt: Any = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
    ) -> None:
        self.scale = real("scale", scale, -MAX_SCALE, MAX_SCALE)
        self.local = LocalDistribution(temperature, top_k, top_p, min_p)
        self._default = negative_prompt is None
        if negative_prompt is None:
            negative_prompt = _LastToken(lm, prompt)
        for_it = Target(lm, prompt=prompt)
        super().__init__([for_it, Target(lm, prompt=negative_prompt)])

    @property
    def name(self) -> str:
        against = "its last token" if self._default else show_prompt(self.models[1][1])
        return f"Guidance({self.lm.name}, scale={self.scale:g}, against {against})"

    def __repr__(self) -> str:
        power = "" if self.power == 1 else f" ** {self.power:g}"
        return f"{self.name[:-1]}, {self.local.describe()}){power}"

    @property
    def proposal(self) -> str:
        return (
            f"{self.local.describe()} of p(v | prompt)^{self.scale:g} · "
            f"p(v | negative prompt)^{1 - self.scale:g} of {self.lm.name}"
        )

    def start(self, request: Request, n: int) -> GuidanceState:
        return GuidanceState(**vars(super().start(request, n)))

    def fork(self, state: CompositeState, ancestors_M: Tensor) -> GuidanceState:
        assert isinstance(state, GuidanceState)
        forked = GuidanceState(**vars(super().fork(state, ancestors_M)))
        index_M = ancestors_M.to(self.lm.device)
        if state.next_logp_N_V is not None:
            forked.next_logp_N_V = state.next_logp_N_V[index_M]
        if state.ahead is not None:
            tokens_N_T, lengths_N, logp_N_B_V = state.ahead
            forked.ahead = tokens_N_T[index_M], lengths_N[index_M], logp_N_B_V[index_M]
        return forked

    def join(self, states: Any) -> GuidanceState:
        return GuidanceState(**vars(super().join(states)))

    def advance(
        self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[CompositeState, Tensor]:
        assert isinstance(state, GuidanceState)
        width = tokens_N_T.shape[1]
        if width == 0:
            return state, state.log_psi_N
        device = self.lm.device
        tokens_N_T, lengths_N = tokens_N_T.to(device), lengths_N.to(device)
        logp_N_T = torch.zeros(tokens_N_T.shape, dtype=torch.float64, device=device)
        done_N = torch.zeros_like(lengths_N)
        while bool((done_N < lengths_N).any()):  # once; twice where a look ahead went elsewhere
            new_N_T, left_N = _shifted(tokens_N_T, done_N), lengths_N - done_N
            logp_N_B_V, known_N = self._tables(state, new_N_T, left_N)
            now_N = torch.minimum(left_N, known_N)
            steps = int(now_N.max())
            new_N_T = new_N_T[:, :steps]
            gained_N_T = logp_N_B_V[:, :steps].gather(2, new_N_T.unsqueeze(2)).squeeze(2)
            at_N_T = (done_N.unsqueeze(1) + torch.arange(steps, device=device)).clamp(max=width - 1)
            real_N_T = torch.arange(steps, device=device) < now_N.unsqueeze(1)
            logp_N_T.scatter_add_(1, at_N_T, torch.where(real_N_T, gained_N_T.double(), 0.0))
            self._advance_all(state, new_N_T, now_N, ended_N.to(device) & (now_N == left_N))
            state.ahead = state.next_logp_N_V = None
            done_N = done_N + now_N
        state.token_logp_N_T = logp_N_T
        state.log_psi_N = state.log_psi_N + self._raised(logp_N_T, tokens_N_T).sum(1)
        return state, state.log_psi_N

    def next_logw(self, state: CompositeState) -> Tensor:
        assert isinstance(state, GuidanceState)
        return self._raised(self._next_logp(state))

    def lookahead(self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor:
        assert isinstance(state, GuidanceState)
        tokens_N_T, lengths_N = tokens_N_T.to(self.lm.device), lengths_N.to(self.lm.device)
        logp_N_B_V = self._look(state, tokens_N_T, lengths_N)
        state.ahead = tokens_N_T, lengths_N, logp_N_B_V
        state.next_logp_N_V = logp_N_B_V[:, 0]
        return self._raised(logp_N_B_V)

    # ------------------------------------------------------------------ inside

    def _tables(
        self, state: GuidanceState, tokens_N_T: Tensor, left_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log p of the next tokens, [N, B, V], and for how many tokens of a row it holds, [N]."""
        if state.ahead is not None:
            seen_N_T, seen_N, logp_N_B_V = state.ahead
            both = min(tokens_N_T.shape[1], seen_N_T.shape[1])
            same_N_T = tokens_N_T[:, :both] == seen_N_T[:, :both]
            most_N = torch.minimum(left_N, seen_N)
            same_N_T &= torch.arange(both, device=most_N.device) < most_N.unsqueeze(1)
            return logp_N_B_V, same_N_T.long().cumprod(1).sum(1) + 1
        if int(left_N.max()) == 1:
            return self._next_logp(state).unsqueeze(1), torch.ones_like(left_N)
        # The components keep what they compute here, so that to advance them costs nothing.
        logp_N_B_V = self._look(state, tokens_N_T, left_N)
        return logp_N_B_V, left_N

    def _next_logp(self, state: GuidanceState) -> Tensor:
        if state.next_logp_N_V is None:
            state.next_logp_N_V = self._guided(self._next_all(state))
        return state.next_logp_N_V

    def _look(self, state: GuidanceState, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor:
        return self._guided(self._look_all(state, tokens_N_T, lengths_N))

    def _guided(self, logp_2: Tensor) -> Tensor:
        """From log p under both prompts, [2, ..., V], to the guided one, [..., V]."""
        zero = torch.zeros_like(logp_2[0], dtype=torch.bool)
        total = torch.zeros_like(logp_2[0])
        for logp, power in zip(logp_2, (self.scale, 1 - self.scale), strict=True):
            if power:
                total = total + power * logp
            if power > 0:
                zero = zero | (logp == -math.inf)
        total = total.masked_fill(zero, -math.inf)
        if bool((total == math.inf).any()):
            token = int((total == math.inf).nonzero()[0, -1])
            raise PotentialError(
                f"{self.name}: token {token} ({self.lm.vocab.decode([token])!r}) is impossible "
                "under one of the prompts and infinitely favoured for it: guidance needs a model "
                "in which every token is possible",
                potential=self.name,
            )
        return self.local.log_probs(total)


class _LastToken:
    """The last token of the prompt, as a prompt."""

    def __init__(self, lm: LM, prompt: Any) -> None:
        self._lm, self._own = lm, prompt

    def __call__(self, prompt: Any) -> list[int]:
        own = self._own
        if own is not None:
            prompt = own(prompt) if callable(own) else own
        return self._lm.encode(prompt)[-1:]


def _shifted(tokens_N_T: Tensor, by_N: Tensor) -> Tensor:
    """Rows moved to the left, each by its own number; what comes in from the right is padding."""
    if not bool(by_N.any()):
        return tokens_N_T
    width = tokens_N_T.shape[1]
    at_N_T = torch.arange(width, device=tokens_N_T.device) + by_N.unsqueeze(1)
    return tokens_N_T.gather(1, at_N_T.clamp(max=width - 1))
