"""Seconds of one forward of a model, measured and as a function of its shape.

The model of a forward is a roofline with a smooth knee: passing over the weights takes a fixed
time, arithmetic grows with the tokens n = rows · columns, the slower of the two sets the pace,
and calls and attention come on top,

    t = o + (w^p + (c·n)^p)^(1/p) + a·n·context.

Kernels change with the number of rows, which no such formula knows; what is left over is
interpolated in log n between the shapes that were timed.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.drafts.fed import FedDraft

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Forward", "ForwardModel", "ForwardTimer", "fit_forwards"]


@dataclasses.dataclass(frozen=True)
class Forward:
    """One timed shape.

    Attributes
    ----------
    rows, columns : int
        Sequences, and new tokens of each.
    context : int
        Tokens of each sequence before.
    seconds : float
    """

    rows: int
    columns: int
    context: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ForwardModel:
    """Seconds of a forward as a function of its shape; see the module for the formula.

    Attributes
    ----------
    overhead, weights, token, attention : float
        o, w, c, a; in seconds.
    sharpness : float
        p.
    tokens, corrections : tuple of float
        Values of n that were timed, and log(measured / formula) at each.
    """

    overhead: float
    weights: float
    token: float
    attention: float
    sharpness: float
    tokens: tuple[float, ...] = ()
    corrections: tuple[float, ...] = ()

    def formula(
        self, rows: NDArray[Any] | float, columns: NDArray[Any] | float, context: Any
    ) -> NDArray[np.float64]:
        """The formula alone."""
        n = np.multiply(rows, columns).astype(np.float64)
        p = self.sharpness
        top = np.maximum(self.weights, self.token * n)
        low = np.minimum(self.weights, self.token * n)
        pace = top * (1 + (low / np.maximum(top, 1e-300)) ** p) ** (1 / p)
        return np.asarray(self.overhead + pace + self.attention * n * context)

    def seconds(self, rows: Any, columns: Any, context: Any) -> NDArray[np.float64]:
        """Formula times correction; arrays broadcast."""
        value = self.formula(rows, columns, context)
        if self.tokens:
            n = np.log(np.maximum(np.multiply(rows, columns), 1))
            value = value * np.exp(np.interp(n, np.log(self.tokens), self.corrections))
        return value

    @property
    def knee(self) -> float:
        """Tokens of a forward at which arithmetic takes as long as passing over the weights."""
        return self.weights / self.token if self.token > 0 else float("inf")


class ForwardTimer:
    """Times forwards of several shapes in turn, pass by pass.

    Parameters
    ----------
    lm : LM or FedDraft
        The latter knows no context, and one column only.
    shapes : list of (rows, columns, context)
        The context is a prompt that the rows share, as in a population.
    """

    def __init__(self, lm: LM | FedDraft, shapes: Sequence[tuple[int, int, int]]) -> None:
        self._lm = lm
        self._times: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
        self._generator = torch.Generator().manual_seed(0)
        self._warm = False

    def step(self) -> None:
        """Each shape once (twice in the first pass, for warming up)."""
        lm = self._lm
        if isinstance(lm, FedDraft):
            for (rows, _, _), times in self._times.items():
                if not self._warm:
                    lm.time_step(rows)
                times.append(lm.time_step(rows))
            self._warm = True
            return
        for context in sorted({c for _, _, c in self._times}):
            prompt = self._random(1, context)[0].tolist()
            with lm.sequences(prompt, 1) as base:
                for shape, times in self._times.items():
                    if shape[2] == context:
                        if not self._warm:
                            self._time(base, shape)
                        times.append(self._time(base, shape))
        self._warm = True

    def result(self) -> list[Forward]:
        """The median of each shape so far."""
        return [Forward(*shape, statistics.median(t)) for shape, t in self._times.items() if t]

    def _time(self, base: Any, shape: tuple[int, int, int]) -> float:
        rows, columns, _ = shape
        tokens = self._random(rows, columns)
        with base.fork([0] * rows) as some:
            some.append(tokens[:, :1])
            begun = time.perf_counter()
            if columns == 1:
                some.next_logits()
            else:
                some.score(tokens[:, 1:])
            if self._lm.device.type == "cuda":
                torch.cuda.synchronize(self._lm.device)
            return time.perf_counter() - begun

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randint(self._lm.vocab.size, (rows, columns), generator=self._generator)


def fit_forwards(timed: Sequence[Forward]) -> ForwardModel:
    """Fit the formula to timed shapes by least squares of log seconds, then interpolate the rest.

    Raises
    ------
    ValueError
        With fewer than three shapes.
    """
    from scipy.optimize import least_squares

    if len(timed) < 3:
        raise ValueError(f"a forward's model needs at least 3 timed shapes, got {len(timed)}")
    rows = np.array([f.rows for f in timed], dtype=float)
    columns = np.array([f.columns for f in timed], dtype=float)
    context = np.array([f.context for f in timed], dtype=float)
    seconds = np.array([f.seconds for f in timed], dtype=float)
    n = rows * columns
    low, high = seconds.min(), seconds.max()
    token = high / n.max()
    scale = np.array([low, low, token, token / max(context.max(), 1)])
    varied = len(set(context)) > 1  # else attention cannot be told from the rest

    def model(x: NDArray[np.float64]) -> ForwardModel:
        o, w, c, a = np.exp(x[:4]) * scale
        return ForwardModel(float(o), float(w), float(c), float(a) * varied, float(np.exp(x[4])))

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        fitted = np.log(model(x).formula(rows, columns, context) / seconds)
        # A weak pull towards small overheads and a plain knee settles what timings cannot tell.
        return np.concatenate([fitted, 0.003 * (x - np.array([-3, 0, 0, -3, np.log(2)]))])

    lowest, highest = [-14, -14, -14, -14, 0], [3, 3, 3, 3, np.log(8)]
    best = min(
        (
            least_squares(residuals, [o, w, c, -3, np.log(2)], bounds=(lowest, highest))
            for o in (-4, -1)
            for w in (-1, 0)
            for c in (-1.5, -0.2)
        ),
        key=lambda fit: fit.cost,
    )
    plain = model(best.x)
    left = np.log(seconds / plain.formula(rows, columns, context))
    tokens = np.unique(n)
    corrections = [float(left[n == value].mean()) for value in tokens]
    return dataclasses.replace(
        plain, tokens=tuple(map(float, tokens)), corrections=tuple(corrections)
    )
