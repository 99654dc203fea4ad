"""``smcprog generate``: the main job, one request."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smcprog.cli.failures import reported
from smcprog.cli.inputs import build_grammar, check_plot_file, read_prompt
from smcprog.cli.progress import Progress

if TYPE_CHECKING:
    from smcprog import LM, Posterior

__all__ = ["generate"]

_CONSTRAINT = "Constraint (at most one)"
_MODEL = "Models"
_SAMPLING = "Sampling"
_OUTPUT = "Output"


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt; standard input where absent or '-'.", show_default=False),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            help="JSON Schema, a file or the text itself.",
            metavar="FILE_OR_JSON",
            rich_help_panel=_CONSTRAINT,
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            help="Regular expression of the whole output.",
            metavar="PATTERN",
            rich_help_panel=_CONSTRAINT,
        ),
    ] = None,
    lark: Annotated[
        str | None,
        typer.Option(
            help="Grammar in Lark's notation, a file or the text itself.",
            metavar="FILE_OR_TEXT",
            rich_help_panel=_CONSTRAINT,
        ),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            help="A text the output may be; repeat for each.",
            metavar="TEXT",
            rich_help_panel=_CONSTRAINT,
        ),
    ] = None,
    grammar: Annotated[
        str | None,
        typer.Option(
            help="A built-in grammar: arithmetic, csv, fol, json, python, smiles or sql.",
            metavar="NAME",
            rich_help_panel=_CONSTRAINT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Folder or hub id of the model. (default: the embedded SmolLM2-135M-Instruct)",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="A cheaper model that drafts blocks of tokens: distilled, "
            "distilled:recurrent, layers:0,1,2, or the folder or hub id of a draft.",
            metavar="DRAFT",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens drafted before each pass of the model. (default: 4)",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = None,
    coupling: Annotated[
        float | None,
        typer.Option(
            help="Keep drafted tokens up to this factor over the model: 1 is lossless. "
            "(default: inf, all are kept and weighed)",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = None,
    draft_paths: Annotated[
        int | None,
        typer.Option(
            help="Drafts per particle, with --coupling 1. (default: 1)",
            rich_help_panel=_MODEL,
            show_default=False,
        ),
    ] = None,
    particles: Annotated[
        int, typer.Option("--particles", "-n", help="Particles.", rich_help_panel=_SAMPLING)
    ] = 8,
    max_tokens: Annotated[
        int, typer.Option(help="Longest output, in tokens.", rich_help_panel=_SAMPLING)
    ] = 256,
    temperature: Annotated[
        float,
        typer.Option(
            help="Local temperature, of every step; 0 is greedy.", rich_help_panel=_SAMPLING
        ),
    ] = 1.0,
    power: Annotated[
        float,
        typer.Option(help="Power of the whole sequence's probability.", rich_help_panel=_SAMPLING),
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens.", rich_help_panel=_SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Keep the likeliest tokens of mass p.", rich_help_panel=_SAMPLING),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Keep tokens with this share of the largest probability.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="A text that ends the output and is cut off; repeat for more.",
            metavar="TEXT",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    resampling: Annotated[
        str,
        typer.Option(
            help="multinomial, stratified, systematic, residual or ssp.",
            metavar="SCHEME",
            rich_help_panel=_SAMPLING,
        ),
    ] = "systematic",
    ess_threshold: Annotated[
        float,
        typer.Option(
            help="Resample where ESS falls below this share of the particles.",
            rich_help_panel=_SAMPLING,
        ),
    ] = 0.5,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeats a run. (default: random)", rich_help_panel=_SAMPLING, show_default=False
        ),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Same tokens bit for bit, whatever runs beside it.",
            rich_help_panel=_SAMPLING,
        ),
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Give the prompt to the model as it stands, without its chat template.",
            rich_help_panel=_SAMPLING,
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object: text, evidence, ESS, particles, seed, timing.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw genealogy, ESS and weights to a .png, .svg or .pdf.",
            metavar="FILE",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="No progress and no summary on standard error.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print tracebacks.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Sample one output from the model, under a constraint if one is given.

    The text is drawn from the exact conditional distribution as the number of particles grows.
    It goes to standard output; log evidence, ESS and seed go to standard error.
    """
    drafting = {"draft_tokens": draft_tokens, "coupling": coupling, "draft_paths": draft_paths}
    settings: dict[str, Any] = {k: v for k, v in drafting.items() if v is not None}
    if settings and draft is None:
        option = "--" + next(iter(settings)).replace("_", "-")
        raise typer.BadParameter("needs --draft DRAFT", param_hint=option)
    started = time.perf_counter()
    progress = Progress(not quiet, particles)
    with reported(as_json=as_json, debug=debug):
        text = read_prompt(prompt)
        if plot is not None:
            check_plot_file(plot)
        with progress.stage("Loading"):
            constraint = build_grammar(
                schema=schema, regex=regex, lark=lark, choices=choice, builtin=grammar
            )
        lm = _load(model, progress)
        small = None
        if draft is not None:
            from smcprog.drafts.named import named_draft

            with progress.stage("Loading the draft"):
                small = named_draft(lm, draft)

        from smcprog import Target

        target: Any = Target(
            lm, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, power=power
        )
        if constraint is not None:
            target = target * constraint
        loaded = time.perf_counter()
        with progress.rounds():
            post = target.sample(
                text if raw else _as_chat(lm, text),
                particles=particles,
                draft=small,
                max_tokens=max_tokens,
                ess_threshold=ess_threshold,
                resampling=resampling,
                stop=stop or None,
                seed=seed,
                deterministic=deterministic,
                on_round=progress.on_round if progress.show else None,
                **settings,
            )
        sampled = time.perf_counter()
        if plot is not None:
            _save_plot(post, plot)
        seconds = {"load": loaded - started, "sample": sampled - loaded}
        if as_json:
            result = post.to_dict(rounds=False)
            result["model"] = lm.name
            result["timing"] = {**result["timing"], "load_seconds": seconds["load"]}
            typer.echo(json.dumps(result, allow_nan=False))
        else:
            typer.echo(post.text)
            if not quiet:
                typer.echo(_summary(post, seconds), err=True)


def _load(path: str | None, progress: Progress) -> LM:
    if path is None:
        # Outside the spinner: a first fetch draws bars of its own.
        from smcprog.models import default_model_path

        path = str(default_model_path(progress=progress.show))
    with progress.stage(f"Loading {Path(path).name}"):
        from transformers.utils import logging

        from smcprog import LM

        logging.disable_progress_bar()  # it would draw over the spinner
        return LM(path)


def _as_chat(lm: LM, text: str) -> str | list[dict[str, str]]:
    if getattr(lm.tokenizer, "chat_template", None):
        return [{"role": "user", "content": text}]
    return text


def _save_plot(post: Posterior, path: Path) -> None:
    from smcprog.errors import InputError

    try:
        post.plot(path)
    except OSError as error:
        raise InputError(f"--plot {path}: cannot write it: {error.strerror or error}") from error


def _summary(post: Posterior, seconds: dict[str, float]) -> str:
    from smcprog.smc.posterior import evidence_text

    return (
        f"log evidence {evidence_text(post)}, ESS {post.ess:.2f} of {len(post.particles)}, "
        f"{len(post.tokens)} tokens, seed {post.seed}, "
        f"{seconds['sample']:.1f} s (+ {seconds['load']:.1f} s to load)"
    )
