"""Score against compute: one panel a task, one line a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_rewards"]

STYLES = {
    "best of N": ("#999999", "o", "-"),
    "local masking, reranked": ("#d95f02", "X", "-"),
    "importance sampling": ("#7570b3", "D", "-"),
    "SMC, reward at the end, best": ("#1f78b4", "v", ":"),
    "SMC, reward at boundaries": ("#1f78b4", "s", "--"),
    "SMC, reward at boundaries, best": ("#1f78b4", "s", "-"),
}


def plot_rewards(
    report: Mapping[str, Any], path: str | os.PathLike[str] | None = None, by: str = "rows"
) -> Figure:
    """Draw the report of the benchmark of rewards.

    Parameters
    ----------
    report : mapping
        As the benchmark returns it.
    path : path, optional
        Where to save it; the suffix chooses the format.
    by : {"rows", "seconds"}
        What compute is.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = report["tasks"]
    figure = Figure(figsize=(4.0 * len(tasks), 4.3), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(grid, tasks, strict=True):
        _panel(axes, task, by)
        unit = "rows of the model" if by == "rows" else "seconds of processor time"
        axes.set_xlabel(f"{unit}, one answer")
    grid[0].set_ylabel("expected score, with 95 % interval")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=min(3, len(tasks)), frameon=False,
        fontsize=9,
    )  # fmt: skip
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _panel(axes: Axes, task: Mapping[str, Any], by: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    for method, (colour, marker, line) in STYLES.items():
        cells = sorted((c for c in task["cells"] if c["method"] == method), key=lambda c: c[by])
        if not cells:
            continue
        x, score = [c[by] for c in cells], [c["score"] for c in cells]
        axes.plot(
            x, score, color=colour, marker=marker, ls=line, ms=5, lw=1.3, label=method,
            mfc=colour if line == "-" else "white",
        )  # fmt: skip
        if line == "-":
            axes.fill_between(
                x, [c["low"] for c in cells], [c["high"] for c in cells], color=colour,
                alpha=0.12, lw=0,
            )  # fmt: skip
    axes.set(xscale="log", ylim=(0, 1.02))
    axes.set_title(task["task"], fontsize=10)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(color="#dddddd", lw=0.5)
