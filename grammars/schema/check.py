"""The part of a JSON Schema that no mask holds, checked on each value when it is closed.

The whole value is validated against the whole schema: that alone makes the language exact.
Before that, a value inside is validated as soon as it is closed against the subschemas that
must hold of it whatever comes later: those that the root reaches through ``properties``,
``patternProperties``, ``additionalProperties``, ``items``, ``prefixItems``, ``allOf`` and
references only. And of an open container, what cannot be mended any more is seen at once:
repeated items, keys that may not be there, too many of either.
"""

from __future__ import annotations

from typing import Any

from smcprog.grammars.schema.objects import key_matches
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.scan import Container, Watcher, begin_reading
from smcprog.grammars.schema.validators import Validators
from smcprog.grammars.schema.walk import Path, child_schemas, item_keywords
from smcprog.grammars.text import Check, CheckState

__all__ = ["SchemaCheck"]

# From a schema to those that hold of the same value, or of values inside, as soon as it does.
_CONJUNCTIVE = frozenset({
    "$ref", "$dynamicRef", "$recursiveRef", "additionalItems", "additionalProperties", "allOf",
    "items", "patternProperties", "prefixItems", "properties",
})  # fmt: skip


class SchemaCheck(Check, Watcher):
    """A schema, checked on the values of a text.

    Parameters
    ----------
    references : References
        Of the user's schema.
    left : dict of Path to dict
        Keywords that the mask has left out, by the path of their schema.
    assert_formats : bool
    description : str

    Raises
    ------
    GrammarError
        If the validator does not take the schema.
    """

    when = "whenever a value inside is closed"

    def __init__(
        self,
        references: References,
        left: dict[Path, dict[str, str]],
        *,
        assert_formats: bool,
        description: str,
    ) -> None:
        self.description = (
            f"{description}; on the way, that no object repeats a key and that keys are spelled "
            "without needless \\u escapes"
        )
        self.references = references
        self._left = left
        self._validators = Validators(references, assert_formats)
        self._reached_left: dict[Path, bool] = {}
        # What a dynamic reference means depends on the way to it, so that a subschema by
        # itself may not say what it says in its place.
        self._early = all(len(paths) == 1 for paths in references.dynamic.values()) and not (
            references.dialect.year == 2019 and references.resources
        )
        self._places: dict[frozenset[Path], _Place] = {}
        self._whole = self._validators.whole
        self._root = self.place([()])

    def begin(self) -> CheckState:
        return begin_reading(self)

    # ------------------------------------------------------------------ watcher

    def root(self) -> _Place:
        return self._root

    def inside(self, container: Container) -> _Place:
        place: _Place = container.place
        if container.is_object:
            return place.property(container.key or "")
        return place.item(container.count)

    def opens_key(self, container: Container, key: str) -> bool:
        place: _Place = container.place
        if place.most_keys is not None and len(container.keys) >= place.most_keys:
            return False
        return all(names.is_valid(key) for names in place.names)

    def closes(self, place: _Place, value: Any) -> bool:
        if place is self._root and not self._whole.is_valid(value):
            return False
        return all(validator.is_valid(value) for validator in place.validators)

    def remember(self, container: Container, value: Any) -> tuple[bool, Any]:
        place: _Place = container.place
        if container.is_object or not (place.unique or place.counted):
            return True, None
        items, counts = container.memory or (frozenset(), (0,) * len(place.counted))
        if place.unique:
            known = _canonical(value)
            if known in items:
                return False, None
            items = items | {known}
        if place.counted:
            counts = tuple(
                n + validator.is_valid(value)
                for n, (validator, _) in zip(counts, place.counted, strict=True)
            )
            if any(n > most for n, (_, most) in zip(counts, place.counted, strict=True)):
                return False, None
        return True, (items, counts)

    # ------------------------------------------------------------------ places

    def place(self, paths: list[Path]) -> _Place:
        """The place of a value of which all schemas at some paths hold."""
        held: dict[Path, None] = {}
        pending = list(paths)
        while pending:
            path = pending.pop()
            schema = self.references.at(path)
            if path in held or not isinstance(schema, dict):
                continue
            held[path] = None
            pending += [t for _, t in self.references.follow(path, schema) if t is not None]
            schema = self._effective(schema)
            pending += [(*path, "allOf", i) for i in range(len(schema.get("allOf", [])))]
        key = frozenset(held)
        if key not in self._places:
            schemas = [(path, self._effective(self.references.at(path))) for path in held]
            self._places[key] = _Place(self, schemas)
        return self._places[key]

    def _effective(self, schema: dict[str, Any]) -> dict[str, Any]:
        lone = self.references.dialect.lone_references and isinstance(schema.get("$ref"), str)
        return {"$ref": schema["$ref"]} if lone else schema

    def validator(self, path: Path) -> Any:
        """The validator of a subschema; None where it may say something else by itself."""
        return self._validators.of(path) if self._early else None

    def decides(self, path: Path, schema: dict[str, Any]) -> bool:
        """Whether a schema says more of a value than the mask and its conjunctive parts do."""
        if path in self._left:
            return True
        return any(
            self._has_left((*path, *at))
            for at, _ in child_schemas(schema)
            if at[0] not in _CONJUNCTIVE and at[0] not in ("$defs", "definitions")
        )

    def _has_left(self, path: Path) -> bool:
        """Whether the mask has left out anything that a schema reaches."""
        seen: set[Path] = set()
        pending = [path]
        while pending:
            path = pending.pop()
            schema = self.references.at(path)
            if path in seen or not isinstance(schema, dict):
                continue
            seen.add(path)
            if path in self._left:
                return True
            pending += [t for _, t in self.references.follow(path, schema) if t is not None]
            pending += [
                (*path, *at)
                for at, _ in child_schemas(schema)
                if at[0] not in ("$defs", "definitions")
            ]
        return False


class _Place:
    """What must hold of the value at a place of the text.

    Attributes
    ----------
    validators : list
        Of the schemas that say more than the mask does.
    names : list
        Validators of keys.
    most_keys : int or None
    unique : bool
        Whether items must differ.
    counted : list of (validator, int)
        Items that may match at most so many times.
    """

    def __init__(self, check: SchemaCheck, schemas: list[tuple[Path, dict[str, Any]]]) -> None:
        self._check = check
        self._schemas = schemas
        self._properties: dict[str, _Place] = {}
        self._items: list[_Place] = []
        self._spelled = frozenset(
            name for _, schema in schemas for name in schema.get("properties", {})
        )
        knows = check.references.dialect.knows
        deciding = [path for path, schema in schemas if path and check.decides(path, schema)]
        found = (check.validator(path) for path in deciding)
        self.validators = [validator for validator in found if validator is not None]
        self.unique = any(schema.get("uniqueItems") is True for _, schema in schemas)
        self.names = [
            v
            for path, schema in schemas
            if "propertyNames" in schema and knows("propertyNames")
            if (v := check.validator((*path, "propertyNames"))) is not None
        ]
        most = [int(s["maxProperties"]) for _, s in schemas if "maxProperties" in s]
        self.most_keys = min(most, default=None)
        self.counted = [
            (v, int(schema["maxContains"]))
            for path, schema in schemas
            if "contains" in schema and "maxContains" in schema and knows("maxContains")
            if (v := check.validator((*path, "contains"))) is not None
        ]

    def property(self, key: str) -> _Place:
        """The place of the value of a key."""
        known = self._properties.get(key)
        if known is not None:
            return known
        paths: list[Path] = []
        for path, schema in self._schemas:
            named = key in schema.get("properties", {})
            if named:
                paths.append((*path, "properties", key))
            unknown = False
            for pattern in schema.get("patternProperties", {}):
                matches = key_matches(pattern, key)
                unknown |= matches is None
                if matches:
                    named = True
                    paths.append((*path, "patternProperties", pattern))
            if not named and not unknown and "additionalProperties" in schema:
                paths.append((*path, "additionalProperties"))
        place = self._check.place(paths)
        if key in self._spelled:
            self._properties[key] = place
        return place

    def item(self, index: int) -> _Place:
        """The place of an item."""
        while len(self._items) <= index:
            self._items.append(self._item(len(self._items)))
            if len(self._items) > self._first_items():
                break  # all later ones are alike
        return self._items[min(index, len(self._items) - 1)]

    def _first_items(self) -> int:
        year = self._check.references.dialect.year
        firsts = [(s, item_keywords(s, year)[0]) for _, s in self._schemas]
        return max((len(s[first]) for s, first in firsts if first is not None), default=0)

    def _item(self, index: int) -> _Place:
        paths: list[Path] = []
        for path, schema in self._schemas:
            first, rest = item_keywords(schema, self._check.references.dialect.year)
            if first is not None and index < len(schema[first]):
                paths.append((*path, first, index))
            elif rest is not None:
                paths.append((*path, rest))
        return self._check.place(paths)


def _canonical(value: Any) -> Any:
    """Equal for values that are equal in JSON; numbers are in one form already."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("array", tuple(map(_canonical, value)))
    if isinstance(value, dict):
        return ("object", frozenset((key, _canonical(v)) for key, v in value.items()))
    return value
