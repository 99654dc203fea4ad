r"""JSON Schema as a grammar: one serialisation of each valid value.

The serialisation: keys in declared order, others after them, none twice; no white space
around the value and a bounded amount inside; integers without fraction or exponent;
characters of strings as themselves, with the short escapes where JSON demands one, or as
``\uXXXX``.

A schema is split. The mask takes what the mask engine (llguidance) enforces exactly, and a
superset of the rest; what it leaves out is checked by a validator, on every value as soon
as it is closed (`schema_check`). Where nothing is left out, nothing is validated.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars.schema.check import SchemaCheck
from smcprog.grammars.schema.endless import refuse_endless
from smcprog.grammars.schema.errors import explain_error, refuse_empty
from smcprog.grammars.schema.fit import fit_mask
from smcprog.grammars.schema.mask import MaskBuilder
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.report import covered, left_over, takes_free_keys
from smcprog.grammars.schema.scan import KeyCheck
from smcprog.grammars.schema.validity import NEWEST, check_is_json, dialect_of
from smcprog.grammars.schema.walk import show_path
from smcprog.grammars.text import Check, GrammarText

__all__ = ["FORMATS", "KEY_ORDERS", "WHITESPACE", "schema_grammar", "schema_text"]

KEY_ORDERS = ("declared", "any")
FORMATS = ("assert", "annotate")

WHITESPACE = {
    "bounded": r"[ \t]|\r?\n[ \t]{0,40}",
    "none": "",
    "free": r"[ \t\r\n]+",
}
"""What may stand between two pieces of a JSON value, at most once. ``bounded`` has room for
the default and the indented forms of `json.dumps` (20 levels with ``indent=2``)."""


def schema_grammar(
    schema: Any,
    name: str,
    *,
    whitespace: str = "bounded",
    key_order: str = "declared",
    formats: str = "assert",
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
    formats : str
        "assert" or "annotate": whether ``format`` restricts strings.

    Raises
    ------
    GrammarError
        With the keyword and its JSON path.
    """
    if key_order not in KEY_ORDERS:
        raise GrammarError(f"key_order must be 'declared' or 'any', got {key_order!r}")
    if formats not in FORMATS:
        raise GrammarError(f"formats must be 'assert' or 'annotate', got {formats!r}")
    any_order, asserted = key_order == "any", formats == "assert"
    split = _split(schema, whitespace, any_order=any_order, assert_formats=asserted)
    builder = split.builder
    checks: list[Check] = []
    if builder.left:
        checks.append(
            SchemaCheck(
                builder.references,
                builder.left,
                assert_formats=asserted,
                description=left_over(builder.left),
            )
        )
    elif takes_free_keys(split.mask):
        checks.append(KeyCheck())
    return GrammarText(
        name=name,
        lark=f"start: %json {split.text}\n",
        covers=covered(builder, whitespace),
        checks=tuple(checks),
        explain_error=explain_error,
    )


def schema_text(schema: Any, whitespace: str, *, embedded: bool = True) -> tuple[str, None]:
    r"""A schema inside a larger grammar as the mask engine shall see it, on one line.

    Nothing can be checked on the value there, so that the mask must be the whole
    constraint; ``\uXXXX`` escapes are left out.

    Parameters
    ----------
    schema : dict or bool
    whitespace : str
    embedded : bool
        True.

    Raises
    ------
    GrammarError
        Naming what the mask cannot hold.
    """
    assert embedded
    split = _split(schema, whitespace, any_order=False, assert_formats=True, embedded=True)
    if split.builder.left:
        raise GrammarError(
            f"schema: {left_over(split.builder.left)}: needs a check of the whole value, which "
            "is not supported inside a Lark grammar"
        )
    for path in split.builder.counted:
        raise GrammarError(
            f"schema: minProperties at {show_path((*path, 'minProperties'))} is not supported "
            "inside a Lark grammar, where repeated keys would count twice"
        )
    return split.text, None


@dataclasses.dataclass
class _Split:
    mask: Any
    text: str
    builder: MaskBuilder


def _split(
    schema: Any, whitespace: str, *, any_order: bool, assert_formats: bool, embedded: bool = False
) -> _Split:
    if whitespace not in WHITESPACE:
        raise GrammarError(
            f"whitespace must be one of {', '.join(map(repr, WHITESPACE))}, got {whitespace!r}"
        )
    check_is_json(schema)
    if schema is False:
        raise GrammarError("schema: no value can satisfy it: $ is false")
    schema = {} if schema is True else schema
    dialect = dialect_of(schema)
    if "x-guidance" in schema:
        raise GrammarError(
            "schema: x-guidance at $ is an option of the mask engine, not of JSON Schema; "
            "remove it (white space is set by the `whitespace` argument)"
        )
    references = References(json.loads(json.dumps(schema)), dialect)
    circle = references.circle()
    if circle is not None:
        raise GrammarError(
            f"schema: circular reference: {show_path(circle)} is applied to a value whenever it "
            "is applied to that value"
        )
    refuse_endless(references)
    refuse_empty(references)
    write = functools.partial(_write, options=_engine_options(whitespace, embedded))
    mask, builder = fit_mask(references, write, any_order=any_order, assert_formats=assert_formats)
    return _Split(mask, write(mask), builder)


def _write(mask: Any, options: dict[str, Any]) -> str:
    # The engine takes options from an object only.
    if isinstance(mask, bool):
        mask = {} if mask else {"anyOf": [False]}
    full = {"$schema": NEWEST.uri, **mask, "x-guidance": options}
    return json.dumps(full, allow_nan=False)


def _engine_options(whitespace: str, embedded: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"json_allow_general_unicode_escapes": not embedded}
    if embedded:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    if whitespace == "none":
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = WHITESPACE[whitespace]
    return options
