"""Whether something is a JSON Schema at all, and of which draft."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from smcprog.errors import GrammarError
from smcprog.grammars.schema_walk import Path, show_path

__all__ = ["NEWEST", "check_is_json", "validator_of"]

MAX_DEPTH = 60  # nested dicts and lists in a schema
NEWEST = jsonschema.Draft202012Validator
_UNDECLARED = (NEWEST, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
_NO_FORMATS = jsonschema.FormatChecker(formats=())  # patterns are checked later, with positions


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
        if len(path) > MAX_DEPTH:
            raise GrammarError(
                f"schema: nested more than {MAX_DEPTH} levels deep at {show_path(path[:4])}…"
            )
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise GrammarError(
                        f"schema: the key {key!r} at {show_path(path)} is not a string"
                    )
                pending.append(((*path, key), item))
        elif isinstance(value, (list, tuple)):
            pending.extend(((*path, i), item) for i, item in enumerate(value))
        elif isinstance(value, str):
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise GrammarError(
                    f"schema: half a surrogate pair in a string at {show_path(path)}"
                )
        elif not (value is None or isinstance(value, (bool, int, float))):
            raise GrammarError(
                f"schema: {type(value).__name__} at {show_path(path)} is not a JSON value"
            )
        elif isinstance(value, float) and not -float("inf") < value < float("inf"):
            raise GrammarError(f"schema: {value} at {show_path(path)} is not a JSON number")


def validator_of(schema: dict[str, Any]) -> tuple[Any, bool]:
    """The validator of the schema's draft, and whether the schema declares it.

    An undeclared schema is of the newest draft that takes it.

    Raises
    ------
    GrammarError
        With the JSON path of what no draft takes.
    """
    declared = validator_for(schema, default=None)
    candidates = (declared,) if declared is not None else _UNDECLARED
    if declared is jsonschema.Draft3Validator:
        raise GrammarError("schema: draft 3 ($schema at $) is not supported; use draft 4 or later")
    first: jsonschema.SchemaError | None = None
    for validator in candidates:
        try:
            validator.check_schema(schema, format_checker=_NO_FORMATS)
        except jsonschema.SchemaError as error:
            first = first or error
        else:
            return validator, declared is not None
    assert first is not None
    raise GrammarError(f"not a JSON Schema: {_schema_complaint(first)}")


def _schema_complaint(error: jsonschema.SchemaError) -> str:
    where = show_path(tuple(error.absolute_path))
    keyword = next((p for p in reversed(error.absolute_path) if isinstance(p, str)), "")
    value = json.dumps(error.instance, ensure_ascii=False, default=str)
    value = value if len(value) <= 60 else value[:60] + "…"
    if keyword == "type":
        return (
            f"{value} at {where} is not a type; the types are array, boolean, integer, null, "
            "number, object and string"
        )
    if error.validator == "type":
        wanted = error.validator_value
        wanted = " or ".join(wanted) if isinstance(wanted, list) else wanted
        return f"{value} at {where} must be of type {wanted}"
    message = error.message if len(error.message) <= 160 else error.message[:160] + "…"
    return f"at {where}: {message}"
