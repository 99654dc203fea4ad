"""What a fork costs beside the round it belongs to."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.errors import SettingError

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["check_fits", "measure_fork"]

OWN = 24


def check_fits(lm: LM, tokens: int = 1024, repeats: int = 15) -> None:
    """Raise `SettingError` unless `measure_fork` can be run."""
    if tokens + repeats + 2 > lm.max_context or tokens <= OWN:
        raise SettingError(
            f"rows of {tokens} tokens do not fit, which a fork is timed with: from {OWN + 1} to "
            f"{lm.max_context - repeats - 2} are possible with {lm.name}"
        )


def measure_fork(
    lm: LM, particles: int = 16, tokens: int = 1024, repeats: int = 15
) -> dict[str, Any]:
    """Time resampling's fork of a population of long rows against a round without a draft.

    Ancestors are drawn with replacement, uniformly: about a third of the rows are lost. A fork
    copies table rows and reference counts; the tail pages that several rows then share are
    copied, but for one of the rows, when they are next written to. Both are counted. The round
    is one forward of one column, the cheapest kind; the rows share their prompt, which makes it
    cheaper still.

    Returns
    -------
    dict
        `fork_ms`, `copy_ms`, `round_ms` (medians), and `share` of the round.

    Raises
    ------
    SettingError
        If the model's context is too short.
    """
    check_fits(lm, tokens, repeats)
    rng = np.random.default_rng(0)

    def random_tokens(rows: int, columns: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(lm.vocab.size, size=(rows, columns)))

    def synchronised() -> float:
        if lm.device.type == "cuda":
            torch.cuda.synchronize(lm.device)
        return time.perf_counter()

    forks, copies, rounds = [], [], []
    rows = lm.sequences(random_tokens(1, tokens - OWN)[0].tolist(), particles)
    try:
        rows.append(random_tokens(particles, OWN))
        rows.next_logits()
        for _ in range(repeats):
            ancestors = np.sort(rng.integers(particles, size=particles))
            begun = synchronised()
            forked = rows.fork(ancestors)
            rows.close()
            forks.append(synchronised() - begun)
            rows = forked
            lost = particles - len(np.unique(ancestors))
            copies.append(_copy_tails(lm, max(lost, 1), synchronised))
            rows.append(random_tokens(particles, 1))
            begun = synchronised()
            rows.next_logits()
            rounds.append(synchronised() - begun)
    finally:
        rows.close()
    fork, copy, step = (1e3 * statistics.median(v) for v in (forks, copies, rounds))
    return {
        "particles": particles,
        "tokens": tokens,
        "fork_ms": fork,
        "copy_ms": copy,
        "round_ms": step,
        "share": (fork + copy) / step,
    }


def _copy_tails(lm: LM, rows: int, clock: Any) -> float:
    """Seconds of copying one page a row."""
    engine = lm.engine
    with engine.lock, torch.inference_mode():
        pages = engine.pages().alloc(2 * rows)
        try:
            engine.attention.clear_pages(pages)
            begun = clock()
            engine.attention.copy_pages(pages[:rows], pages[rows:])
            return float(clock() - begun)
        finally:
            engine.pages().release(pages)
