"""``smcprog bench gpu``: what the engine reaches on a device, each figure next to its roofline.

The plan of each pair is worked through in order of importance until its share of the time is
spent; what was left out is listed. After every step the report so far is handed on, so that a run
that is cut off leaves its figures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.metadata
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

from smcprog.bench.calibration import Tell
from smcprog.bench.gpu.bars import bars
from smcprog.bench.gpu.cells import ForwardShape, GpuCell, Grid, plan
from smcprog.bench.gpu.forwards import time_forward
from smcprog.bench.gpu.machine import Machine, find_machine
from smcprog.bench.gpu.pair import LoadedPair
from smcprog.bench.gpu.rounds import CellRunner
from smcprog.errors import InputError, SMCError

__all__ = ["GpuSettings", "measure"]

VERSION = 1
MOST_RESERVE = 15.0  # seconds kept for a step that may take as long as the longest one did
Step = ForwardShape | GpuCell


@dataclasses.dataclass(frozen=True)
class GpuSettings:
    """What is run.

    Attributes
    ----------
    pairs : tuple of str
        Names of `PAIRS`.
    device : torch.device
    dtype : torch.dtype
    grid : Grid
    budget : float
        Seconds for everything, building the models included.
    rounds, repeats : int
        Rounds of a run, and runs of a cell.
    attention : str
        As for `LM`.
    accelerator : str, optional
        As `parse_accelerator` takes it, in place of the data sheet.
    """

    pairs: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    grid: Grid = dataclasses.field(default_factory=Grid)
    budget: float = 480.0
    rounds: int = 16
    repeats: int = 3
    attention: str = "auto"
    accelerator: str | None = None


def measure(
    settings: GpuSettings,
    tell: Tell | None = None,
    save: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Work through the plan of every pair, and report.

    Parameters
    ----------
    settings : GpuSettings
    tell : callable, optional
        Of stage, steps done and all steps.
    save : callable, optional
        Called with the report so far after every step.

    Returns
    -------
    dict
        docs/benchmarks-gpu.md says what the entries mean.
    """
    s = settings
    begun = time.perf_counter()
    if s.device.type == "cuda":
        torch.cuda.set_device(s.device)
    transformers.utils.logging.set_verbosity_error()  # standard error is for ours
    transformers.utils.logging.disable_progress_bar()
    machine = find_machine(s.device, s.dtype, s.accelerator)
    report: dict[str, Any] = {
        "version": VERSION,
        "device": str(s.device),
        "dtype": str(s.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "flashinfer": _version("flashinfer-python"),
        "machine": machine.report(),
        "budget_s": s.budget,
        "grid": dataclasses.asdict(s.grid),
        "pairs": [],
        "seconds": 0.0,
    }
    for i, name in enumerate(s.pairs):
        # What a pair leaves over is the next one's.
        left = s.budget - (time.perf_counter() - begun)
        found: dict[str, Any] = {"name": name, "rows": [], "failed": [], "left_out": []}
        report["pairs"].append(found)

        def done(found: dict[str, Any] = found) -> None:
            report["seconds"] = time.perf_counter() - begun
            found["bars"] = _bars(found, s.grid)
            if save is not None:
                save(report)

        try:
            _measure_pair(name, s, machine, left / (len(s.pairs) - i), found, done, tell)
        except SMCError as error:
            if isinstance(error, InputError):  # of the call, or of --out
                raise
            found["failed"].append(_failure("models", error))
        except RuntimeError as error:  # the device's
            found["failed"].append(_failure("models", error))
        done()
        gc.collect()  # the models' memory is the next pair's
        if s.device.type == "cuda":
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()
    return report


def _measure_pair(
    name: str,
    s: GpuSettings,
    machine: Machine,
    budget: float,
    found: dict[str, Any],
    done: Callable[[], None],
    tell: Tell | None,
) -> None:
    begun = time.perf_counter()
    pair = LoadedPair(name, s.device, s.dtype, s.grid, s.rounds, s.attention)
    found["models"] = pair.report()
    found["build_s"] = time.perf_counter() - begun
    runner = CellRunner(pair, machine, s.rounds, s.repeats)
    steps: Sequence[Step] = plan(s.grid)
    longest = 0.0
    for i, step in enumerate(steps):
        if tell is not None:
            tell(name, i, len(steps))
        now = time.perf_counter()
        if i and now - begun + min(longest, MOST_RESERVE) > budget:
            found["left_out"] = [rest.name for rest in steps[i:]]
            break
        try:
            row = _step(step, pair, runner, machine)
        except Exception as error:  # the others' figures are worth having
            found["failed"].append(_failure(step.name, error))
        else:
            found["rows"].append(_finite(row) | {"seconds": time.perf_counter() - now})
        # After some errors nothing works on the device any more; the report still counts.
        with contextlib.suppress(RuntimeError):
            runner.clear()
        longest = max(longest, time.perf_counter() - now)
        done()
    if tell is not None:
        tell(name, len(steps), len(steps))


def _step(step: Step, pair: LoadedPair, runner: CellRunner, machine: Machine) -> dict[str, Any]:
    if isinstance(step, GpuCell):
        return runner.run(step)
    which = 0 if step.model == "target" else 1
    return time_forward(pair.models[which], pair.sizes[which], step, machine)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _failure(name: str, error: Exception) -> dict[str, str]:
    return {"name": name, "error": f"{type(error).__name__}: {error}"}


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """What JSON has no number for becomes None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _bars(found: dict[str, Any], grid: Grid) -> list[dict[str, Any]]:
    rows = [r for r in found["rows"] if r["kind"] == "rounds"]
    return bars(rows, *grid.base)
