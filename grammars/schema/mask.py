"""The part of a JSON Schema that a token mask takes: a superset of its values.

Every keyword is either said in a way that the mask engine takes exactly, or weakened and
noted in `MaskBuilder.left`. Nothing is weakened under a negation: subschemas of ``not``,
``if``, ``contains`` and the like are left out as a whole, so that weaker always means more
values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from smcprog.grammars.schema.disjoint import Disjoint
from smcprog.grammars.schema.formats import CHECKED_FORMATS, FORMAT_PATTERNS, MAX_LENGTHS
from smcprog.grammars.schema.numbers import CloseBounds, mask_numbers, mask_values
from smcprog.grammars.schema.objects import ObjectKeywords
from smcprog.grammars.schema.patterns import mask_pattern
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.tighten import Tightener
from smcprog.grammars.schema.walk import Path, item_keywords, may_be

__all__ = ["MaskBuilder", "Weaker"]

MAX_ITEMS = 2_000  # of an array; the engine writes bounded arrays out, item by item
MAX_CHARACTERS = 1_000_000  # of a string
HOIST_EVERY = 12  # levels after which a subschema becomes a definition, since the engine's
# reader of JSON has a limit of nesting

_SIMPLE = frozenset({
    "additionalItems", "additionalProperties", "contains", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum",
    "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "required", "type",
    "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_LEFT = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip


@dataclasses.dataclass
class Weaker:
    """What the mask engine has refused so far, and is therefore left to the check.

    Attributes
    ----------
    one_of, key_patterns, patterns, numbers : bool
        Drop that branches of ``oneOf`` exclude each other; ``patternProperties``;
        ``pattern`` and ``format``; bounds and ``multipleOf``.
    counts : int
        Drop ``minProperties`` and ``maxProperties`` beside optional keys (1), or all (2).
    bare : set of Path
        References to these stand alone: a circle cannot have keywords beside it.
    empty : set of Path
        Definitions that the engine has found to have no values.
    depth : int, optional
        Levels of subschemas that are kept.
    """

    one_of: bool = False
    counts: int = 0
    key_patterns: bool = False
    patterns: bool = False
    numbers: bool = False
    bare: set[Path] = dataclasses.field(default_factory=set)
    empty: set[Path] = dataclasses.field(default_factory=set)
    depth: int | None = None


class MaskBuilder:
    """Builds the schema for the mask engine.

    Parameters
    ----------
    references : References
        Of the user's schema.
    any_order : bool
        Take keys in any order and number; that the required ones are there is left over.
    assert_formats : bool
    weaker : Weaker

    Attributes
    ----------
    left : dict of Path to dict
        What is left to the check: keywords and why, by the path of their schema.
    ignored_formats : dict of Path to str
        Formats without a definition.
    counted : list of Path
        Schemas with a least number of keys, which must then be different ones.
    """

    def __init__(
        self, references: References, *, any_order: bool, assert_formats: bool, weaker: Weaker
    ) -> None:
        self.references = references
        self.dialect = references.dialect
        self.any_order = any_order
        self.assert_formats = assert_formats
        self.weaker = weaker
        self.left: dict[Path, dict[str, str]] = {}
        self.ignored_formats: dict[Path, str] = {}
        self.counted: list[Path] = []
        self._names: dict[Path, str] = {}
        self._pending: list[Path] = []
        self._close_bounds = CloseBounds(references.reached().values())
        self._disjoint = Disjoint(references)
        self._objects = ObjectKeywords(self)
        self._tightener = Tightener(self)

    def build(self) -> dict[str, Any] | bool:
        """The schema for the mask engine."""
        definitions: dict[str, Any] = {}
        out = self.node((), 0)
        while self._pending:
            path = self._pending.pop()
            definitions[self._names[path]] = self.node(path, 0)
        if isinstance(out, bool):
            return out
        return {**out, "$defs": definitions} if definitions else out

    def leave(self, path: Path, keyword: str, why: str) -> None:
        """Note that a keyword is for the check."""
        self.left.setdefault(path, {}).setdefault(keyword, why)

    def path_of(self, name: str) -> Path | None:
        """The path of a definition of the mask's schema."""
        return next((path for path, n in self._names.items() if n == name), None)

    # ------------------------------------------------------------------ one schema

    def child(self, path: Path, depth: int) -> Any:
        """The mask's schema for a subschema; every so many levels by reference."""
        if depth + 1 == HOIST_EVERY and isinstance(self.references.at(path), dict):
            return self._reference(path)
        return self.node(path, depth + 1)

    def node(self, path: Path, depth: int) -> Any:
        """The mask's schema for the one at `path`; `depth` counts schemas around it."""
        schema = self.references.at(path)
        if isinstance(schema, bool):
            return schema
        if self.weaker.depth is not None and depth > self.weaker.depth:
            self.leave(path, "*", "too large for the mask engine")
            return True
        if self.dialect.lone_references and isinstance(schema.get("$ref"), str):
            schema = {"$ref": schema["$ref"]}
        out: dict[str, Any] = {}
        extra: list[Any] = []
        # Keywords that depend on each other stand together, where `properties` stands, since
        # their place among the applicators decides on the order of keys.
        simple = [key for key in schema if key in _SIMPLE]
        place = next((k for k in ("properties", "required", *simple) if k in simple), None)
        targets = dict(self.references.follow(path, schema))
        for key, value in schema.items():
            if key == place:
                out.update(self._simple(schema, path, depth, extra))
            elif not self.dialect.knows(key):
                continue
            elif key in _REFERENCES and isinstance(value, str):
                self._put(out, self._referred(path, key, targets))
            elif key in ("allOf", "anyOf", "oneOf"):
                self._put(out, self._branches(key, len(value), path, depth))
            elif key in ("const", "enum"):
                values = [value] if key == "const" else list(value)
                mask, exact = mask_values(values)
                if not exact:
                    self.leave(path, key, "numbers that the mask engine does not hold exactly")
                self._put(out, mask)
        for key in _LEFT:
            if key in schema and self.dialect.knows(key):
                extra += self._tightener.tighten(key, schema, path, depth)
        extra = [e for e in extra if e is not True and e != {}]
        if extra:
            out = {"allOf": [out, *extra] if out else extra}
        return self._alone(out, path) if self.weaker.bare else out

    @staticmethod
    def _put(out: dict[str, Any], mask: dict[str, Any]) -> None:
        """Add applicators, each of which a schema has room for once."""
        if mask.keys() & out.keys():
            mask = {"allOf": [*out.get("allOf", []), mask]}
        out.update(mask)

    def _reference(self, path: Path) -> dict[str, Any]:
        if path in self.weaker.empty or self.references.at(path) is False:
            return {"anyOf": [False]}  # the engine refuses a definition without values
        if path not in self._names:
            self._names[path] = f"s{len(self._names)}"
            self._pending.append(path)
        return {"$ref": f"#/$defs/{self._names[path]}"}

    def _referred(
        self, path: Path, keyword: str, targets: dict[str, Path | None]
    ) -> dict[str, Any]:
        target = targets.get(keyword)
        if target is not None:
            return self._reference(target)
        what = "a meta-schema" if keyword in targets else "its meaning depends on the way to it"
        self.leave(path, keyword, what)
        return {}

    def _branches(self, key: str, n: int, path: Path, depth: int) -> dict[str, Any]:
        paths = [(*path, key, i) for i in range(n)]
        masks = [self.child(p, depth) for p in paths]
        if key == "oneOf":
            if self._disjoint.all(paths):
                key = "anyOf"
            elif self.weaker.one_of:
                key = "anyOf"
                self.leave(path, "oneOf", "branches that may hold together")
        return {key: masks}

    def _alone(self, out: dict[str, Any], path: Path) -> dict[str, Any]:
        """Without what stands beside a reference that the engine takes only alone."""
        bare = {f"#/$defs/{self._names[at]}" for at in self.weaker.bare if at in self._names}
        for key in ("$ref", "allOf", "anyOf", "oneOf"):
            parts = [out] if key == "$ref" else out.get(key, [])
            found = [p for p in parts if isinstance(p, dict) and p.get("$ref") in bare]
            if not found:
                continue
            alone: dict[str, Any] = (
                {key: out[key]} if key in ("anyOf", "oneOf") else {"$ref": found[0]["$ref"]}
            )
            if alone != out:
                self.leave(path, "*", "keywords beside a circular reference")
            return alone
        return out

    # ------------------------------------------------------------------ simple keywords

    def _simple(
        self, schema: dict[str, Any], path: Path, depth: int, extra: list[Any]
    ) -> dict[str, Any]:
        kind = schema.get("type")
        out: dict[str, Any] = {} if kind is None else {"type": kind}
        numbers, dropped = mask_numbers(schema, self.dialect.year, drop=self.weaker.numbers)
        out.update(numbers)
        for keyword in dropped + self._close_bounds.of(numbers):
            self.leave(path, keyword, "a number that the mask engine does not hold exactly")
        if may_be(kind, "string"):
            self._string(out, schema, path, extra)
        if may_be(kind, "array"):
            self._array(out, schema, path, depth)
        if may_be(kind, "object"):
            self._objects.put(out, schema, path, depth)
        return out

    def bound(self, out: dict[str, Any], schema: dict[str, Any], keyword: str, path: Path) -> None:
        """A count, if it is not too large."""
        if keyword not in schema:
            return
        value = int(schema[keyword])
        cap = MAX_CHARACTERS if keyword.endswith("Length") else MAX_ITEMS
        if value > cap:
            self.leave(path, keyword, f"more than {cap:,}")
        if value <= cap or keyword.startswith("min"):
            out[keyword] = min(value, cap)
        if keyword == "minProperties" and value > 1:
            self.counted.append(path)

    def _string(
        self, out: dict[str, Any], schema: dict[str, Any], path: Path, extra: list[Any]
    ) -> None:
        self.bound(out, schema, "minLength", path)
        self.bound(out, schema, "maxLength", path)
        if "pattern" in schema:
            pattern = mask_pattern(schema["pattern"], (*path, "pattern"))
            if pattern is None or self.weaker.patterns:
                self.leave(path, "pattern", "not regular, or too large for the mask engine")
            else:
                out["pattern"] = pattern
        name = schema.get("format")
        if name is None or not self.assert_formats:
            return
        if name in CHECKED_FORMATS or (name in FORMAT_PATTERNS and self.weaker.patterns):
            self.leave(path, "format", name)
        elif name not in FORMAT_PATTERNS:
            self.ignored_formats[path] = name
        else:
            exact: dict[str, Any] = {"pattern": f"^(?:{FORMAT_PATTERNS[name]})$"}
            if name in MAX_LENGTHS:
                exact["maxLength"] = MAX_LENGTHS[name]
            if out.keys() & exact.keys():
                extra.append(exact)
            else:
                out.update(exact)

    def _array(self, out: dict[str, Any], schema: dict[str, Any], path: Path, depth: int) -> None:
        self.bound(out, schema, "minItems", path)
        self.bound(out, schema, "maxItems", path)
        first, rest = item_keywords(schema, self.dialect.year)
        if first is not None:
            n = len(schema[first])
            out["prefixItems"] = [self.child((*path, first, i), depth) for i in range(n)]
        if rest is not None:
            out["items"] = self.child((*path, rest), depth)
        if schema.get("uniqueItems") is True:
            self.leave(path, "uniqueItems", "whether items repeat")
        if "contains" in schema and self.dialect.knows("contains"):
            counted = self.dialect.knows("minContains")
            least = int(schema.get("minContains", 1)) if counted else 1
            if least or "maxContains" in schema:
                self.leave(path, "contains", "how many items match")
            if least:
                out["minItems"] = max(out.get("minItems", 0), min(least, MAX_ITEMS))
