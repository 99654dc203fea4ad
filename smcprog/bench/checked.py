"""``smcprog bench roofline``: predict cells, run some that nothing was fitted to, and compare."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.bench.agreement import Agreement, measure_agreement
from smcprog.bench.calibration import CALIBRATED, Calibration, Tell
from smcprog.bench.cells import Cell, grid
from smcprog.bench.clock import ForwardClock, forward_clock
from smcprog.bench.forwards import Forward, ForwardModel
from smcprog.bench.pair import endless
from smcprog.bench.roofline import Roofline, simulated
from smcprog.bench.runs import run_cell
from smcprog.errors import SettingError
from smcprog.potentials import Target

if TYPE_CHECKING:
    from smcprog.bench.cells import Mode
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["RooflineSettings", "agreements", "choose_held_out", "describe_model", "measure"]

AGREEMENT_OUTPUTS = 8


@dataclasses.dataclass(frozen=True)
class RooflineSettings:
    """What is predicted and checked.

    Attributes
    ----------
    modes : list of Mode
    particles, draft_tokens, requests : list of int
        The grid of cells.
    temperature : float
    max_tokens : int
        Tokens of every output.
    held_out : int
        Cells of the grid that are run to check the prediction; 0 runs none.
    repeats : int
        Passes, in each of which every forward is timed and every held-out cell run.
    seed : int
    """

    modes: Sequence[Mode]
    particles: Sequence[int]
    draft_tokens: Sequence[int]
    requests: Sequence[int]
    temperature: float = 1.0
    max_tokens: int = 32
    held_out: int = 8
    repeats: int = 3
    seed: int = 0


def measure(
    lm: LM,
    draft: LM | FedDraft | None,
    prompts: Sequence[Any],
    settings: RooflineSettings,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Fit, predict every cell of the grid, and run the held-out ones.

    Returns
    -------
    dict
        `forwards` (timed and fitted, of target and draft), `cores`, `agreement`, `cells` with
        `predicted_ms` and `allowed_ms` per output token and, where run, `measured_ms` and
        `error`; and `median_error` over the held-out cells.

    Raises
    ------
    SettingError
        If a mode needs a draft and there is none.
    """
    s = settings
    modes = [m for m in s.modes if not m.outside]
    cells = grid(modes, s.particles, s.draft_tokens, [s.temperature], s.requests)
    if draft is None and any(m.drafts for m in modes):
        raise SettingError("modes with a draft need --draft; without one there is auto only")
    if not cells:
        raise SettingError("no cell to predict: give a mode of the engine, such as auto")
    with endless(lm, draft), forward_clock(lm, draft) as clock:
        agreement: dict[float, Agreement] = {}
        couplings = sorted({m.coupling for m in modes if m.coupling is not None})
        if draft is not None and couplings:
            if tell is not None:
                tell("agreement", 0, 1)
            agreement = agreements(
                lm, draft, prompts, s.temperature, couplings, s.max_tokens, s.seed
            )
        calibration = Calibration(
            lm,
            draft,
            clock,
            prompts[0],
            modes,
            draft_tokens=[*s.draft_tokens, *(k for _, k in CALIBRATED["drafted"])],
            most_rows=max(s.particles) * max(s.requests),
            temperature=s.temperature,
            max_tokens=s.max_tokens,
        )
        chosen = choose_held_out(cells, s.held_out)
        times: dict[int, list[float]] = {index: [] for index in chosen}
        for repeat in range(s.repeats):
            if tell is not None:
                tell("passes", repeat, s.repeats)
            calibration.step()
            for index, found in times.items():
                if not repeat:
                    _time(cells[index], lm, draft, clock, prompts, s, -1)  # warm
                found.append(_time(cells[index], lm, draft, clock, prompts, s, repeat))
        if tell is not None:
            tell("passes", s.repeats, s.repeats)
    roofline, timed = calibration.roofline(), calibration.timed()
    length = float(np.mean([len(lm.encode(p)) for p in prompts]))
    rows = [_predict(cell, roofline, agreement, length, s) for cell in cells]
    for index, found in times.items():
        measured = 1e3 * statistics.median(found)
        rows[index]["measured_ms"] = measured
        rows[index]["error"] = rows[index]["predicted_ms"] / measured - 1
    errors = [abs(row["error"]) for row in rows if row["error"] is not None]
    return {
        "version": 1,
        "target": lm.name,
        "draft": None if draft is None else draft.name,
        "threads": torch.get_num_threads(),
        "device": str(lm.device),
        "temperature": s.temperature,
        "max_tokens": s.max_tokens,
        "prompt_tokens": length,
        "forwards": {
            "target": describe_model(roofline.target, timed[0]),
            "draft": None if roofline.draft is None else describe_model(roofline.draft, timed[1]),
        },
        "cost_ratio": None
        if roofline.draft is None
        else float(roofline.draft.seconds(1, 1, length) / roofline.target.seconds(1, 1, length)),
        "cores": {kind: dataclasses.asdict(core) for kind, core in roofline.cores.items()},
        "agreement": [
            {"coupling": _finite(c), "acceptance": a.acceptance, "log_chi2": a.log_chi2}
            for c, a in agreement.items()
        ],
        "cells": rows,
        "held_out": len(errors),
        "median_error": statistics.median(errors) if errors else None,
    }


def agreements(
    lm: LM,
    draft: LM | FedDraft,
    prompts: Sequence[Any],
    temperature: float,
    couplings: Sequence[float],
    max_tokens: int,
    seed: int,
) -> dict[float, Agreement]:
    """Acceptance and χ² along a few outputs that the target draws itself."""
    some = list(prompts[:AGREEMENT_OUTPUTS])
    each = -(-AGREEMENT_OUTPUTS // len(some))
    posts = Target(lm, temperature=temperature).sample(
        some, particles=each, max_tokens=max_tokens, seed=seed
    )
    outputs = [
        (lm.encode(prompt), particle.tokens)
        for prompt, post in zip(some, posts, strict=True)
        for particle in post.particles
    ]
    return measure_agreement(lm, draft, outputs, temperature, couplings)


def choose_held_out(cells: Sequence[Cell], count: int) -> list[int]:
    """Positions of cells to run: evenly over the grid, none that anything was fitted to."""
    free = [
        i
        for i, c in enumerate(cells)
        if c.requests > 1
        or (c.particles, c.draft_tokens) not in CALIBRATED["drafted" if c.mode.drafts else "auto"]
    ]
    count = min(count, len(free))
    return [free[i] for i in np.unique(np.linspace(0, len(free) - 1, count).round().astype(int))]


def describe_model(model: ForwardModel, timed: Sequence[Forward]) -> dict[str, Any]:
    """A fitted forward, in milliseconds, with what it was fitted to."""
    return {
        "overhead_ms": 1e3 * model.overhead,
        "weights_ms": 1e3 * model.weights,
        "token_ms": 1e3 * model.token,
        "attention_us": 1e6 * model.attention,
        "knee_tokens": _finite(model.knee),
        "timed": [
            {
                "rows": f.rows,
                "columns": f.columns,
                "context": f.context,
                "ms": 1e3 * f.seconds,
                "formula_ms": 1e3 * float(model.formula(f.rows, f.columns, f.context)),
            }
            for f in timed
        ],
    }


def _predict(
    cell: Cell,
    roofline: Roofline,
    agreement: dict[float, Agreement],
    length: float,
    s: RooflineSettings,
) -> dict[str, Any]:
    coupling = cell.mode.coupling
    accepted = agreement[coupling].accepted if coupling in agreement else []
    plays = simulated(cell, accepted, length, s.max_tokens, s.seed)
    kind, paths = cell.mode.kind, cell.mode.paths
    per_token = 1e3 / s.max_tokens / len(plays)
    predicted = per_token * sum(roofline.seconds(w, kind, paths) for p in plays for w in p)
    allowed = per_token * sum(roofline.forwards(w, paths) for p in plays for w in p)
    return {
        "mode": cell.mode.name,
        "particles": cell.particles,
        "draft_tokens": cell.draft_tokens,
        "requests": cell.requests,
        "rounds": sum(map(len, plays)) / len(plays),
        "predicted_ms": predicted,
        "allowed_ms": allowed,
        "measured_ms": None,
        "error": None,
    }


def _time(
    cell: Cell,
    lm: LM,
    draft: LM | FedDraft | None,
    clock: ForwardClock,
    prompts: Sequence[Any],
    s: RooflineSettings,
    repeat: int,
) -> float:
    """Seconds an output token of one run, its prompts' forwards left out."""
    first = max(repeat, 0)
    asked = [(i, prompts[i % len(prompts)]) for i in range(first, first + cell.requests)]
    tokens = s.max_tokens if repeat >= 0 else min(s.max_tokens, 4)
    seed = s.seed + 1000 * (repeat + 1)
    run, _ = run_cell(cell, lm, draft, asked, max_tokens=tokens, seed=seed, clock=clock)
    return (run.seconds - run.prefill) / tokens


def _finite(value: float) -> float | str:
    """JSON knows no infinity."""
    return value if np.isfinite(value) else "inf"
