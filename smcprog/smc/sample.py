"""`target.sample(...)`: from prompts and settings to posteriors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smcprog.errors import BatchError, SettingError, SMCError
from smcprog.limits import MAX_LOGITS, MAX_ROUND_ELEMENTS
from smcprog.potentials.base import Potential, Request, set_sampler
from smcprog.potentials.product import Product
from smcprog.potentials.target import Target
from smcprog.rng import seed_word
from smcprog.smc.posterior import Posterior
from smcprog.smc.prompts import as_prompts
from smcprog.smc.results import build_posterior, no_survivor
from smcprog.smc.settings import Settings
from smcprog.smc.wave import Wave, WaveRequest

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["sample"]


def sample(
    target: Potential,
    prompt: Any,
    seed: int | Sequence[int] | None,
    *,
    stop: str | Sequence[str] | None,
    **options: Any,
) -> Posterior | list[Posterior]:
    """Draw from a target; `Potential.sample` is the public face of this function."""
    settings = Settings.of(stop, **options)
    product = target if isinstance(target, Product) else Product([target])
    lm = _lead_lm(product, settings)
    prompts, many = as_prompts(prompt)
    truncate = settings.truncate if settings.truncate is not None else not product.masks
    seeds = _seeds(seed, len(prompts))

    results: list[Posterior | SMCError | None] = [None] * len(prompts)
    requests: list[WaveRequest] = []
    shared: dict[str, Request] = {}  # one Request a distinct prompt
    for i, one in enumerate(prompts):
        try:
            tokens = tuple(lm.encode(one))
            _check_room(product, settings, one, tokens)
        except SMCError as error:
            results[i] = error
            continue
        key = repr(one)  # its form counts too: another model may encode it differently
        if key not in shared:
            shared[key] = Request(
                one, tokens, lm.vocab, settings.max_tokens, truncate, settings.stop
            )
        requests.append(WaveRequest(i, shared[key], seeds[i]))

    order = {id(r): rank for rank, r in enumerate(shared.values())}
    requests.sort(key=lambda q: order[id(q.request)])  # equal prompts side by side
    for wave in _waves(product, settings, lm, requests):
        for index, result in _run(product, wave, settings, truncate):
            results[index] = result
    return _deliver(results, many)


def _run(
    product: Product, requests: list[WaveRequest], settings: Settings, truncate: bool
) -> list[tuple[int, Posterior | SMCError]]:
    wave = Wave(product, requests, settings, truncate)
    try:
        wave.run()
    except SMCError as error:
        if len(requests) == 1:
            return [(requests[0].index, error)]
        # The failure may be one request's alone; its companions must not suffer for it.
        return [
            result
            for request in requests
            for result in _run(product, [request], settings, truncate)
        ]
    out: list[tuple[int, Posterior | SMCError]] = []
    for r, q in enumerate(requests):
        if r in wave.failed:
            out.append((q.index, wave.failed[r]))
            continue
        post = build_posterior(wave, r)
        out.append((q.index, post if post.alive else no_survivor(wave, r, post)))
    return out


def _waves(
    product: Product, settings: Settings, lm: LM, requests: list[WaveRequest]
) -> list[list[WaveRequest]]:
    """Requests to be worked on together: as many as pages and memory surely hold.

    Deterministic requests go one by one: then the shapes of all that is computed depend
    on the request alone, and so do its bits.
    """
    elements = settings.particles * lm.vocab.size * (_draft_tokens(settings) + 1)
    if elements > MAX_LOGITS:
        raise SettingError(
            f"particles={settings.particles} with blocks of {_draft_tokens(settings) + 1} tokens "
            f"over a vocabulary of {lm.vocab.size} need {elements} logits a round, more than "
            f"{MAX_LOGITS}: use fewer particles or draft tokens"
        )
    most = 1 if settings.deterministic else max(1, MAX_ROUND_ELEMENTS // elements)
    waves: list[list[WaveRequest]] = []
    left: dict[int, int] = {}
    for q in requests:
        need: dict[int, int] = {}
        lengths = _prompt_lengths(product, settings, q.request.prompt, q.request.prompt_tokens)
        for model, length in lengths:
            pages = model.pages_needed(length, settings.particles, settings.max_tokens)
            need[id(model)] = need.get(id(model), 0) + pages
        fits = waves and len(waves[-1]) < most and all(left[k] >= n for k, n in need.items())
        if not fits:
            waves.append([])
            left = {id(m): m.pages_free for m, _ in lengths}
        waves[-1].append(q)
        for k, n in need.items():
            left[k] -= n
    return waves


def _prompt_lengths(
    product: Product, settings: Settings, prompt: Any, tokens: tuple[int, ...]
) -> list[tuple[LM, int]]:
    """Every model of the run, as often as it keeps sequences, with its prompt's length."""
    targets = [f.lm for f in product.factors if isinstance(f, Target)]
    lead = targets[0]
    lengths = [(m, len(tokens if m is lead else m.encode(prompt))) for m in targets]
    if settings.draft is not None and settings.draft_tokens:
        lengths.append((settings.draft, len(tokens)))
    return lengths


def _draft_tokens(settings: Settings) -> int:
    """K, or 0 where nobody drafts."""
    return settings.draft_tokens if settings.draft is not None else 0


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
    return lead


def _check_room(product: Product, settings: Settings, prompt: Any, tokens: tuple[int, ...]) -> None:
    for model, length in _prompt_lengths(product, settings, prompt, tokens):
        if length + settings.max_tokens > model.max_context:
            raise SettingError(
                f"a prompt of {length} tokens and max_tokens={settings.max_tokens} exceed the "
                f"context of {model.name}, {model.max_context} tokens: max_tokens may be at most "
                f"{model.max_context - length}"
            )


def _seeds(seed: int | Sequence[int] | None, count: int) -> list[int]:
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


def _deliver(results: list[Posterior | SMCError | None], many: bool) -> Posterior | list[Posterior]:
    failures = [(i, r) for i, r in enumerate(results) if isinstance(r, SMCError)]
    if not failures:
        done = [r for r in results if isinstance(r, Posterior)]
        return done if many else done[0]
    if not many:
        raise failures[0][1]
    shown = "; ".join(f"request {i}: {type(e).__name__}: {e}" for i, e in failures[:3])
    more = f"; and {len(failures) - 3} more" if len(failures) > 3 else ""
    raise BatchError(
        f"{len(failures)} of {len(results)} requests failed ({shown}{more}); .results holds "
        "every posterior and error",
        results=results,
    ) from failures[0][1]


set_sampler(sample)
