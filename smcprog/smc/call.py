"""What one call asks for, checked, and what it will need: before anything runs."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from smcprog.engine.arena import arena_pages
from smcprog.engine.faults import fault_of
from smcprog.engine.linears import fixed_kernels
from smcprog.engine.prefix import without_sharing
from smcprog.errors import (
    DeviceLostError,
    DeviceMemoryError,
    PagesExhaustedError,
    PromptError,
    SettingError,
    SMCError,
)
from smcprog.limits import MAX_LOGITS
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.models.factor import ModelFactor
from smcprog.potentials.product import Product
from smcprog.rng import seed_word
from smcprog.smc.device.slot import SlotWave
from smcprog.smc.device.suits import reason_against, wanted
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.device_errors import device_error
from smcprog.smc.draft_cost import warn_if_slow
from smcprog.smc.fed_draft import is_fed
from smcprog.smc.lead import find_lead, models_of
from smcprog.smc.posterior import Posterior
from smcprog.smc.prompts import as_prompts
from smcprog.smc.results import build_posterior, no_survivor
from smcprog.smc.settings import Settings, check_greedy
from smcprog.smc.together import ranks_for
from smcprog.smc.wave import Wave, WaveRequest

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.parallel import Ranks
    from smcprog.smc.device.batch import Batches

__all__ = ["Call", "outcome", "seeds_of"]


@dataclasses.dataclass(frozen=True)
class Call:
    """Target and settings of a call; any number of prompts may go with them.

    Attributes
    ----------
    product : Product
    settings : Settings
    lead : ModelFactor
        The model whose tokenizer the outputs are made of.
    truncate : bool
    """

    product: Product
    settings: Settings
    lead: ModelFactor
    truncate: bool

    @classmethod
    def of(cls, target: Potential, stop: str | Sequence[str] | None, **options: Any) -> Call:
        """Check the settings against each other and against the target.

        Raises
        ------
        SettingError, VocabularyMismatchError
        """
        settings = Settings.of(stop, **options)
        product = target if isinstance(target, Product) else Product([target])
        lead = find_lead(product, settings)
        check_greedy(product, settings)
        truncate = settings.truncate if settings.truncate is not None else not product.masks
        call = cls(product, settings, lead, truncate)
        if call.logits > MAX_LOGITS:
            raise SettingError(
                f"particles={settings.particles} with blocks of {call.draft_tokens + 1} tokens "
                f"over a vocabulary of {call.lm.vocab.size} need {call.logits} logits a round, "
                f"more than {MAX_LOGITS}: use fewer particles or draft tokens"
            )
        if call.draft_tokens and settings.draft is not None:
            warn_if_slow(call.lm, settings.draft, settings.particles, settings.max_tokens)
        return call

    @property
    def lm(self) -> LM:
        """The lead's model."""
        return self.lead.lm

    def prompts(self, prompt: Any) -> tuple[list[Any], bool]:
        """The prompts of the call, and whether it was for many; see `as_prompts`.

        Raises
        ------
        PromptError
            Also where there is none, and the lead has none for itself.
        """
        if prompt is not None:
            return as_prompts(prompt)
        own = self.lead.models[0][1]
        if own is None or callable(own):
            makes = "makes its prompt from the request's" if own is not None else "has no prompt"
            raise PromptError(
                f"sample() without a prompt: the lead model {self.lead.name} {makes}; pass one, "
                "or give the model one for itself, Target(lm, prompt=...)"
            )
        return [own], False

    def request(self, prompt: Any) -> Request:
        """A prompt, encoded and checked to fit the context of every model.

        Raises
        ------
        PromptError, SettingError
        """
        s = self.settings
        request = Request(prompt, (), self.lm.vocab, s.max_tokens, self.truncate, s.stop)
        tokens = tuple(self.lm.encode(request.prompt_for(self.lead.models[0][1])))
        request = dataclasses.replace(request, prompt_tokens=tokens)
        for model, length in self._prompt_lengths(request):
            if length + s.max_tokens > model.max_context:
                raise SettingError(
                    f"a prompt of {length} tokens and max_tokens={s.max_tokens} exceed the "
                    f"context of {model.name}, {model.max_context} tokens: max_tokens may be at "
                    f"most {model.max_context - length}"
                )
        return request

    @property
    def draft_tokens(self) -> int:
        """The largest K of a round; 0 where nobody drafts."""
        return self.settings.most_draft_tokens

    @property
    def target_engines(self) -> list[Any]:
        """Engines of the models that are factors."""
        return [lm.engine for lm, _ in models_of(self.product) if hasattr(lm, "engine")]

    @property
    def logits(self) -> int:
        """Rows × positions × vocabulary of one request's round."""
        s, positions = self.settings, self.draft_tokens + 1
        rows = s.particles * (s.draft_paths if self.draft_tokens else 1)
        beside, longest = s.rows_beside
        if beside and s.lookahead:  # without a draft, rollouts go token by token
            rollouts = s.particles * beside * (longest if self.draft_tokens else 1)
            return max(rows * positions, rollouts) * self.lm.vocab.size
        return rows * max(beside, 1) * positions * self.lm.vocab.size

    def pages(self, request: Request) -> dict[LM, int]:
        """Pages that a request holds at most, for every model."""
        s = self.settings
        need: dict[LM, int] = {}
        for model, length in self._prompt_lengths(request):
            pages = model.pages_needed(length, s.particles, s.max_tokens)
            paths = s.draft_paths if self.draft_tokens else 1
            beside, longest = s.rows_beside
            if beside or paths > 1:
                # While a block is made, each path and each row on the side has a tail page and a
                # block of its own; moves keep the rows as they were before the block, too.
                rows = s.particles * paths * max(beside, 1)
                if beside and not s.lookahead:
                    rows += s.particles * paths
                pages += model.pages_needed(0, rows, max(longest, self.draft_tokens + 1))
                pages += model.pages_needed(0, rows, 1)
            need[model] = need.get(model, 0) + pages
        copies = 1 + s.rows_beside[0]
        for factor in self.product.factors:
            for model, pages in factor.memory(request, s.particles).items():
                need[model] = need.get(model, 0) + copies * pages
        return need

    def wave_pages(self, request: Request) -> dict[LM, int]:
        """The same in a wave: rounds of fixed shape take all that they may need at once."""
        need, s = self.pages(request), self.settings
        if not self.fixed_shapes:
            return need
        for i, (model, length) in enumerate(self._prompt_lengths(request)):
            written = i + 1 + self.draft_tokens  # the target's rows, then the draft's
            most, size = length + s.max_tokens, model.page_size
            held = arena_pages(length, s.particles, most, written, size) + -(-length // size)
            need[model] += max(0, held - model.pages_needed(length, s.particles, s.max_tokens))
        return need

    @property
    def fixed_shapes(self) -> bool:
        """Whether waves are played in rounds of fixed shape: the model wants it, the call can."""
        return wanted(self.lm) and reason_against(self.product, self.settings) is None

    @property
    def batches(self) -> bool:
        """Whether requests can share rounds of fixed shape: one model, no coupling."""
        s = self.settings
        steps = s.coupling == math.inf or not self.draft_tokens
        return len(self.product.factors) == 1 and steps and self.ranks is None and self.fixed_shapes

    def slot_wave(self, request: WaveRequest, batches: Batches, wait: Callable[..., None]) -> Wave:
        """A wave of one request that shares its rounds, not started."""
        return SlotWave(self.product, [request], self.settings, self.truncate, batches, wait)

    @property
    def ranks(self) -> Ranks | None:
        """Processes of a launcher that make this call together, each with a part of a model."""
        return ranks_for(self.product, self.settings)

    def seeds(self, seed: int | Sequence[int] | None, count: int) -> list[int]:
        """As `seeds_of`; fresh seeds are the same in all processes that make the call together.

        Raises
        ------
        SettingError
        """
        seeds = seeds_of(seed, count)
        ranks = self.ranks
        return seeds if ranks is None or seed is not None else ranks.agree(seeds)

    def pages_free(self, model: LM) -> int:
        """Pages that can be allocated now, in all processes that make the call together."""
        ranks = self.ranks
        return model.pages_free if ranks is None else ranks.least(model.pages_free)

    def wave(self, requests: Sequence[WaveRequest]) -> Wave:
        """A wave of some requests, not started."""
        return Wave(self.product, requests, self.settings, self.truncate)

    def run(
        self, requests: Sequence[WaveRequest], *, static: bool = True
    ) -> list[tuple[int, Posterior | SMCError]]:
        """Every request's number, and what became of it; `static` allows rounds of fixed shape.

        The failure of a wave may be one request's alone; its companions must not suffer for
        it, so they are run again one by one. Where the device has no memory for all of them,
        they are run in halves; one alone, without what rounds of fixed shape keep.
        """
        fixed = static and self.fixed_shapes
        kind = DeviceWave if fixed else Wave
        wave = kind(self.product, requests, self.settings, self.truncate)
        try:
            deterministic = self.settings.deterministic
            with without_sharing(deterministic), fixed_kernels(deterministic):
                wave.run()
            return [(q.index, outcome(wave, r)) for r, q in enumerate(requests)]
        except SMCError as error:
            failure: SMCError = error
        except RuntimeError as error:
            failure = self.device_error(error)
        # Out of the handlers: what they hold, the next wave may need.
        failed = wave.failed
        del wave
        if isinstance(failure, DeviceLostError) or fault_of(failure) == "lost":
            return [(q.index, failed.get(r, failure)) for r, q in enumerate(requests)]
        if len(requests) == 1:
            if fixed and isinstance(failure, (DeviceMemoryError, PagesExhaustedError)):
                return self.run(requests, static=False)
            return [(requests[0].index, failure)]
        step = -(-len(requests) // 2) if isinstance(failure, DeviceMemoryError) else 1
        parts = [requests[at : at + step] for at in range(0, len(requests), step)]
        return [result for part in parts for result in self.run(part)]

    def device_error(self, error: RuntimeError) -> SMCError:
        """See `device_errors`."""
        return device_error(error, self.lm, self.settings, self.draft_tokens + 1)

    def _prompt_lengths(self, request: Request) -> list[tuple[LM, int]]:
        """Every model of the run, as often as it keeps sequences, with its prompt's length."""
        known = len(request.prompt_tokens)
        first = self.lead.models[0]
        lengths = []
        for model, own in models_of(self.product):
            same = model is first[0] and own is first[1]
            length = known if same else len(model.encode(request.prompt_for(own)))
            lengths.append((model, length))
        draft = self.settings.draft
        if draft is not None and self.draft_tokens and not is_fed(draft):
            lengths.append((cast("LM", draft), known))
        return lengths


def outcome(wave: Wave, r: int) -> Posterior | SMCError:
    """What became of request `r` of a finished wave."""
    if r in wave.failed:
        return wave.failed[r]
    post = build_posterior(wave, r)
    return post if post.alive else no_survivor(wave, r, post)


def seeds_of(seed: int | Sequence[int] | None, count: int) -> list[int]:
    """One seed a prompt, from what a user may pass.

    Raises
    ------
    SettingError
    """
    if seed is None:
        return [secrets.randbits(63) for _ in range(count)]
    if hasattr(seed, "tolist"):
        seed = seed.tolist()
    if isinstance(seed, Sequence) and not isinstance(seed, (str, bytes)):
        if len(seed) != count:
            raise SettingError(f"{len(seed)} seeds for {count} prompts: give one seed a prompt")
        return [seed_word(s) for s in seed]
    if hasattr(seed, "__index__") and not isinstance(seed, bool):
        return [seed_word(seed)] * count
    raise SettingError(f"seed must be an integer, one integer a prompt, or None, got {seed!r}")
