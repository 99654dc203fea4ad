"""``smcprog bench peers``: constrained sampling side by side with genlm-control."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.errors import InputError, SettingError

__all__ = [
    "DebugOption",
    "DefaultsOption",
    "JsonOption",
    "ModelOption",
    "ParticlesOption",
    "PeerOption",
    "SaveOption",
    "SeedOption",
    "peers",
    "save_report",
    "stages",
]

PeerOption = Annotated[
    str, typer.Option("--peer-python", metavar="PATH", help="The Python that has the peer.")
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Folder or hub id of the model.")
]
DefaultsOption = Annotated[
    bool,
    typer.Option(
        "--peer-defaults",
        help="The peer as it comes: it waits 20 ms to fill a batch, and reads the prompt at "
        "every step. Without this flag, 1 ms, and the prompt's keys and values are cached.",
    ),
]
ParticlesOption = Annotated[int, typer.Option("--particles", "-n", min=1)]
SeedOption = Annotated[int, typer.Option(help="The first seed.", min=0)]
SaveOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report here as it grows.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Print tracebacks.")]


def peers(
    schemas: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='JSON lines, also gzipped, with "name" and "schema".'),
    ] = None,
    patterns: Annotated[
        bool, typer.Option("--patterns", help="Regular expressions that come with smcprog.")
    ] = False,
    peer_python: PeerOption = sys.executable,
    count: Annotated[
        int,
        typer.Option(help="Schemas or patterns, evenly spread over those both can take.", min=1),
    ] = 20,
    model: ModelOption = None,
    particles: ParticlesOption = 16,
    max_tokens: Annotated[int, typer.Option(help="Of an output, EOS included.", min=2)] = 96,
    repeats: Annotated[int, typer.Option(help="Timed calls of each.", min=1)] = 1,
    cap: Annotated[
        float, typer.Option(help="Seconds after which a call of the peer is broken off.", min=1)
    ] = 300.0,
    sampler: Annotated[
        str, typer.Option(help="The peer's sampler: awrs (its fast one) or direct.")
    ] = "awrs",
    peer_defaults: DefaultsOption = False,
    seed: SeedOption = 0,
    save: SaveOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time ``Target(lm) * Grammar(...)`` against genlm-control on the same work."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench import peers as bench

        if (schemas is None) != patterns:
            raise SettingError("give either --schemas FILE or --patterns")
        peer = bench.Peer(peer_python)
        try:
            if schemas is None:
                chosen, able = bench.choose_patterns(count)
            else:
                chosen, able = bench.choose(bench.read_schemas(schemas), count)
            from smcprog.engine.lm import LM

            lm = LM(model)
            report: dict[str, Any] = {
                "model": lm.name,
                "particles": particles,
                "max_tokens": max_tokens,
                "sampler": sampler,
                "peer_defaults": peer_defaults,
                "able": able,
                "rows": [],
            }
            with stages() as tell:
                for row in bench.compare(
                    lm,
                    peer,
                    chosen,
                    particles=particles,
                    max_tokens=max_tokens,
                    repeats=repeats,
                    cap_s=cap,
                    sampler=sampler,
                    tuned=not peer_defaults,
                    seed=seed,
                    on_stage=lambda what: tell(
                        f"{len(report['rows']) + 1} of {len(chosen)}: {what}"
                    ),
                ):
                    report["rows"].append(row)
                    report["summary"] = bench.summarise(report["rows"])
                    if save is not None:
                        save_report(report, save)
        finally:
            peer.close()
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            _print(report)


def stages() -> Any:
    """What is going on, on standard error where that is a terminal."""
    import contextlib

    if not sys.stderr.isatty():
        return contextlib.nullcontext(lambda _: None)
    from rich.console import Console

    @contextlib.contextmanager
    def shown() -> Any:
        with Console(stderr=True).status("starting") as status:
            yield status.update

    return shown()


def save_report(report: dict[str, Any], path: Path) -> None:
    """Write a report to a file that the user named."""
    try:
        path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--save {path}: cannot write the file: {error}") from error


def _evidence(call: dict[str, Any]) -> str:
    if not call["complete"]:
        return "–"
    return "−∞" if call["log_evidence"] is None else f"{call['log_evidence']:.2f}"


def _error(summary: dict[str, Any]) -> str:
    error = summary["log_evidence_difference_se"]
    return "unknown" if error is None else f"{error:.2f}"


def _print(report: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    summary, rows = report["summary"], report["rows"]
    versions = rows[0]["versions"]
    title = (
        f"{report['model']}, N={report['particles']}, {report['max_tokens']} tokens at most, "
        f"{summary['threads']} threads; genlm-control {versions['genlm-control']} "
        f"({report['sampler']}, {'as it comes' if report['peer_defaults'] else 'tuned'})"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("schema", no_wrap=True)
    for column in ("tokens", "tok/s", "peer tok/s", "ratio", "s", "peer s", "log Ẑ", "peer log Ẑ"):
        table.add_column(column, justify="right")
    for row in rows:
        ours, peer = row["ours"][0], row["peer"][0]
        table.add_row(
            row["name"],
            str(ours["tokens"]),
            f"{row['tokens_per_s']['ours']:.1f}",
            f"{row['tokens_per_s']['peer']:.1f}",
            ("≥ " if row["at_least"] else "") + f"{row['ratio']:.1f}",
            f"{ours['seconds']:.2f}",
            f"{peer['seconds']:.2f}",
            _evidence(ours),
            _evidence(peer),
        )
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(title, markup=False)
    console.print(table)
    lines = [
        f"median ratio {summary['median_ratio']:.1f} ({summary['least_ratio']:.1f} … "
        f"{summary['largest_ratio']:.1f}), of seconds a call "
        f"{summary['median_seconds_ratio']:.1f}; {summary['broken_off']} calls of the peer broken "
        "off",
        f"languages differ on {summary['texts_differing']} of {summary['texts']} texts, "
        f"{summary['texts_invalid']} drawn texts invalid",
    ]
    if summary["largest_log_target_gap"] is not None:
        lines.append(
            f"log γ of one output differs by at most {summary['largest_log_target_gap']:.1e}"
        )
    if summary["log_evidence_difference"] is not None:
        lines.append(
            f"log Ẑ differs by {summary['log_evidence_difference']:+.2f} "
            f"on average (standard error {_error(summary)})"
        )
    console.print("\n".join(lines), markup=False)
