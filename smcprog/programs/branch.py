"""`branch` and `fork`: what changes which particles a verb acts on, or how many there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.errors import InputError, SettingError
from smcprog.limits import MAX_PARTICLES
from smcprog.programs.pieces import text_of
from smcprog.programs.run import ProgramEnded
from smcprog.validate import whole

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["branch", "fork"]

Branch = Callable[["Population"], Any]


def branch(p: Population, condition: Any, then: Branch, otherwise: Branch | None) -> None:
    """See `Population.branch`."""
    for name, steps in (("then", then), ("otherwise", otherwise)):
        if not callable(steps) and (steps is not None or name == "then"):
            raise SettingError(f"branch: {name} must be a function of a population, got {steps!r}")
    index_M = p.living(p.begin("branch"))
    with p.occupied("is about to branch: a condition cannot act on it"):
        holds_M = _holds(p, condition, index_M)
    parts = [(index_M[holds_M], then), (index_M[~holds_M], otherwise)]
    taken = [(index, steps) for index, steps in parts if steps is not None and len(index)]
    rest = np.setdiff1d(np.arange(p.n), np.concatenate([i for i, _ in taken] or [index_M[:0]]))
    # The rows of each part go to it, so that nobody holds what it has left behind.
    pieces = [_part(p, index) for index, _ in taken] + [_part(p, rest)]
    p.tapes.close()
    p.busy = "is divided into branches: use the one that the branch was given"
    try:
        for piece, (_, steps) in zip(pieces, taken, strict=False):
            try:
                steps(piece)
            except ProgramEnded as end:
                if end.population is not piece:
                    raise
    finally:
        p.busy = ""
        for piece in pieces:
            piece.busy = "was a branch, and is over: use the whole one"
    _merge(p, pieces, [index for index, _ in taken] + [rest])
    p.run.check_alive(p)


def _holds(p: Population, condition: Any, index_M: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The condition of each particle, asked once a text where it is a function."""
    if callable(condition):
        texts = [text_of(p.histories[i]) for i in index_M]
        answers = {text: condition(text) for text in dict.fromkeys(texts)}
        wrong = next((a for a in answers.values() if not _is_bool(a)), None)
        if wrong is not None:
            raise InputError(f"branch: the condition must return a bool, got {wrong!r}")
        return np.array([bool(answers[text]) for text in texts], dtype=bool)
    values = np.asarray(condition)
    if values.shape != (p.n,) or values.dtype != bool:
        raise InputError(
            f"branch takes a function of a text, or {p.n} bools, one a particle; got "
            f"{type(condition).__name__}"
        )
    chosen: NDArray[np.bool_] = values[index_M]
    return chosen


def _is_bool(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _part(p: Population, index_M: NDArray[np.int64]) -> Population:
    """Some particles as a population of their own."""
    part = type(p)(p.run, len(index_M), parent=p)
    part.histories = [p.histories[i] for i in index_M]
    part.done = [p.done[i] for i in index_M]
    at = torch.from_numpy(index_M)
    part.log_w_N, part.log_gamma_N = p.log_w_N[at], p.log_gamma_N[at]
    part.eve_N = p.eve_N[index_M]
    part.tapes = p.run.keep(p.tapes.split(index_M))
    return part


def _merge(p: Population, parts: list[Population], indices: list[NDArray[np.int64]]) -> None:
    """The parts are the population again, each particle where it was, new ones at the end."""
    place = np.concatenate([_places(part, i) for part, i in zip(parts, indices, strict=True)])
    # The first child of a particle takes its place, if it has one of its own there.
    order_N = np.argsort(place, kind="stable")
    origin_N = np.concatenate([i[part.origin_N] for part, i in zip(parts, indices, strict=True)])
    histories = [h for part in parts for h in part.histories]
    done = [d for part in parts for d in part.done]
    at = torch.from_numpy(order_N)
    p.histories, p.done = [histories[i] for i in order_N], [done[i] for i in order_N]
    p.log_w_N = torch.cat([part.log_w_N for part in parts])[at]
    p.log_gamma_N = torch.cat([part.log_gamma_N for part in parts])[at]
    p.eve_N = np.concatenate([part.eve_N for part in parts])[order_N]
    p.origin_N = p.origin_N[origin_N[order_N]]
    p.tapes.merge([part.tapes for part in parts], order_N)
    for part in parts:
        part.tapes.close()


def _places(part: Population, index_M: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the particles of a part stand in the whole; those that were added, at the end."""
    if part.n == len(index_M):
        return index_M
    return np.concatenate([index_M, np.full(part.n - len(index_M), MAX_PARTICLES)])


def fork(p: Population, n: int) -> None:
    """See `Population.fork`."""
    copies = whole("n", n, 1, MAX_PARTICLES)
    p.begin("fork")
    if copies == 1:
        return
    p.run.grow(p.n * (copies - 1))
    p.run.reshaped = True
    p.become(np.repeat(np.arange(p.n), copies))
    p.log_w_N = p.log_w_N - math.log(copies)
