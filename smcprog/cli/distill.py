"""``smcprog distill``: make a draft for a model."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.errors import InputError, PromptError, SettingError

__all__ = ["distill"]


def distill(
    target: Annotated[
        str | None, typer.Argument(help="Folder or hub id of the target. Default: the own model.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the draft and its run.")
    ] = Path("draft"),
    design: Annotated[
        str,
        typer.Option(
            help="layers (some of the target's) or recurrent (fed with its hidden state)."
        ),
    ] = "layers",
    layers: Annotated[
        str | None, typer.Option(help="The target's layers to start from, such as 0,1,2,11,28,29.")
    ] = None,
    inner: Annotated[
        int, typer.Option(help="recurrent: width of the network; 0: 8/3 of the target's.", min=0)
    ] = 0,
    context: Annotated[
        int, typer.Option(help="recurrent: how many last tokens it looks at.", min=1)
    ] = 4,
    unroll: Annotated[
        int, typer.Option(help="recurrent: tokens of a block it is trained to predict.", min=1)
    ] = 2,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes of training.", min=0)
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on in all.", min=1)] = 1_000_000,
    text_tokens: Annotated[
        int, typer.Option(help="Tokens of text that the target draws for it.", min=1)
    ] = 200_000,
    objective: Annotated[str, typer.Option(help="forward-kl or forward-kl+chi2.")] = "forward-kl",
    chi2: Annotated[float, typer.Option(help="Weight of log(1 + chi-squared).", min=0)] = 0.1,
    vocabulary: Annotated[
        int, typer.Option(help="Tokens of a trimmed head; 0 keeps the whole head.", min=0)
    ] = 16_384,
    prompts: Annotated[
        Path | None,
        typer.Option(help='JSON lines with "prompt": a text, chat messages or token ids.'),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    storage: Annotated[str, typer.Option(help="float16 or int8.")] = "int8",
    batch: Annotated[int, typer.Option(help="Tokens of a step.", min=1)] = 512,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    text_length: Annotated[int, typer.Option(help="Longest text in tokens.", min=1)] = 256,
    held_tokens: Annotated[
        int, typer.Option(help="Tokens of held-out text for the report.", min=1)
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Fixes text and order of the data.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Train a small draft on text that TARGET itself writes, and measure it on held-out text.

    The draft starts as a few of the target's layers and shares its embeddings, so only the
    layers are stored; or it is a small network that is fed with the target's last hidden state.
    A run that was stopped goes on with --resume.
    """
    with reported(as_json=as_json, debug=debug):
        chosen = None if layers is None else _layers(layers)
        given = None if prompts is None else _prompts(prompts)

        from smcprog import LM
        from smcprog.drafts import DistillSettings
        from smcprog.drafts import distill as run

        settings = DistillSettings(
            design=design,
            layers=chosen,
            inner=inner,
            context=context,
            unroll=unroll,
            vocabulary=vocabulary,
            objective=objective,
            chi2=chi2,
            text_tokens=text_tokens,
            held_tokens=held_tokens,
            text_length=text_length,
            tokens=tokens,
            batch=batch,
            rate=rate,
            storage=storage,
            seed=seed,
        )
        lm = LM(target)
        if given is not None and getattr(lm.tokenizer, "chat_template", None):
            given = [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in given]
        with _bar() as progress:
            figures = run(
                lm,
                out,
                settings,
                prompts=given,
                resume=resume,
                minutes=minutes,
                progress=progress,
            )
        size = sum((out / name).stat().st_size for name in ("draft.json", "draft.safetensors"))
        if as_json:
            report = [dataclasses.asdict(f) for f in figures]
            typer.echo(json.dumps({"draft": str(out), "bytes": size, "held_out": report}))
            return
        typer.echo(f"draft in {out}, {size / 1e6:.1f} MB; on {figures[0].tokens} held-out tokens:")
        fed = any(f.ahead for f in figures)  # then by the token of a block
        typer.echo(f"{'token  ' * fed}temperature  acceptance     KL  log(1+χ²) median   mean")
        for f in figures:
            typer.echo(
                f"{f'{f.ahead:5d}  ' * fed}{f.temperature:11g}  {f.acceptance:10.3f}  {f.kl:5.3f}  "
                f"{f.log_chi2_median:16.3f}  {f.log_chi2_mean:5.3f}"
            )


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"--layers must be indices with commas between them, such as 0,1,2, got {text!r}"
        ) from None


def _prompts(path: Path) -> list[Any]:
    """The prompts of a JSON-lines file: lines with "prompt"."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path}: cannot read the file: {error}") from error
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise PromptError(f"--prompts {path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict) or "prompt" not in row:
            raise PromptError(f'--prompts {path}, line {number}: an object with "prompt" is needed')
        found.append(row["prompt"])
    return found


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, int, int, str], None] | None]:
    """One bar a stage on a terminal; nothing off it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:

        def tell(stage: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, note=note)
            progress.update(tasks[stage], completed=done, total=total, note=note)

        yield tell
