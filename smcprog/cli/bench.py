"""``smcprog bench``: measurements of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from smcprog.cli.failures import reported

__all__ = ["app"]

app = typer.Typer(help="Measure the sampler on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def overhead(
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=1)] = 60,
    particles: Annotated[int, typer.Option(help="Particles of the population.", min=1)] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare a sampler round with the bare forward pass of the same shape."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.overhead import main as overhead_main

        overhead_main(rounds=rounds, particles=particles, as_json=as_json)
