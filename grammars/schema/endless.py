"""Schemas of which every value would have to go on for ever.

``{"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}`` holds of no JSON
value: each would hold another one. What *ends* is a least fixed point: a schema ends if a
value may be no container, or if all that the value must hold, and all that must hold of it,
ends. What is not looked at counts as ending, so that nothing is refused that has a value.
"""

from __future__ import annotations

from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.walk import Path, item_keywords, show_path

__all__ = ["refuse_endless"]

MAX_ROUNDS = 8  # of looking at everything; two are enough for most
_CONTAINERS = {"object", "array"}


def refuse_endless(references: References) -> None:
    """Refuse a schema that only endless values would satisfy.

    Raises
    ------
    GrammarError
        With the circle of places, each of which needs the next.
    """
    reached = references.reached()
    waits: dict[Path, list[Path]] = {}  # for which others a schema waits
    ending = set[Path]()
    for _ in range(MAX_ROUNDS):
        before = len(ending)
        for path, schema in reversed(reached.items()):  # inner ones first
            if path not in ending:
                waits[path] = _waits(references, path, schema, ending, reached)
                if not waits[path]:
                    ending.add(path)
        if () in ending:
            return
        if len(ending) == before:
            break
    else:
        return  # too far to see
    circle: list[Path] = [()]
    while (after := waits[circle[-1]][0]) not in circle:
        circle.append(after)
    circle = [*circle[circle.index(after) :], after]
    raise GrammarError(
        "schema: no value can satisfy it: it would have no end, as each of these needs the next: "
        + ", ".join(show_path(path) for path in circle)
    )


def _waits(
    references: References,
    path: Path,
    schema: dict[str, Any],
    ending: set[Path],
    reached: dict[Path, dict[str, Any]],
) -> list[Path]:
    """Of what the schema needs, the first that is not known to end; none where it ends."""

    def open_of(paths: list[Path]) -> list[Path]:
        return [p for p in paths if p in reached and p not in ending]

    def each(keyword: str) -> list[Path]:
        options = schema.get(keyword)
        return [(*path, keyword, i) for i in range(len(options))] if options else []

    needed = [target for _, target in references.follow(path, schema) if target is not None]
    needed += each("allOf")
    for keyword in ("anyOf", "oneOf"):
        options = each(keyword)
        if options and len(open_of(options)) == len(options):
            needed.append(options[0])
    if open_of(needed):
        return open_of(needed)[:1]
    types = schema.get("type")
    kinds: set[Any] = set(types) if isinstance(types, list) else {types}
    if not kinds or not kinds <= _CONTAINERS or "enum" in schema or "const" in schema:
        return []
    held = {
        "object": lambda: _values(path, schema),
        "array": lambda: _items(references, path, schema),
    }
    found = [open_of(held[kind]()) for kind in sorted(kinds)]
    return found[0][:1] if all(found) else []


def _values(path: Path, schema: dict[str, Any]) -> list[Path]:
    required, declared = schema.get("required"), schema.get("properties", {})
    # In old drafts `required` stands in the property itself, as a bool.
    keys = required if isinstance(required, list) else []
    out = [(*path, "properties", key) for key in keys if key in declared]
    others = [key for key in keys if key not in declared]
    if others and "patternProperties" not in schema:
        out.append((*path, "additionalProperties"))
    return out


def _items(references: References, path: Path, schema: dict[str, Any]) -> list[Path]:
    least = schema.get("minItems", 0)
    first, rest = item_keywords(schema, references.dialect.year)
    ahead = len(schema[first]) if first else 0
    out = [(*path, first, i) for i in range(int(min(ahead, least)))] if first else []
    if rest and least > ahead:
        out.append((*path, rest))
    return out
