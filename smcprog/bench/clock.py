"""Forwards of a run: their shapes and seconds, noted where they happen."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from smcprog.drafts.fed import FedDraft

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["ForwardClock", "Ran", "forward_clock"]


@dataclasses.dataclass(frozen=True)
class Ran:
    """One forward.

    Attributes
    ----------
    model : int
        0 for the first model that is watched, the target; 1 for the second.
    rows, columns : int
    context : float
        Tokens of a row before it, on average.
    seconds : float
    """

    model: int
    rows: int
    columns: int
    context: float
    seconds: float


class ForwardClock:
    """Notes every forward of the models that are watched.

    Attributes
    ----------
    ran : list of Ran
    """

    def __init__(self) -> None:
        self.ran: list[Ran] = []


@contextlib.contextmanager
def forward_clock(*models: LM | FedDraft | None) -> Iterator[ForwardClock]:
    """While this lasts, forwards of the models' engines, and steps of a `FedDraft`, are noted.

    Only forwards that a call does by itself; those of a scheduler are shared by requests.
    """
    clock = ForwardClock()
    with contextlib.ExitStack() as stack:
        for model, lm in enumerate(m for m in dict.fromkeys(models) if m is not None):
            if isinstance(lm, FedDraft):
                _watch_steps(lm, clock, model)
                stack.callback(delattr, lm, "step")
                stack.callback(delattr, lm, "logits")
            else:
                _watch(lm.engine, clock, model)
                stack.callback(delattr, lm.engine, "extend_alone")
        yield clock


def _watch_steps(draft: Any, clock: ForwardClock, model: int) -> None:
    """A step and its logits are one forward of one column."""
    plain_step, plain_logits = draft.step, draft.logits
    spent = [0.0]  # by steps, since logits were last asked for

    def step(*arguments: Any) -> Any:
        begun = time.perf_counter()
        result = plain_step(*arguments)
        _wait(draft.device)
        spent[0] += time.perf_counter() - begun
        return result

    def logits(state_M_D: Any) -> Any:
        begun = time.perf_counter()
        result = plain_logits(state_M_D)
        _wait(draft.device)
        seconds = time.perf_counter() - begun + spent[0]
        spent[0] = 0.0
        clock.ran.append(Ran(model, len(state_M_D), 1, 0.0, seconds))
        return result

    draft.step, draft.logits = step, logits


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _watch(engine: Any, clock: ForwardClock, model: int) -> None:
    """Put a timed `extend_alone` before the class's own."""
    plain = engine.extend_alone

    def timed(tables: Any, stored_M: Any, tokens_M_T: Any, *rest: Any) -> Any:
        begun = time.perf_counter()
        result = plain(tables, stored_M, tokens_M_T, *rest)
        _wait(engine.device)
        seconds = time.perf_counter() - begun
        rows, columns = tokens_M_T.shape
        clock.ran.append(Ran(model, rows, columns, float(stored_M.mean()), seconds))
        return result

    engine.extend_alone = timed
