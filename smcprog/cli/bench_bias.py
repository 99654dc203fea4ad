"""``smcprog bench bias``: how far from the truth outputs are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.cli.inputs import check_plot_file
from smcprog.errors import InputError, SettingError

__all__ = ["bias"]

KINDS = ("tables", "model", "all")


def bias(
    cases: Annotated[
        str,
        typer.Option(metavar="KIND", help="tables (A to D), model (ten small requests) or all."),
    ] = "tables",
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
    ] = None,
    particles: Annotated[str, typer.Option("--particles", "-n", help="Values of N.")] = "2,8,32",
    runs: Annotated[
        int | None,
        typer.Option(help="Runs of every cell. (default: 2000; 32 with a model)", min=2),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Runs in one call. (default: 500; 16 with a model)", min=1),
    ] = None,
    prefixes: Annotated[
        int, typer.Option(help="Most prefixes that the truth may take.", min=1)
    ] = 4096,
    seed: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads of PyTorch.", min=1)] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw distance against cost to a .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare local masking, importance sampling, SMC and AWRS with the exact distribution.

    The truth of every case is enumerated. Distances are those of the law of the returned
    output, over all runs; each has its noise beside it, what it would be without any bias.
    """
    with reported(as_json=as_json, debug=debug):
        if cases not in KINDS:
            raise SettingError(f"--cases must be one of {', '.join(KINDS)}, got {cases!r}")
        if plot is not None:
            check_plot_file(plot)
        from smcprog.bench.bias import measure
        from smcprog.bench.bias_cases import MODEL_CASES, TABLE_CASES
        from smcprog.bench.cells import wholes

        sizes = wholes("--particles", particles)
        report: dict[str, Any] | None = None
        if cases != "model":
            report = measure(
                TABLE_CASES, sizes, runs or 2000, batch=batch or 500, seed=seed, prefixes=prefixes
            )
        if cases != "tables":
            from smcprog.bench.pair import load_pair

            lm, _ = load_pair(model, None, threads)
            on_model = measure(
                MODEL_CASES, sizes, runs or 32, lm=lm, batch=batch or 16, seed=seed,
                prefixes=prefixes,
            )  # fmt: skip
            if report is None:
                report = on_model
            else:
                report["cases"] += on_model["cases"]
        assert report is not None
        if plot is not None:
            _save(report, plot)
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
            return
        for case in report["cases"]:
            _print(case)


def _print(case: dict[str, Any]) -> None:
    truth = case["truth"]
    typer.echo(
        f"{case['case']}: {truth['outputs']} outputs, log Z = {truth['log_evidence']:.4f}, "
        f"not enumerated: {truth['unexplored']:.1e} of Z at most"
    )
    typer.echo(
        f"  {'method':<20}{'N':>5}{'TV':>9}{'noise':>9}{'KL':>9}{'noise':>9}{'rows':>9}"
        f"{'ms':>9}{'dead':>6}{'candidates':>12}"
    )
    for cell in case["cells"]:
        shown = "".join(
            f"{cell[key]:>9.4f}" if key in cell else f"{'-':>9}"
            for key in ("tv", "tv_noise", "kl", "kl_noise")
        )
        candidates = f"{cell['candidates']:.1f}" if "candidates" in cell else "-"
        typer.echo(
            f"  {cell['method']:<20}{cell['particles']:>5}{shown}{cell['rows']:>9.1f}"
            f"{1e3 * cell['seconds']:>9.1f}{cell['dead_runs']:>6}{candidates:>12}"
        )
    factors = [
        f"{key.upper()} {factor:.1f}"
        for key, factor in case["closer"].items()
        if factor is not None
    ]
    typer.echo(
        f"  SMC is closer than local masking by a factor of at least: {', '.join(factors)}\n"
    )


def _save(report: dict[str, Any], path: Path) -> None:
    from smcprog.plots import plot_bias

    try:
        plot_bias(report, path)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot write it: {error.strerror or error}") from error
