"""Schemas that no value satisfies, and what the mask engine's complaints mean."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from jsonschema_rs import canonical

from smcprog.errors import GrammarError
from smcprog.grammars.engine import error_reason
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.walk import Path, show_path

__all__ = ["explain_error", "refuse_empty"]

_CASES = (
    "anyOf", "contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "not",
    "oneOf",
)  # fmt: skip
MAX_PROVED = 400  # subschemas, beyond which a proof takes too long
MAX_CASES = 256  # and cases that it may have to tell apart


def explain_error(message: str) -> str:
    """For an error of the mask engine after its trial: a limit, most likely."""
    reason, _, _ = error_reason(message)
    return f"schema: {reason.removeprefix('failed to compile JSON schema: ')}"


def refuse_empty(references: References) -> None:
    """Refuse a schema of which the validator can prove that no value is valid.

    Raises
    ------
    GrammarError
        With the keywords that exclude each other, and where.
    """
    reached = references.reached()
    if len(reached) > MAX_PROVED or _cases(reached) > MAX_CASES:
        return
    schema = {**references.root, "$schema": references.dialect.uri}
    try:
        empty = canonical.find_unsatisfiable(schema, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError, canonical.CanonicalizationError):
        return
    if "" not in empty:
        return
    said: list[str] = []
    _reasons(references, empty, "", said, set())
    raise GrammarError(f"schema: no value can satisfy it: {'; '.join(said[:3])}")


def _cases(reached: dict[Path, dict[str, Any]]) -> int:
    """Product of the alternatives of a schema, up to the cap."""
    cases = 1
    for schema in reached.values():
        for keyword in _CASES:
            if cases <= MAX_CASES and keyword in schema:
                inner = schema[keyword]
                cases *= max(2, len(inner)) if isinstance(inner, (list, dict)) else 2
    return cases


def _reasons(
    references: References, empty: dict[str, Any], pointer: str, said: list[str], seen: set[str]
) -> None:
    """Follow the reasons down to the places that exclude every value by themselves."""
    seen.add(pointer)
    reason = empty[pointer]
    if isinstance(reason, canonical.UnsatisfiableReason.Literal):
        said.append(f"{_show(references, pointer)} is false")
        return
    causes = getattr(reason, "causes", None) or [reason.cause]
    inner = [c.pointer for c in causes if c.pointer in empty and c.pointer not in seen]
    # A property that admits nothing matters where it is required; say both.
    parts = []
    for cause in causes:
        where = _show(references, cause.pointer)
        keywords = ", ".join(cause.keywords)
        parts.append(f"{keywords} at {where}" if keywords else where)
    below = [p for p in empty if p.startswith(f"{pointer}/") and p not in seen]
    deeper = inner or [p for p in below if not any(q != p and p.startswith(f"{q}/") for q in below)]
    if len(causes) > 1 or not deeper:
        said.append(" and ".join(parts) + (" exclude each other" if len(parts) > 1 else ""))
    for pointer in deeper:
        _reasons(references, empty, pointer, said, seen)


def _show(references: References, pointer: str) -> str:
    path: Path = ()
    at: Any = references.root
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        step = int(part) if isinstance(at, list) else part
        path = (*path, step)
        at = at[step]
    return show_path(path)
