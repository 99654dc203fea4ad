"""Regular expressions for ranges of whole numbers that are not negative.

A number may be written with a point before its last `places` digits, and then has as many
zeros in front as are needed for one digit before the point.
"""

from __future__ import annotations

__all__ = ["between", "from_on"]


def between(low: int, high: int, places: int = 0) -> str:
    """Numbers from `low` to `high`, both included; 0 <= low <= high."""
    options = []
    for width in range(_width(low, places), _width(high, places) + 1):
        first = max(low, _smallest(width, places))
        last = min(high, 10**width - 1)
        options += _same_width(str(first).zfill(width), str(last).zfill(width), width - places)
    return f"(?:{'|'.join(options)})"


def from_on(low: int, places: int = 0) -> str:
    """Numbers from `low` on."""
    width = _width(low, places)
    beyond = f"[1-9][0-9]{{{width - places},}}" + (rf"\.[0-9]{{{places}}}" if places else "")
    return f"(?:{between(low, 10**width - 1, places)}|{beyond})"


def _width(number: int, places: int) -> int:
    """How many digits a number is written with."""
    return max(len(str(number)), places + 1)


def _smallest(width: int, places: int) -> int:
    """The smallest number of a width."""
    return 0 if width == places + 1 else int(10 ** (width - 1))


def _same_width(low: str, high: str, point: int) -> list[str]:
    """Alternatives for the numbers between two with equally many digits.

    `point` is how many digits stand before the point; it is not written at the end.
    """
    if not low:
        return [""]
    if low == "0" * len(low) and high == "9" * len(high):
        return [_any(len(low), point)]
    if low[0] == high[0]:
        return [_digit(low[0], low[0], rest, point) for rest in _rest(low, high, point)]
    out = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * (len(low) - 1):
        nines = "9" * (len(low) - 1)
        out += [_digit(low[0], low[0], r, point) for r in _rest(low, low[0] + nines, point)]
        first += 1
    ends_early = high[1:] != "9" * (len(high) - 1)
    last -= ends_early
    if first <= last:
        out.append(_digit(str(first), str(last), _any(len(low) - 1, point - 1), point))
    if ends_early:
        zeros = "0" * (len(high) - 1)
        out += [_digit(high[0], high[0], r, point) for r in _rest(high[0] + zeros, high, point)]
    return out


def _rest(low: str, high: str, point: int) -> list[str]:
    return _same_width(low[1:], high[1:], point - 1)


def _digit(first: str, last: str, rest: str, point: int) -> str:
    """A digit and what follows it, with the point before it where it stands there."""
    mark = r"\." if point == 0 else ""
    return mark + (first if first == last else f"[{first}-{last}]") + rest


def _any(count: int, point: int) -> str:
    """Any digits."""
    if 0 <= point < count:
        before = _any(point, point) if point else ""
        return rf"{before}\.{_any(count - point, -1)}"
    return "" if count == 0 else f"[0-9]{{{count}}}" if count > 1 else "[0-9]"
