"""The contract of a potential: a non-negative function of a token sequence.

A potential φ has a value for every prefix too, written ψ: ψ(∅) at the start (1 by
convention), ψ(y₁..t) while the sequence runs, and ψ(y) = φ(y) when it is complete.
Four laws hold for every potential, and `smcprog.testing.check_potential` checks them:

*Support.* ψ(prefix) = 0 only where every completion has φ = 0.
*Telescoping.* The core takes differences log ψ(new) − log ψ(old); a potential returns
values of the whole output so far, never increments.
*Batch.* Many rows at once give what each gives alone.
*Fork.* Fork then extend equals extend then fork.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.potentials.request import Request

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM
    from smcprog.potentials.product import Product

__all__ = ["Potential", "Request", "State", "set_sampler"]

State = Any  # whatever a potential keeps for its rows; opaque to everybody else


_sampler: Callable[..., Any] | None = None
_async_sampler: Callable[..., Any] | None = None


def set_sampler(sampler: Callable[..., Any], async_sampler: Callable[..., Any]) -> None:
    """Tell potentials how they are sampled from.

    Potentials lie below the SMC loop and know nothing of it: the loop hands itself in when
    it is imported.
    """
    global _sampler, _async_sampler
    _sampler, _async_sampler = sampler, async_sampler


class Potential(ABC):
    """A factor of a target. Subclass it and implement `start`, `advance` and `fork`.

    A state belongs to M rows: the particles of one request, or of several where the
    core works on them together. `advance` *consumes* the state it is given: it may
    change it in place, and only the returned state is used afterwards. `fork` returns a
    new, independent state and leaves its argument valid until it is released.
    """

    @property
    def name(self) -> str:
        """How errors and reports call this potential."""
        return type(self).__name__

    @abstractmethod
    def start(self, request: Request, n: int) -> State:
        """State of `n` particles of one request, nothing generated yet."""

    @abstractmethod
    def advance(
        self, state: State, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[State, Tensor]:
        """Take T more tokens per row.

        Parameters
        ----------
        state : State
            Of N rows. Consumed.
        tokens_N_T : Tensor, int64, [N, T]
            New tokens, padded on the right; T may be 0.
        lengths_N : Tensor, int64, [N]
            How many of the T are real, from 0 to T.
        ended_N : Tensor, bool, [N]
            Whether the output is complete after these tokens: it ended in EOS (which is
            then its last token), in a stop string, or at `max_tokens`. An ended row may be
            passed again with length 0 while others of its block go on; what is returned
            for it then is ignored.

        Returns
        -------
        state : State
            After the tokens.
        log_psi_N : Tensor, float64, [N]
            log ψ of the *whole* output so far; log φ where ended. −∞ is death.
        """

    @abstractmethod
    def fork(self, state: State, ancestors_M: Tensor) -> State:
        """New state whose row i continues row ``ancestors_M[i]``; M may differ from N.

        Parameters
        ----------
        state : State
            Of N rows; stays valid.
        ancestors_M : Tensor, int64, [M]
            Row numbers in [0, N).
        """

    def mask(self, state: State) -> Tensor | None:
        """Next tokens that do not make ψ zero, or None where this potential has no say.

        Returns
        -------
        Tensor or None
            bool [N, V], or int32 [N, ceil(V / 32)] with token v at bit ``v % 32`` of word
            ``v // 32``. A superset is enough. EOS ids are set where the output so far is
            complete.
        """
        return None

    def next_logw(self, state: State) -> Tensor | None:
        """log ψ(y v) − log ψ(y) for every next token v, for LM-like factors; else None.

        Returns
        -------
        Tensor or None
            Floating, [N, V]; −∞ where impossible. The entries of an EOS id include it.
        """
        return None

    def lookahead(self, state: State, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor | None:
        """`next_logw` before and after each of T tokens that may come next, in one go.

        The state still stands for the output without the tokens, but may keep what was
        computed for an `advance` over some of them. This default runs a copy token by token.

        Parameters
        ----------
        state : State
            Of N rows, all of them running.
        tokens_N_T : Tensor, int64, [N, T]
        lengths_N : Tensor, int64, [N]
            How many of the T are real, from 0 to T.

        Returns
        -------
        Tensor or None
            Floating, [N, T + 1, V]. Entry t is `next_logw` after the first t tokens; without
            meaning for t › length. None where `next_logw` is None.
        """
        rows, width = tokens_N_T.shape
        copy = self.fork(state, torch.arange(rows))
        logw = []
        try:
            for t in range(width + 1):
                logw_N_V = self.next_logw(copy)
                if logw_N_V is None:
                    return None
                logw.append(logw_N_V)
                if t < width:
                    took_N = (t < lengths_N).long()
                    ended_N = torch.zeros_like(took_N, dtype=torch.bool)
                    copy, _ = self.advance(copy, tokens_N_T[:, t : t + 1], took_N, ended_N)
        finally:
            self.release(copy)
        return torch.stack(logw, dim=1)

    def join(self, states: Sequence[State]) -> State:
        """One state over the rows of several, in order (consumes them).

        Optional: a potential that can work on several requests in one call implements it
        and sets `joins`. Otherwise the core calls it once a request.
        """
        raise NotImplementedError

    joins: bool = False
    """Whether `join` is implemented."""

    masks: bool = False
    """Whether `mask` returns anything but None. Masking factors turn truncation off."""

    def admits(
        self, state: State, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> Sequence[bool]:
        """Whether log ψ stays above −∞ where ``rows[i]`` takes ``tokens[i]``.

        The state is left as it is. A potential that can tell, but not for the whole
        vocabulary, implements this and sets `rejects`: the core then offers it tokens one by
        one and draws by rejection, with weights that make up for it.

        Parameters
        ----------
        state : State
        rows, tokens : sequence of int, [S]
            A row may occur more than once.
        ended : sequence of bool, [S]
            Whether the output would be complete with the token, as for `advance`.

        Returns
        -------
        sequence of bool, [S]
            False exactly where `advance` would return −∞.
        """
        raise NotImplementedError

    rejects: bool = False
    """Whether tokens are drawn by rejection, with `admits`."""

    max_checks: int = 1
    """Most tokens that `admits` is asked about for one draw, where `rejects` is set."""

    def memory(self, request: Request, n: int) -> dict[LM, int]:
        """Key/value pages that `n` rows may come to hold, for models that are no `ModelFactor`."""
        return {}

    time_limit: float | None = None
    """Seconds that one call of a method may take; the request fails where it takes longer."""

    aside: bool | None = None
    """Whether methods are called in a thread beside where many requests share one (a scheduler),
    so that one that hangs holds up nobody else. None: where the class is not part of smcprog."""

    def release(self, state: State) -> None:  # noqa: B027 - optional hook
        """Give back what the state holds (pages, handles). Called once; default nothing."""

    def token_logprobs(self, state: State) -> Tensor | None:
        """Per-token log-probabilities [N, T] of the tokens last advanced, or None."""
        return None

    positive: bool = False
    """Whether ψ is never zero, so that it can be divided by."""

    indicator: bool = False
    """Whether ψ is 0 or 1, so that every positive power of it is the potential itself."""

    @property
    def lm_like(self) -> bool:
        """Whether `next_logw` returns something, so that tokens are drawn from it."""
        return type(self).next_logw is not Potential.next_logw

    def explain(self) -> str:
        """What the factor is and what it does to the draw of a token, in words."""
        if self.lm_like:
            return f"{self.name}: its weight of every next token is part of what is drawn from"
        if self.masks:
            return f"{self.name}: its mask restricts what is drawn from"
        if self.rejects:
            return f"{self.name}: tokens that it refuses are drawn again, and paid for"
        return f"{self.name}: weighed after the draw"

    def __mul__(self, other: Any) -> Product:
        """The product of two potentials; potentials of genlm-control are taken in."""
        from smcprog.potentials.product import Product

        return Product([self, other])

    def __rmul__(self, other: Any) -> Product:
        from smcprog.potentials.product import Product

        return Product([other, self])

    def __truediv__(self, other: Any) -> Product:
        """``a / b`` is ``a * b ** -1``: b must be positive everywhere."""
        from smcprog.potentials.product import Product, as_potential

        return Product([self, as_potential(other) ** -1])

    def __rtruediv__(self, other: Any) -> Product:
        from smcprog.potentials.product import Product

        return Product([other, self**-1])

    def __pow__(self, power: float) -> Potential:
        """ψ^power: log ψ is multiplied by it. See `smcprog.potentials.power`."""
        from smcprog.potentials.power import powered

        return powered(self, power)

    def sample(
        self,
        prompt: Any = None,
        *,
        particles: int = 8,
        draft: LM | FedDraft | None = None,
        draft_tokens: int | str = 4,
        draft_temperature: float | None = None,
        coupling: float = math.inf,
        draft_paths: int = 1,
        joint_draws: bool = True,
        max_tokens: int = 256,
        truncate: bool | None = None,
        ess_threshold: float = 0.5,
        resampling: str = "systematic",
        moves: int = 0,
        waste_free: int = 1,
        lookahead: int = 0,
        rollouts: int = 4,
        first_tokens: str = "drawn",
        stop: str | Sequence[str] | None = None,
        seed: int | Sequence[int] | None = None,
        deterministic: bool = False,
        on_round: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Sample from the normalised product by Sequential Monte Carlo.

        Parameters
        ----------
        prompt : str, list of messages, list of token ids, or a list of those
            A text is tokenised as it stands; messages go through the model's chat
            template. A list of prompts is many requests, worked on in one batch. May be left
            out where the lead model has a prompt of its own, which models without one share.
        particles : int
            N, the population of each request.
        draft : LM or FedDraft, optional
            A cheaper model of the same vocabulary that proposes `draft_tokens` tokens a
            round; the target scores them in one pass. Without it, one token a round is
            drawn from the masked target.
        draft_tokens : int or "auto"
            K. The target adds one token to each block. "auto" chooses K round by round from
            the times, acceptance and weights of the rounds before; such runs stay unbiased,
            but one seed does not repeat them.
        draft_temperature : float, optional
            τ_d › 0; by default τ / α of the target.
        coupling : float
            λ ≥ 1: a drafted token is kept with probability min(1, λ p̃/q̃) and redrawn from
            (p̃ − q̃)₊ otherwise, which ends the block. 1 is lossless speculative decoding:
            every token comes from the exact local distribution p̃. Infinity, the default,
            is SMC speculative decoding: every drafted token is kept, and weighed.
        draft_paths : int
            Drafts per particle, of which the longest that agrees with the target is
            followed; more than 1 with ``coupling=1`` only.
        joint_draws : bool
            Draw the tokens of particles that share one history jointly: same distribution
            each, less variance together. False draws them independently.
        max_tokens : int
            Longest output, EOS included.
        truncate : bool, optional
            Whether an output of `max_tokens` tokens without EOS counts. By default True
            where no factor masks; otherwise the last token can only be EOS.
        ess_threshold : float
            Resample when ESS falls below this share of N; 0 never.
        resampling : {"systematic", "stratified", "multinomial", "residual", "ssp"}
        moves : int
            After each round, draw the last block of each particle anew so many times, and
            accept each by Metropolis–Hastings: copies of one ancestor become different again.
        waste_free : int
            P: in each round, resample N/P ancestors and keep all P states of P − 1 such moves
            of each.
        lookahead, rollouts : int
            Before a resampling, judge each running particle by so many rollouts, at least 2, of
            up to `lookahead` tokens; 0 tokens is none.
        first_tokens : {"drawn", "without_replacement"}
            "without_replacement" begins with N different tokens, weighed for it.
        stop : str or list of str, optional
            Strings that end an output as EOS does, at the token that completes one. The
            text is cut before it; masking factors must be complete after that token.
        seed : int or list of int, optional
            Same request, same seed, same tokens, whatever else is in the batch; so one
            seed for many equal prompts gives equal results. A list gives one a prompt;
            None draws fresh ones, kept in ``Posterior.seed``.
        deterministic : bool
            Make the result the same bit for bit, alone or among others: each request then
            runs in shapes of its own, which is slower for many.
        on_round : callable, optional
            Called with a `RoundEvent` after every round of every request.

        Returns
        -------
        Posterior or list of Posterior
            A list where `prompt` is a list of prompts.

        Raises
        ------
        PromptError, SettingError, VocabularyMismatchError
            Something passed is wrong.
        PotentialError
            A potential raised or returned what is no weight.
        PagesExhaustedError
            The key/value pool is too small for the request.
        AllDeadError
            Every particle has weight zero; carries the posterior.
        BatchError
            For a list of prompts, when any request failed: the others were finished, and
            its ``results`` hold all.

        Notes
        -----
        E[Ẑ] = Z for every setting. The method is SMC speculative decoding
        (arXiv 2604.15672) generalised to any product of potentials.
        """
        if _sampler is None:
            importlib.import_module("smcprog.smc")  # hands its sampler in
        assert _sampler is not None
        return _sampler(
            self,
            prompt,
            seed,
            stop=stop,
            particles=particles,
            draft=draft,
            draft_tokens=draft_tokens,
            draft_temperature=draft_temperature,
            coupling=coupling,
            draft_paths=draft_paths,
            joint_draws=joint_draws,
            max_tokens=max_tokens,
            truncate=truncate,
            ess_threshold=ess_threshold,
            resampling=resampling,
            moves=moves,
            waste_free=waste_free,
            lookahead=lookahead,
            rollouts=rollouts,
            first_tokens=first_tokens,
            deterministic=deterministic,
            on_round=on_round,
        )

    async def asample(
        self,
        prompt: Any = None,
        *,
        scheduler: Any = None,
        timeout: float | None = None,
        **settings: Any,
    ) -> Any:
        """`sample` without blocking the event loop; many at a time share one batch.

        Cancelling the task cancels the request, whose memory is then free.

        Parameters
        ----------
        prompt, **settings
            As for `sample`.
        scheduler : Scheduler, optional
            By default one that all such calls share.
        timeout : float, optional
            Seconds from now after which RequestTimeoutError is raised.

        Returns
        -------
        Posterior or list of Posterior
            As `sample`; it also raises as `sample` does.
        """
        if _async_sampler is None:
            importlib.import_module("smcprog.smc")
        assert _async_sampler is not None
        return await _async_sampler(self, prompt, scheduler=scheduler, timeout=timeout, **settings)
