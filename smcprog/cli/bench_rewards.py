"""``smcprog bench rewards``: what a reward buys, and for how much compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.cli.inputs import check_plot_file
from smcprog.errors import InputError, SettingError

__all__ = ["rewards"]

NAMES = ("extraction", "lists", "arithmetic")


def rewards(
    tasks: Annotated[
        str, typer.Option(metavar="LIST", help="Of extraction, lists and arithmetic.")
    ] = ",".join(NAMES),
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    particles: Annotated[str, typer.Option("--particles", "-n", help="Values of N.")] = "4,8,16",
    items: Annotated[int, typer.Option(help="Questions of a task.", min=2)] = 20,
    temperature: Annotated[float, typer.Option(help="Of the model, in all methods.")] = 1.0,
    strength: Annotated[float, typer.Option(help="Factor on β, the strength of a reward.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of questions and draws.", min=0)] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads of PyTorch.", min=1)] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw scores against compute to a .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare best-of-N, masking with reranking, importance sampling and SMC on one reward.

    Scores are shares of an answer that are right, worked out by program. Intervals are at 95 %,
    by the bootstrap over questions.
    """
    with reported(as_json=as_json, debug=debug):
        chosen = [name.strip() for name in tasks.split(",")]
        for name in chosen:
            if name not in NAMES:
                raise SettingError(f"--tasks takes {', '.join(NAMES)}, got {name!r}")
        if plot is not None:
            check_plot_file(plot)
        from smcprog.bench.cells import wholes
        from smcprog.bench.pair import keep_prefixes, load_pair
        from smcprog.bench.rewards import measure
        from smcprog.bench.rewards_tasks import TASKS
        from smcprog.cli.bench import _bar

        sizes = wholes("--particles", particles)
        lm, _ = load_pair(model, None, threads)
        keep_prefixes(lm)
        with _bar() as tell:
            report = measure(
                lm, [TASKS[NAMES.index(name)] for name in chosen], sizes, items,
                temperature=temperature, strength=strength, seed=seed, tell=tell,
            )  # fmt: skip
        if plot is not None:
            _save(report, plot)
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
            return
        for task in report["tasks"]:
            _print(task)


def _print(task: dict[str, Any]) -> None:
    typer.echo(f"{task['task']}, β = {task['beta']:g}")
    typer.echo(f"  {'method':<32}{'N':>4}{'score':>8}{'95 %':>15}{'perfect':>9}{'rows':>8}{'s':>7}")
    for cell in task["cells"]:
        bounds = f"[{cell['low']:.3f}, {cell['high']:.3f}]"
        typer.echo(
            f"  {cell['method']:<32}{cell['particles']:>4}{cell['score']:>8.3f}{bounds:>15}"
            f"{cell['perfect']:>9.2f}{cell['rows']:>8.0f}{cell['seconds']:>7.2f}"
        )
    typer.echo("  At equal compute:")
    for pair in task["against"]:
        shown = "; ".join(
            f"N={p['particles']} {p['more']:+.3f} [{p['low']:+.3f}, {p['high']:+.3f}]"
            + (" (beyond its draws)" if p["beyond"] else "")
            for p in pair["points"]
        )
        typer.echo(f"  {pair['method']} − {pair['rival']}, equal {pair['by']}: {shown}")
    typer.echo("")


def _save(report: dict[str, Any], path: Path) -> None:
    from smcprog.plots import plot_rewards

    try:
        plot_rewards(report, path)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot write it: {error.strerror or error}") from error
