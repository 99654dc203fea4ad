"""How long one forward of a model takes, for predictions of whole rounds."""

from __future__ import annotations

import statistics
import time

import torch

from smcprog.engine.lm import LM
from smcprog.engine.sequences import PagedSequences
from smcprog.validate import whole

__all__ = ["time_forward"]

MOST = 1 << 20


def time_forward(lm: LM, rows: int, columns: int, context: int, *, repeats: int = 5) -> float:
    """Seconds of one warm forward through the engine, the median of a few.

    The rows share the pages of a context, as the particles of one request do, and each takes
    `columns` new tokens, with the logits of all of them, as when a block is scored.

    Parameters
    ----------
    lm : LM
    rows, columns : int
        M and T of the forward.
    context : int
        Tokens in every row before it.
    repeats : int
        Forwards that are timed; one more goes before them.

    Raises
    ------
    SettingError
        A number out of range, or a row longer than the model's context.
    PagesExhaustedError
        If the pool is too small; the pages are given back in any case.
    """
    rows = whole("rows", rows, 1, MOST)
    columns = whole("columns", columns, 1, MOST)
    context = whole("context", context, 1, MOST)
    repeats = whole("repeats", repeats, 1, MOST)
    engine = lm._engine
    # No two rows alike (as long as the vocabulary allows), or they would be run once.
    known = torch.arange(context + rows * columns) * 7919 % lm.vocab.size
    block_M_T = known[context:].view(rows, columns)
    times = []
    # Not `lm.sequences`: its prompts stay in the cache, and this one means nothing.
    with PagedSequences.empty(engine, 1) as prompt:
        prompt.append(known[None, :context])
        prompt.next_logits()
        for _ in range(repeats + 1):
            with prompt.fork([0] * rows) as block:
                _wait(engine.device)
                begun = time.perf_counter()
                block.score(block_M_T)
                _wait(engine.device)
                times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
