"""Numbers of JSON Schema, as the mask engine takes them exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["NUMBERS", "CloseBounds", "mask_numbers", "mask_values", "whole_floats"]

MAX_EXACT_INT = 2**53  # the engine computes bounds in double precision
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
MAX_VALUES = 20_000  # of an enum


def mask_numbers(
    schema: dict[str, Any], year: int, *, drop: bool
) -> tuple[dict[str, Any], list[str]]:
    """Bounds of numbers, weaker where they are not held exactly.

    Parameters
    ----------
    schema : dict
    year : int
        Draft: the exclusive bounds of draft 4 are flags of the others.
    drop : bool
        Leave all of them out.

    Returns
    -------
    mask : dict
    weakened : list of str
        Keywords that `mask` does not say in full.
    """
    found = {k: schema[k] for k in NUMBERS if k in schema}
    if year == 4:
        for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if found.pop(exclusive, False) is True and bound in found:
                found[exclusive] = found.pop(bound)
    if drop:
        return {}, list(found)
    mask: dict[str, Any] = {}
    weakened = []
    for keyword, value in found.items():
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_INT:
            value = int(value)
        if abs(value) <= MAX_EXACT_INT:
            mask[keyword] = value
            continue
        weakened.append(keyword)
        side = -1 if keyword.endswith("inimum") else 1
        if keyword != "multipleOf" and (value < 0) == (side > 0):
            # What is above 2^60 is above 2^53, and so on.
            mask[keyword] = -side * MAX_EXACT_INT
    return mask, weakened


class CloseBounds:
    """Exclusive bounds at a whole number that the engine takes for inclusive ones.

    It does where a bound on the other side is less than 1 away, wherever in the schema that
    is said of the same number.

    Parameters
    ----------
    schemas : iterable of dict
        All subschemas.
    """

    def __init__(self, schemas: Iterable[dict[str, Any]]) -> None:
        self._below: set[float] = set()
        self._above: set[float] = set()
        for schema in schemas:
            for keyword in NUMBERS[:4]:
                value = schema.get(keyword)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    (self._below if keyword.endswith("inimum") else self._above).add(value)

    def of(self, mask: dict[str, Any]) -> list[str]:
        """Which of the bounds of a mask are such ones."""
        out = []
        for keyword, others in (
            ("exclusiveMinimum", self._above),
            ("exclusiveMaximum", self._below),
        ):
            bound = mask.get(keyword)
            if isinstance(bound, int) and any(0 < abs(other - bound) < 1 for other in others):
                out.append(keyword)
        return out


def mask_values(values: list[Any]) -> tuple[dict[str, Any], bool]:
    """A schema of some values, and whether it is of no others."""
    exact: list[Any] = []
    types: set[str] = set()
    for value in values:
        value = whole_floats(value)
        if len(exact) < MAX_VALUES and _held_exactly(value):
            exact.append(value)
        else:
            types.add(_type(value))
    if not types:
        return {"enum": exact}, True
    loose = {"type": sorted(types)}
    return {"anyOf": [{"enum": exact}, loose] if exact else [loose]}, False


def whole_floats(value: Any) -> Any:
    """1.0 is the JSON number 1, and is written so."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_INT:
        return int(value)
    if isinstance(value, (list, tuple)):
        return [whole_floats(v) for v in value]
    if isinstance(value, dict):
        return {k: whole_floats(v) for k, v in value.items()}
    return value


def _held_exactly(value: Any) -> bool:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_EXACT_INT
    if isinstance(value, float):
        return 1e-5 <= abs(value) < 1e15 and "e" not in repr(value)
    if isinstance(value, list):
        return all(map(_held_exactly, value))
    return all(map(_held_exactly, value.values()))


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int, "number"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")
