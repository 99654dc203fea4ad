"""A draft that is no cheaper than its target helps nobody: say so, once, with the figure."""

from __future__ import annotations

import statistics
import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from smcprog.engine.parallel import ranks_of
from smcprog.engine.timing import time_forward
from smcprog.errors import PagesExhaustedError, SlowDraftWarning

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["warn_if_slow"]

WORTH_A_LOOK = 64
"""Fewest tokens (particles × max_tokens) of a call that is worth the short measurement."""
CONTEXT = 32
REPEATS = 3


_ratios: WeakKeyDictionary[LM, WeakKeyDictionary[LM, float]] = WeakKeyDictionary()


def warn_if_slow(target: LM, draft: Any, particles: int, max_tokens: int) -> None:
    """Compare one step of each, `particles` rows of one token, once per pair of models."""
    fed = hasattr(draft, "fed_by")
    if particles * max_tokens < WORTH_A_LOOK or not (fed or hasattr(draft, "engine")):
        return
    measured = _ratios.setdefault(draft, WeakKeyDictionary())
    if target in measured:
        return
    columns, context = 1, min(CONTEXT, target.max_context - 2, draft.max_context - 2)
    try:
        times = [
            time_forward(lm, particles, columns, context, repeats=REPEATS)
            for lm in ((target,) if fed else (draft, target))
        ]
        if fed:
            steps = [draft.time_step(particles) for _ in range(REPEATS + 1)]
            times.insert(0, statistics.median(steps[1:]))
    except PagesExhaustedError:  # others hold them; the request itself can wait or complain
        return
    ratio = times[0] / times[1]
    ranks = ranks_of([target, draft])
    if ranks is not None:  # all of them warn, or none
        ratio = ranks.agree([int(ratio * 1e6)])[0] / 1e6
    measured[target] = ratio
    if ratio >= 1:
        warnings.warn(
            f"the draft {draft.name} is no faster than the target {target.name}: one step of "
            f"{particles} rows takes {ratio:.2f} times as long ({times[0] * 1e3:.1f} against "
            f"{times[1] * 1e3:.1f} ms). Use a smaller draft, or none",
            SlowDraftWarning,
            stacklevel=5,  # the line that calls Potential.sample
        )
