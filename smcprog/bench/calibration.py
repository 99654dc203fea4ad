"""From a pair of models to its roofline: forwards are timed, the sampler's work is fitted.

Timing goes in passes, so that a benchmark can spread them between its own runs: then drift of
the machine meets what is predicted and what it is compared with alike.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smcprog.bench.cells import Cell, Mode
from smcprog.bench.clock import ForwardClock
from smcprog.bench.forwards import Forward, ForwardTimer, fit_forwards
from smcprog.bench.roofline import Core, Roofline, Work, fit_core, played
from smcprog.bench.runs import run_cell
from smcprog.drafts.fed import FedDraft

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["CALIBRATED", "Calibration", "Tell"]

Tell = Callable[[str, int, int], None]
"""Called with a stage, steps done and steps in all."""

ROWS = (1, 2, 4, 8, 16, 32)
WIDEST = 160
"""Most tokens of a timed block of the target."""
LONGER = 128
"""How much longer the second context is that is timed."""
TOKENS = 14
"""Of the runs that the sampler's work is fitted to."""
CALIBRATED = {"auto": ((1, 0), (8, 0)), "drafted": ((1, 2), (8, 2), (4, 6))}
"""(N, K) of those runs; held-out cells are others."""


class Calibration:
    """Fits a pair's roofline on this machine, pass by pass.

    Parameters
    ----------
    lm, draft : LM
    clock : ForwardClock
        Watching both.
    prompt
        What the fitted runs continue.
    modes : list of Mode
        The sampler's work is fitted for each kind of round among them.
    draft_tokens : list of int
        Values of K of interest.
    most_rows : int
        Largest number of rows of interest.
    temperature : float
    max_tokens : int
        Of the outputs of interest.
    """

    def __init__(
        self,
        lm: LM,
        draft: LM | FedDraft | None,
        clock: ForwardClock,
        prompt: Any,
        modes: Sequence[Mode],
        *,
        draft_tokens: Sequence[int],
        most_rows: int,
        temperature: float,
        max_tokens: int,
    ) -> None:
        self._lm = lm
        self._draft = draft
        self._clock = clock
        self._prompt = prompt
        self._temperature = temperature
        self._kinds: dict[str, Mode] = {}
        for mode in modes:
            if not mode.outside and (draft is not None or not mode.drafts):
                self._kinds.setdefault(mode.kind, dataclasses.replace(mode, paths=1))
        self._length = len(lm.encode(prompt))
        context = self._length + max_tokens // 2
        rows = [r for r in ROWS if r <= max(most_rows, ROWS[2])]
        steps = [(r, 1, context) for r in rows]
        longer = min(context + LONGER, lm.max_context - WIDEST - 1)
        far = [(r, 1, longer) for r in (rows[0], rows[-1])] if longer > context else []
        widths = sorted({min(draft_tokens), max(draft_tokens)}) if draft_tokens else []
        blocks = [(r, k + 1, context) for k in widths for r in rows if r * (k + 1) <= WIDEST]
        drafted = any(m.drafts for m in self._kinds.values())
        self._timers = [ForwardTimer(lm, [*steps, *(blocks if drafted else []), *far])]
        if draft is not None and drafted:
            self._timers.append(ForwardTimer(draft, [*steps, *far]))
        self._works: dict[str, list[tuple[Work, float, float]]] = {k: [] for k in self._kinds}
        self._passes = 0

    def step(self) -> None:
        """One pass: every shape once, and one run for each point of the sampler's work."""
        for timer in self._timers:
            timer.step()
        for kind, mode in self._kinds.items():
            for n, k in CALIBRATED["drafted" if mode.drafts else "auto"]:
                cell = Cell(mode, n, k, self._temperature)
                if not self._passes:
                    self._run(cell, 4)  # warm
                self._works[kind] += self._run(cell, TOKENS)
        self._passes += 1

    def _run(self, cell: Cell, max_tokens: int) -> list[tuple[Work, float, float]]:
        run, _ = run_cell(
            cell,
            self._lm,
            self._draft,
            [(0, self._prompt)],
            max_tokens=max_tokens,
            seed=self._passes,
            clock=self._clock,
        )
        works = played(run.rounds, self._length)
        return [
            (w, r.seconds, r.seconds - r.forwards) for w, r in zip(works, run.rounds, strict=True)
        ]

    def timed(self) -> list[list[Forward]]:
        """Forwards of the target, and of the draft if there is one."""
        return [timer.result() for timer in self._timers]

    def roofline(self) -> Roofline:
        """Fitted to all passes so far."""
        models = [fit_forwards(timed) for timed in self.timed()]
        cores = {kind: _core(works) for kind, works in self._works.items()}
        fed = isinstance(self._draft, FedDraft)
        return Roofline(models[0], models[1] if len(models) > 1 else None, cores, carries=not fed)


def _core(rounds: Sequence[tuple[Work, float, float]]) -> Core:
    """From (work, seconds, seconds beyond the forwards) of rounds; alike ones by their median."""
    groups: dict[tuple[float, int, bool], list[tuple[Work, float, float]]] = {}
    for one in rounds:
        groups.setdefault((one[0].rows, one[0].draft_tokens, one[0].forward), []).append(one)
    most = max(map(len, groups.values()))
    kept = [group for group in groups.values() if 4 * len(group) >= most]  # odd ones say little
    return fit_core(
        [group[0][0] for group in kept],
        [statistics.median(left for _, _, left in group) for group in kept],
        [statistics.median(seconds for _, seconds, _ in group) for group in kept],
    )
