"""One figure of a run: who descends from whom, ESS per round, and the final weights."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smcprog.plots.labels import FONT, label

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from smcprog.smc.posterior import Posterior

__all__ = ["plot_posterior"]

SAMPLE, SURVIVOR, OTHER, DEAD = "#d95f02", "#1f78b4", "#c4c4c4", "#c0262d"
BAND = "#eef3d8"
LABEL_CHARS = 44
NICE = [1, 2, 4, 5, 10]  # steps between the ticks of an axis


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Sizes in inches, so that rows and labels keep their size whatever N and the rounds are."""

    n: int
    rounds: int
    left: float = 0.7
    right: float = 0.15
    top: float = 0.62
    bottom: float = 0.55
    gap: float = 0.22
    ess_height: float = 1.35
    bars_width: float = 1.25

    @property
    def tree_width(self) -> float:
        return min(max(2.5 + 0.16 * self.rounds, 4.2), 12.0)

    @property
    def tree_height(self) -> float:
        return min(max(self.n * (0.27 if self.n <= 16 else 0.16), 1.2), 11.0)

    @property
    def row(self) -> float:
        """Height of one particle's row, in points."""
        return 72 * self.tree_height / self.n

    @property
    def column(self) -> float:
        """Width of one round, in points."""
        return 72 * self.tree_width / (self.rounds + 1)

    @property
    def font_size(self) -> float:
        return min(max(0.68 * self.row, 5.0), 8.0)

    @property
    def labels_width(self) -> float:
        # 0.602 em is the advance of the monospaced font, which hinting rounds up to whole
        # pixels; three places go to the marks in front.
        return (0.602 * self.font_size / 72 + 0.005) * (LABEL_CHARS + 3)

    @property
    def size(self) -> tuple[float, float]:
        width = self.left + self.tree_width + self.gap + self.bars_width
        height = self.bottom + self.ess_height + self.gap + self.tree_height + self.top
        return width + self.labels_width + self.right, height

    def box(self, left: float, bottom: float, width: float, height: float) -> Any:
        full_width, full_height = self.size
        return (left / full_width, bottom / full_height, width / full_width, height / full_height)


def plot_posterior(post: Posterior, path: str | os.PathLike[str] | None = None) -> Figure:
    """Draw a posterior: genealogy, ESS per round, final weights.

    Time runs to the right, one column a round; the last column is the final population.
    Row i is particle i. A line joins a particle to the ancestor it continues, so lines
    change rows only where the population was resampled.

    Parameters
    ----------
    post : Posterior
        Any result, also one whose particles are all dead.
    path : path, optional
        Where to save it; the suffix chooses the format.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot: nothing stays open and no window system is needed.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:  # pragma: no cover - depends on the installation
        raise ImportError("plots need matplotlib: pip install matplotlib") from error

    class PosteriorFigure(Figure):
        """A figure that notebooks show without any set-up of theirs."""

        def _repr_png_(self) -> bytes:
            import io

            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    layout = _Layout(len(post.particles), len(post.rounds))
    figure = PosteriorFigure(figsize=layout.size, facecolor="white")
    FigureCanvasAgg(figure)
    tree_bottom = layout.bottom + layout.ess_height + layout.gap
    bars_left = layout.left + layout.tree_width + layout.gap
    tree = figure.add_axes(
        layout.box(layout.left, tree_bottom, layout.tree_width, layout.tree_height)
    )
    ess = figure.add_axes(
        layout.box(layout.left, layout.bottom, layout.tree_width, layout.ess_height), sharex=tree
    )
    bars = figure.add_axes(
        layout.box(bars_left, tree_bottom, layout.bars_width, layout.tree_height), sharey=tree
    )
    _draw_genealogy(tree, post, layout)
    _draw_ess(ess, post, layout)
    _draw_weights(bars, post, layout)
    _draw_title(figure, post, layout)
    _draw_legend(figure, post, layout)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _lineage(post: Posterior, final: list[int]) -> NDArray[np.bool_]:
    """Which particle of which column has a descendant among `final`; bool [rounds + 1, N]."""
    on = np.zeros((len(post.rounds) + 1, len(post.particles)), dtype=bool)
    on[-1, final] = True
    for t in range(len(post.rounds) - 1, -1, -1):
        on[t, np.asarray(post.rounds[t].ancestors)[on[t + 1]]] = True
    return on


def _draw_genealogy(axes: Axes, post: Posterior, layout: _Layout) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.ticker import MaxNLocator

    n, rounds = layout.n, layout.rounds
    survivors = _lineage(post, [i for i, p in enumerate(post.particles) if p.alive])
    sample = _lineage(post, [] if post.sample_index is None else [post.sample_index])
    # One row a column of the panel: the rounds, before resampling, then the final population.
    log_w = np.array(
        [info.log_weights for info in post.rounds] + [[p.log_weight for p in post.particles]]
    )
    lines: dict[str, list[Any]] = {OTHER: [], DEAD: [], SURVIVOR: [], SAMPLE: []}
    for t, info in enumerate(post.rounds):
        for i, ancestor in enumerate(info.ancestors):
            if sample[t + 1, i]:
                kind = SAMPLE
            elif survivors[t + 1, i]:
                kind = SURVIVOR
            else:
                kind = DEAD if log_w[t, ancestor] == -np.inf else OTHER
            lines[kind].append([(t + 1, ancestor), (t + 2, i)])
        if info.resampled:
            axes.axvspan(t + 1, t + 2, color=BAND, lw=0, zorder=0)
    widths = {OTHER: 0.8, DEAD: 0.6, SURVIVOR: 1.1, SAMPLE: 2.2}
    for order, (kind, segments) in enumerate(lines.items(), start=1):
        style = (0, (1, 2)) if kind == DEAD else "solid"
        axes.add_collection(
            LineCollection(
                segments,
                colors=kind,
                linewidths=widths[kind],
                linestyles=[style],
                zorder=order,
                capstyle="round",
            )
        )
    _draw_nodes(axes, log_w, sample, survivors, layout)
    axes.set_xlim(0.6, rounds + 1.4)
    axes.set_ylim(n - 0.4, -0.6)
    if n <= 8:
        axes.set_yticks(range(n))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True, steps=NICE))
    axes.set_ylabel("particle", fontsize=9)
    axes.tick_params(labelsize=8, labelbottom=False, bottom=False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_nodes(
    axes: Axes,
    log_w: NDArray[np.float64],
    sample: NDArray[np.bool_],
    survivors: NDArray[np.bool_],
    layout: _Layout,
) -> None:
    """Dots whose area is the weight within the round, where there is room; crosses for deaths."""
    room = min(layout.column, layout.row)
    if room >= 7:
        top = log_w.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            relative = np.where(log_w == -np.inf, 0.0, np.exp(log_w - top))
        t, i = np.nonzero(relative > 0)
        colors = np.where(sample[t, i], SAMPLE, np.where(survivors[t, i], SURVIVOR, "#9a9a9a"))
        area = (min(0.62 * room, 9.0)) ** 2 * relative[t, i]
        axes.scatter(t + 1, i, s=np.maximum(area, 1.5), c=colors, lw=0, zorder=6)
    dead = log_w == -np.inf
    died = dead.copy()
    died[1:] &= ~dead[:-1]
    t, i = np.nonzero(died)
    size = min(max(0.5 * room, 3.0), 6.0)
    axes.scatter(t + 1, i, s=size**2, c=DEAD, marker="x", lw=1.1, zorder=7)


def _draw_ess(axes: Axes, post: Posterior, layout: _Layout) -> None:
    from matplotlib.ticker import MaxNLocator

    n, rounds = layout.n, layout.rounds
    x = np.arange(1, rounds + 1)
    resampled = np.array([info.resampled for info in post.rounds], dtype=bool)
    values = np.array([info.ess for info in post.rounds], dtype=float)
    for t in np.nonzero(resampled)[0].tolist():
        axes.axvspan(t + 1, t + 2, color=BAND, lw=0, zorder=0)
    axes.stairs(
        [info.alive for info in post.rounds],
        np.arange(rounds + 1) + 0.5,
        fill=True,
        color="#e4e4e4",
        lw=0,
        zorder=0.5,
    )
    threshold = post.ess_threshold
    axes.axhline(n, color="#555555", lw=0.8, ls="--", zorder=1)
    if threshold is not None and 0 < threshold < 1:
        axes.axhline(threshold * n, color="#555555", lw=0.8, ls=":", zorder=1)
    axes.plot(x, values, color="#333333", lw=1.2, zorder=3, marker="o", ms=0 if rounds > 60 else 3)
    axes.plot(
        x[resampled],
        values[resampled],
        color=SAMPLE,
        ls="",
        marker="v",
        zorder=4,
        ms=3 if rounds > 60 else 5,
    )
    axes.set_yticks(
        [0, 1] if n == 1 else MaxNLocator(4, integer=True, steps=NICE).tick_values(0, n)
    )
    axes.set_ylim(0, 1.12 * n)
    # The last column holds the final population, which is no round: it gets no number.
    ticks = MaxNLocator(10, integer=True, steps=NICE).tick_values(1, max(rounds, 2))
    axes.set_xticks([tick for tick in ticks if 1 <= tick <= rounds])
    axes.set_xlim(0.6, rounds + 1.4)
    axes.set_xlabel("round (the last column is the final population)", fontsize=9)
    axes.set_ylabel("ESS", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_weights(axes: Axes, post: Posterior, layout: _Layout) -> None:
    from matplotlib.ticker import MaxNLocator

    weights = post.weights
    colors = [SAMPLE if i == post.sample_index else SURVIVOR for i in range(layout.n)]
    axes.barh(np.arange(layout.n), weights, height=0.72, color=colors, lw=0)
    axes.set_xlim(0, float(weights.max()) * 1.04 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(2, steps=NICE))
    axes.set_xlabel("final weight", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
    best = post.best_index
    for i in _labelled(weights, [post.sample_index, best], layout):
        particle = post.particles[i]
        mark = ("▶" if i == post.sample_index else " ") + ("★" if i == best else " ")
        color = "#222222" if particle.alive and particle.text else "#888888"
        color = color if particle.alive else DEAD
        text = label(particle.text, LABEL_CHARS) if particle.text else "(empty)"
        axes.text(
            1.03,
            i,
            f"{mark} {text}",
            transform=axes.get_yaxis_transform(),
            va="center_baseline",
            ha="left",
            color=color,
            family=FONT,
            fontsize=layout.font_size,
            parse_math=False,
        )


def _labelled(weights: NDArray[np.float64], first: list[int | None], layout: _Layout) -> list[int]:
    """Particles whose text is written: all, or those in `first` and the heaviest that fit."""
    apart = math.ceil(1.15 * layout.font_size / layout.row)
    chosen: list[int] = []
    order = [i for i in first if i is not None] + np.argsort(-weights, kind="stable").tolist()
    for i in order:
        if all(abs(i - other) >= apart for other in chosen):
            chosen.append(i)
    return chosen


def _draw_title(figure: Figure, post: Posterior, layout: _Layout) -> None:
    width, height = layout.size
    resamplings = sum(info.resampled for info in post.rounds)
    if post.alive:
        se = post.log_evidence_se
        error = (
            ""
            if math.isnan(se)
            else (f" ± {se:.2g}{' (approximate)' if post.log_evidence_se_approximate else ''}")
        )
        head = f"log Ẑ = {post.log_evidence:.4g}{error}".replace("-", "−")
    else:
        head = "every particle is dead, log Ẑ = −∞"
    parts = [
        f"ESS {post.ess:.3g} of {layout.n}",
        f"{_count(resamplings, 'resampling')} in {_count(layout.rounds, 'round')}",
    ]
    if post.seed is not None:
        parts.append(f"seed {post.seed}")
    x, y = layout.left / width, 1 - 0.2 / height
    figure.text(x, y, head, fontsize=11, weight="bold", va="center", parse_math=False)
    figure.text(
        x,
        y - 0.22 / height,
        "     ".join(parts),
        fontsize=8.5,
        color="#555555",
        va="center",
        parse_math=False,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _draw_legend(figure: Figure, post: Posterior, layout: _Layout) -> None:
    """To the right of the ESS panel, where nothing else is."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def line(color: str, width: float, text: str, **style: Any) -> Line2D:
        return Line2D([], [], color=color, lw=width, label=text, **style)

    entries: list[Any] = []
    if post.alive:
        entries.append(line(SAMPLE, 2.2, "▶ drawn sample"))
        entries.append(line("#222222", 0, "largest log γ", marker="*", ms=5))
        entries.append(line(SURVIVOR, 1.1, "ancestors of the living"))
    entries.append(line(OTHER, 0.8, "no living descendant"))
    if any(info.alive < layout.n for info in post.rounds):
        entries.append(line(DEAD, 0, "dead", marker="x", ms=5))
    entries.append(line("#333333", 1.2, "ESS", marker="o", ms=3))
    entries.append(line("#555555", 0.8, f"N = {layout.n}", ls="--"))
    threshold = post.ess_threshold
    if threshold is not None and 0 < threshold < 1:
        entries.append(line("#555555", 0.8, f"threshold {threshold * layout.n:.3g}", ls=":"))
    if any(info.resampled for info in post.rounds):
        entries.append(line(SAMPLE, 0, "resampled", marker="v", ms=5))
    entries.append(Patch(color="#e4e4e4", label="alive"))
    width, height = layout.size
    x = layout.left + layout.tree_width + layout.gap
    figure.legend(
        handles=entries,
        loc="lower left",
        bbox_to_anchor=(x / width, 0.12 / height),
        ncols=2,
        fontsize=7.5,
        frameon=False,
        borderaxespad=0,
        handlelength=1.8,
        columnspacing=1.5,
        prop={"family": "DejaVu Sans", "size": 7.5},
    )
