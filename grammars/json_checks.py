"""Checks on a finished JSON text, for what a token mask cannot hold."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["distinct_keys", "is_valid", "plain_keys"]

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?')
_ESCAPE = re.compile(rb"\\(?:u(....)|.)")


def plain_keys(text: bytes) -> bool:
    """Whether every key is spelled in its shortest way, by which keys are told apart."""
    for string in _STRING.finditer(text):
        if string.group(2) is None or b"\\u" not in string.group(1):
            continue
        for escape in _ESCAPE.finditer(string.group(1)):
            digits = escape.group(1)
            if digits is None:
                continue
            code = int(digits, 16)
            if digits != digits.lower() or code in (8, 9, 10, 12, 13) or 32 <= code != 127:
                return False
    return True


class _RepeatedKeyError(Exception):
    pass


def distinct_keys(text: bytes) -> bool:
    """Whether no object has a key twice."""

    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) < len(pairs):
            raise _RepeatedKeyError
        return out

    try:
        json.loads(text, object_pairs_hook=make)
    except _RepeatedKeyError:
        return False
    return True


def is_valid(validator: Any, text: bytes) -> bool:
    """Whether the value is valid for a `jsonschema` validator."""
    return bool(validator.is_valid(json.loads(text)))
