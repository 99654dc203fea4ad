"""Distance to the truth against cost: one panel a case, one line a method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_bias"]

STYLES = {
    "local masking": ("#d95f02", "X"),
    "importance sampling": ("#666666", "o"),
    "SMC": ("#1f78b4", "s"),
    "AWRS": ("#33a02c", "^"),
}
COLUMNS = 4
LEAST = 1e-4  # of total variation that is told apart from none


def plot_bias(report: Mapping[str, Any], path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw the report of the bias benchmark.

    Parameters
    ----------
    report : mapping
        As the benchmark returns it.
    path : path, optional
        Where to save it; the suffix chooses the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = report["cases"]
    rows = math.ceil(len(cases) / COLUMNS)
    columns = min(COLUMNS, len(cases))
    figure = Figure(
        figsize=(3.2 * columns, 2.7 * rows + 0.9), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number >= len(cases):
            axes.axis("off")
            continue
        _panel(axes, cases[number])
        if number % columns == 0:
            axes.set_ylabel("total variation to the truth")
        if number + columns >= len(cases):
            axes.set_xlabel("model rows a sample")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9
    )
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _panel(axes: Axes, case: Mapping[str, Any]) -> None:
    from matplotlib.ticker import NullFormatter

    for method, (colour, marker) in STYLES.items():
        cells = [c for c in case["cells"] if c["method"] == method and "tv" in c]
        cells.sort(key=lambda c: c["rows"])
        if not cells:
            continue
        x = [c["rows"] for c in cells]
        hollow = method == "importance sampling"  # where it is one with SMC, both show
        axes.plot(
            x,
            [max(c["tv"], LEAST) for c in cells],
            color=colour,
            marker=marker,
            ms=9 if hollow else 5,
            mfc="none" if hollow else colour,
            lw=1.2,
            label=method,
            zorder=3,
        )
        if method == "local masking":  # more samples do not bring it closer
            axes.axhline(cells[0]["tv"], color=colour, lw=0.8, ls=":", zorder=1)
    smc = sorted(
        (c for c in case["cells"] if c["method"] == "SMC" and "tv" in c), key=lambda c: c["rows"]
    )
    axes.fill_between(
        [c["rows"] for c in smc],
        LEAST / 2,
        [max(c["tv_noise"], LEAST) for c in smc],
        color="#1f78b4",
        alpha=0.12,
        lw=0,
        label="noise of SMC",
    )
    most = max(c["rows"] for c in case["cells"])
    axes.set(xscale="log", yscale="log", xlim=(1, 2 * most), ylim=(LEAST / 2, 1.2))
    axes.set_title(case["case"], fontsize=10)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8)
    axes.grid(color="#dddddd", lw=0.5)
