"""``smcprog bench variance``: what joint draws save."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.cli.inputs import build_grammar, read_prompt

__all__ = ["variance"]


def variance(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Goes through the model's chat template.")
    ] = "Describe Ada Lovelace as a JSON object.",
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="DRAFT", help="distilled[:recurrent], layers:0,1,2, or a folder or id."
        ),
    ] = None,
    draft_tokens: Annotated[int, typer.Option("--draft-tokens", "-k", min=0)] = 4,
    schema: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="A JSON Schema as a factor.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="REGEX", help="A regular expression as a factor.")
    ] = None,
    lark: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="A Lark grammar as a factor.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="NAME", help="A built-in grammar as a factor.")
    ] = None,
    particles: Annotated[int, typer.Option("--particles", "-n", min=1)] = 8,
    max_tokens: Annotated[int, typer.Option(min=1)] = 64,
    temperature: Annotated[float, typer.Option()] = 1.0,
    runs: Annotated[int, typer.Option(help="Seeds, each run both ways.", min=3)] = 32,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare the variance of the log evidence under joint and independent draws."""
    with reported(as_json=as_json, debug=debug):
        text = read_prompt(prompt)
        constraint = build_grammar(
            schema=schema, regex=regex, lark=lark, choices=None, builtin=grammar
        )
        from smcprog.bench.pair import as_chats, load_pair
        from smcprog.bench.variance import run
        from smcprog.potentials import Target

        lm, small = load_pair(model, draft)
        target: Any = Target(lm, temperature=temperature)
        if constraint is not None:
            target = target * constraint
        report = run(
            target,
            as_chats(lm, [text])[0],
            runs=runs,
            seed=seed,
            particles=particles,
            max_tokens=max_tokens,
            draft=small,
            draft_tokens=draft_tokens,
        )
        if as_json:
            typer.echo(json.dumps(report))
            return
        typer.echo(f"{target.name}, N={particles}, {runs} runs each")
        typer.echo(f"{'draws':<14}{'mean log Ẑ':>12}{'sd':>9}{'dead':>6}{'median s':>10}")
        for way in ("independent", "joint"):
            row = report[way]
            typer.echo(
                f"{way:<14}{row['mean_log_evidence']:>12.3f}{row['sd_log_evidence']:>9.3f}"
                f"{row['dead_runs']:>6}{row['median_s']:>10.2f}"
            )
        low, high = report["variance_ratio_95"]
        typer.echo(f"variance ratio {report['variance_ratio']:.3f} (95 %: {low:.3f} to {high:.3f})")
