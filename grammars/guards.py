"""Caps on what a grammar may be, before any work is done on it: one pass, no recursion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from smcprog import limits
from smcprog.errors import GrammarLimitError

__all__ = ["guard_choices", "guard_schema", "guard_text"]


def guard_text(what: str, text: Any) -> None:
    """Refuse a pattern or grammar of too many characters.

    Raises
    ------
    GrammarLimitError
    """
    if isinstance(text, (str, bytes)) and len(text) > limits.MAX_GRAMMAR_TEXT:
        raise GrammarLimitError(
            f"{what} of {len(text):,} characters; at most {limits.MAX_GRAMMAR_TEXT:,} are taken",
            limit="size",
        )


def guard_choices(choices: Any) -> Any:
    """Refuse too many choices, or too many characters in them.

    Returns
    -------
    list
        The choices read so far, since an iterator can be read once only. What is no
        iterable of choices is returned as it is.

    Raises
    ------
    GrammarLimitError
    """
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Iterable):
        return choices
    out: list[Any] = []
    total = 0
    for choice in choices:
        out.append(choice)
        total += len(choice) if isinstance(choice, str) else 1
        if len(out) > limits.MAX_CHOICES or total > limits.MAX_GRAMMAR_TEXT:
            raise GrammarLimitError(
                f"more than {limits.MAX_CHOICES:,} choices, or more than "
                f"{limits.MAX_GRAMMAR_TEXT:,} characters in them",
                limit="size",
            )
    return out


def guard_schema(schema: Any) -> None:
    """Refuse a schema that is too large or nested too deeply, with the JSON path.

    A dict that holds itself is nested without end, and refused as such.

    Raises
    ------
    GrammarLimitError
    """
    values = objects = text = 0
    # The iterators on the stack are the way from the root to the current value.
    stack: list[Iterator[tuple[Any, Any]]] = [iter([("", schema)])]
    keys: list[Any] = []
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            if keys:
                keys.pop()
            continue
        key, value = found
        values += 1
        text += len(key) if isinstance(key, str) else 0
        if isinstance(value, str):
            text += len(value)
        elif isinstance(value, dict):
            objects += 1
            keys.append(key)
            stack.append(iter(value.items()))
        elif isinstance(value, (list, tuple)):
            keys.append(key)
            stack.append(iter(enumerate(value)))
        for count, cap, of in (
            (values, limits.MAX_SCHEMA_VALUES, "JSON values"),
            (objects, limits.MAX_SUBSCHEMAS, "objects"),
            (text, limits.MAX_GRAMMAR_TEXT, "characters"),
        ):
            if count > cap:
                raise GrammarLimitError(f"schema: more than {cap:,} {of}", limit="size")
        if len(stack) > limits.MAX_GRAMMAR_NESTING + 1:
            raise GrammarLimitError(
                f"schema: nested more than {limits.MAX_GRAMMAR_NESTING} levels deep at "
                f"{_show(keys[1:5])}…",
                limit="nesting",
            )


def _show(keys: list[Any]) -> str:
    return "$" + "".join(
        f"[{key}]" if isinstance(key, int) else f".{json.dumps(str(key))[1:-1][:40]}"
        for key in keys
    )
