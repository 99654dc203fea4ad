"""Walking a JSON Schema: where subschemas are, what they are called, what refers to what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["SchemaWalk", "child_schemas", "show_path"]

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
_DEFINITIONS = ("$defs", "definitions")


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


class SchemaWalk:
    """The subschemas of a schema that its root reaches.

    Parameters
    ----------
    root : dict
    renamed : dict, optional
        Keys that are not the user's, with what they were.

    Attributes
    ----------
    reached : dict of path to schema
        Subschemas (objects only) in the order of a depth-first walk. Where a reference
        cannot be followed here, all definitions count as reached.
    """

    def __init__(self, root: dict[str, Any], renamed: dict[str, str] | None = None) -> None:
        self.root = root
        self._renamed = renamed or {}
        self.reached: dict[Path, dict[str, Any]] = {}
        self._visit((), root)

    def show(self, path: Path) -> str:
        """The JSON path in the user's schema."""
        return show_path(tuple(self._renamed.get(part, part) for part in path))

    def find(self, keyword: str) -> list[Path]:
        """Paths of the reached schemas that have a keyword."""
        return [path for path, schema in self.reached.items() if keyword in schema]

    def resolve(self, reference: str) -> tuple[Path, Any] | None:
        """Target of a reference within the document; None if it is not a JSON pointer."""
        if not (reference == "#" or reference.startswith("#/")):
            return None
        path: list[Any] = []
        at: Any = self.root
        for part in reference[2:].split("/") if len(reference) > 2 else []:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and part.isdigit() and int(part) < len(at):
                path.append(int(part))
                at = at[int(part)]
            elif isinstance(at, dict) and part in at:
                path.append(part)
                at = at[part]
            else:
                return None
        return tuple(path), at

    def cycle(self) -> Path | None:
        """A schema that refers to itself without a value in between, if there is one."""
        done: set[Path] = set()
        for start in self.reached:
            trail: dict[Path, None] = {}
            stack: list[tuple[Path, Iterator[Path]]] = []
            if start not in done:
                trail[start] = None
                stack.append((start, iter(self._in_place(start))))
            while stack:
                path, rest = stack[-1]
                after = next(rest, None)
                if after is None:
                    stack.pop()
                    del trail[path]
                    done.add(path)
                elif after in trail:
                    return after
                elif after not in done and after in self.reached:
                    trail[after] = None
                    stack.append((after, iter(self._in_place(after))))
        return None

    def _in_place(self, path: Path) -> list[Path]:
        """Schemas that are applied to the same value as the one at `path`."""
        schema = self.reached[path]
        out = [
            (*path, key, i)
            for key in ("allOf", "anyOf", "oneOf")
            if isinstance(schema.get(key), list)
            for i in range(len(schema[key]))
        ]
        if isinstance(schema.get("$ref"), str):
            target = self.resolve(schema["$ref"])
            if target is not None:
                out.append(target[0])
        return out

    def _visit(self, path: Path, schema: Any) -> None:
        pending: list[tuple[Path, Any]] = [(path, schema)]
        while pending:
            path, schema = pending.pop()
            if not isinstance(schema, dict) or path in self.reached:
                continue
            self.reached[path] = schema
            follow: list[tuple[Path, Any]] = []
            all_definitions = False
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(schema.get(key), str):
                    target = self.resolve(schema[key])
                    if target is None:
                        all_definitions = True
                    else:
                        follow.append(target)
            for sub, child in child_schemas(schema):
                if sub[0] not in _DEFINITIONS:
                    follow.append(((*path, *sub), child))
            if all_definitions:
                for key in _DEFINITIONS:
                    definitions = self.root.get(key)
                    if isinstance(definitions, dict):
                        follow.extend(((key, name), d) for name, d in definitions.items())
            pending.extend(reversed(follow))
