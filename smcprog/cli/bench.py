"""``smcprog bench``: measurements of this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.cli.inputs import check_plot_file
from smcprog.errors import SettingError

__all__ = ["app"]

app = typer.Typer(help="Measure the sampler on this machine.", no_args_is_help=True)

_MODEL = "Models"
_CELLS = "Cells"
_RUN = "Run"
_OUTPUT = "Output"

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Folder or hub id of the target. (default: the embedded SmolLM2-135M-Instruct)",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="DRAFT",
        help="distilled[:recurrent], layers:0,1,2, or the folder or hub id of a draft.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help='JSON lines, also gzipped, with "prompt" or "turns". (default: built-in prompts)',
        show_default=False,
        rich_help_panel=_RUN,
    ),
]
RawOption = Annotated[
    bool,
    typer.Option(
        "--raw", help="Give prompts to the model without its chat template.", rich_help_panel=_RUN
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Print tracebacks.", rich_help_panel=_OUTPUT)
]
SeedOption = Annotated[
    int, typer.Option("--seed", help="Fixes what is drawn.", min=0, rich_help_panel=_RUN)
]

ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        help="Threads of PyTorch. (default: its own choice)",
        min=1,
        show_default=False,
        rich_help_panel=_RUN,
    ),
]


@app.callback()
def _group() -> None:
    pass


@app.command()
def overhead(
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=1)] = 60,
    particles: Annotated[int, typer.Option(help="Particles of the population.", min=1)] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks.")] = False,
) -> None:
    """Compare a sampler round with the bare forward pass of the same shape."""
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.overhead import main as overhead_main

        overhead_main(rounds=rounds, particles=particles, as_json=as_json)


@app.command()
def speed(
    model: ModelOption = None,
    draft: DraftOption = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Of generate, auto, lossless, lossless:J, coupled:λ, smc. "
            "(default: generate,auto, and with --draft lossless,coupled:2,smc)",
            show_default=False,
            rich_help_panel=_CELLS,
        ),
    ] = None,
    particles: Annotated[
        str, typer.Option("--particles", "-n", help="Values of N.", rich_help_panel=_CELLS)
    ] = "1,8",
    draft_tokens: Annotated[
        str, typer.Option("--draft-tokens", "-k", help="Values of K.", rich_help_panel=_CELLS)
    ] = "4",
    temperatures: Annotated[str, typer.Option(help="Values of τ.", rich_help_panel=_CELLS)] = "1.0",
    requests: Annotated[
        str, typer.Option(help="Prompts worked on together.", rich_help_panel=_CELLS)
    ] = "1",
    prompts: PromptsOption = None,
    prompt_count: Annotated[
        int, typer.Option(help="Prompts used, from the top.", min=1, rich_help_panel=_RUN)
    ] = 4,
    raw: RawOption = False,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of every output.", min=2, rich_help_panel=_RUN)
    ] = 64,
    repeats: Annotated[
        int, typer.Option(help="Runs of every cell and prompt.", min=1, rich_help_panel=_RUN)
    ] = 2,
    reference: Annotated[
        int,
        typer.Option(
            help="Autoregressive samples of a prompt that quality is compared with.",
            min=1,
            rich_help_panel=_RUN,
        ),
    ] = 8,
    end: Annotated[
        bool,
        typer.Option(
            "--end",
            help="Let outputs end at EOS; else all have --max-tokens, the same work for all.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    scheduler: Annotated[
        bool,
        typer.Option(
            "--scheduler",
            help="Submit several requests to a scheduler, not in one call.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    roofline: Annotated[
        bool,
        typer.Option(help="Report the share of the roofline reached.", rich_help_panel=_RUN),
    ] = True,
    task_items: Annotated[
        int, typer.Option(help="Items of the task; 0: none.", min=0, rich_help_panel=_RUN)
    ] = 0,
    fork: Annotated[
        bool,
        typer.Option("--fork", help="Time a fork at 1,024 tokens, too.", rich_help_panel=_RUN),
    ] = False,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw speed against quality to a .png, .svg or .pdf.",
            metavar="FILE",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Time modes side by side on the same prompts, and show what speed costs in quality.

    Every cell of modes × N × K × τ × requests is run in turn. Speed is tokens of one returned
    output per second; a cell may be quoted as a speed-up where its outputs are within 0.1 nat a
    token of autoregressive samples.
    """
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.cells import draft_lengths, grid, parse_modes, reals, wholes
        from smcprog.bench.prompts import read_prompts

        if plot is not None:
            check_plot_file(plot)
        wanted = parse_modes(modes or _default_modes(draft))
        cells = grid(
            wanted,
            wholes("--particles", particles),
            draft_lengths(draft_tokens),
            reals("--temperatures", temperatures),
            wholes("--requests", requests),
        )
        _check_draft(draft, wanted)
        texts = read_prompts(prompts, prompt_count)

        from smcprog.bench.pair import as_chats, load_pair
        from smcprog.bench.speed import SpeedSettings, measure
        from smcprog.bench.tables import print_speed

        lm, small = load_pair(model, draft, threads)
        settings = SpeedSettings(
            cells=cells,
            max_tokens=max_tokens,
            repeats=repeats,
            end=end,
            reference=reference,
            roofline=roofline,
            task_items=task_items,
            fork=fork,
            scheduler=scheduler,
            seed=seed,
        )
        with _bar() as tell:
            report = measure(lm, small, texts if raw else as_chats(lm, texts), settings, tell)
        if plot is not None:
            _save(report, plot)
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            print_speed(report)


@app.command()
def roofline(
    model: ModelOption = None,
    draft: DraftOption = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="Of auto, lossless, lossless:J, coupled:λ, smc. "
            "(default: auto, and with --draft lossless,coupled:2,smc)",
            show_default=False,
            rich_help_panel=_CELLS,
        ),
    ] = None,
    particles: Annotated[
        str, typer.Option("--particles", "-n", help="Values of N.", rich_help_panel=_CELLS)
    ] = "1,2,4,8,16",
    draft_tokens: Annotated[
        str, typer.Option("--draft-tokens", "-k", help="Values of K.", rich_help_panel=_CELLS)
    ] = "3,6",
    requests: Annotated[
        str, typer.Option(help="Prompts worked on together.", rich_help_panel=_CELLS)
    ] = "1,2",
    temperature: Annotated[float, typer.Option(help="τ.", rich_help_panel=_CELLS)] = 1.0,
    prompts: PromptsOption = None,
    prompt_count: Annotated[
        int, typer.Option(help="Prompts used, from the top.", min=1, rich_help_panel=_RUN)
    ] = 4,
    raw: RawOption = False,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of every output.", min=8, rich_help_panel=_RUN)
    ] = 32,
    held_out: Annotated[
        int,
        typer.Option(help="Cells that are run to check the prediction.", rich_help_panel=_RUN),
    ] = 12,
    repeats: Annotated[
        int, typer.Option(help="Runs of each of them.", min=1, rich_help_panel=_RUN)
    ] = 2,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            help="Predict for this machine instead: h200, or "
            "bandwidth=4.8e12,flops=9.9e14,dtype=bfloat16.",
            metavar="NAME_OR_DATA",
            show_default=False,
            rich_help_panel="Described accelerator",
        ),
    ] = None,
    target_params: Annotated[
        float | None,
        typer.Option(
            help="Weights of the target, such as 8e9.",
            show_default=False,
            rich_help_panel="Described accelerator",
        ),
    ] = None,
    draft_params: Annotated[
        float | None,
        typer.Option(
            help="Weights of the draft.",
            show_default=False,
            rich_help_panel="Described accelerator",
        ),
    ] = None,
    context: Annotated[
        float,
        typer.Option(
            help="Tokens before; their keys and values are read, too.",
            min=0,
            rich_help_panel="Described accelerator",
        ),
    ] = 0,
    acceptance: Annotated[
        float | None,
        typer.Option(
            help="Of a drafted token, to predict the lossless mode.",
            min=0,
            max=1,
            show_default=False,
            rich_help_panel="Described accelerator",
        ),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the time of an output token for every N, K and number of requests.

    A few forwards are timed and a roofline is fitted to them; some cells are then run to check
    the prediction. With --accelerator nothing is timed: the data sheet speaks.
    """
    with reported(as_json=as_json, debug=debug):
        from smcprog.bench.cells import draft_lengths, parse_modes, wholes

        counts = wholes("--particles", particles)
        lengths = [k for k in draft_lengths(draft_tokens) if isinstance(k, int)]
        together = wholes("--requests", requests)
        if accelerator is not None:
            report = _described(
                accelerator, model, draft, target_params, draft_params,
                particles=counts, draft_tokens=lengths, requests=together,
                context=context, acceptance=acceptance,
            )  # fmt: skip
            if as_json:
                typer.echo(json.dumps(report, allow_nan=False))
            else:
                from smcprog.bench.tables import print_accelerator

                print_accelerator(report)
            return
        if target_params is not None or draft_params is not None:
            raise SettingError("--target-params and --draft-params need --accelerator")
        wanted = parse_modes(modes or _default_modes(draft).removeprefix("generate,"))
        _check_draft(draft, wanted)
        if not lengths:
            raise SettingError("--draft-tokens: a prediction needs fixed values of K")

        from smcprog.bench.prompts import read_prompts

        texts = read_prompts(prompts, prompt_count)

        from smcprog.bench.checked import RooflineSettings, measure
        from smcprog.bench.pair import as_chats, load_pair
        from smcprog.bench.tables import print_roofline

        lm, small = load_pair(model, draft, threads)
        settings = RooflineSettings(
            modes=wanted,
            particles=counts,
            draft_tokens=lengths,
            requests=together,
            temperature=temperature,
            max_tokens=max_tokens,
            held_out=held_out,
            repeats=repeats,
            seed=seed,
        )
        with _bar() as tell:
            report = measure(lm, small, texts if raw else as_chats(lm, texts), settings, tell)
        if as_json:
            typer.echo(json.dumps(report, allow_nan=False))
        else:
            print_roofline(report)


def _default_modes(draft: str | None) -> str:
    return "generate,auto" + ("" if draft is None else ",lossless,coupled:2,smc")


def _check_draft(draft: str | None, modes: list[Any]) -> None:
    needy = [mode.name for mode in modes if mode.drafts]
    if needy and draft is None:
        raise SettingError(f"--modes {','.join(needy)} need a draft: give --draft")


def _described(
    accelerator: str,
    model: str | None,
    draft: str | None,
    target_params: float | None,
    draft_params: float | None,
    **cells: Any,
) -> dict[str, Any]:
    """The prediction for a described machine; models are loaded only for sizes not given."""
    from smcprog.bench.accelerator import Size, parse_accelerator, predict, size_of
    from smcprog.validate import real

    machine = parse_accelerator(accelerator)
    given = {
        name: None if value is None else Size(real(name, value, 1))
        for name, value in (("--target-params", target_params), ("--draft-params", draft_params))
    }
    target, small = given.values()
    if small is None and draft is None:
        raise SettingError("--accelerator compares a pair: give --draft or --draft-params")
    if target is None or small is None:
        from smcprog.bench.pair import load_pair

        lm, drafting = load_pair(model, draft if small is None else None)
        target = target or size_of(lm)
        small = small or size_of(drafting)  # type: ignore[arg-type]
    return {"version": 1, **predict(machine, target, small, **cells)}


def _save(report: dict[str, Any], path: Path) -> None:
    from smcprog.errors import InputError
    from smcprog.plots import plot_pareto

    try:
        plot_pareto(report, path)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot write it: {error.strerror or error}") from error


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """One bar a stage on a terminal; nothing off it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        yield tell
