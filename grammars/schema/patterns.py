"""Patterns of JSON Schema, as the mask engine takes them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from smcprog.errors import GrammarError
from smcprog.grammars import regex
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.walk import Path, show_path

__all__ = ["mask_pattern", "name_pattern"]


def mask_pattern(pattern: str, path: Path) -> str | None:
    """The same pattern for whole texts in the engine's syntax; None if it has none there.

    Raises
    ------
    GrammarError
        With the path and the position, if it is no regular expression of ECMA-262.
    """
    try:
        return f"^(?:{regex.search(pattern, regex.ECMA)})$"
    except regex.RegexError as error:
        try:
            jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True)
        except jsonschema_rs.ValidationError:
            raise GrammarError(
                f"schema: pattern {pattern!r} at {show_path(path)}: {error.reason} "
                f"at position {error.position}"
            ) from None
        return None


def name_pattern(schema: Any, references: References) -> str | None:
    """A pattern that all keys match which are valid for a ``propertyNames``."""
    if not isinstance(schema, dict) or (references.dialect.lone_references and "$ref" in schema):
        return None
    names = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if names is not None:
        texts = [regex.escape(name) for name in names if isinstance(name, str)]
        return f"^(?:{'|'.join(texts)})$" if texts else None
    if isinstance(schema.get("pattern"), str):
        return mask_pattern(schema["pattern"], ("propertyNames", "pattern"))
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    if (low == 0 and high is None) or max(low, high or 0) > 1_000:
        return None
    return f"^(?s:.{{{low},{'' if high is None else int(high)}}})$"
