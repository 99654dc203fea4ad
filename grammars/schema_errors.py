"""What the mask engine's complaints about a schema mean for the user's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from smcprog.grammars.engine import error_reason
from smcprog.grammars.schema_rewrite import NUMBERS
from smcprog.grammars.schema_walk import SchemaWalk

__all__ = ["explain_error"]


def explain_error(walk: SchemaWalk | None, message: str) -> str:
    """Name the keyword and where it is, for a compile error of the mask engine."""
    reason, _, _ = error_reason(message)
    reason = reason.removeprefix("failed to compile JSON schema: ")

    def paths(keyword: str, keep: Callable[[Any], bool] = lambda value: True) -> str:
        if walk is None:
            return ""
        found = [
            walk.show((*p, keyword)) for p in walk.find(keyword) if keep(walk.reached[p][keyword])
        ]
        return f" at {', '.join(found[:3])}{', …' if len(found) > 3 else ''}" if found else ""

    if match := re.match(r"Unimplemented keys: (\[.*\])", reason):
        keywords = json.loads(match.group(1))
        which = "; ".join(f"{k}{paths(k)}" for k in keywords)
        return f"schema: not supported: {which}"
    if reason.startswith("oneOf constraints"):
        return (
            f"schema: oneOf{paths('oneOf')}: branches that may hold together are not supported; "
            "use anyOf, or give each branch a property with a different const"
        )
    if match := re.match(r"patternProperty regexes (.*) are not disjoint", reason):
        return f"schema: patternProperties{paths('patternProperties')}: patterns that overlap"
    if reason.startswith("min/maxProperties only"):
        return (
            f"schema: minProperties{paths('minProperties')}, maxProperties"
            f"{paths('maxProperties')}: supported only where all declared properties are required"
        )
    if reason.startswith("Resource "):
        where = paths("$ref", lambda v: not v.startswith("#"))
        return f"schema: $ref{where}: only references within the schema are supported"
    if reason.startswith("Pointer "):
        where = paths("$ref", lambda v: v.startswith("#") and f"'{v[1:]}'" in reason)
        return f"schema: $ref{where}: there is no such place in the schema"
    if match := re.match(r"circular references with sibling keys are not supported: (.*)", reason):
        where = paths("$ref", match.group(1).endswith)
        return (
            f"schema: $ref{where}: a circular reference with other keywords beside it is not "
            "supported"
        )
    if "float range" in reason or "too many digits" in reason:
        which = ", ".join(f"{k}{paths(k)}" for k in NUMBERS if paths(k))
        return f"schema: {which}: {reason}"
    if reason.startswith("Unsatisfiable schema"):
        return f"schema: no value can satisfy it: {reason.removeprefix('Unsatisfiable schema: ')}"
    return f"schema: {reason}"
