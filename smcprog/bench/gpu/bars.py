"""The three bars that a device's figures are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["bars"]

LEAST_BANDWIDTH = 0.60
LEAST_OF_BOUND = 0.80
MOST_IDLE = 0.05


def bars(rows: Sequence[dict[str, Any]], particles: int, draft_tokens: int) -> list[dict[str, Any]]:
    """Of one pair, at its base: one request, the shortest prompt, cascade and graphs on.

    Parameters
    ----------
    rows : list of dict
        Cells of one pair; those that failed are not among them.
    particles, draft_tokens : int
        N and K of the base.

    Returns
    -------
    list of dict
        `name`, `value`, `bar`, `met`; the last three are None where the cells were not measured.
    """
    base = _find(rows, "smc", particles, draft_tokens)
    single = _find(rows, "auto", 1, 0)
    against = None
    if base is not None and single is not None:
        ratio = base["speed"] / single["speed"]
        bound = base["tokens_per_round"] * single["roofline_ms"] / base["roofline_ms"]
        against = ratio / bound
    where = f"N={particles} K={draft_tokens}, one request"
    return [
        _bar(
            f"decoding reaches the bandwidth's roofline, {where}",
            None if base is None else base["bandwidth_share"],
            LEAST_BANDWIDTH,
        ),
        _bar(
            f"SMC-SD over a single stream, of what the roofline allows, {where}",
            against,
            LEAST_OF_BOUND,
        ),
        _bar(
            f"device idle between rounds, {where}",
            None if base is None else base["idle"],
            MOST_IDLE,
            at_most=True,
        ),
    ]


def _find(
    rows: Sequence[dict[str, Any]], mode: str, particles: int, draft_tokens: int
) -> dict[str, Any] | None:
    found = [
        r
        for r in rows
        if (r["mode"], r["particles"], r["draft_tokens"]) == (mode, particles, draft_tokens)
        and r["cascade"]
        and r["graphs"]
    ]
    return min(found, key=lambda r: (r["requests"], r["prompt_tokens"]), default=None)


def _bar(name: str, value: float | None, bar: float, at_most: bool = False) -> dict[str, Any]:
    met = None if value is None else (value <= bar if at_most else value >= bar)
    return {"name": name, "value": value, "bar": bar, "at_most": at_most, "met": met}
