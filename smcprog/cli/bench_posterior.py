"""``smcprog bench posterior`` and ``bench infilling``: beside genlm-control and llamppl."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.bench_peers import (
    DebugOption,
    DefaultsOption,
    JsonOption,
    ModelOption,
    ParticlesOption,
    PeerOption,
    SaveOption,
    SeedOption,
    save_report,
    stages,
)
from smcprog.cli.failures import reported

__all__ = ["infilling", "posterior"]


def posterior(
    peer_python: PeerOption = sys.executable,
    model: ModelOption = None,
    particles: ParticlesOption = 16,
    runs: Annotated[int, typer.Option(help="Calls of each.", min=2)] = 20,
    sampler: Annotated[str, typer.Option(help="The peer's sampler: awrs or direct.")] = "awrs",
    peer_defaults: DefaultsOption = False,
    seed: SeedOption = 0,
    save: SaveOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare posteriors, ours and genlm-control's, with the exact one of small languages."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench import peers as bench
        from smcprog.bench.peers_posterior import compare_posteriors

        peer = bench.Peer(peer_python)
        try:
            from smcprog.engine.lm import LM

            lm = LM(model)
            report = {"model": lm.name, "particles": particles, "runs": runs, "sampler": sampler}
            with stages() as tell:
                rows = compare_posteriors(
                    lm,
                    peer,
                    particles=particles,
                    runs=runs,
                    sampler=sampler,
                    tuned=not peer_defaults,
                    seed=seed,
                    on_stage=tell,
                )
                _collect(report, rows, save)
        finally:
            peer.close()
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            _print_posteriors(report)


def infilling(
    peer_python: PeerOption = sys.executable,
    model: ModelOption = None,
    particles: ParticlesOption = 16,
    runs: Annotated[int, typer.Option(help="Calls of each.", min=2)] = 8,
    blank: Annotated[int, typer.Option(help="Tokens of each blank.", min=1)] = 3,
    peer_defaults: DefaultsOption = False,
    seed: SeedOption = 0,
    save: SaveOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time the infilling of templates against llamppl."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench import peers as bench
        from smcprog.bench.infilling import compare_infilling

        peer = bench.Peer(peer_python, "llamppl", "llamppl==0.2.3", "infill_worker.py")
        try:
            from smcprog.engine.lm import LM

            lm = LM(model)
            report = {"model": lm.name, "particles": particles, "runs": runs}
            with stages() as tell:
                rows = compare_infilling(
                    lm,
                    peer,
                    particles=particles,
                    runs=runs,
                    blank=blank,
                    tuned=not peer_defaults,
                    seed=seed,
                    on_stage=tell,
                )
                _collect(report, rows, save)
        finally:
            peer.close()
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            _print_infilling(report)


def _collect(report: dict[str, Any], rows: Iterator[dict[str, Any]], save: Path | None) -> None:
    report["rows"] = []
    for row in rows:
        report["rows"].append(row)
        if save is not None:
            save_report(report, save)


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def _print_posteriors(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("language", no_wrap=True)
    columns = ("sampler", "TV", "noise", "95 %", "Ẑ − Z, s.e.", "s a call", "outside", "failed")
    for column in columns:
        table.add_column(column, justify="right")
    for row in report["rows"]:
        for arm in ("ours", "peer"):
            found = row[arm]
            if found is None:
                continue
            table.add_row(
                f"{row['name']} ({row['texts']} texts)" if arm == "ours" else "",
                arm,
                *(f"{found[key]:.4f}" for key in ("tv", "tv_noise", "tv_limit")),
                _number(found["z_error"], "+.2f"),
                f"{found['seconds']:.3f}",
                str(found["outside"]),
                str(row["peer_failed"]) if arm == "peer" else "",
            )
    _show(f"{report['model']}, N={report['particles']}, {report['runs']} runs of each", table)


def _print_infilling(report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("template", no_wrap=True)
    for column in ("s", "peer s", "ratio", "log Ẑ", "peer log Ẑ", "difference, s.e."):
        table.add_column(column, justify="right")
    for row in report["rows"]:
        table.add_row(
            row["name"],
            f"{row['seconds']['ours']:.2f}",
            f"{row['seconds']['peer']:.2f}",
            f"{row['ratio']:.1f}",
            _number(row["log_z"]["ours"], ".2f"),
            _number(row["log_z"]["peer"], ".2f"),
            _number(row["z_difference"], "+.2f"),
        )
    _show(f"{report['model']}, N={report['particles']}, {report['runs']} runs of each", table)


def _show(title: str, table: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(title, markup=False)
    console.print(table)
