"""Whether subschemas can hold of one value: where they cannot, ``oneOf`` is ``anyOf``."""

from __future__ import annotations

import json
from typing import Any

from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.walk import Path

__all__ = ["Disjoint"]

ALL_TYPES = frozenset({"array", "boolean", "null", "number", "object", "string"})
MAX_BRANCHES = 60  # compared in pairs
MAX_DEPTH = 4


class Disjoint:
    """Compares subschemas by type, by fixed values, and by the keys of objects.

    The answer True is proven; False only means that no proof was found.
    """

    def __init__(self, references: References) -> None:
        self._references = references
        self._year = references.dialect.year

    def all(self, paths: list[Path]) -> bool:
        """Whether no value is valid for two of the schemas."""
        return len(paths) <= MAX_BRANCHES and all(
            self.two(a, b) for i, a in enumerate(paths) for b in paths[i + 1 :]
        )

    def two(self, a: Path, b: Path, depth: int = 0) -> bool:
        """Whether no value is valid for both schemas."""
        if depth > MAX_DEPTH:
            return False
        parts_a, parts_b = self._parts(a), self._parts(b)
        if parts_a is None or parts_b is None:
            return True
        types = _types(parts_a) & _types(parts_b)
        values_a, values_b = _values(parts_a), _values(parts_b)
        if values_a is not None and values_b is not None:
            return not (values_a & values_b)
        if not types:
            return True
        if self._any_branches_apart(parts_a, b, depth) or self._any_branches_apart(
            parts_b, a, depth
        ):
            return True
        return types == {"object"} and self._objects_apart(parts_a, parts_b, depth)

    def _parts(self, path: Path) -> list[tuple[Path, dict[str, Any]]] | None:
        """Schemas that hold together with the one at `path`; None if one is ``false``."""
        out: list[tuple[Path, dict[str, Any]]] = []
        pending, seen = [path], set()
        while pending:
            path = pending.pop()
            schema = self._references.at(path)
            if schema is False:
                return None
            if schema is True or path in seen:
                continue
            seen.add(path)
            if self._references.dialect.lone_references and "$ref" in schema:
                schema = {"$ref": schema["$ref"]}
            out.append((path, schema))
            pending += [t for _, t in self._references.follow(path, schema) if t is not None]
            pending += [(*path, "allOf", i) for i in range(len(schema.get("allOf", [])))]
        return out

    def _any_branches_apart(
        self, parts: list[tuple[Path, dict[str, Any]]], other: Path, depth: int
    ) -> bool:
        return any(
            all(
                self.two((*path, key, i), other, depth + 1) for i in range(len(schema.get(key, [])))
            )
            for path, schema in parts
            for key in ("anyOf", "oneOf")
            if 0 < len(schema.get(key, [])) <= MAX_BRANCHES
        )

    def _objects_apart(
        self,
        a: list[tuple[Path, dict[str, Any]]],
        b: list[tuple[Path, dict[str, Any]]],
        depth: int,
    ) -> bool:
        """Whether a key that one of them requires has no value for both."""
        for key in dict.fromkeys(k for _, s in (*a, *b) for k in s.get("required", [])):
            at_a, at_b = _under(a, key), _under(b, key)
            if any(self._references.at(p) is False for p in (*at_a, *at_b)):
                return True
            if any(self.two(p, q, depth + 1) for p in at_a for q in at_b):
                return True
        return False


def _under(parts: list[tuple[Path, dict[str, Any]]], key: str) -> list[Path]:
    """Schemas of the value of a key."""
    out: list[Path] = []
    for path, schema in parts:
        if key in schema.get("properties", {}):
            out.append((*path, "properties", key))
        elif "additionalProperties" in schema and "patternProperties" not in schema:
            out.append((*path, "additionalProperties"))
    return out


def _types(parts: list[tuple[Path, dict[str, Any]]]) -> frozenset[str]:
    """Types that are possible; an integer is a number."""
    types = ALL_TYPES
    for _, schema in parts:
        kind = schema.get("type")
        if kind is not None:
            names = kind if isinstance(kind, list) else [kind]
            types &= {"number" if name == "integer" else name for name in names}
        values = _fixed(schema)
        if values is not None:
            types &= {_type(value) for value in values}
    return types


def _fixed(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema.get("enum")


def _values(parts: list[tuple[Path, dict[str, Any]]]) -> set[str] | None:
    """The values that are possible at most, as texts; None if they are not listed."""
    out: set[str] | None = None
    for _, schema in parts:
        values = _fixed(schema)
        if values is not None:
            texts = {_text(value) for value in values}
            out = texts if out is None else out & texts
    return out


def _text(value: Any) -> str:
    from smcprog.grammars.schema.numbers import whole_floats

    return json.dumps(whole_floats(value), sort_keys=True)


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "array"
