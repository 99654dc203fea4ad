"""The figure of a posterior: what it holds, and that nothing in it overlaps or is missing."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from smcprog.plots.labels import label
from smcprog.smc.posterior import Particle, Posterior

from .synthetic import dead_posterior, posterior

pytest.importorskip("matplotlib")

SIZES = [(1, 1), (1, 20), (2, 3), (8, 12), (16, 40), (64, 1), (64, 200), (150, 5)]


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    """A missing glyph or an impossible layout is only a warning in matplotlib."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(("n", "rounds"), SIZES)
def test_labels_fit_and_do_not_overlap(n: int, rounds: int) -> None:
    figure = posterior(n, rounds, death=0.02 if n > 2 else 0.0).plot()
    figure.canvas.draw()
    tree, ess, bars = figure.axes
    assert len(bars.patches) == n
    boxes = [text.get_window_extent() for text in bars.texts]
    assert boxes
    width, height = figure.canvas.get_width_height()
    for box in boxes:
        assert box.x0 > bars.get_window_extent().x1
        assert box.y0 >= 0 and box.x1 <= width and box.y1 <= height
    ordered = sorted(boxes, key=lambda box: box.y0)
    # Boxes hold the whole line height; letters are clear of each other well before they part.
    for low, high in itertools.pairwise(ordered):
        assert high.y0 - low.y0 > 0.6 * low.height
    legend = figure.legends[0].get_window_extent()
    weights_label = bars.xaxis.label.get_window_extent()
    assert legend.y1 < weights_label.y0
    assert legend.x0 > ess.get_window_extent().x1
    assert legend.x1 <= width
    assert tree.get_window_extent().y0 > ess.get_window_extent().y1


def test_lineages_and_deaths() -> None:
    post = posterior(8, 30, death=0.03, seed=4)
    assert any(info.resampled for info in post.rounds)
    figure = post.plot()
    tree = figure.axes[0]
    segments = sum(len(lines.get_segments()) for lines in tree.collections if _is_lines(lines))
    assert segments == 8 * len(post.rounds)
    sample = [lines for lines in tree.collections if _is_lines(lines)][-1].get_segments()
    assert len(sample) == len(post.rounds)
    assert sample[-1][1].tolist() == [len(post.rounds) + 1, post.sample_index]
    row = post.sample_index
    for info, segment in zip(reversed(post.rounds), reversed(sample), strict=True):
        row = info.ancestors[row]
        assert segment[0][1] == row


def _is_lines(artist: object) -> bool:
    return type(artist).__name__ == "LineCollection"


def test_threshold_and_population_are_marked() -> None:
    ess = posterior(8, 12, threshold=0.25).plot().axes[1]
    levels = [line.get_ydata()[0] for line in ess.lines if len(set(line.get_ydata())) == 1]
    assert 8 in levels and 2.0 in levels


def test_all_dead_and_no_rounds(tmp_path: Path) -> None:
    figure = dead_posterior().plot(tmp_path / "dead.png")
    assert "every particle is dead" in figure.texts[0].get_text()
    only = Posterior([Particle("x", [1], 0.0, [-1.0], -1.0, "eos")], [], -1.0, 0)
    only.plot(tmp_path / "one.svg")
    assert (tmp_path / "dead.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "one.svg").read_text()


def test_notebooks_show_the_figure() -> None:
    assert posterior(2, 2).plot()._repr_png_().startswith(b"\x89PNG")


def test_no_window_system_and_no_pyplot() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from synthetic import posterior\n"
        "post = posterior(3, 3)\n"
        "assert 'matplotlib' not in sys.modules, 'imported before a plot is asked for'\n"
        "post.plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("plain", 10, "plain"),
        ("a\nb\tc\r", 20, "a\\nb\\tc\\r"),
        ("caf\u00e9", 10, "caf\u00e9"),
        ("\U0001f600", 20, "\\U0001f600"),
        ("\x00\u202e\ud800", 40, "\\x00\\u202e\\ud800"),
        ("0123456789", 10, "0123456789"),
        ("0123456789x", 10, "012345\u202689x"),
        ("12345678\n\n\n", 10, "123456\u2026\\n"),
        ("\U0001f600\U0001f600", 12, "\u2026"),
        ("a\U0001f600\U0001f600b", 21, "a\\U0001f600\u2026b"),
        ("", 5, ""),
    ],
)
def test_label(text: str, width: int, expected: str) -> None:
    assert label(text, width) == expected
    assert len(expected) <= width
