"""Texts of particles as labels of a figure: one line, short, only glyphs the font has."""

from __future__ import annotations

import functools

__all__ = ["FONT", "label"]

FONT = "DejaVu Sans Mono"  # comes with matplotlib, so that figures are alike everywhere

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@functools.cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def label(text: str, width: int) -> str:
    r"""`text` on one line of at most `width` characters.

    Line breaks, control characters and characters without a glyph are written as in a
    Python string (``\n``, ``\U0001f600``). Of a longer text the start and the end are shown:
    outputs with one ancestor often differ only late. An escape is never cut in two.
    """
    whole = _fitting(text, width)
    if whole is not None:
        return whole
    tail_width = 2 * (width - 1) // 5
    head = _pieces(text, width - 1 - tail_width)
    tail = _pieces(text[::-1], tail_width)
    return "".join(head) + "…" + "".join(reversed(tail))


def _fitting(text: str, width: int) -> str | None:
    """The whole text if it fits in `width`, else None."""
    if len(text) > width:
        return None
    shown = "".join(map(_shown, text))
    return shown if len(shown) <= width else None


def _pieces(chars: str, width: int) -> list[str]:
    """The first characters, as they are shown, that fit in `width`."""
    pieces: list[str] = []
    for char in chars:
        piece = _shown(char)
        width -= len(piece)
        if width < 0:
            break
        pieces.append(piece)
    return pieces


def _shown(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if char.isprintable() and ord(char) in _glyphs():
        return char
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
