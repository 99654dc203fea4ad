"""Waves in several processes at once: what they must have in common, and what is compared."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.engine.linears import fixed_kernels
from smcprog.engine.parallel import Crew, Ranks, crew_of, ranks_of
from smcprog.engine.prefix import without_sharing
from smcprog.potentials.models.factor import ModelFactor

if TYPE_CHECKING:
    from smcprog.potentials.product import Product
    from smcprog.smc.settings import Settings
    from smcprog.smc.wave import Wave

__all__ = ["compare", "crew_for", "ranks_for", "together"]


def ranks_for(product: Product, settings: Settings) -> Ranks | None:
    """The processes of a launcher that work on a target together, if one of its models is split."""
    return ranks_of(_models(product, settings))


def crew_for(product: Product, settings: Settings) -> Crew | None:
    """The followers that hold parts of a model of a target, or of its draft."""
    return crew_of(_models(product, settings))


def _models(product: Product, settings: Settings) -> list[Any]:
    models = [lm for f in product.factors if isinstance(f, ModelFactor) for lm, _ in f.models]
    return [*models, settings.draft]


@contextlib.contextmanager
def together(wave: Wave) -> Iterator[None]:
    """All that a wave does, from its start to its end, if it is played by several processes.

    What each of them does for itself (a draft that is not split) then goes the same way in all:
    kernels are chosen by shape, not by time, and no pages of earlier prompts are looked for.
    """
    if wave.ranks is None:
        yield
        return
    with wave.ranks.in_step(), without_sharing(), fixed_kernels():
        # Before any pass: prompts of different length would be passes of different shape.
        asked = [(q.seed, q.request.prompt_tokens) for q in wave.requests]
        begun = (wave._log_w_0_B.tolist(), wave._limit_B.tolist(), wave.truncate)
        wave.ranks.compare([repr((asked, begun, _plain(wave.settings))).encode()], "at the start")
        yield


def _plain(settings: Settings) -> list[Any]:
    """The settings that are numbers and words."""
    values = (getattr(settings, field.name) for field in dataclasses.fields(settings))
    return [v for v in values if isinstance(v, (bool, int, float, str, tuple, type(None)))]


def compare(wave: Wave) -> None:
    """Raise unless a wave stands the same in all its processes, and these are all there.

    Raises
    ------
    ParallelError
        A follower has failed, so what came out of the last passes means nothing.
    RanksDivergedError
    """
    if wave.crew is not None:
        wave.crew.check()
    if wave.ranks is None:
        return
    state = (
        wave.tokens_B_T,
        wave.lengths_B,
        wave.finish_B,
        wave.log_w_R_N,
        wave.log_evidence_R,
    )
    where = f"in round {len(wave.rounds)}" if wave.rounds else "after the prompts"
    wave.ranks.compare((np.ascontiguousarray(x.numpy()).tobytes() for x in state), where)
