"""The program ``smcprog`` and its commands."""

from __future__ import annotations

from typing import Annotated

import typer

from smcprog.cli import (
    bench,
    bench_bias,
    bench_code,
    bench_coverage,
    bench_gpu,
    bench_kv,
    bench_masks,
    bench_peers,
    bench_posterior,
    bench_rewards,
    bench_variance,
    distill,
    generate,
    models,
)

__all__ = ["app", "main"]

app = typer.Typer(
    name="smcprog",
    help="Sample from language models times grammars and rewards, by sequential Monte Carlo.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad usage, 3 bad input or model, 4 no particle alive.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("distill")(distill.distill)
bench.app.command("variance")(bench_variance.variance)
bench.app.command("code")(bench_code.code)
bench.app.command("bias")(bench_bias.bias)
bench.app.command("coverage")(bench_coverage.coverage)
bench.app.command("gpu")(bench_gpu.gpu)
bench.app.command("kv")(bench_kv.kv)
bench.app.command("masks")(bench_masks.masks)
bench.app.command("peers")(bench_peers.peers)
bench.app.command("posterior")(bench_posterior.posterior)
bench.app.command("infilling")(bench_posterior.infilling)
bench.app.command("rewards")(bench_rewards.rewards)
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        from smcprog import __version__

        typer.echo(f"smcprog {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program with the arguments of this process."""
    app(prog_name="smcprog")
