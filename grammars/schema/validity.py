"""Whether something is a JSON Schema at all, and of which draft."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import jsonschema_rs

from smcprog import limits
from smcprog.errors import GrammarError
from smcprog.grammars.schema.walk import Path, show_path

__all__ = ["NEWEST", "Dialect", "check_is_json", "dialect_of"]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """A draft of JSON Schema, as far as drafts differ here.

    Attributes
    ----------
    year : int
        4, 6, 7, 2019 or 2020.
    uri : str
        Of its meta-schema.
    validator : type
        Its class of the validating library.
    """

    year: int
    uri: str
    validator: Any

    @property
    def lone_references(self) -> bool:
        """Whether what stands beside a ``$ref`` has no effect."""
        return self.year <= 7

    @property
    def id_keyword(self) -> str:
        return "id" if self.year == 4 else "$id"

    def knows(self, keyword: str) -> bool:
        """Whether a keyword of some draft is one of this draft."""
        first, last = _LIFETIMES.get(keyword, (4, 2020))
        return first <= self.year <= last


_LIFETIMES = {
    "const": (6, 2020),
    "contains": (6, 2020),
    "propertyNames": (6, 2020),
    "if": (7, 2020),
    "then": (7, 2020),
    "else": (7, 2020),
    "maxContains": (2019, 2020),
    "minContains": (2019, 2020),
    "dependentRequired": (2019, 2020),
    "dependentSchemas": (2019, 2020),
    "unevaluatedItems": (2019, 2020),
    "unevaluatedProperties": (2019, 2020),
    "$recursiveRef": (2019, 2019),
    "$dynamicRef": (2020, 2020),
    "prefixItems": (2020, 2020),
    "additionalItems": (4, 2019),
}
"""First and last draft that knows a keyword; all others are of every draft. ``dependencies``
is still enforced in the drafts that have split it in two."""

_DIALECTS = {
    uri.partition("://")[2]: Dialect(year, uri, validator)
    for year, uri, validator in (
        (4, "http://json-schema.org/draft-04/schema#", jsonschema_rs.Draft4Validator),
        (6, "http://json-schema.org/draft-06/schema#", jsonschema_rs.Draft6Validator),
        (7, "http://json-schema.org/draft-07/schema#", jsonschema_rs.Draft7Validator),
        (2019, "https://json-schema.org/draft/2019-09/schema", jsonschema_rs.Draft201909Validator),
        (2020, "https://json-schema.org/draft/2020-12/schema", jsonschema_rs.Draft202012Validator),
    )
}
NEWEST, _SEVEN, _FOUR = (
    next(d for d in _DIALECTS.values() if d.year == year) for year in (2020, 7, 4)
)


def check_is_json(schema: Any) -> None:
    """Refuse what cannot be written as a JSON object or bool, with its JSON path.

    Raises
    ------
    GrammarError
    """
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(f"a JSON Schema is a dict or a bool, got {type(schema).__name__}")
    pending: list[tuple[Path, Any]] = [((), schema)]
    while pending:
        path, value = pending.pop()
        if len(path) > limits.MAX_GRAMMAR_NESTING:
            raise GrammarError(
                f"schema: nested more than {limits.MAX_GRAMMAR_NESTING} levels deep at "
                f"{show_path(path[:4])}…"
            )
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise GrammarError(
                        f"schema: the key {key!r} at {show_path(path)} is not a string"
                    )
                _check_unicode(key, path)
                pending.append(((*path, key), item))
        elif isinstance(value, (list, tuple)):
            pending.extend(((*path, i), item) for i, item in enumerate(value))
        elif isinstance(value, str):
            _check_unicode(value, path)
        elif not (value is None or isinstance(value, (bool, int, float))):
            raise GrammarError(
                f"schema: {type(value).__name__} at {show_path(path)} is not a JSON value"
            )
        elif isinstance(value, float) and not -float("inf") < value < float("inf"):
            raise GrammarError(f"schema: {value} at {show_path(path)} is not a JSON number")


def _check_unicode(text: str, path: Path) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(
            f"schema: half a surrogate pair in a string at {show_path(path)}"
        ) from None


def dialect_of(schema: dict[str, Any]) -> Dialect:
    """The draft of a schema that is valid in it.

    An undeclared schema is of the newest draft that takes it: 2020-12, else 7, else 4.

    Raises
    ------
    GrammarError
        With the JSON path of what no draft takes.
    """
    declared = schema.get("$schema")
    uri = declared.rstrip("#").partition("://")[2] if isinstance(declared, str) else ""
    if uri.startswith("json-schema.org/draft-0") and f"{uri}#" not in _DIALECTS:
        raise GrammarError(
            f"schema: draft {uri[23:24].lstrip('0') or uri} ($schema at $) is not supported; "
            "use draft 4 or later"
        )
    known = _DIALECTS.get(uri) or _DIALECTS.get(f"{uri}#")
    first: jsonschema_rs.ValidationError | None = None
    for dialect in (known,) if known is not None else (NEWEST, _SEVEN, _FOUR):
        try:
            _meta_validator(dialect).validate(schema)
        except jsonschema_rs.ValidationError as error:
            first = first or error
        else:
            if known is None and dialect is not NEWEST:
                _refuse_newer(schema, dialect)
            return dialect
    assert first is not None
    raise GrammarError(f"not a JSON Schema: {_complaint(first)}")


@functools.lru_cache(maxsize=len(_DIALECTS))
def _meta_validator(dialect: Dialect) -> Any:
    # Patterns and formats in the schema are looked at later, with positions.
    return dialect.validator({"$ref": dialect.uri}, validate_formats=False, offline=True)


def _complaint(error: jsonschema_rs.ValidationError) -> str:
    path = tuple(error.instance_path)
    where = show_path(path)
    value = json.dumps(error.instance, ensure_ascii=False)
    value = value if len(value) <= 60 else value[:60] + "…"
    if next((p for p in reversed(path) if isinstance(p, str)), "") == "type":
        return (
            f"{value} at {where} is not a type; the types are array, boolean, integer, null, "
            "number, object and string"
        )
    message = error.message if len(error.message) <= 160 else error.message[:160] + "…"
    return f"{message} at {where}"


def _refuse_newer(schema: dict[str, Any], dialect: Dialect) -> None:
    """An undeclared schema that only an old draft takes must not use newer keywords."""
    from smcprog.grammars.schema.walk import child_schemas

    pending: list[tuple[Path, Any]] = [((), schema)]
    while pending:
        path, sub = pending.pop()
        if not isinstance(sub, dict):
            continue
        for keyword, (since, _) in _LIFETIMES.items():
            if keyword in sub and since > dialect.year and keyword not in ("then", "else"):
                raise GrammarError(
                    f"schema: {keyword} at {show_path((*path, keyword))} is of a later draft than "
                    f"{dialect.uri}, the only one the rest is valid in; declare $schema"
                )
        pending.extend(((*path, *at), child) for at, child in child_schemas(sub))
