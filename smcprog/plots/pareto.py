"""Speed against quality, one point a cell, with the front of those that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["pareto_front", "plot_pareto"]

COLOURS = ("#1f78b4", "#d95f02", "#33a02c", "#6a3d9a", "#b15928", "#e7298a", "#666666")
MARKERS = "osD^vP*X"
BAND = "#eef3d8"


def pareto_front(costs: Sequence[float], speeds: Sequence[float]) -> list[int]:
    """Positions of the points than which none is as fast at no higher cost, by rising cost."""
    order = sorted(range(len(costs)), key=lambda i: (costs[i], -speeds[i]))
    front: list[int] = []
    for i in order:
        if not front or speeds[i] > speeds[front[-1]]:
            front.append(i)
    return front


def plot_pareto(
    report: Mapping[str, Any], path: str | os.PathLike[str] | None = None, *, within: float = 0.1
) -> Figure:
    """Draw the cells of a speed benchmark.

    Parameters
    ----------
    report : mapping
        As the benchmark returns it.
    path : path, optional
        Where to save it; the suffix chooses the format.
    within : float
        Nats a token up to which a cell may be quoted as a speed-up; shaded.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = [c for c in report["cells"] if c["logp_difference"] is not None]
    figure = Figure(figsize=(9.0, 5.4), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axvspan(0, within, color=BAND, lw=0, zorder=0)
    costs = [abs(c["logp_difference"]) for c in cells]
    speeds = [c["speed"] for c in cells]
    temperatures = len({c["temperature"] for c in cells})
    modes = list(dict.fromkeys(c["mode"] for c in cells))
    for number, mode in enumerate(modes):
        here = [i for i, c in enumerate(cells) if c["mode"] == mode]
        colour = COLOURS[number % len(COLOURS)]
        for i in here:
            low, high = cells[i]["logp_low"], cells[i]["logp_high"]
            if low is not None and high is not None:
                ends = 0.0 if low < 0 < high else min(abs(low), abs(high))
                axes.plot(
                    [ends, max(abs(low), abs(high))],
                    [speeds[i]] * 2,
                    color=colour,
                    lw=1.1,
                    alpha=0.35,
                    zorder=2,
                )
        axes.scatter(
            [costs[i] for i in here],
            [speeds[i] for i in here],
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            s=42,
            zorder=4,
            label=mode,
        )
    front = pareto_front(costs, speeds)
    if front:
        x = [costs[i] for i in front]
        y = [speeds[i] for i in front]
        axes.step([*x, 2 * max([*costs, within])], [*y, y[-1]], where="post", color="#333333",
                  lw=1.0, ls="--", zorder=3, label="front")  # fmt: skip
    right = 1.15 * max([*costs, 2 * within])  # intervals may go on beyond it
    if right > 10 * within:  # linear as far as counts, logarithmic beyond
        axes.set_xscale("symlog", linthresh=within, linscale=1.5)
        axes.set_xticks([0, within / 2, within, *(10.0**e for e in range(3) if 10**e < right)])
        axes.xaxis.set_major_formatter("{x:g}")
        right *= 2
    axes.set_xlim(-0.03 * min(right, within), right)
    axes.set_ylim(0, 1.12 * max([*speeds, 1e-9]) if np.isfinite(speeds).all() else None)
    axes.set_xlabel(
        "|mean log p per token − that of autoregressive samples|, nats (95 % interval)", fontsize=9
    )
    axes.set_ylabel("tokens of one output per second", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    title = report["target"] + (f" with {report['draft']}" if report["draft"] else "")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    if cells:
        axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.draw_without_rendering()  # the axes get their place: labels are placed in pixels
    order = [*front, *(i for i in np.argsort(speeds)[::-1].tolist() if i not in front)]
    _write_labels(axes, [(costs[i], speeds[i], _label(cells[i], temperatures)) for i in order])
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _write_labels(axes: Axes, labels: Sequence[tuple[float, float, str]]) -> None:
    """Those that lie neither upon a point nor upon one written before."""
    from matplotlib.transforms import Bbox

    canvas: Any = axes.figure.canvas
    points: Any = axes.transData.transform([(x, y) for x, y, _ in labels]) if labels else []
    taken: list[Any] = [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in points]
    for x, y, text in labels:
        note = axes.annotate(
            text,
            (x, y),
            textcoords="offset points",
            xytext=(5, 3),
            fontsize=7,
            color="#333333",
            parse_math=False,
        )
        box = note.get_window_extent(canvas.get_renderer())
        if any(box.overlaps(other) for other in taken):
            note.remove()
        else:
            taken.append(box)


def _label(cell: Mapping[str, Any], temperatures: int) -> str:
    parts = [f"N{cell['particles']}"]
    if cell["draft_tokens"]:
        parts.append(f"K{cell['draft_tokens']}")
    if cell["requests"] > 1:
        parts.append(f"R{cell['requests']}")
    if temperatures > 1:
        parts.append(f"τ{cell['temperature']:g}")
    return " ".join(parts)
