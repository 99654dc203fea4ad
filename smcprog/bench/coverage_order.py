"""Values with the keys of their objects in the order in which a schema declares them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.validity import dialect_of
from smcprog.grammars.schema.walk import Path

__all__ = ["in_declared_order"]

_ORDERING = (
    "properties",
    "required",
    "enum",
    "const",
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "patternProperties",
    "contains",
)
_OTHERS = ("properties", "patternProperties")


def in_declared_order(schema: Any, value: Any) -> Any:
    """The same value with the keys of its objects in the order in which the schema has them."""
    if isinstance(schema, bool):
        return value
    references = References(schema, dialect_of(schema))
    return _order(references, [()], value)


def _order(references: References, paths: list[Path], value: Any) -> Any:
    schemas = _in_place(references, paths, value)
    if isinstance(value, list):
        return [_order(references, _items(schemas, i), item) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    names: dict[str, None] = {}
    for _, schema in schemas:
        names.update(dict.fromkeys(schema.get("properties", {})))
        for fixed in [*schema.get("enum", []), schema.get("const")]:
            if fixed == value:
                names.update(dict.fromkeys(fixed))
    for _, schema in schemas:
        names.update(dict.fromkeys(schema.get("required", [])))
    keys = [k for k in names if k in value] + [k for k in value if k not in names]
    return {key: _order(references, _under(schemas, key), value[key]) for key in keys}


def _in_place(
    references: References, paths: list[Path], value: Any
) -> list[tuple[Path, dict[str, Any]]]:
    """Pieces of schemas that apply to a value, in the order of their keywords."""
    out: list[tuple[Path, dict[str, Any]]] = []
    seen: set[Path] = set()

    def visit(path: Path) -> None:
        schema = references.at(path)
        if path in seen or not isinstance(schema, dict):
            return
        seen.add(path)
        if references.dialect.lone_references and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        targets = dict(references.follow(path, schema))
        for key, inner in schema.items():
            target = targets.get(key)
            if target is not None:
                visit(target)
            elif key in ("allOf", "anyOf", "oneOf"):
                for i in range(len(inner)):
                    at = (*path, key, i)
                    if key == "allOf" or _is_valid(references, at, value):
                        visit(at)
            elif key in _ORDERING:
                out.append((path, {k: schema[k] for k in (key, *_OTHERS) if k in schema}))

    for path in paths:
        visit(path)
    return out


def _is_valid(references: References, path: Path, value: Any) -> bool:
    pointer = "/".join(str(p).replace("~", "~0").replace("/", "~1") for p in path)
    schema = {**references.root, "$schema": references.dialect.uri}
    return jsonschema_rs.validator_map_for(schema, offline=True)[f"#/{pointer}"].is_valid(value)


def _items(schemas: list[tuple[Path, dict[str, Any]]], i: int) -> list[Path]:
    out: list[Path] = []
    for path, schema in schemas:
        for key in ("prefixItems", "items", "additionalItems", "contains"):
            inner = schema.get(key)
            if isinstance(inner, list) and i < len(inner):
                out.append((*path, key, i))
            elif isinstance(inner, dict):
                out.append((*path, key))
    return list(dict.fromkeys(out))


def _under(schemas: list[tuple[Path, dict[str, Any]]], key: str) -> list[Path]:
    out: list[Path] = []
    for path, schema in schemas:
        if key in schema.get("properties", {}):
            out.append((*path, "properties", key))
        out += [(*path, "patternProperties", p) for p in schema.get("patternProperties", {})]
        if isinstance(schema.get("additionalProperties"), dict):
            out.append((*path, "additionalProperties"))
    return list(dict.fromkeys(out))
