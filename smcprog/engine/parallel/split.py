"""Which processes are to hold the parts of a model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from smcprog.engine.loading import resolve_device
from smcprog.engine.parallel.crew import Crew
from smcprog.engine.parallel.plans import check_split
from smcprog.engine.parallel.ranks import Ranks, launched
from smcprog.validate import whole

if TYPE_CHECKING:
    from smcprog.engine.engine import Engine

__all__ = ["MOST_PROCESSES", "Parallel", "follow", "split_over"]

MOST_PROCESSES = 1024


class Parallel(Protocol):
    """The processes that hold the parts of split models."""

    size: int
    device: torch.device
    follows: bool

    def loading(
        self, folder: Path, dtype: Any, options: dict[str, Any]
    ) -> contextlib.AbstractContextManager[Any]:
        """The part of a model that is held here, and its tokenizer."""

    def adopt(self, engine: Engine) -> None:
        """The engine runs a part of a model; to be called while `loading`."""


_followed: Parallel | None = None


def follow(parallel: Parallel) -> None:
    """Be a follower: what is loaded here are the parts that the leader tells this process to."""
    global _followed
    _followed = parallel


def split_over(
    size: int | None, folder: Path, device: str | torch.device | None
) -> Parallel | None:
    """The processes over which a model is to be split; None where this one holds all of it.

    Parameters
    ----------
    size : int or None
        `tensor_parallel` of `LM`.
    folder : Path
        Of the model.
    device : str or torch.device, optional

    Raises
    ------
    SettingError
        There are not so many processes or devices.
    ModelError
        The model cannot be split so.
    ParallelError
        A follower did not start.
    """
    if size is None or whole("tensor_parallel", size, 1, MOST_PROCESSES) == 1:
        return None
    if _followed is not None:
        return _followed
    processes: type[Ranks] | type[Crew] = Ranks if launched() and not Crew.here() else Crew
    processes.check_size(size)
    check_split(folder, size)
    return processes.of(size, resolve_device(device))
