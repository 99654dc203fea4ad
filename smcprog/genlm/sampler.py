"""A token sampler of genlm-control that returns several tokens at a time."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from genlm.control import EOS
from genlm.control.sampler.token import TokenSampler
from genlm.control.util import flatten_units, join_batch

from smcprog.errors import SettingError
from smcprog.genlm.async_lm import AsyncLM
from smcprog.genlm.rounds import ROOM, Rounds, Tokens, gain_of_eos
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.target import Target
from smcprog.potentials.product import Product, as_potential
from smcprog.smc.draws import Draws
from smcprog.validate import real, whole

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["DraftSampler"]

MOST_DRAFT_TOKENS = 256


class DraftSampler(TokenSampler):
    """Draft rounds inside genlm-control's SMC: a unit is up to K drafted tokens and one more.

    All particles that ask at the same time are one round: the draft proposes K tokens for each,
    the model scores them in one pass and draws the last one itself. Weights are proper for the
    model times the condition, whatever the draft.

    Parameters
    ----------
    llm : PromptedLLM
        Over a `smcprog.genlm.AsyncLM`.
    draft : LM, optional
        A cheaper model of the same vocabulary. Without it, a unit is one token from the exact
        product of model and mask.
    draft_tokens : int
        K.
    condition : optional
        A potential of genlm-control over tokens, byte strings or single bytes, or any of
        smcprog's (a `Grammar`, for one, which masks what is drawn). It is part of what the
        weights are proper for; give it here or as a critic, not both.
    draft_temperature : float, optional
        By default the temperature of `llm`.
    seed : int, optional
        By default one drawn by torch. The draws depend on it and on the order of the calls.

    Notes
    -----
    ``max_tokens`` of genlm-control's `SMC` counts units, and its contexts are lists of units
    (`genlm.control.util.flatten_units`), as with its own `MultiTokenUnitSampler`.

    Raises
    ------
    SettingError
        `llm` is of another kind, or a setting out of range.
    """

    def __init__(
        self,
        llm: Any,
        draft: LM | None = None,
        draft_tokens: int = 4,
        *,
        condition: Any = None,
        draft_temperature: float | None = None,
        seed: int | None = None,
        _make_draws: Callable[..., Draws] = Draws,
    ) -> None:
        model = getattr(llm, "model", None)
        if not isinstance(model, AsyncLM):
            raise SettingError(
                "DraftSampler takes a PromptedLLM over smcprog.genlm.AsyncLM, got "
                f"{type(llm).__name__} over {type(model).__name__}"
            )
        super().__init__(target=llm)
        self._lm = model.lm
        if draft is not None:
            self._lm.vocab.check_same(draft.vocab, this=self._lm.name, that=draft.name)
        self._factors: list[Potential] = []
        if condition is not None:
            factor = as_potential(condition)
            self._factors = list(factor.factors) if isinstance(factor, Product) else [factor]
        eos = {token.token_id for token in llm.token_maps.eos_token_objs}
        if eos != set(self._lm.vocab.eos_ids):
            raise SettingError(
                f"the PromptedLLM ends outputs at tokens {sorted(eos)}, the model at "
                f"{sorted(self._lm.vocab.eos_ids)}: make it with "
                "eos_byte_strings=async_lm.eos_byte_strings"
            )
        self._draft = draft
        self._draft_tokens = whole("draft_tokens", draft_tokens, 1, MOST_DRAFT_TOKENS)
        self._draft_temperature = draft_temperature
        if draft_temperature is not None:
            self._draft_temperature = real("draft_temperature", draft_temperature, 1e-4, 1e6)
        self._seed = seed
        self._make_draws = _make_draws
        self._rounds: dict[Tokens, Rounds] = {}
        self._batches: Any = weakref.WeakKeyDictionary()

    async def start_weight(self) -> float:
        """Log-weight of the empty output under model and condition."""
        total = 0.0
        request = self._request()
        for factor in self._factors:
            state = factor.start(request, 1)
            none = torch.zeros((1, 0), dtype=torch.int64)
            state, log_psi_1 = factor.advance(state, none, torch.tensor([0]), torch.tensor([False]))
            factor.release(state)
            total += float(log_psi_1)
        return total

    async def logw_eos(self, context: Any) -> float:
        """Log-weight of ending after a context of units, under model and condition."""
        flat = flatten_units(context)
        logw = float(await self.target.logw_eos(flat))
        for factor in self._factors:
            logw += gain_of_eos(factor, self._request(), _ids(flat))
        return -math.inf if math.isnan(logw) else logw

    async def sample(self, context: Any, draw: Any = None) -> tuple[list[Any], float, float]:
        """A unit, its log-weight, and the log-density of the draw.

        Parameters
        ----------
        context : list
            Tokens or units (lists of tokens) of one particle.
        draw : None
            A draw of the caller's own cannot be honoured.
        """
        if draw is not None:
            raise SettingError("DraftSampler draws whole units itself: leave out draw")
        prompt = tuple(self.target.prompt_ids)
        future = asyncio.get_running_loop().create_future()
        entry = (prompt, _ids(flatten_units(context)), future)
        batch = await join_batch(self._batches, entry)
        if batch is not None:
            for one in dict.fromkeys(p for p, _, _ in batch):
                self._play(one, [(c, f) for p, c, f in batch if p == one])
        tokens, log_w, log_q = await future
        decode = self.target.token_maps.decode
        ends = bool(tokens) and tokens[-1] in self._lm.vocab.eos_ids
        unit = [decode[v] for v in (tokens[:-1] if ends else tokens)]
        return [*unit, EOS] if ends else unit, log_w, log_q

    async def cleanup(self) -> None:
        """Give back the memory of all rows."""
        for rounds in self._rounds.values():
            rounds.release()
        self._rounds.clear()

    # ------------------------------------------------------------------ inside

    def _play(self, prompt: Tokens, entries: list[tuple[Tokens, Any]]) -> None:
        try:
            units = self._rounds_after(prompt).play([context for context, _ in entries])
        except Exception as error:
            for _, future in entries:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), unit in zip(entries, units, strict=True):
            if not future.done():
                future.set_result((unit.tokens, unit.log_w, unit.log_q))

    def _rounds_after(self, prompt: Tokens) -> Rounds:
        rounds = self._rounds.get(prompt)
        if rounds is None:
            for old in self._rounds.values():
                old.release()
            seed = self._seed
            if seed is None:
                seed = int(torch.randint(1 << 62, ()))
            model = Target(self._lm, temperature=self.target.temperature)
            rounds = Rounds(
                model, self._factors, prompt, self._draft, self._draft_tokens,
                self._draft_temperature, seed, self._make_draws,
            )  # fmt: skip
            self._rounds = {prompt: rounds}
        return rounds

    def _request(self) -> Request:
        prompt = tuple(self.target.prompt_ids)
        return Request(list(prompt), prompt, self._lm.vocab, ROOM)


def _ids(tokens: list[Any]) -> Tokens:
    if tokens and tokens[-1] is EOS:
        raise SettingError("the context is complete (it ends in EOS): there is no next unit")
    return tuple(int(token.token_id) for token in tokens)
