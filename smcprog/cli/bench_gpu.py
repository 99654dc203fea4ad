"""``smcprog bench gpu``: what the engine reaches on a CUDA device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import FAILED, reported
from smcprog.errors import InputError, SettingError
from smcprog.validate import real

__all__ = ["gpu"]

_CELLS = "Cells"
_OUTPUT = "Output"


def gpu(
    shapes: Annotated[
        str,
        typer.Option(metavar="LIST", help="Of llama (1B→8B), qwen3 (0.6B→8B) and tiny."),
    ] = "llama,qwen3",
    device: Annotated[
        str | None,
        typer.Option(help="cuda, cuda:1, … or cpu. (default: cuda)", show_default=False),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32. (default: bfloat16, on the CPU float32)",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="What is less important is left out.")
    ] = 480.0,
    particles: Annotated[
        str, typer.Option("--particles", "-n", help="Values of N.", rich_help_panel=_CELLS)
    ] = "4,8,16,32",
    draft_tokens: Annotated[
        str, typer.Option("--draft-tokens", "-k", help="Values of K.", rich_help_panel=_CELLS)
    ] = "4,8,16",
    prompt_tokens: Annotated[
        str, typer.Option(help="Tokens of the prompts.", rich_help_panel=_CELLS)
    ] = "256,1024,4096,8192",
    requests: Annotated[
        str, typer.Option(help="Prompts worked on together.", rich_help_panel=_CELLS)
    ] = "1,8",
    rounds: Annotated[
        int, typer.Option(help="Rounds of every run.", min=2, rich_help_panel=_CELLS)
    ] = 16,
    repeats: Annotated[
        int, typer.Option(help="Timed runs of a cell.", min=1, rich_help_panel=_CELLS)
    ] = 3,
    attention: Annotated[str, typer.Option(help="auto, flashinfer or torch.")] = "auto",
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="What rooflines are made of: h200, or bandwidth=4.8e12,flops=9.9e14. "
            "(default: the data sheet of the device, or what is measured)",
            metavar="NAME_OR_DATA",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the JSON object there after every step, too.",
            show_default=False,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print tracebacks.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Time forwards and rounds of random-weight models, each next to its roofline.

    Works through its cells in order of importance until the time is spent. Nothing is downloaded.
    `--shapes tiny --device cpu` tries it without a GPU. Ends with exit code 1 if a cell failed.
    """
    with reported(as_json=as_json, debug=debug):
        real("--budget", budget, 0)
        import torch

        from smcprog.attention.choose import checked_kind
        from smcprog.bench.cells import wholes
        from smcprog.bench.gpu.cells import Grid
        from smcprog.bench.gpu.machine import wanted_device
        from smcprog.bench.gpu.measure import GpuSettings, measure
        from smcprog.bench.gpu.shapes import check_fits, pair_names
        from smcprog.bench.gpu.tables import print_gpu
        from smcprog.cli.bench import _bar

        where = wanted_device(device)
        types = ("bfloat16", "float16", "float32")
        name = dtype or ("float32" if where.type == "cpu" else "bfloat16")
        if name not in types:
            raise SettingError(f"--dtype must be one of {', '.join(types)}, got {name!r}")
        settings = GpuSettings(
            pairs=tuple(pair_names(shapes)),
            device=where,
            dtype=getattr(torch, name),
            grid=Grid(
                tuple(wholes("--particles", particles)),
                tuple(wholes("--draft-tokens", draft_tokens)),
                tuple(wholes("--prompt-tokens", prompt_tokens)),
                tuple(wholes("--requests", requests)),
            ),
            budget=budget,
            rounds=rounds,
            repeats=repeats,
            attention=checked_kind(attention),
            accelerator=accelerator,
        )
        for pair in settings.pairs:
            check_fits(pair, settings.grid, settings.rounds)
        so_far: list[dict[str, Any]] = []

        def save(report: dict[str, Any]) -> None:
            so_far[:] = [report]
            if out is not None:
                _save(report, out)

        def show(report: dict[str, Any]) -> None:
            if as_json:
                typer.echo(json.dumps(report, allow_nan=False))
            else:
                print_gpu(report)

        try:
            with _bar() as tell:
                report = measure(settings, tell, save)
        except KeyboardInterrupt:
            for report in so_far:
                show(report)
            raise
        show(report)
        if any(pair["failed"] for pair in report["pairs"]):
            raise typer.Exit(FAILED)


def _save(report: dict[str, Any], path: Path) -> None:
    """All of it or what was there before: whoever reads may come at any time."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(json.dumps(report, allow_nan=False) + "\n")
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"--out {path}: cannot write it: {error.strerror or error}") from error
