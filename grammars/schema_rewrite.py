"""Making a schema say the same in a way that the mask engine takes exactly, or refusing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars import regex
from smcprog.grammars.formats import ENGINE_FORMATS, FORMAT_PATTERNS, MAX_LENGTHS
from smcprog.grammars.schema_validity import NEWEST
from smcprog.grammars.schema_walk import Path, SchemaWalk, child_schemas, show_path

__all__ = ["NUMBERS", "refuse_unenforced", "rewrite_schema"]

MAX_EXACT_INT = 2**53  # the engine computes bounds in double precision

_OLD_DRAFTS = ("draft-04", "draft-06", "draft-07")
_NEWER_KEYWORDS = frozenset({  # than one of the drafts that an undeclared schema may be of
    "contains", "dependentRequired", "dependentSchemas", "else", "if", "maxContains",
    "minContains", "prefixItems", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties",
})  # fmt: skip
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = (
    "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems",
    "minLength", "minProperties",
)  # fmt: skip
_ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema",
    "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default",
    "definitions", "deprecated", "description", "examples", "id", "readOnly", "title",
    "writeOnly",
})  # fmt: skip


def rewrite_schema(schema: dict[str, Any], *, any_order: bool) -> dict[str, str]:
    """Rewrite a schema in place, definitions and all.

    Parameters
    ----------
    schema : dict
        With ``$schema``.
    any_order : bool
        Take keys in any order; that the required ones are there is left to a later check.

    Returns
    -------
    dict
        Keys that have changed, with what they were.
    """
    renamed: dict[str, str] = {}
    legacy = any(draft in schema["$schema"] for draft in _OLD_DRAFTS)
    for path, sub in _all_schemas(schema):
        _rewrite(sub, path, legacy, renamed)
        if any_order:
            _free_order(sub, renamed)
        # The engine reads a keyword that depends on another wrongly where one that is
        # applied to the whole value (allOf, $ref, …) stands between the two.
        _put_before(sub, "patternProperties", "additionalProperties")
        _put_before(sub, "items", "additionalItems")
    return renamed


def _all_schemas(root: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    pending: list[tuple[Path, Any]] = [((), root)]
    while pending:
        path, schema = pending.pop()
        if isinstance(schema, dict):
            yield path, schema
            pending.extend(((*path, *sub), child) for sub, child in child_schemas(schema))


def _rewrite(schema: dict[str, Any], path: Path, legacy: bool, renamed: dict[str, str]) -> None:
    """Say the same in a way that the mask engine takes exactly; in place, order kept.

    Patterns that are keys change; `renamed` gets their originals.
    """
    if legacy and isinstance(schema.get("$ref"), str):
        for key in [k for k in schema if k != "$ref" and k not in _ANNOTATIONS]:
            del schema[key]  # up to draft 7 the siblings of a reference have no effect
    for key in _without_effect(schema):
        del schema[key]
    _numeric_bounds(schema)
    for key in (*_COUNTS, *NUMBERS):
        value = schema.get(key)
        if isinstance(value, float) and value.is_integer():
            schema[key] = int(value)
    if "const" in schema:
        schema["const"] = _whole_floats(schema["const"])
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [_whole_floats(v) for v in schema["enum"]]
    _rewrite_patterns(schema, path, renamed)
    _rewrite_format(schema)


def _put_before(schema: dict[str, Any], first: str, second: str) -> None:
    if first in schema and second in schema:
        items = list(schema.items())
        schema.clear()
        for key, value in items:
            if key == second:
                schema[first] = dict(items)[first]
            if key != first:
                schema[key] = value


def _numeric_bounds(schema: dict[str, Any]) -> None:
    """The exclusive bounds of draft 4 are flags of the others."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _without_effect(schema: dict[str, Any]) -> list[str]:
    """Keywords that restrict nothing where they stand."""
    out = []
    if schema.get("uniqueItems") is False:
        out.append("uniqueItems")
    if "contains" not in schema:
        out += [k for k in ("minContains", "maxContains") if k in schema]
    if "if" not in schema:
        out += [k for k in ("then", "else") if k in schema]
    elif "then" not in schema and "else" not in schema:
        out.append("if")
    out += [k for k in ("unevaluatedItems", "unevaluatedProperties") if schema.get(k) is True]
    out += [
        k for k in ("dependencies", "dependentRequired", "dependentSchemas") if schema.get(k) == {}
    ]
    return out


def _whole_floats(value: Any) -> Any:
    """1.0 is the JSON number 1, and is written so."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_INT:
        return int(value)
    if isinstance(value, list):
        return [_whole_floats(v) for v in value]
    if isinstance(value, dict):
        return {k: _whole_floats(v) for k, v in value.items()}
    return value


def _rewrite_patterns(schema: dict[str, Any], path: Path, renamed: dict[str, str]) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = _pattern(schema["pattern"], (*path, "pattern"), renamed)
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict):
        out = {}
        for pattern, sub in patterns.items():
            translated = _pattern(pattern, (*path, "patternProperties", pattern), renamed)
            if translated in out:
                where = _shown((*path, "patternProperties"), renamed)
                raise GrammarError(f"schema: two patterns at {where} are equal")
            out[translated] = sub
            renamed[translated] = pattern
        schema["patternProperties"] = out


def _pattern(pattern: str, path: Path, renamed: dict[str, str]) -> str:
    try:
        return f"^(?:{regex.search(pattern, regex.ECMA)})$"
    except regex.RegexError as error:
        raise GrammarError(
            f"schema: pattern {pattern!r} at {_shown(path, renamed)}: {error.reason} "
            f"at position {error.position}"
        ) from None


def _shown(path: Path, renamed: dict[str, str]) -> str:
    return show_path(tuple(renamed.get(part, part) for part in path))


def _rewrite_format(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name not in FORMAT_PATTERNS:
        return
    exact: dict[str, Any] = {"pattern": f"^(?:{FORMAT_PATTERNS[name]})$"}
    if name in MAX_LENGTHS:
        exact["maxLength"] = MAX_LENGTHS[name]
    del schema["format"]
    if schema.keys() & exact.keys():
        schema["allOf"] = [*schema.get("allOf", []), exact]
    else:
        schema.update(exact)


def _free_order(schema: dict[str, Any], renamed: dict[str, str]) -> None:
    """Declared keys as patterns, which the engine takes in any order and number."""
    schema.pop("required", None)
    declared = schema.pop("properties", None)
    if not declared:
        return
    patterns = schema.setdefault("patternProperties", {})
    for name, sub in declared.items():
        pattern = f"^(?:{regex.escape(name)})$"
        renamed[pattern] = name
        patterns[pattern] = sub


def refuse_unenforced(
    walk: SchemaWalk, validator: Any, *, declared: bool, embedded: bool, any_order: bool
) -> None:
    """Refuse what the mask engine would accept without enforcing it.

    Parameters
    ----------
    walk : SchemaWalk
        Over the rewritten schema.
    validator : type
        The `jsonschema` validator of its draft.
    declared : bool
        Whether the schema says which draft it is.
    embedded : bool
        Whether nothing can be checked on the finished text.
    any_order : bool
        Whether keys are free to come in any order.

    Raises
    ------
    GrammarError
    """
    for path, schema in walk.reached.items():
        if isinstance(schema.get("format"), str) and _may_be(schema, "string"):
            name = schema["format"]
            if name not in ENGINE_FORMATS:
                known = ", ".join(sorted({*ENGINE_FORMATS, *FORMAT_PATTERNS}))
                raise GrammarError(
                    f"schema: format {name!r} at {walk.show((*path, 'format'))} is not "
                    f"supported; supported are {known}"
                )
        for key in (*NUMBERS, "const", "enum"):
            _check_numbers(schema.get(key), (*path, key), walk)
        if embedded and schema.get("minProperties", 0) > 1:
            raise GrammarError(
                f"schema: minProperties at {walk.show((*path, 'minProperties'))} is not "
                "supported inside a Lark grammar, where repeated keys would count twice"
            )
    moved = ("patternProperties", "properties") if any_order else ("patternProperties",)
    for path in walk.find("$ref"):
        for key in moved:
            if f"/{key}/" in str(walk.reached[path]["$ref"]):
                raise GrammarError(
                    f"schema: a reference into {key}, at {walk.show((*path, '$ref'))}, is not "
                    f"supported{' with keys in any order' if any_order else ''}"
                )
    loop = walk.cycle()
    if loop is not None:
        raise GrammarError(
            f"schema: circular reference: {walk.show(loop)} is applied to a value whenever it is "
            "applied to that value"
        )

    if not declared and validator is not NEWEST:
        _refuse_newer(walk, validator)


def _refuse_newer(walk: SchemaWalk, validator: Any) -> None:
    """An undeclared schema that only an old draft takes must not use newer keywords."""
    for keyword in sorted(_NEWER_KEYWORDS - set(validator.VALIDATORS)):
        for path in walk.find(keyword):
            raise GrammarError(
                f"schema: {keyword} at {walk.show((*path, keyword))} is of a later draft than "
                f"{validator.META_SCHEMA['$schema']}, the only one the rest is valid in; "
                "declare $schema"
            )


def _may_be(schema: dict[str, Any], kind: str) -> bool:
    types = schema.get("type", kind)
    return kind in (types if isinstance(types, list) else [types])


def _check_numbers(value: Any, path: Path, walk: SchemaWalk) -> None:
    if isinstance(value, list):
        for i, item in enumerate(value):
            _check_numbers(item, (*path, i), walk)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(item, (*path, key), walk)
    elif isinstance(value, int) and abs(value) > MAX_EXACT_INT:
        raise GrammarError(
            f"schema: the number {value} at {walk.show(path)} is beyond 2^53 and cannot be "
            "enforced exactly"
        )
