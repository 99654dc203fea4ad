"""Numbers that users pass: checked once, turned into plain Python numbers."""

from __future__ import annotations

import contextlib
import math
import numbers
from typing import Any

from smcprog.errors import SettingError

__all__ = ["real", "whole"]


def whole(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int in [low, high].

    Raises
    ------
    SettingError
        If it is anything else; booleans are no numbers.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or int(value) < low:
        raise SettingError(f"{name} must be a whole number of at least {low}, got {_show(value)}")
    if int(value) > high:
        raise SettingError(f"{name} must be at most {high}, got {value}")
    return int(value)


def real(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, infinite: bool = False
) -> float:
    """`value` as a float in [low, high], finite unless `infinite` is set.

    Raises
    ------
    SettingError
        If it is anything else; NaN and booleans are no numbers.
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError, ValueError):
            number = float(value)
    if not low <= number <= high or (math.isinf(number) and not infinite):
        bounds = f"from {low:g} to {high:g}"
        if math.isinf(high):
            bounds = f"of at least {low:g}" if math.isfinite(low) else ""
        raise SettingError(f"{name} must be a number {bounds}".rstrip() + f", got {_show(value)}")
    return number


def _show(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
