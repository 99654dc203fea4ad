"""``smcprog bench coverage``: JSON Schema, of this library and of three mask engines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.errors import InputError, SettingError

__all__ = ["coverage"]


def coverage(
    schemas: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help='JSON lines, also gzipped, with "name", "schema" and "tests" ("data", "valid").',
        ),
    ],
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A second file, reported apart."),
    ] = None,
    engines: Annotated[
        str, typer.Option(help="Of smcprog, llguidance, xgrammar, xgrammar strict, outlines-core.")
    ] = "smcprog,llguidance,xgrammar,xgrammar strict,outlines-core",
    peer_python: Annotated[
        str,
        typer.Option(metavar="PATH", help="The Python that has xgrammar and outlines-core."),
    ] = sys.executable,
    count: Annotated[
        int | None,
        typer.Option(help="Schemas, evenly spread over a file. (default: all)", min=1),
    ] = None,
    limit: Annotated[
        float, typer.Option(help="Seconds for a schema and its instances.", min=0.1)
    ] = 20.0,
    memory: Annotated[
        int, typer.Option(help="Address space of an engine's process, in MB.", min=512)
    ] = 8192,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what every engine made of every schema here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Count schemas refused, invalid instances accepted and valid ones rejected, by engine.

    Every engine sees the same texts: keys in declared order, and of json.dumps both the default
    and the compact form, one of which has to be accepted. Install the others apart:
    python -m venv peer && peer/bin/pip install xgrammar outlines-core
    """
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench import coverage as bench
        from smcprog.bench.coverage_cases import read_cases

        names = [name.strip() for name in engines.split(",") if name.strip()]
        if not names:
            raise SettingError("--engines: name at least one")
        files = [("--schemas", schemas)] + ([("--suite", suite)] if suite else [])
        report: dict[str, Any] = {"limit_s": limit, "python": sys.version.split()[0], "files": []}
        for option, path in files:
            cases = read_cases(path, option)
            some = min(count or len(cases), len(cases))
            cases = [cases[i * len(cases) // some] for i in range(some)]
            found: dict[str, Any] = {"file": path.name, "engines": []}
            details = []
            with _bar(path.name) as tell:
                for result in bench.measure(
                    names,
                    cases,
                    peer_python=peer_python,
                    limit_s=limit,
                    memory_mb=memory,
                    on_case=tell,
                ):
                    details.append(result)
                    if result["version"] is None:
                        row = {key: result[key] for key in ("engine", "version", "absent")}
                    else:
                        row = bench.summarise(result)
                    found["engines"].append(row)
            report["files"].append(found)
            if save is not None:
                _save({**report, "details": details}, save, suffix=option.strip("-"))
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            for found in report["files"]:
                _print(found, limit)


def _save(report: dict[str, Any], path: Path, suffix: str) -> None:
    if suffix == "suite":
        path = path.with_name(f"{path.stem}-suite{path.suffix}")
    try:
        path.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--save {path}: cannot write the file: {error}") from error


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """How far it is, on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda engine, done, total: None
        return
    from rich.console import Console

    with Console(stderr=True).status(what) as status:
        yield lambda engine, done, total: status.update(f"{what}: {engine}, {done} of {total}")


def _print(found: dict[str, Any], limit: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("engine", no_wrap=True)
    for column in (
        "compile errors",
        "invalid accepted",
        "valid rejected",
        "schemas with a fault",
        "compile ms",
        "p99",
    ):
        table.add_column(column, justify="right")
    schemas, absent = 0, []
    for row in found["engines"]:
        if row["version"] is None:
            absent.append(f"{row['engine']} is absent: {row['absent']}")
            continue
        schemas = row["schemas"]
        late = [
            f"{row[key]} {word}"
            for key, word in (("timeouts", "by time"), ("crashes", "by crash"))
            if row[key]
        ]
        table.add_row(
            f"{row['engine']} {row['version']}",
            f"{row['compile_errors']}" + (f" ({', '.join(late)})" if late else ""),
            f"{row['invalid_accepted']} of {row['invalid']}",
            f"{row['valid_rejected']} of {row['valid']}",
            str(row["faulty_schemas"]),
            "–" if row["median_ms"] is None else f"{row['median_ms']:.1f}",
            "–" if row["p99_ms"] is None else f"{row['p99_ms']:.0f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(
        f"{found['file']}: {schemas} schemas, {limit:g} s each; instances of schemas that compile",
        markup=False,
    )
    console.print(table)
    for line in absent:
        console.print(line, markup=False)
