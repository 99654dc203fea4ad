"""``smcprog bench masks``: what masks of grammars cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported

__all__ = ["masks"]


def masks(
    schemas: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON lines, also gzipped, with "name", "schema" and "tests". '
            "(default: two that are built in)",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="The first so many schemas only.", min=1)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Also run the model: the share of masks in a round.")
    ] = False,
    particles: Annotated[int, typer.Option("--particles", "-n", help="Of the rounds.", min=1)] = 64,
    max_tokens: Annotated[int, typer.Option(help="Of the rounds.", min=1)] = 48,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Time masks along valid instances, and copies, batches and steps back of matchers."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.mask_share import round_share
        from smcprog.bench.masks import BUILT_IN, latency, operations, read_schemas
        from smcprog.bench.pair import as_chats, load_pair

        rows = read_schemas(schemas, count)
        lm, _ = load_pair(model, None)
        report: dict[str, Any] = {
            "latency": latency(lm.vocab, rows),
            "operations": operations(lm.vocab, BUILT_IN[0]),
        }
        if rounds:
            prompt = as_chats(lm, ["Describe Ada Lovelace as a JSON object."])[0]
            report["rounds"] = round_share(
                lm, BUILT_IN[0]["schema"], prompt, particles=particles, max_tokens=max_tokens
            )
        if as_json:
            typer.echo(json.dumps(report))
            return
        _print(report, particles)


def _print(report: dict[str, Any], particles: int) -> None:
    found = report["latency"]
    typer.echo(
        f"{found['masks']} masks of {found['schemas'] - found['refused']} schemas: median "
        f"{found['median_us']:.1f} µs, p99 {found['p99_us']:.0f} µs, max {found['max_us']:.0f} µs, "
        f"{found['over_1ms']:.2%} over 1 ms (the engine alone: {found['engine_median_us']:.1f} and "
        f"{found['engine_p99_us']:.0f} µs)"
    )
    typer.echo(
        f"compiling: median {found['compile_median_ms']:.1f} ms, max "
        f"{found['compile_max_ms']:.0f} ms; {found['refused']} schemas refused"
    )
    for us, name, text in found["slowest"]:
        typer.echo(f"  {us:>8.0f} µs  {name}  after {text!r}")
    columns = ("copy_us", "fill_us", "rollback_us", "copy_ahead_us", "apply_us")
    typer.echo(f"{'N':>6}" + "".join(f"{name.removesuffix('_us'):>13}" for name in columns))
    for row in report["operations"]:
        typer.echo(f"{row['n']:>6}" + "".join(f"{row[name]:>10.2f} µs" for name in columns))
    if "rounds" in report:
        share = report["rounds"]
        typer.echo(
            f"a round of {particles} particles: {share['share']:.2%} for masks (computing "
            f"{share['mask_share']:.2%}, following tokens {share['step_share']:.2%}, applying "
            f"{share['apply_share']:.2%}) of {share['seconds'] / share['rounds'] * 1e3:.0f} ms"
        )
