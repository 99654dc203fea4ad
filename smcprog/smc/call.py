"""What one call asks for, checked, and what it will need: before anything runs."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from smcprog.engine.linears import fixed_kernels
from smcprog.engine.prefix import without_sharing
from smcprog.errors import SettingError, SMCError
from smcprog.limits import MAX_LOGITS
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.product import Product
from smcprog.potentials.target import Target
from smcprog.rng import seed_word
from smcprog.smc.draft_cost import warn_if_slow
from smcprog.smc.fed_draft import is_fed
from smcprog.smc.posterior import Posterior
from smcprog.smc.results import build_posterior, no_survivor
from smcprog.smc.settings import Settings, check_greedy
from smcprog.smc.wave import Wave, WaveRequest

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Call", "outcome", "seeds_of"]


@dataclasses.dataclass(frozen=True)
class Call:
    """Target and settings of a call; any number of prompts may go with them.

    Attributes
    ----------
    product : Product
    settings : Settings
    lm : LM
        The model whose tokenizer the outputs are made of.
    truncate : bool
    """

    product: Product
    settings: Settings
    lm: LM
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
        lm = _lead_lm(product, settings)
        check_greedy(product, settings)
        truncate = settings.truncate if settings.truncate is not None else not product.masks
        call = cls(product, settings, lm, truncate)
        if call.logits > MAX_LOGITS:
            raise SettingError(
                f"particles={settings.particles} with blocks of {call.draft_tokens + 1} tokens "
                f"over a vocabulary of {lm.vocab.size} need {call.logits} logits a round, more "
                f"than {MAX_LOGITS}: use fewer particles or draft tokens"
            )
        if call.draft_tokens and settings.draft is not None:
            warn_if_slow(lm, settings.draft, settings.particles, settings.max_tokens)
        return call

    def request(self, prompt: Any) -> Request:
        """A prompt, encoded and checked to fit the context of every model.

        Raises
        ------
        PromptError, SettingError
        """
        tokens = tuple(self.lm.encode(prompt))
        s = self.settings
        for model, length in self._prompt_lengths(prompt, tokens):
            if length + s.max_tokens > model.max_context:
                raise SettingError(
                    f"a prompt of {length} tokens and max_tokens={s.max_tokens} exceed the "
                    f"context of {model.name}, {model.max_context} tokens: max_tokens may be at "
                    f"most {model.max_context - length}"
                )
        return Request(prompt, tokens, self.lm.vocab, s.max_tokens, self.truncate, s.stop)

    @property
    def draft_tokens(self) -> int:
        """The largest K of a round; 0 where nobody drafts."""
        return self.settings.most_draft_tokens

    @property
    def target_engines(self) -> list[Any]:
        """Engines of the models that are factors."""
        lms = [f.lm for f in self.product.factors if isinstance(f, Target)]
        return [lm.engine for lm in lms if hasattr(lm, "engine")]

    @property
    def logits(self) -> int:
        """Rows × positions × vocabulary of one request's round."""
        rows = self.settings.particles
        if self.draft_tokens:
            rows *= self.settings.draft_paths
        return rows * (self.draft_tokens + 1) * self.lm.vocab.size

    def pages(self, request: Request) -> dict[LM, int]:
        """Pages that a request holds at most, for every model."""
        s = self.settings
        need: dict[LM, int] = {}
        for model, length in self._prompt_lengths(request.prompt, request.prompt_tokens):
            pages = model.pages_needed(length, s.particles, s.max_tokens)
            if self.draft_tokens and s.draft_paths > 1:
                # While a block is made, each path has a tail page and a block of its own.
                rows = s.particles * s.draft_paths
                pages += model.pages_needed(0, rows, self.draft_tokens + 1)
                pages += model.pages_needed(0, rows, 1)
            need[model] = need.get(model, 0) + pages
        return need

    def wave(self, requests: Sequence[WaveRequest]) -> Wave:
        """A wave of some requests, not started."""
        return Wave(self.product, requests, self.settings, self.truncate)

    def run(self, requests: Sequence[WaveRequest]) -> list[tuple[int, Posterior | SMCError]]:
        """Every request's number, and what became of it.

        The failure of a wave may be one request's alone; its companions must not suffer for
        it, so they are run again one by one.
        """
        wave = self.wave(requests)
        try:
            deterministic = self.settings.deterministic
            with without_sharing(deterministic), fixed_kernels(deterministic):
                wave.run()
        except SMCError as error:
            if len(requests) == 1:
                return [(requests[0].index, error)]
            return [result for request in requests for result in self.run([request])]
        return [(q.index, outcome(wave, r)) for r, q in enumerate(requests)]

    def _prompt_lengths(self, prompt: Any, tokens: tuple[int, ...]) -> list[tuple[LM, int]]:
        """Every model of the run, as often as it keeps sequences, with its prompt's length."""
        targets = [f.lm for f in self.product.factors if isinstance(f, Target)]
        lengths = [(m, len(tokens if m is self.lm else m.encode(prompt))) for m in targets]
        draft = self.settings.draft
        if draft is not None and self.draft_tokens and not is_fed(draft):
            lengths.append((cast("LM", draft), len(tokens)))
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


def _lead_lm(product: Product, settings: Settings) -> LM:
    lms = [f.lm for f in product.factors if isinstance(f, Target)]
    if not lms:
        raise SettingError(
            f"{product.name} has no language model to draw from: multiply it by Target(lm)"
        )
    lead = lms[0]
    for other in lms[1:]:
        lead.vocab.check_same(other.vocab, this=lead.name, that=other.name)
    if settings.draft is not None:
        lead.vocab.check_same(
            settings.draft.vocab, this=f"target {lead.name}", that=f"draft {settings.draft.name}"
        )
        if is_fed(settings.draft) and settings.draft.fed_by is not lead:
            raise SettingError(
                f"the draft {settings.draft.name} is fed by another model than the target "
                f"{lead.name}: get it from this one, with lm.draft()"
            )
    return lead
