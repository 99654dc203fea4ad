"""``smcprog bench code``: functions completed under the grammar of Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported

__all__ = ["code"]


def code(
    problems: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON lines, also gzipped, with "prompt": the beginning of a function. '
            "(default: four built-in ones)",
            show_default=False,
        ),
    ] = None,
    count: Annotated[int, typer.Option(help="Problems used, from the top.", min=1)] = 40,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    particles: Annotated[int, typer.Option("--particles", "-n", min=1)] = 4,
    max_tokens: Annotated[int, typer.Option(min=2)] = 96,
    temperature: Annotated[float, typer.Option()] = 1.0,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Complete functions with and without the grammar of Python. No code is run."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.code import BUILT_IN, measure
        from smcprog.bench.pair import load_pair
        from smcprog.bench.prompts import read_prompts
        from smcprog.cli.bench import _bar

        prompts = list(BUILT_IN[:count]) if problems is None else read_prompts(problems, count)
        lm, _ = load_pair(model, None)
        with _bar() as tell:
            report = measure(
                lm,
                prompts,
                particles=particles,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                tell=tell,
            )
        if as_json:
            typer.echo(json.dumps(report))
        else:
            _print(report)


def _print(report: dict[str, Any]) -> None:
    typer.echo(
        f"{report['problems']} functions, N={report['particles']}, "
        f"{report['max_tokens']} tokens, τ={report['temperature']:g}"
    )
    typer.echo(f"{'':<15}{'parse':>8}{'dead':>8}{'distinct':>10}{'tokens':>9}{'seconds':>10}")
    for way in ("constrained", "unconstrained"):
        row = report[way]
        typer.echo(
            f"{way:<15}{_share(row['parse_share']):>8}{_share(row['dead_share']):>8}"
            f"{row['mean_distinct'] or 0:>10.2f}{row['tokens']:>9}{row['seconds']:>10.1f}"
        )
    mask = report["mask_us"]
    typer.echo(
        f"time with the grammar over without: {report['time_ratio']:.2f}; "
        f"a mask: median {mask['median']:.0f} µs, p99 {mask['p99']:.0f} µs"
    )


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
