"""The roofline of a round: its forwards, each as fast as memory and arithmetic allow.

A round of K drafts over M rows is K forwards of the draft with one column and one of the target
with K + 1; without a draft it is one of the target with one column. A forward reads all weights
once, the keys and values of each request's prompt once, and those of each row's own tokens
(`Accelerator.seconds`). Nothing else is counted: no sampling, no logits, no launches.
"""

from __future__ import annotations

import dataclasses
import math

from smcprog.bench.accelerator import Accelerator, Size

__all__ = ["Bound", "Rows", "round_bound"]


@dataclasses.dataclass(frozen=True)
class Bound:
    """Least seconds of a round.

    Attributes
    ----------
    seconds : float
        Each forward by the slower of memory and arithmetic.
    memory : float
        Each by memory alone: what "share of the bandwidth" is of.
    """

    seconds: float
    memory: float

    @property
    def limited_by(self) -> str:
        """What sets the pace."""
        return "memory" if self.seconds <= self.memory * (1 + 1e-9) else "arithmetic"


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a round runs on.

    Attributes
    ----------
    count : int
        M, of all requests.
    own : float
        Tokens of each after its prompt.
    shared : float
        Tokens of each request's prompt.
    requests : int
    """

    count: int
    own: float
    shared: float
    requests: int


def round_bound(
    accelerator: Accelerator, target: Size, draft: Size, rows: Rows, draft_tokens: int
) -> Bound:
    """Of a round of K drafts; with K = 0, of one token from the target."""

    def seconds(machine: Accelerator) -> float:
        drafting = _forward(machine, draft, rows, 1) if draft_tokens else 0.0
        return draft_tokens * drafting + _forward(machine, target, rows, draft_tokens + 1)

    return Bound(seconds(accelerator), seconds(dataclasses.replace(accelerator, flops=math.inf)))


def _forward(machine: Accelerator, size: Size, rows: Rows, columns: int) -> float:
    return machine.seconds(
        size, rows.count, columns, context=rows.own, shared=rows.shared, groups=rows.requests
    )
