"""Keywords about objects, for the mask engine."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jsonschema_rs

from smcprog.grammars import regex
from smcprog.grammars.engine import byte_tokenizer, compile_text
from smcprog.grammars.schema.patterns import mask_pattern, name_pattern
from smcprog.grammars.schema.validity import Dialect
from smcprog.grammars.schema.walk import Path

if TYPE_CHECKING:
    from smcprog.grammars.schema.mask import MaskBuilder

__all__ = ["ObjectKeywords", "closes_object", "key_matches"]

_IN_PLACE = frozenset({
    "$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "dependencies", "dependentSchemas",
    "if", "not", "oneOf", "patternProperties", "propertyNames",
})  # fmt: skip

MAX_PATTERNS = 40  # of one object that are compared with each other
MAX_PAIRS = 40_000  # of keys of one object, over all objects, for the engine to compare


@functools.lru_cache(maxsize=1024)
def _finder(pattern: str) -> Any:
    try:
        return jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True)
    except jsonschema_rs.ValidationError:
        return None


def key_matches(pattern: str, key: str) -> bool | None:
    """Whether a pattern of ``patternProperties`` is about a key; None where unknown."""
    finder = _finder(pattern)
    return None if finder is None else finder.is_valid(key)


def closes_object(schema: dict[str, Any], dialect: Dialect) -> bool:
    """Whether ``unevaluatedProperties`` says no more than ``additionalProperties: false``."""
    return (
        schema.get("unevaluatedProperties") is False
        and dialect.knows("unevaluatedProperties")
        and "additionalProperties" not in schema
        and not (schema.keys() & _IN_PLACE)
    )


class ObjectKeywords:
    """Writes ``properties`` and its kin for a `MaskBuilder`."""

    def __init__(self, builder: MaskBuilder) -> None:
        self._builder = builder
        self._pairs = 0

    def put(self, out: dict[str, Any], schema: dict[str, Any], path: Path, depth: int) -> None:
        """Add what the mask takes of the keywords of `schema` to `out`."""
        builder = self._builder
        properties = {
            name: builder.child((*path, "properties", name), depth)
            for name in schema.get("properties", {})
        }
        others: list[Any] = []
        if "additionalProperties" in schema:
            others.append(builder.child((*path, "additionalProperties"), depth))
        elif closes_object(schema, builder.dialect):
            others.append(False)
        entries: list[_Entry] = []
        for pattern in schema.get("patternProperties", {}):
            at = (*path, "patternProperties", pattern)
            mask, translated = builder.child(at, depth), mask_pattern(pattern, at)
            if translated is not None and not builder.weaker.key_patterns:
                entries.append(_Entry(translated, mask, pattern=pattern))
                continue
            # Its keys are among the others now, and may be what those or these may be.
            builder.leave(path, "patternProperties", "patterns of keys")
            if others:
                others.append(mask)
        if builder.any_order and self._too_many(len(properties)):
            if properties:
                builder.leave(path, "properties", "many keys in any order")
                names = "|".join(map(regex.escape, properties))
                masks = list(properties.values())
                entries.append(_Entry(f"^(?:{names})$", {"anyOf": masks}, pattern=""))
            if schema.get("required"):
                builder.leave(path, "required", "keys in any order")
        elif builder.any_order:
            users = list(entries)
            for name, mask in properties.items():
                both = [e.mask for e in users if key_matches(e.pattern or "", name)]
                mask = {"allOf": [mask, *both]} if both else mask
                entries.append(_Entry(f"^(?:{regex.escape(name)})$", mask, name=name))
            if schema.get("required"):
                builder.leave(path, "required", "keys in any order")
                out["minProperties"] = min(len(set(schema["required"])), 100)
        else:
            if properties:
                out["properties"] = properties
            if schema.get("required"):
                out["required"] = list(schema["required"])
        merged = self._merge(entries, path)
        if "propertyNames" in schema and builder.dialect.knows("propertyNames"):
            builder.leave(path, "propertyNames", "which keys match")
            keys = name_pattern(schema["propertyNames"], builder.references)
            if keys is not None and not (merged or properties or builder.weaker.key_patterns):
                merged = {keys: others[0] if len(others) == 1 else {"anyOf": others or [True]}}
                others = [False]
        if merged:
            out["patternProperties"] = merged
        if others:
            out["additionalProperties"] = others[0] if len(others) == 1 else {"anyOf": others}
        self._counts(out, schema, path)

    def _too_many(self, names: int) -> bool:
        """Whether the engine would take too long to tell patterns of keys apart."""
        self._pairs += names * names
        return self._pairs > MAX_PAIRS

    def _counts(self, out: dict[str, Any], schema: dict[str, Any], path: Path) -> None:
        optional = set(schema.get("properties", ())) - set(schema.get("required", ()))
        level = self._builder.weaker.counts
        for keyword in ("minProperties", "maxProperties"):
            if level == 2 or (level == 1 and optional and not self._builder.any_order):
                out.pop(keyword, None)
                if keyword in schema:
                    self._builder.leave(path, keyword, "how many of the optional keys there are")
            else:
                self._builder.bound(out, schema, keyword, path)

    def _merge(self, entries: list[_Entry], path: Path) -> dict[str, Any]:
        """Patterns that no key matches two of, each with what its values are at most."""
        users = [entry for entry in entries if entry.name is None]
        groups: list[list[_Entry]] = []
        for entry in users:
            many = len(users) > MAX_PATTERNS
            meets = [g for g in groups if many or any(entry.overlaps(other) for other in g)]
            groups = [g for g in groups if not any(g is m for m in meets)]
            groups.append([*(e for g in meets for e in g), entry])
        for entry in entries:
            if entry.name is None:
                continue
            meets = [g for g in groups if any(entry.is_of(other) for other in g)] if users else []
            groups = [g for g in groups if not any(g is m for m in meets)] if meets else groups
            groups.append([*(e for g in meets for e in g), entry])
        out: dict[str, Any] = {}
        for group in groups:
            if len(group) > 1:
                self._builder.leave(path, "patternProperties", "patterns that a key may share")
            parts = dict.fromkeys(entry.regex for entry in group)
            key = next(iter(parts))
            if len(parts) > 1:
                key = f"^(?:{'|'.join(p[1:-1] for p in parts)})$"
            masks = [entry.mask for entry in group]
            out[key] = masks[0] if len(masks) == 1 else {"anyOf": masks}
        return out


class _Entry:
    """Keys by a pattern, or one key by its name, and what its values may be."""

    def __init__(
        self, regex: str, mask: Any, *, name: str | None = None, pattern: str | None = None
    ) -> None:
        self.regex, self.mask, self.name, self.pattern = regex, mask, name, pattern

    def is_of(self, other: _Entry) -> bool:
        """Whether the key of this one may be among those of the other, a pattern."""
        return other.name is None and key_matches(other.pattern or "", self.name or "") is not False

    def overlaps(self, other: _Entry) -> bool:
        """Whether a key may be of both patterns; true where that is not known."""
        return _overlap(self.regex, other.regex)


@functools.lru_cache(maxsize=4096)
def _overlap(a: str, b: str) -> bool:
    """Whether some text matches both; true where the engine cannot tell."""
    matcher = compile_text(f"start: A\nA: /{a[1:-1]}/ & /{b[1:-1]}/\n", byte_tokenizer())
    if matcher.is_error():
        return True
    possible = any(matcher.compute_bitmask()[: 256 // 8])
    return possible or matcher.is_accepting()
