"""``smcprog bench kv``: what narrower pages cost in accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from smcprog.cli.failures import reported

__all__ = ["kv"]


def kv(
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            "--kv-dtype",
            metavar="TYPES",
            help="Types of pages, with commas. (default: all narrower than the model's)",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Default: CUDA where there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the weights, as for LM.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines, also gzipped. (default: four that are built in)",
            show_default=False,
        ),
    ] = None,
    prompt_count: Annotated[
        int | None, typer.Option(help="The first so many prompts only.", min=1)
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most tokens drawn after a prompt.", min=1)] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare logits through pages of narrower types with those through the model's own."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.attention.kv_dtype import resolve_kv_dtype
        from smcprog.bench.kv import default_kinds, run
        from smcprog.bench.pair import as_chats
        from smcprog.bench.prompts import read_prompts
        from smcprog.engine.lm import LM

        kinds = None if kv_dtype is None else [kind.strip() for kind in kv_dtype.split(",")]
        for kind in kinds or ():
            resolve_kv_dtype(kind)
        asked = read_prompts(prompts, prompt_count)
        lm = LM(model, device=device, dtype=dtype, prefix_cache=False)
        report = run(lm, as_chats(lm, asked), kinds or default_kinds(lm), tokens=tokens, seed=seed)
        if as_json:
            typer.echo(json.dumps(report))
            return
        typer.echo(
            f"{report['model']}, {report['tokens']} tokens after {report['context']:.0f} on "
            f"average; {report['own']} pages: {report['bytes_per_token']:.0f} bytes a token"
        )
        typer.echo(
            f"{'pages':<15}{'bytes/token':>12}{'max |Δ logit|':>15}{'mean':>10}{'KL/token':>11}"
            f"{'max':>10}{'top-1':>8}"
        )
        for row in report["rows"]:
            typer.echo(
                f"{row['kv_dtype']:<15}{row['bytes_per_token']:>12.0f}{row['max_logit']:>15.4f}"
                f"{row['mean_logit']:>10.5f}{row['mean_kl']:>11.2e}{row['max_kl']:>10.2e}"
                f"{row['top1']:>8.1%}"
            )
