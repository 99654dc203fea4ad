"""Conditions that a mask can take from keywords that it cannot take as they are.

Each of them is necessary for the keyword, and where it is sufficient, too, nothing is left
to the check. No condition may name keys beyond the declared ones of its schema, since that
would fix an order for keys that may come in any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smcprog.grammars.schema.objects import closes_object
from smcprog.grammars.schema.walk import Path

if TYPE_CHECKING:
    from smcprog.grammars.schema.mask import MaskBuilder

__all__ = ["Tightener"]

MAX_CONDITIONS = 24  # of a whole schema: the engine multiplies alternatives out
MAX_LOCAL = 3  # of one schema
MAX_NESTING = 20  # of what is negated
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_NO_MEANING = frozenset({"title", "description", "$comment", "examples", "default"})
_PLAIN = _NO_MEANING | {
    "type", "const", "enum", "pattern", "format", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip


class Tightener:
    """Makes conditions for a `MaskBuilder`."""

    def __init__(self, builder: MaskBuilder) -> None:
        self._builder = builder
        self._dialect = builder.dialect
        self._made = 0

    def tighten(self, key: str, schema: dict[str, Any], path: Path, depth: int) -> list[Any]:
        """Schemas for the mask that hold wherever the keyword does."""
        before = self._made
        if key == "not":
            mask, exact = self._negation(schema["not"], (*path, "not"), schema, depth)
            if not exact:
                self._builder.leave(path, "not", "a negation")
            return [] if mask is True else [mask]
        if key in ("unevaluatedItems", "unevaluatedProperties"):
            closed = key == "unevaluatedProperties" and closes_object(schema, self._dialect)
            if schema[key] is not True and not closed:
                self._builder.leave(path, key, "what other keywords have not looked at")
            return []
        if key == "if":
            return self._conditional(schema, path, depth)
        out: list[Any] = []
        for name, needs in schema[key].items():
            mask = self._dependency(name, needs, (*path, key, name), schema, depth)
            if mask is not None and self._made - before < MAX_LOCAL and self._spend():
                out.append(mask)
                exact = isinstance(needs, list)
            else:
                exact = needs is True or needs == []
            if not exact:
                self._builder.leave(path, key, "what a key asks for")
        return out

    def _spend(self) -> bool:
        self._made += 1
        return self._made <= MAX_CONDITIONS

    # ------------------------------------------------------------------ dependencies

    def _dependency(
        self, name: str, needs: Any, path: Path, schema: dict[str, Any], depth: int
    ) -> Any:
        """The key is absent, or what it asks for is there."""
        declared = schema.get("properties", {})
        if self._builder.any_order or name not in declared or schema.get("type") != "object":
            return None
        absent = {"type": "object", "properties": {name: False}}
        if isinstance(needs, list):
            if not needs or not all(need in declared for need in needs):
                return None
            return {"anyOf": [absent, {"type": "object", "required": list(needs)}]}
        if not self._names_only(needs, declared):
            return None
        return {"anyOf": [absent, self._builder.child(path, depth)]}

    # ------------------------------------------------------------------ conditionals

    def _conditional(self, schema: dict[str, Any], path: Path, depth: int) -> list[Any]:
        sides = [key for key in ("then", "else") if schema.get(key, True) not in (True, {})]
        if not sides:
            return []
        self._builder.leave(path, "if", "a condition")
        declared = schema.get("properties", {})
        parts = [schema["if"], *(schema[key] for key in sides)]
        if self._builder.any_order or not all(self._names_only(p, declared) for p in parts):
            return []
        holds: list[Any] = [self._builder.child((*path, "if"), depth)]
        fails: list[Any] = [self._negation(schema["if"], (*path, "if"), schema, depth)[0]]
        if "then" in sides:
            holds.append(self._builder.child((*path, "then"), depth))
        if "else" in sides:
            fails.append(self._builder.child((*path, "else"), depth))
        fails = [f for f in fails if f is not True]
        if not fails or not self._spend():
            return []
        return [{"anyOf": [{"allOf": holds}, {"allOf": fails}]}]

    def _names_only(self, schema: Any, declared: dict[str, Any], depth: int = 0) -> bool:
        """Whether all keys that a schema speaks of are declared ones."""
        if isinstance(schema, bool):
            return True
        if depth > MAX_NESTING:
            return False
        inner = [s for key in ("allOf", "anyOf") for s in schema.get(key, [])]
        inner += [schema["not"]] if "not" in schema else []
        known = {"properties", "required", "allOf", "anyOf", "not", "type", *_NO_MEANING}
        properties = schema.get("properties", {})
        return (
            schema.keys() <= known
            and {*properties, *schema.get("required", [])} <= declared.keys()
            and all(map(_is_plain, properties.values()))
            and all(self._names_only(s, declared, depth + 1) for s in inner)
        )

    # ------------------------------------------------------------------ negations

    def _negation(
        self, schema: Any, path: Path, around: dict[str, Any], depth: int
    ) -> tuple[Any, bool]:
        """A schema of all values that are not valid for `schema`; whether of no others."""
        if isinstance(schema, bool):
            return not schema, True
        if len(path) > MAX_NESTING:
            return True, False
        keys = schema.keys() - _NO_MEANING
        if not keys:
            return False, True
        declared = around.get("properties", {})
        if keys == {"not"} and self._names_only(schema["not"], declared):
            return self._builder.child((*path, "not"), depth), False
        if keys == {"type"}:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            rest = [name for name in _TYPES if name not in names]
            exact = "integer" not in names or "number" in names
            return ({"type": rest} if rest else False), exact
        if keys == {"anyOf"}:
            made = [
                self._negation(s, (*path, "anyOf", i), around, depth)
                for i, s in enumerate(schema["anyOf"])
            ]
            masks = [mask for mask, _ in made if mask is not True]
            return ({"allOf": masks} if masks else True), False
        if self._builder.any_order or not keys <= {"type", "required", "properties"}:
            return True, False
        if schema.get("type", "object") != "object":
            return True, False
        if not {*schema.get("required", []), *schema.get("properties", {})} <= declared.keys():
            return True, False
        return self._not_object(schema, declared), False

    def _not_object(self, schema: dict[str, Any], declared: dict[str, Any]) -> Any:
        """No object, or a required key is absent, or a property is there and not valid."""
        options: list[Any] = []
        if "type" in schema:
            options.append({"type": [name for name in _TYPES if name != "object"]})
        for name in schema.get("required", []):
            options.append({"type": "object", "properties": {name: False}})
        for name, value in schema.get("properties", {}).items():
            outside: Any = True
            fixed, listed = _fixed(value, alone=True), _fixed(declared[name])
            if fixed is not None and listed is not None:
                rest = [v for v in listed if v not in fixed]
                outside = {"enum": rest} if rest else False
            if outside is not False:
                there: dict[str, Any] = {"type": "object", "required": [name]}
                if outside is not True:
                    there["properties"] = {name: outside}
                options.append(there)
        if len(options) > 4:
            return True
        if not options:
            return False
        return options[0] if len(options) == 1 else {"anyOf": options}


def _is_plain(schema: Any) -> bool:
    """Whether a schema says nothing of the keys of objects, so that it fixes no order."""
    if isinstance(schema, bool):
        return True
    values = [*schema.get("enum", []), schema.get("const")]
    return schema.keys() <= _PLAIN and not any(isinstance(v, (dict, list)) for v in values)


def _fixed(schema: Any, *, alone: bool = False) -> list[Any] | None:
    """The strings that a schema lists; `alone` if it must say nothing else."""
    if isinstance(schema, bool) or (alone and len(schema.keys() - _NO_MEANING) != 1):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None or not all(isinstance(v, str) for v in values):
        return None
    return list(values)
