"""Forwards of a run: their shapes and seconds, noted where they happen."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

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
def forward_clock(*models: LM | None) -> Iterator[ForwardClock]:
    """While this lasts, forwards of the models' engines are noted.

    Only forwards that a call does by itself; those of a scheduler are shared by requests.
    """
    clock = ForwardClock()
    engines = [lm.engine for lm in dict.fromkeys(models) if lm is not None]
    try:
        for model, engine in enumerate(engines):
            _watch(engine, clock, model)
        yield clock
    finally:
        for engine in engines:
            del engine.extend_alone


def _watch(engine: Any, clock: ForwardClock, model: int) -> None:
    """Put a timed `extend_alone` before the class's own."""
    plain = engine.extend_alone
    cuda = engine.device.type == "cuda"

    def timed(tables: Any, stored_M: Any, tokens_M_T: Any, *rest: Any) -> Any:
        begun = time.perf_counter()
        result = plain(tables, stored_M, tokens_M_T, *rest)
        if cuda:
            torch.cuda.synchronize(engine.device)
        seconds = time.perf_counter() - begun
        rows, columns = tokens_M_T.shape
        clock.ran.append(Ran(model, rows, columns, float(stored_M.mean()), seconds))
        return result

    engine.extend_alone = timed
