"""Strings, numbers and keys of a JSON text: what they stand for, exactly."""

from __future__ import annotations

import decimal
import json
import re
from typing import Any

__all__ = ["exact_number", "is_plain_key", "scalar_value", "string_value"]

MAX_DIGITS = 400  # of numbers that become int, which has a limit of its own
_EXACT = decimal.Context(prec=decimal.MAX_PREC, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_ESCAPED_KEY = re.compile(rb"\\(?:u(....)|.)", re.DOTALL)


def string_value(text: bytes) -> str:
    """What a string stands for."""
    return str(json.loads(text)) if b"\\" in text else text[1:-1].decode()


def scalar_value(text: bytes) -> Any:
    """A number exactly, in one form for each value; or true, false or null."""
    return json.loads(text, parse_float=exact_number, parse_int=exact_number)


def exact_number(text: str) -> int | decimal.Decimal:
    """The value of a JSON number, in one form for each value."""
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation:  # an exponent of 19 digits: beyond every bound
        sign = "-" if text.startswith("-") else ""
        return decimal.Decimal(f"{sign}1e{'-' if 'e-' in text.lower() else ''}{10**17}")
    if value.adjusted() < MAX_DIGITS and value == value.to_integral_value():
        return int(value)
    return value.normalize(_EXACT)


def is_plain_key(key: bytes) -> bool:
    """Whether a key is spelled in its shortest way, by which keys are told apart."""
    for escape in _ESCAPED_KEY.finditer(key):
        digits = escape.group(1)
        if digits is None:
            continue
        code = int(digits, 16)
        if digits != digits.lower() or code in (8, 9, 10, 12, 13) or 32 <= code != 127:
            return False
    return True
