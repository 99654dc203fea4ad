r"""A JSON Schema's language as a regular expression over bytes, for peers that take no schema.

The language is the one that `Grammar(schema)` holds by default (docs/grammars.md), for the
schemas that need no recursion: closed objects, arrays, strings with or without a length,
integers, numbers, booleans, null, and enumerations. A byte is written as the character of
its number (Latin-1), so that an automaton over 256 symbols covers all of Unicode:
``é`` is ``\xc3\xa9``. Syntax: literals, classes, groups, ``|``, ``?``, ``*``, ``{m,n}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from smcprog.errors import GrammarError

__all__ = ["schema_regex"]

_GAP = "(?:[ \t]|\r?\n[ \t]{0,40})?"

_HEX = "[0-9a-fA-F]"
_UTF8 = (  # RFC 3629, section 4: no overlong forms, no surrogates
    "[\xc2-\xdf][\x80-\xbf]"
    "|\xe0[\xa0-\xbf][\x80-\xbf]"
    "|[\xe1-\xec\xee\xef][\x80-\xbf][\x80-\xbf]"
    "|\xed[\x80-\x9f][\x80-\xbf]"
    "|\xf0[\x90-\xbf][\x80-\xbf][\x80-\xbf]"
    "|[\xf1-\xf3][\x80-\xbf][\x80-\xbf][\x80-\xbf]"
    "|\xf4[\x80-\x8f][\x80-\xbf][\x80-\xbf]"
)
_ESCAPED = (
    r'\\(?:["\\bfnrt]'
    rf"|u(?:[0-9a-cA-CefEF]{_HEX}{_HEX}{_HEX}|[dD][0-7]{_HEX}{_HEX}"
    rf"|[dD][89abAB]{_HEX}{_HEX}\\u[dD][c-fC-F]{_HEX}{_HEX}))"
)
_CHARACTER = rf"(?:[ !#-\[\]-~]|{_UTF8}|{_ESCAPED})"

_INTEGER = "-?(?:0|[1-9][0-9]*)"
_TYPES = {
    "integer": _INTEGER,
    "number": rf"{_INTEGER}(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?",
    "boolean": "(?:true|false)",
    "null": "null",
}
_PLAIN = re.compile(r"[ !#-\[\]-~]*\Z")  # one spelling in JSON: nothing that may be escaped

_READ = {
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "string": {"minLength", "maxLength"},
}
_COVERED = {"anyOf", "const", "enum", "type"}.union(*_READ.values())
_ASSERTIONS = frozenset({
    "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf",
    "anyOf", "const", "contains", "dependencies", "dependentRequired", "dependentSchemas",
    "disallow", "divisibleBy", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "extends",
    "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
    "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames",
    "required", "then", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
_MOST_KEYS = 12  # optional keys make the expression grow with their square


def schema_regex(schema: Any) -> str:
    """The language of `Grammar(schema)` as a regular expression over bytes.

    Parameters
    ----------
    schema : dict
        A JSON Schema.

    Returns
    -------
    str
        The whole text has to match; character number b stands for byte b.

    Raises
    ------
    GrammarError
        If a keyword is used that this translation does not cover; with its path.
    """
    return _value(schema, "$")


def _value(schema: Any, path: str) -> str:
    if not isinstance(schema, dict):
        raise GrammarError(f"peers: a schema that is {schema!r} at {path} is not covered")
    used = schema.keys() & _ASSERTIONS
    _allow(used, _COVERED, path)
    if used & {"enum", "const"}:
        _allow(used, {"enum", "const", "type"}, path)
        if len(used & {"enum", "const"}) == 2:
            raise GrammarError(f"peers: const beside enum at {path} is not covered")
        types = _types(schema, path) if "type" in used else None
        values = schema["enum"] if "enum" in used else [schema["const"]]
        return _group([_constant(v, types, path) for v in values])
    if used == {"anyOf"}:
        return _group([_value(s, f"{path}.anyOf[{i}]") for i, s in enumerate(schema["anyOf"])])
    types = _types(schema, path)
    _allow(used, {"type"}.union(*(_READ.get(t, set()) for t in types)), path)
    return _group([_typed(t, schema, path) for t in types])


def _allow(used: set[str], known: set[str], path: str) -> None:
    if used - known:
        raise GrammarError(f"peers: {sorted(used - known)[0]} at {path} is not covered")


def _types(schema: dict[str, Any], path: str) -> list[str]:
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types
    known = {*_TYPES, *_READ}
    if not isinstance(names, list) or not names or not set(names) <= known:
        raise GrammarError(f"peers: type {types!r} at {path} is not covered")
    return names


def _constant(value: Any, types: list[str] | None, path: str) -> str:
    plain = isinstance(value, str) and _PLAIN.match(value) is not None
    if not plain and not (value is None or isinstance(value, bool)):
        raise GrammarError(f"peers: the constant {value!r} at {path} is not covered")
    kind = "string" if plain else "null" if value is None else "boolean"
    if types is not None and kind not in types:
        raise GrammarError(f"peers: the constant {value!r} at {path} is of another type")
    return _literal(json.dumps(value))


def _typed(name: str, schema: dict[str, Any], path: str) -> str:
    if name == "string":
        least, most = _counts(schema, "minLength", "maxLength", path)
        return f'"{_CHARACTER}{_times(least, most)}"'
    if name == "array":
        return _array(schema, path)
    if name == "object":
        return _object(schema, path)
    return _TYPES[name]


def _array(schema: dict[str, Any], path: str) -> str:
    item = _value(schema.get("items"), f"{path}.items")
    least, most = _counts(schema, "minItems", "maxItems", path)
    if most == 0:
        return rf"\[{_GAP}\]"
    more = _times(max(least - 1, 0), None if most is None else most - 1)
    items = f"{item}(?:{_GAP},{_GAP}{item}){more}{_GAP}"
    return rf"\[{_GAP}{items if least else f'(?:{items})?'}\]"


def _object(schema: dict[str, Any], path: str) -> str:
    keys = schema.get("properties", {})
    required = schema.get("required", [])
    if schema.get("additionalProperties") is not False:
        raise GrammarError(f"peers: an object at {path} that takes other keys is not covered")
    if len(keys) > _MOST_KEYS or not set(required) <= keys.keys():
        raise GrammarError(
            f"peers: an object at {path} of more than {_MOST_KEYS} keys, or with undeclared "
            "required ones, is not covered"
        )
    members = []
    for key, sub in keys.items():
        if not _PLAIN.match(key):
            raise GrammarError(f"peers: the key {key!r} at {path} is not covered")
        value = _value(sub, f"{path}.properties.{key}")
        members.append((f"{_literal(json.dumps(key))}{_GAP}:{_GAP}{value}", key in required))
    body = _members(members)
    if not any(needed for _, needed in members):
        return rf"\{{{_GAP}(?:{body}{_GAP})?\}}" if members else rf"\{{{_GAP}\}}"
    return rf"\{{{_GAP}{body}{_GAP}\}}"


def _members(members: Sequence[tuple[str, bool]]) -> str:
    """At least one of these members, in order, with commas between."""
    starts = []
    for i, (member, needed) in enumerate(members):
        rest = "".join(
            f"{_GAP},{_GAP}{m}" if must else f"(?:{_GAP},{_GAP}{m})?"
            for m, must in members[i + 1 :]
        )
        starts.append(member + rest)
        if needed:
            break
    return _group(starts)


def _counts(schema: dict[str, Any], low: str, high: str, path: str) -> tuple[int, int | None]:
    least, most = schema.get(low, 0), schema.get(high)
    if not isinstance(least, int) or not (most is None or isinstance(most, int)):
        raise GrammarError(f"peers: {low} or {high} at {path} is not a whole number")
    if most is not None and most < least:
        raise GrammarError(f"peers: {high} is below {low} at {path}")
    return least, most


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{{{least},}}" if least else "*"
    return f"{{{least},{most}}}"


def _group(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _literal(text: str) -> str:
    return re.sub(r"[][{}()*+?.|^$\\\-]", r"\\\g<0>", text)
