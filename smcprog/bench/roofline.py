"""Predicted seconds of a round, and of whole cells, from the forwards of target and draft.

A round of SMC-SD with K drafts and n rows is K forwards of the draft over n rows, one of the
target over n rows of K + 1 columns, and the sampler's own work, s₀ + s₁·n + s₂·n·K. The forwards
alone are what the machine allows; with the sampler's work they are the prediction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from smcprog.bench.cells import Cell
from smcprog.bench.forwards import ForwardModel
from smcprog.bench.runs import Round

__all__ = ["Core", "Roofline", "Work", "fit_core", "played", "simulated"]

SIMULATIONS = 40


@dataclasses.dataclass(frozen=True)
class Work:
    """What one round has to do.

    Attributes
    ----------
    rows : float
        Running particles.
    draft_tokens : int
        K of the round, 0 without a draft.
    context : float
        Tokens of a row before it.
    forward : bool
        False for the first round, whose distribution the prompt's forward gave.
    carried : int
        Tokens that the draft's first forward takes along besides one: the bonus, if all before
        it were kept.
    """

    rows: float
    draft_tokens: int
    context: float
    forward: bool = True
    carried: int = 0


@dataclasses.dataclass(frozen=True)
class Core:
    """Seconds of the sampler's own work in a round: s₀ + s₁·n + s₂·n·K, all at least 0."""

    fixed: float
    row: float
    drafted: float

    def seconds(self, work: Work) -> float:
        """For one round."""
        return self.fixed + work.rows * (self.row + self.drafted * work.draft_tokens)


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Predicts rounds.

    Attributes
    ----------
    target : ForwardModel
    draft : ForwardModel or None
    cores : mapping of str to Core
        By `Mode.kind`.
    carries : bool
        Whether the draft runs over tokens that it did not draft.
    """

    target: ForwardModel
    draft: ForwardModel | None
    cores: Mapping[str, Core]
    carries: bool = True

    def forwards(self, work: Work, paths: int = 1) -> float:
        """Seconds of a round's forwards: what the machine allows."""
        if not work.forward:
            return 0.0
        rows, k = work.rows * (paths if work.draft_tokens else 1), work.draft_tokens
        total = float(self.target.seconds(rows, k + 1, work.context))
        if k and self.draft is not None:
            widths = [1 + work.carried * self.carries, *[1] * (k - 1)]
            total += sum(
                float(self.draft.seconds(rows, width, work.context + i))
                for i, width in enumerate(widths)
            )
        return total

    def alone(self, rounds: Sequence[Round]) -> float:
        """Seconds of the forwards that rounds really ran, as timed by themselves."""
        models = [self.target, self.draft]
        total = 0.0
        for one in (one for r in rounds for one in r.ran):
            model = models[one.model]
            assert model is not None
            total += float(model.seconds(one.rows, one.columns, one.context))
        return total

    def seconds(self, work: Work, kind: str, paths: int = 1) -> float:
        """Predicted seconds of a round, the sampler's work included."""
        core = self.cores.get(kind)
        return self.forwards(work, paths) + (0.0 if core is None else core.seconds(work))


def fit_core(works: Sequence[Work], left: Sequence[float], whole: Sequence[float]) -> Core:
    """Fit s₀, s₁, s₂ ≥ 0 to what rounds took beyond their forwards.

    Parameters
    ----------
    works : list of Work
    left : list of float
        Seconds beyond the forwards.
    whole : list of float
        Seconds of the rounds, which errors are taken relative to.
    """
    from scipy.optimize import nnls

    matrix = np.array([[1.0, w.rows, w.rows * w.draft_tokens] for w in works])
    scale = 1 / np.asarray(whole, dtype=float)
    columns = np.abs(matrix).max(0)
    columns[columns == 0] = 1
    solution, _ = nnls(matrix / columns * scale[:, None], np.maximum(left, 0) * scale)
    fixed, row, drafted = (solution / columns).tolist()
    return Core(fixed, row, drafted)


def played(rounds: Sequence[Round], prompt_tokens: float) -> list[Work]:
    """The work of rounds that were really played under a clock."""
    return [Work(r.rows, r.draft_tokens, prompt_tokens + r.length, bool(r.ran)) for r in rounds]


def simulated(
    cell: Cell,
    accepted: Sequence[NDArray[np.float64]],
    prompt_tokens: float,
    max_tokens: int,
    seed: int = 0,
) -> list[list[Work]]:
    """Rounds of a cell that was not run, several times over.

    Each row keeps drafted tokens as often as `accepted` says, from a place drawn for each round;
    all outputs have `max_tokens` tokens. With λ = ∞ or no draft there is nothing to chance.

    Returns
    -------
    list of list of Work
        The works of each simulation.
    """
    rows, k = cell.particles * cell.requests, int(cell.draft_tokens)
    chance = cell.mode.kind == "coupled" and k > 0
    rng = np.random.default_rng(seed)
    table = _windows(accepted, k) if chance else np.ones((1, k))
    found = []
    for _ in range(SIMULATIONS if chance else 1):
        lengths = np.ones(rows, dtype=int)
        works = [Work(rows, 0, prompt_tokens, forward=False)]
        while True:
            live = np.flatnonzero(lengths < max_tokens)
            if not len(live):
                break
            room = max_tokens - lengths[live]
            drafts = np.minimum(k, room - 1)
            most = int(drafts.max())
            context = prompt_tokens + float(lengths[live].mean())
            carried = int(cell.mode.kind == "smc" and len(works) > 1)
            works.append(Work(len(live), most, context, carried=carried))
            kept = table[rng.integers(len(table), size=len(live)), :most]
            keeps = rng.random((len(live), most)) < kept
            kept_S = np.minimum(np.cumprod(keeps, axis=1).sum(1), drafts)
            lengths[live] += kept_S + 1
        found.append(works)
    return found


def _windows(accepted: Sequence[NDArray[np.float64]], k: int) -> NDArray[np.float64]:
    """Every stretch of K positions of the outputs, [W, K]."""
    stretches = [
        a[begin : begin + k] for a in accepted for begin in range(len(a) - k + 1) if len(a) >= k
    ]
    if not stretches:  # outputs shorter than K: go on with the mean
        mean = float(np.concatenate(list(accepted)).mean())
        return np.full((1, k), mean)
    return np.stack(stretches)
