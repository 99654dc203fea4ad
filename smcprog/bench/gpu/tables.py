"""The report of `smcprog bench gpu` as tables."""

from __future__ import annotations

from typing import Any

from smcprog.bench.tables import make_table, number, print_table

__all__ = ["print_gpu"]


def print_gpu(report: dict[str, Any]) -> None:
    """Machine, then forwards, rounds and bars of each pair, and what is missing."""
    m = report["machine"]
    print_table(
        None,
        f"{m['name']} ({m['source']}): {m['bandwidth'] / 1e12:.3g} TB/s, "
        f"{m['flops'] / 1e12:.4g} TFLOP/s {m['dtype']}; a copy reached "
        f"{m['measured_bandwidth'] / 1e12:.3g} TB/s, a product {m['measured_flops'] / 1e12:.4g} "
        f"TFLOP/s; PyTorch {report['torch']}; {report['seconds']:.0f} s",
    )
    for pair in report["pairs"]:
        _print_pair(pair)


def _print_pair(pair: dict[str, Any]) -> None:
    names = [model["name"] for model in pair.get("models", [])]
    head = f"{pair['name']}: " + (" with ".join(names) or "not built")
    _print_forwards(head, [r for r in pair["rows"] if r["kind"] == "forward"])
    _print_rounds(head, [r for r in pair["rows"] if r["kind"] == "rounds"])
    for bar in pair["bars"]:
        sign = "≤" if bar["at_most"] else "≥"
        verdict = {None: "not measured", True: "met", False: "missed"}[bar["met"]]
        print_table(
            None,
            f"{verdict}: {bar['name']}: {number(bar['value'], '.1%')}, bar {sign} {bar['bar']:.0%}",
        )
    for failed in pair["failed"]:
        print_table(None, f"failed: {failed['name']}: {failed['error']}")
    if pair["left_out"]:
        shown = "; ".join(pair["left_out"][:6])
        more = len(pair["left_out"]) - 6
        print_table(
            None,
            f"left out, for time: {shown}" + (f"; and {more} more" if more > 0 else ""),
        )


def _print_forwards(head: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    columns = ("rows", "columns", "prompt", "step by step, ms", "one launch, ms", "roofline, ms")
    found = make_table(f"{head}: forwards", "model", *columns, "share")
    for r in sorted(rows, key=lambda r: (r["model"], r["context"], r["columns"], r["rows"])):
        found.add_row(
            r["model"],
            str(r["rows"]),
            str(r["columns"]),
            str(r["context"]),
            number(r["eager_ms"], ".3f"),
            number(r["launch_ms"], ".3f"),
            number(r["roofline_ms"], ".3f"),
            number(r["share"], ".0%"),
        )
    print_table(found)


def _print_rounds(head: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    found = make_table(
        f"{head}: rounds",
        "cell",
        "tok/s",
        "all tok/s",
        "tok/round",
        "round, ms",
        "roofline, ms",
        "share",
        "bandwidth",
        "limit",
        "idle",
        "ESS/N",
        "prompt, ms",
    )
    for r in rows:
        notes = [f"{r['waves']} waves"] if r["waves"] > 1 else []
        notes += ["not captured"] if r["captured"] is False else []
        notes += ["not launched"] if r["graphs"] and not r["launched"] else []
        found.add_row(
            r["name"] + (f" ({', '.join(notes)})" if notes else ""),
            number(r["speed"], ".1f"),
            number(r["particle_throughput"], ".0f"),
            number(r["tokens_per_round"], ".2f"),
            number(r["round_ms"], ".3f"),
            number(r["roofline_ms"], ".3f"),
            number(r["share"], ".0%"),
            number(r["bandwidth_share"], ".0%"),
            r["limited_by"],
            number(r["idle"], ".1%"),
            number(r["ess"], ".2f"),
            number(r["prompt_ms"], ".1f"),
        )
    print_table(
        found,
        "tok/s: of one returned output after its first token; all tok/s: of all particles of all "
        "requests;\nshare: roofline over measured; bandwidth: the same by memory alone; idle: "
        "share of the time between the first and the last launch in which none ran;\n"
        "not launched: played step by step although graphs were asked for; not captured: of fixed "
        "shape, but kernel by kernel; waves: requests that were not all worked on together",
    )
