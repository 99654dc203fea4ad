"""From the rows of a speed benchmark to what is quoted: best cells and ratios of medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["best_cells", "ratios"]


def best_cells(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Position of the fastest cell of each mode, at the first temperature and one request.

    A cell that may be quoted beats one that may not.
    """
    first = [r for r in rows if r["requests"] == 1] or list(rows)
    tau, requests = first[0]["temperature"], first[0]["requests"]
    found: dict[tuple[Any, ...], int] = {}
    for i, row in enumerate(rows):
        if (row["temperature"], row["requests"]) != (tau, requests):
            continue
        key = (row["mode"],)
        if key not in found or _rank(row) > _rank(rows[found[key]]):
            found[key] = i
    return found


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ratios of median speeds on the same prompts, each with its range over the repeats."""
    found: list[dict[str, Any]] = []
    by_name = {r["name"]: r for r in rows}
    for row in rows:
        if row["mode"] == "auto":
            _add(found, row, by_name.get(row["name"].replace("auto", "generate", 1)), "speed")
    for tau in dict.fromkeys(r["temperature"] for r in rows):
        here = [r for r in rows if r["temperature"] == tau and r["requests"] == 1]
        single = {
            r["mode"]: r for r in here if r["particles"] == 1 and r["mode"] in ("auto", "generate")
        }
        for mode in dict.fromkeys(r["mode"] for r in here if r["draft_tokens"]):
            best = max((r for r in here if r["mode"] == mode), key=_rank)
            for base in single.values():
                _add(found, best, base, "speed")
    for row in rows:
        if row["requests"] > 1:
            one = row["name"].removesuffix(f" R={row['requests']}")
            _add(found, row, by_name.get(one), "throughput")
    return found


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    return row["quotable"] != "no", row["speed"]


def _add(
    found: list[dict[str, Any]], row: dict[str, Any], base: dict[str, Any] | None, what: str
) -> None:
    if base is None:
        return
    each = [a / b for a, b in zip(row["speeds"], base["speeds"], strict=True)]
    scale = row["requests"] / base["requests"] if what == "throughput" else 1.0
    found.append(
        {
            "cell": row["name"],
            "against": base["name"],
            "of": what,
            "ratio": row[what] / base[what],
            "low": scale * min(each),
            "high": scale * max(each),
            "quotable": row["quotable"],
        }
    )
