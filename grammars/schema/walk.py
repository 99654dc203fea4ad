"""Walking a JSON Schema: where its subschemas are, and what they are called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["Path", "child_schemas", "item_keywords", "may_be", "show_path"]

Path = tuple[Any, ...]

_ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if",
    "items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)


def show_path(path: Path) -> str:
    """A JSON path such as ``$.properties.name.items[0]``."""
    out = "$"
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif re.fullmatch(r"[$\w-]+", part):
            out += f".{part}"
        else:
            out += f"[{json.dumps(part, ensure_ascii=False)}]"
    return out


def child_schemas(schema: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Subschemas of a schema with their paths in it, definitions included."""
    for key in _ONE:
        value = schema.get(key)
        if isinstance(value, (dict, bool)):
            yield (key,), value
    for key in _LIST:
        value = schema.get(key)
        if isinstance(value, list):
            for i, item in enumerate(value):
                yield (key, i), item
    for key in _MAP:
        value = schema.get(key)
        if isinstance(value, dict):
            for name, item in value.items():
                if isinstance(item, (dict, bool)):
                    yield (key, name), item


def may_be(types: Any, kind: str) -> bool:
    """Whether a value of a ``type`` keyword, or none, leaves room for a type."""
    return types is None or kind in (types if isinstance(types, list) else [types])


def item_keywords(schema: dict[str, Any], year: int) -> tuple[str | None, str | None]:
    """Names of the keywords for an array's first items, and for those after them."""
    if year >= 2020:
        first = "prefixItems" if "prefixItems" in schema else None
        return first, "items" if "items" in schema else None
    if isinstance(schema.get("items"), list):
        return "items", "additionalItems" if "additionalItems" in schema else None
    return None, "items" if "items" in schema else None
