r"""JSON Schema as a grammar: one serialisation of each valid value.

The serialisation: keys in declared order, others after them; no white space around the
value and a bounded amount inside; integers without fraction or exponent; characters of
strings as themselves, with the short escapes where JSON demands one, or as ``\uXXXX``.

The mask engine (llguidance) refuses most of what it cannot express. What it would let
through or change without a word is rewritten here into something it does exactly, checked
on the finished text, or refused by keyword and path.
"""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars.json_checks import distinct_keys, is_valid, plain_keys
from smcprog.grammars.schema_errors import explain_error
from smcprog.grammars.schema_rewrite import refuse_unenforced, rewrite_schema
from smcprog.grammars.schema_validity import check_is_json, validator_of
from smcprog.grammars.schema_walk import SchemaWalk
from smcprog.grammars.text import FinalCheck, GrammarText

__all__ = ["KEY_ORDERS", "WHITESPACE", "schema_grammar", "schema_text"]

KEY_ORDERS = ("declared", "any")

WHITESPACE = {
    "bounded": r"[ \t]|\r?\n[ \t]{0,40}",
    "none": "",
    "free": r"[ \t\r\n]+",
}
"""What may stand between two pieces of a JSON value, at most once. ``bounded`` has room for
the default and the indented forms of `json.dumps` (20 levels with ``indent=2``)."""


def schema_grammar(
    schema: Any, name: str, *, whitespace: str = "bounded", key_order: str = "declared"
) -> GrammarText:
    """The grammar of the JSON texts of a schema's valid values.

    Parameters
    ----------
    schema : dict or bool
    name : str
        How reports call it.
    whitespace : str
        "bounded", "none" or "free": what may stand inside the value.
    key_order : str
        "declared" or "any".

    Raises
    ------
    GrammarError
        With the keyword and its JSON path.
    """
    if key_order not in KEY_ORDERS:
        raise GrammarError(f"key_order must be 'declared' or 'any', got {key_order!r}")
    any_order = key_order == "any"
    text, walk = schema_text(schema, whitespace, any_order=any_order)
    checks = [FinalCheck("object keys are spelled without needless \\u escapes", plain_keys)]
    least = [] if walk is None else walk.find("minProperties")
    if any_order or any(walk.reached[path]["minProperties"] > 1 for path in least if walk):
        checks.append(FinalCheck("no object repeats a key", distinct_keys))
    if any_order and isinstance(schema, dict):
        validator, _ = validator_of(schema)
        valid = functools.partial(is_valid, validator(copy.deepcopy(schema)))
        checks.append(FinalCheck("required keys are present", valid))
    order = "keys in any order" if any_order else "keys in declared order, others after them"
    return GrammarText(
        name=name,
        lark=f"start: %json {text}\n",
        covers=f"JSON texts of the schema's valid values; {order}; white space {whitespace}",
        checks=tuple(checks),
        explain_error=functools.partial(explain_error, walk),
    )


def schema_text(
    schema: Any, whitespace: str, *, any_order: bool = False, embedded: bool = False
) -> tuple[str, SchemaWalk | None]:
    r"""The schema as the mask engine shall see it, on one line.

    Parameters
    ----------
    schema : dict or bool
    whitespace : str
    any_order : bool
        Whether keys may come in any order; the text has to be checked afterwards then.
    embedded : bool
        Whether the value is part of a larger text, so that nothing can be checked
        afterwards: the ``\uXXXX`` escapes are left out then.

    Returns
    -------
    text : str
    walk : SchemaWalk or None
        Over the schema as it is handed over; None for ``true`` and ``false``.

    Raises
    ------
    GrammarError
    """
    if whitespace not in WHITESPACE:
        raise GrammarError(
            f"whitespace must be one of {', '.join(map(repr, WHITESPACE))}, got {whitespace!r}"
        )
    check_is_json(schema)
    options = _engine_options(whitespace, embedded)
    if isinstance(schema, bool):
        # The engine takes options from an object only.
        return json.dumps({"x-guidance": options, **({} if schema else {"anyOf": [False]})}), None
    validator, declared = validator_of(schema)
    if "x-guidance" in schema:
        raise GrammarError(
            "schema: x-guidance at $ is an option of the mask engine, not of JSON Schema; "
            "remove it (white space is set by the `whitespace` argument)"
        )
    out = copy.deepcopy(schema)
    out["$schema"] = validator.META_SCHEMA["$schema"]
    walk = SchemaWalk(out, rewrite_schema(out, any_order=any_order))
    refuse_unenforced(walk, validator, declared=declared, embedded=embedded, any_order=any_order)
    out["x-guidance"] = options
    return json.dumps(out, allow_nan=False), walk


def _engine_options(whitespace: str, embedded: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"json_allow_general_unicode_escapes": not embedded}
    if embedded:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    if whitespace == "none":
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITESPACE[whitespace]
    return options
