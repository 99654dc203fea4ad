"""How much of a round goes to masks: a grammar that keeps the time of what it is asked."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import AllDeadError
from smcprog.potentials import Grammar, Target
from smcprog.potentials.bitmask import restrict, unpack_bitmask
from smcprog.potentials.matchers import Rows

__all__ = ["round_share"]


class _Clocked(Grammar):
    """A grammar whose masks and steps are timed."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.mask_seconds = self.step_seconds = 0.0
        self.shapes: list[Tensor] = []

    def advance(
        self, state: Rows, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[Rows, Tensor]:
        begun = time.perf_counter()
        result = super().advance(state, tokens_N_T, lengths_N, ended_N)
        self.step_seconds += time.perf_counter() - begun
        return result

    def mask(self, state: Rows) -> Tensor:
        begun = time.perf_counter()
        mask = super().mask(state)
        self.mask_seconds += time.perf_counter() - begun
        self.shapes.append(mask)
        return mask


def round_share(
    lm: Any,
    schema: dict[str, Any],
    prompt: Any,
    *,
    particles: int = 64,
    max_tokens: int = 48,
    repeats: int = 3,
    **settings: Any,
) -> dict[str, float]:
    """Share of masks in the time of rounds.

    Parameters
    ----------
    lm : LM
    schema : dict
    prompt
        As for `Potential.sample`.
    particles, max_tokens : int
    repeats : int
        Runs, of which the median counts; the first run is not counted.
    **settings
        Of `Potential.sample`.

    Returns
    -------
    dict
        ``seconds`` of a run, ``rounds``, ``mask_share`` (computing masks), ``step_share``
        (following the tokens drawn), ``apply_share`` (unpacking masks and applying them,
        measured once more on the same masks), and their sum ``share``.
    """
    runs: list[dict[str, float]] = []
    for repeat in range(repeats + 1):
        grammar = _Clocked(schema)
        target = Target(lm) * grammar
        begun = time.perf_counter()
        try:
            post = target.sample(
                prompt, particles=particles, max_tokens=max_tokens, seed=repeat, **settings
            )
        except AllDeadError as error:
            post = error.posterior
        seconds = time.perf_counter() - begun
        logits = torch.randn(particles, lm.vocab.size)
        begun = time.perf_counter()
        for mask in grammar.shapes:
            restrict(logits[: len(mask)], unpack_bitmask(mask, logits.shape[1]))
        applying = time.perf_counter() - begun
        shares = {
            "mask_share": grammar.mask_seconds / seconds,
            "step_share": grammar.step_seconds / seconds,
            "apply_share": applying / seconds,
        }
        runs.append(
            {
                "seconds": seconds,
                "rounds": float(len(post.rounds)),
                "masks": float(sum(map(len, grammar.shapes))),
                **shares,
                "share": sum(shares.values()),
            }
        )
    return {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}
