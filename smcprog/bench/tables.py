"""Tables of the benchmarks for a terminal, or for a file where output is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "make_table",
    "number",
    "print_accelerator",
    "print_roofline",
    "print_speed",
    "print_table",
]

WIDE = 160


def print_speed(report: dict[str, Any]) -> None:
    """Cells, ratios, task and fork of a speed benchmark."""
    head = (
        f"{_pair(report)}, {report['prompts']} prompts, {report['max_tokens']} tokens, "
        f"{report['repeats']} repeats, {report['threads']} threads, {report['dtype']}"
    )
    table = make_table(
        head,
        "cell",
        "tok/s",
        "all tok/s",
        "tok/round",
        "Δ log p (95 %)",
        "quotable",
        "accept",
        "log(1+χ²)",
        "ESS/N",
        "distinct",
        "forwards",
        "roofline",
    )
    for row in report["cells"]:
        table.add_row(
            ("* " if row["name"] in report["best"] else "  ") + row["name"],
            f"{row['speed']:.1f}",
            f"{row['particle_throughput']:.1f}",
            number(row["tokens_per_round"], ".2f"),
            _gap(row),
            row["quotable"],
            number(row["acceptance"], ".3f"),
            number(row["log_chi2"], ".3f"),
            f"{row['ess']:.2f}",
            f"{row['distinct']:.2f}",
            number(row["forward_share"], ".0%"),
            number(row["allowed_share"], ".0%"),
        )
    print_table(
        table,
        "tok/s: of one returned output; all tok/s: of all particles; Δ log p: nats a token, "
        "against autoregressive samples;\nforwards: share of the time spent in them; roofline: "
        "share that forwards timed by themselves would take;\n"
        "*: fastest cell of its mode that may be quoted, or fastest where none may",
    )
    if report["ratios"]:
        table = make_table(
            "Ratios of medians", "cell", "against", "of", "ratio", "repeats", "quotable"
        )
        for r in report["ratios"]:
            span = f"{r['low']:.2f} … {r['high']:.2f}"
            table.add_row(
                r["cell"], r["against"], r["of"], f"{r['ratio']:.2f}", span, r["quotable"]
            )
        print_table(table)
    if report["task"]:
        count = report["task"][0]["items"]
        table = make_table(f"Task, {count} items", "cell", "score", "95 % interval")
        for t in report["task"]:
            table.add_row(t["name"], f"{t['score']:.3f}", f"{t['low']:.3f} … {t['high']:.3f}")
        print_table(table)
    fork = report["fork"]
    if fork:
        print_table(
            None,
            f"fork of {fork['particles']} particles at {fork['tokens']} tokens: "
            f"{fork['fork_ms']:.2f} ms and {fork['copy_ms']:.2f} ms for tail pages, "
            f"{fork['share']:.1%} of a round of {fork['round_ms']:.1f} ms",
        )


def print_roofline(report: dict[str, Any]) -> None:
    """Fitted forwards, agreement, and predicted cells."""
    table = make_table(
        f"{_pair(report)}, {report['threads']} threads: forwards, ms",
        "model",
        "overhead",
        "weights",
        "a token",
        "knee, tokens",
        "timed rows × columns: ms",
    )
    for name, model in report["forwards"].items():
        if model is None:
            continue
        shortest = min(f["context"] for f in model["timed"])
        timed = ", ".join(
            f"{f['rows']}×{f['columns']}: {f['ms']:.1f}"
            for f in model["timed"]
            if f["context"] == shortest
        )
        table.add_row(
            name,
            f"{model['overhead_ms']:.2f}",
            f"{model['weights_ms']:.2f}",
            f"{model['token_ms']:.3f}",
            number(model["knee_tokens"], ".1f"),
            timed,
        )
    print_table(table)
    ratio = report["cost_ratio"]
    if ratio is not None:
        slower = "; it is the slower one, so drafting cannot pay" if ratio >= 1 else ""
        print_table(None, f"a step of the draft takes {ratio:.2f} of one of the target{slower}")
    for kind, core in report["cores"].items():
        print_table(
            None,
            f"sampler's work in a round, {kind}: {1e3 * core['fixed']:.2f} ms "
            f"+ {1e3 * core['row']:.3f} a row + {1e3 * core['drafted']:.3f} a drafted token",
        )
    for a in report["agreement"]:
        print_table(
            None,
            f"coupling {a['coupling']}: acceptance {a['acceptance']:.3f}, "
            f"log(1+χ²) {a['log_chi2']:.3f} a token",
        )
    table = make_table(
        "Decoding, ms an output token",
        "mode",
        "N",
        "K",
        "requests",
        "rounds",
        "forwards alone",
        "predicted",
        "measured",
        "error",
    )
    for row in report["cells"]:
        table.add_row(
            row["mode"],
            str(row["particles"]),
            str(row["draft_tokens"]),
            str(row["requests"]),
            f"{row['rounds']:.1f}",
            f"{row['allowed_ms']:.1f}",
            f"{row['predicted_ms']:.1f}",
            number(row["measured_ms"], ".1f"),
            number(row["error"], "+.1%"),
        )
    error = report["median_error"]
    print_table(
        table,
        f"median absolute error of {report['held_out']} held-out cells: {error:.1%}"
        if error is not None
        else "no cell was held out",
    )


def print_accelerator(report: dict[str, Any]) -> None:
    """What a described accelerator allows."""
    machine = report["accelerator"]
    table = make_table(
        f"{machine['name']}: {machine['bandwidth'] / 1e12:.3g} TB/s, "
        f"{machine['flops'] / 1e12:.4g} TFLOP/s {machine['dtype']}; target "
        f"{report['target_weights'] / 1e9:.3g} G weights, "
        f"draft {report['draft_weights'] / 1e9:.3g} G",
        "requests",
        "N",
        "K",
        "N(K+1) tokens",
        "memory-bound",
        "SMC, tokens/s",
        "SMC speed-up",
        "(K+1)/(1+Kc)",
        "lossless speed-up",
    )
    for row in report["cells"]:
        table.add_row(
            str(row["requests"]),
            str(row["particles"]),
            str(row["draft_tokens"]),
            str(row["tokens"]),
            "yes" if row["memory_bound"] else "no",
            f"{row['smc_speed']:.0f}",
            f"{row['smc_speedup']:.2f}",
            f"{row['memory_bound_speedup']:.2f}",
            number(row["lossless_speedup"], ".2f"),
        )
    print_table(
        table,
        f"speed-ups are over one autoregressive stream, {report['autoregressive_speed']:.0f} "
        f"tokens/s; a draft step costs c = {report['cost_ratio']:.3f} of it; the knee lies at "
        f"{report['knee_tokens']:.0f} tokens a forward",
    )


def make_table(title: str, first: str, *columns: str) -> Table:
    """A table whose first column is text, and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def print_table(table: Table | None, note: str = "") -> None:
    """Print a table, or none, and a note below it."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    if table is not None:
        console.print(table)
    if note:
        console.print(note, markup=False)


def _pair(report: dict[str, Any]) -> str:
    return report["target"] + (f" with {report['draft']}" if report["draft"] else "")


def number(value: Any, form: str) -> str:
    """A number that may be missing, or be a text already."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else format(value, form)


def _gap(row: dict[str, Any]) -> str:
    """The difference of log p a token and half its interval, which is symmetric."""
    mean, high = row["logp_difference"], row["logp_high"]
    if mean is None:
        return "–"
    return f"{mean:+.3f}" + ("" if high is None else f" ± {high - mean:.3f}")
