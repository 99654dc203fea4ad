"""Weakening a mask until the mask engine takes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from smcprog.errors import GrammarError
from smcprog.grammars.engine import byte_tokenizer, compile_text, error_reason, is_dead_end
from smcprog.grammars.schema.mask import MaskBuilder, Weaker
from smcprog.grammars.schema.references import References
from smcprog.grammars.schema.walk import show_path

__all__ = ["fit_mask"]

MAX_TRIES = 24
_DEPTHS = (6, 3, 1)


def fit_mask(
    references: References,
    write: Callable[[Any], str],
    *,
    any_order: bool,
    assert_formats: bool,
) -> tuple[Any, MaskBuilder]:
    """The strongest mask of the schema that was found to compile.

    Parameters
    ----------
    references : References
    write : callable
        From a mask's schema to the text for the engine.
    any_order, assert_formats : bool

    Returns
    -------
    mask : dict or bool
    builder : MaskBuilder
        With what is left to the check.

    Raises
    ------
    GrammarError
        If no value can be valid, or the engine refuses even the weakest mask.
    """
    weaker = Weaker()
    for _ in range(MAX_TRIES):
        builder = MaskBuilder(
            references, any_order=any_order, assert_formats=assert_formats, weaker=weaker
        )
        mask = builder.build()
        message = _complaint(write(mask))
        if message is None:
            return mask, builder
        if "Unsatisfiable schema" in message or "schema is false" in message:
            if _set_empty(weaker, builder, message):
                continue
            raise GrammarError(
                f"schema: no value can satisfy it: {_empty(builder, write, message)}"
            )
        if not _weaken(weaker, builder, message):
            break
    raise GrammarError(f"schema: {error_reason(message or '')[0]}")


def _complaint(schema_text: str) -> str | None:
    """What the engine says against a schema; None if it takes it."""
    matcher = compile_text(f"start: %json {schema_text}\n", byte_tokenizer())
    if matcher.is_error():
        return matcher.get_error()
    matcher = matcher.deep_copy()
    matcher.compute_bitmask()
    if matcher.is_error() and not is_dead_end(matcher.get_error()):
        return matcher.get_error()
    return None


def _set_empty(weaker: Weaker, builder: MaskBuilder, message: str) -> bool:
    """Note a definition without values, which may be one that no value needs."""
    match = re.search(r"while processing \S*/\$defs/(s\d+)", message)
    path = None if match is None else builder.path_of(match.group(1))
    if path is None or path in weaker.empty:
        return False
    weaker.empty.add(path)
    return True


_OF_TEXTS = ("pattern", "format", "minLength", "maxLength")
MOST_LOOKED_AT = 100  # subschemas


def _empty(builder: MaskBuilder, write: Callable[[Any], str], message: str) -> str:
    """Keywords that leave no string, and where; else what the engine says."""
    said = []
    reached = list(builder.references.reached().items())[:MOST_LOOKED_AT]
    for path, schema in reached:
        keywords = [k for k in _OF_TEXTS if k in schema]
        if "pattern" not in keywords and "format" not in keywords:
            continue
        alone = {"type": "string", **{k: schema[k] for k in keywords}}
        mask = MaskBuilder(
            References(alone, builder.references.dialect),
            any_order=False,
            assert_formats=builder.assert_formats,
            weaker=Weaker(),
        ).build()
        if "Unsatisfiable schema" in (_complaint(write(mask)) or ""):
            said.append(f"{', '.join(keywords)} at {show_path(path)}")
    reason = error_reason(message)[0].partition("Unsatisfiable schema: ")[2]
    if reason.startswith("Regex is empty"):  # with its own form of the patterns
        reason = "patterns, formats and lengths of a string exclude each other"
    return "; ".join(said[:3]) or reason


def _weaken(weaker: Weaker, builder: MaskBuilder, message: str) -> bool:
    """Drop what the engine has complained about; False if nothing is left to drop."""
    if "oneOf constraints" in message and not weaker.one_of:
        weaker.one_of = True
        return True
    if match := re.search(r"circular references with sibling keys.*?/\$defs/(s\d+)", message):
        path = builder.path_of(match.group(1))
        if path is not None and path not in weaker.bare and len(weaker.bare) < MAX_TRIES // 2:
            weaker.bare.add(path)
            return True
    if "min/maxProperties only" in message and weaker.counts < 2:
        weaker.counts += 1
        return True
    if "patternProperty regexes" in message and not weaker.key_patterns:
        weaker.key_patterns = True
        return True
    about_numbers = "float range" in message or "digits" in message or "multiple" in message
    if about_numbers and not weaker.numbers:
        weaker.numbers = True
        return True
    # Too large, in one way or another: what costs most first.
    if not weaker.patterns:
        weaker.patterns = True
    elif not weaker.key_patterns:
        weaker.key_patterns = True
    elif weaker.depth is None:
        weaker.depth = _DEPTHS[0]
    elif weaker.depth > _DEPTHS[-1]:
        weaker.depth = next(d for d in _DEPTHS if d < weaker.depth)
    elif weaker.depth > 0:
        weaker.depth, weaker.numbers = 0, True
    else:
        return False
    return True
