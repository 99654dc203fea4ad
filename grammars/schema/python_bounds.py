"""Bounds that ``Annotated`` puts on a type, as keywords of JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["bounded"]

_NUMBERS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
    "string": ("minLength", "maxLength"),
}


def bounded(schema: dict[str, Any], metadata: Iterable[Any]) -> dict[str, Any]:
    """A schema with the bounds of some metadata.

    Parameters
    ----------
    schema : dict
    metadata : iterable
        Of ``Annotated``: bounds of `annotated_types`, or a ``pydantic.Field`` with them.
        Anything else says nothing about the value.

    Returns
    -------
    dict
    """
    found: dict[str, Any] = {}
    for item in metadata:
        for part in (item, *getattr(item, "metadata", ())):
            _read(part, schema.get("type"), found)
    if not found:
        return schema
    if "$ref" in schema or found.keys() & schema.keys():
        return {"allOf": [schema, found]}
    return {**schema, **found}


def _read(item: Any, kind: Any, found: dict[str, Any]) -> None:
    for name, keyword in _NUMBERS.items():
        value = getattr(item, name, None)
        if value is not None:
            found[keyword] = value
    least, most = getattr(item, "min_length", None), getattr(item, "max_length", None)
    # A reference is to an object; of any other type the keywords do no harm.
    for low, high in [_LENGTHS[kind]] if kind in _LENGTHS else _LENGTHS.values():
        if least:
            found[low] = least
        if most is not None:
            found[high] = most
