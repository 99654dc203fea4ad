"""``smcprog bench speed``: modes side by side on the same prompts, with what they cost.

All cells run in turn, prompt by prompt and repeat by repeat, so that drift of the machine meets
all alike. Speed is tokens of one returned output per second of wall-clock, prompt included;
what is compared are medians over the repeats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.bench.agreement import Agreement, measure_agreement
from smcprog.bench.calibration import Calibration, Tell
from smcprog.bench.cells import Cell
from smcprog.bench.clock import ForwardClock, forward_clock
from smcprog.bench.forking import check_fits, measure_fork
from smcprog.bench.outside import Generate
from smcprog.bench.pair import endless, keep_prefixes
from smcprog.bench.quality import Difference, by_prompt, compare, proportion
from smcprog.bench.roofline import Roofline, played
from smcprog.bench.runs import Run, output_of, run_cell
from smcprog.bench.summary import best_cells, ratios
from smcprog.bench.task import items
from smcprog.drafts.fed import FedDraft
from smcprog.errors import SettingError
from smcprog.potentials import Target

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["SpeedSettings", "measure"]

WARM_TOKENS = 8
AGREEMENT_OUTPUTS = 8
TASK_TOKENS = 12
TASK_REQUESTS = 8


@dataclasses.dataclass(frozen=True)
class SpeedSettings:
    """What is run.

    Attributes
    ----------
    cells : list of Cell
    max_tokens : int
    repeats : int
        Of every cell on every prompt.
    end : bool
        Outputs end at EOS. Otherwise all have `max_tokens` tokens, the same work for all.
    reference : int
        Autoregressive samples of each prompt that outputs are compared with.
    roofline : bool
        Fit the roofline, and report what share of it each cell reaches.
    task_items : int
        Items of the task; 0 leaves it out.
    fork : bool
        Time a fork, too.
    scheduler : bool
        Several requests go through a `Scheduler`, not into one call.
    seed : int
    """

    cells: Sequence[Cell]
    max_tokens: int = 64
    repeats: int = 2
    end: bool = False
    reference: int = 8
    roofline: bool = True
    task_items: int = 0
    fork: bool = False
    scheduler: bool = False
    seed: int = 0


def measure(
    lm: LM,
    draft: LM | FedDraft | None,
    prompts: Sequence[Any],
    settings: SpeedSettings,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Run every cell, and report speed and quality.

    Returns
    -------
    dict
        Setting, `cells`, names of the `best` ones, `ratios`, `task` and `fork`;
        docs/benchmarks.md says what the entries of a cell mean.

    Raises
    ------
    SettingError
        If a mode needs a draft and there is none, or the model's context is too short for the
        task or the fork.
    """
    s = settings
    if draft is None and any(c.mode.drafts for c in s.cells):
        raise SettingError("modes with a draft need --draft; without one there are generate, auto")
    if s.fork:
        check_fits(lm)
    longest = max((len(lm.encode(i.prompt)) for i in items(s.task_items)), default=0)
    if longest + TASK_TOKENS > lm.max_context:
        raise SettingError(
            f"the task's prompts have up to {longest} tokens and do not fit the context of "
            f"{lm.name}, {lm.max_context} tokens: leave --task-items out"
        )
    with forward_clock(lm, draft) as clock:
        return _measure(_Bench(lm, draft, list(prompts), s, clock, tell))


def _measure(bench: _Bench) -> dict[str, Any]:
    s, lm, draft = bench.s, bench.lm, bench.draft
    with contextlib.nullcontext() if s.end else endless(lm, draft):
        reference = bench.reference()
        agreement = bench.agreement()
        calibration = bench.calibration()
        runs = bench.runs(calibration)
        roofline = None if calibration is None else calibration.roofline()
        rows = [bench.row(c, runs[c], reference, agreement, roofline) for c in s.cells]
        fork = measure_fork(lm) if s.fork else None
    best = best_cells(rows)
    task = bench.task([s.cells[i] for i in best.values()]) if s.task_items else []
    return {
        "version": 1,
        "target": lm.name,
        "draft": None if draft is None else draft.name,
        "threads": torch.get_num_threads(),
        "device": str(lm.device),
        "dtype": str(lm.dtype).removeprefix("torch."),
        "prompts": len(bench.prompts),
        "max_tokens": s.max_tokens,
        "repeats": s.repeats,
        "ends_at_eos": s.end,
        "reference_samples": s.reference,
        "cells": rows,
        "best": [rows[i]["name"] for i in best.values()],
        "ratios": ratios(rows),
        "task": task,
        "fork": fork,
    }


class _Bench:
    """One benchmark's models, prompts and settings."""

    def __init__(
        self,
        lm: LM,
        draft: LM | FedDraft | None,
        prompts: list[Any],
        settings: SpeedSettings,
        clock: ForwardClock,
        tell: Tell | None,
    ) -> None:
        self.lm = lm
        self.draft = draft
        self.prompts = prompts
        self.s = settings
        self.clock = clock
        self._tell = tell
        self._samples: dict[float, list[tuple[list[int], list[int]]]] = {}
        self._outside = Generate(lm) if any(c.mode.outside for c in settings.cells) else None

    def tell(self, stage: str, done: int, total: int) -> None:
        if self._tell is not None:
            self._tell(stage, done, total)

    @property
    def temperatures(self) -> list[float]:
        return list(dict.fromkeys(c.temperature for c in self.s.cells))

    def reference(self) -> dict[float, dict[int, float]]:
        """Mean log p a token of autoregressive samples, by temperature and prompt."""
        found = {}
        for done, tau in enumerate(self.temperatures):
            self.tell("reference", done, len(self.temperatures))
            posts = Target(self.lm, temperature=tau).sample(
                self.prompts,
                particles=self.s.reference,
                max_tokens=self.s.max_tokens,
                seed=[self.s.seed + (1 << 40) + i for i in range(len(self.prompts))],
            )
            found[tau] = by_prompt(output_of(post, i) for i, post in enumerate(posts))
            samples = [
                (self.lm.encode(self.prompts[i]), particle.tokens)
                for j in range(self.s.reference)
                for i, post in enumerate(posts)
                for particle in [post.particles[j]]
            ]
            self._samples[tau] = samples[:AGREEMENT_OUTPUTS]
        self.tell("reference", 1, 1)
        return found

    def agreement(self) -> dict[tuple[float, float], Agreement]:
        """Of the pair along samples of the target, by temperature and coupling."""
        found: dict[tuple[float, float], Agreement] = {}
        for tau in self.temperatures:
            wanted = {c.mode.coupling for c in self.s.cells if c.temperature == tau}
            couplings = sorted(c for c in wanted if c is not None)
            if self.draft is not None and couplings:
                values = measure_agreement(self.lm, self.draft, self._samples[tau], tau, couplings)
                found |= {(tau, c): a for c, a in values.items()}
        return found

    def calibration(self) -> Calibration | None:
        """Of the roofline; its passes go between the repeats."""
        cells = [c for c in self.s.cells if not c.mode.outside]
        if not self.s.roofline or not cells:
            return None
        lengths = [c.draft_tokens for c in cells if isinstance(c.draft_tokens, int)]
        return Calibration(
            self.lm,
            self.draft,
            self.clock,
            self.prompts[0],
            [c.mode for c in cells],
            draft_tokens=[k for k in lengths if k],
            most_rows=max(c.particles * c.requests for c in cells),
            temperature=self.temperatures[0],
            max_tokens=self.s.max_tokens,
        )

    def runs(self, calibration: Calibration | None) -> dict[Cell, list[list[Run]]]:
        """Runs of every cell, repeat by repeat."""
        s = self.s
        found: dict[Cell, list[list[Run]]] = {c: [[] for _ in range(s.repeats)] for c in s.cells}
        for cell in s.cells:
            self._run(cell, 0, 0, min(WARM_TOKENS, s.max_tokens), quality=False)
        total, done = s.repeats * len(self.prompts) * len(s.cells), 0
        for repeat in range(s.repeats):
            if calibration is not None and repeat in (0, s.repeats // 2):
                calibration.step()
            for prompt in range(len(self.prompts)):
                for cell in s.cells:
                    self.tell("cells", done, total)
                    seed = s.seed + 10_000 * repeat + 100 * prompt
                    found[cell][repeat].append(self._run(cell, prompt, seed, s.max_tokens))
                    done += 1
        if calibration is not None:
            calibration.step()
        self.tell("cells", total, total)
        return found

    def _run(
        self, cell: Cell, prompt: int, seed: int, max_tokens: int, quality: bool = True
    ) -> Run:
        asked = [
            (i % len(self.prompts), self.prompts[i % len(self.prompts)])
            for i in range(prompt, prompt + cell.requests)
        ]
        if self._outside is not None and cell.mode.outside:
            run, _ = self._outside.run(
                cell, asked, max_tokens=max_tokens, seed=seed, quality=quality
            )
            return run
        if self.s.scheduler and cell.requests > 1:
            from smcprog.smc import Scheduler

            with Scheduler() as scheduler:
                run, _ = run_cell(
                    cell,
                    self.lm,
                    self.draft,
                    asked,
                    max_tokens=max_tokens,
                    seed=seed,
                    scheduler=scheduler,
                )
            return run
        run, _ = run_cell(
            cell,
            self.lm,
            self.draft,
            asked,
            max_tokens=max_tokens,
            seed=seed,
            clock=self.clock,
        )
        return run

    def row(
        self,
        cell: Cell,
        runs: list[list[Run]],
        reference: dict[float, dict[int, float]],
        agreement: dict[tuple[float, float], Agreement],
        roofline: Roofline | None,
    ) -> dict[str, Any]:
        """Everything about one cell."""
        every = [run for repeat in runs for run in repeat]
        outputs = [o for run in every for o in run.outputs]
        speeds = [_rate(repeat, lambda r: r.tokens / len(r.outputs)) for repeat in runs]
        gap: Difference = compare(by_prompt(outputs), reference[cell.temperature])
        pair = agreement.get((cell.temperature, cell.mode.coupling or 0.0))
        rounds = [r for run in every for r in run.rounds[1:]]
        drawn = sum(o.particle_tokens - cell.particles for o in outputs)
        row: dict[str, Any] = {
            "name": cell.name,
            "mode": cell.mode.name,
            "particles": cell.particles,
            "draft_tokens": cell.draft_tokens,
            "temperature": cell.temperature,
            "requests": cell.requests,
            "seconds": statistics.median(run.seconds for run in every),
            "speed": statistics.median(speeds),
            "speeds": speeds,
            "throughput": statistics.median(_rate(r, lambda run: run.tokens) for r in runs),
            "particle_throughput": statistics.median(
                _rate(r, lambda run: sum(o.particle_tokens for o in run.outputs)) for r in runs
            ),
            "tokens": float(np.mean([o.tokens for o in outputs])),
            "tokens_per_round": drawn / sum(r.rows for r in rounds) if rounds else None,
            "logp": float(np.mean(list(by_prompt(outputs).values()))),
            "logp_difference": _known(gap.mean),
            "logp_low": _known(gap.low),
            "logp_high": _known(gap.high),
            "quotable": gap.quotable(cell.mode.exact),
            "acceptance": None if pair is None else pair.acceptance,
            "log_chi2": None if pair is None else pair.log_chi2,
            "ess": float(np.mean([o.ess for o in outputs])),
            "distinct": float(np.mean([o.distinct for o in outputs])),
        }
        return row | self._against(roofline, cell, every)

    def _against(self, roofline: Roofline | None, cell: Cell, runs: list[Run]) -> dict[str, Any]:
        """What the forwards alone would have taken for the rounds that were played."""
        inside = [
            (run.prefill + sum(r.forwards for r in run.rounds)) / run.seconds
            for run in runs
            if run.rounds
        ]
        none: dict[str, Any] = {
            "forward_share": statistics.median(inside) if inside else None,
            "allowed_share": None,
            "predicted_over_measured": None,
        }
        if roofline is None or not inside or cell.mode.kind not in roofline.cores:
            return none
        core = roofline.cores[cell.mode.kind]
        shares, errors = [], []
        for run in (run for run in runs if run.rounds):
            allowed = run.prefill + roofline.alone(run.rounds)
            work = sum(core.seconds(w) for w in played(run.rounds, run.context))
            shares.append(allowed / run.seconds)
            errors.append((allowed + work) / run.seconds)
        return none | {
            "allowed_share": statistics.median(shares),
            "predicted_over_measured": statistics.median(errors),
        }

    def task(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Score of the returned outputs on the task, for one cell of each mode."""
        asked = items(self.s.task_items)
        for model in (self.lm, self.draft):
            if not isinstance(
                model, FedDraft | None
            ):  # nothing is timed here, and all prompts begin alike
                keep_prefixes(model)
        found = []
        chosen = [c for c in cells if not c.mode.outside]
        for done, cell in enumerate(chosen):
            self.tell("task", done, len(chosen))
            one = dataclasses.replace(cell, requests=TASK_REQUESTS)
            right = 0
            for begin in range(0, len(asked), TASK_REQUESTS):
                part = range(begin, min(begin + TASK_REQUESTS, len(asked)))
                _, posts = run_cell(
                    one,
                    self.lm,
                    self.draft,
                    [(i, asked[i].prompt) for i in part],
                    max_tokens=TASK_TOKENS,
                    seed=self.s.seed + 1000 * begin,
                )
                right += sum(asked[i].right(p.text) for i, p in zip(part, posts, strict=True))
            low, high = proportion(right, len(asked))
            found.append(
                {
                    "name": cell.name,
                    "mode": cell.mode.name,
                    "items": len(asked),
                    "right": right,
                    "score": right / len(asked),
                    "low": low,
                    "high": high,
                }
            )
        self.tell("task", 1, 1)
        return found


def _rate(runs: Sequence[Run], tokens: Any) -> float:
    """Tokens a second over the runs of one repeat."""
    return float(sum(tokens(run) for run in runs) / sum(run.seconds for run in runs))


def _known(value: float) -> float | None:
    """JSON knows no NaN."""
    return None if math.isnan(value) else value
