r"""Regular expressions for common texts, as strings for `Grammar.regex` and for `re`.

Each stands in parentheses, so that it can be part of a larger expression:

>>> import re
>>> from smcprog.grammars import patterns
>>> line = rf"{patterns.date()} {patterns.integer(0, 120)}"
>>> bool(re.fullmatch(line, "2024-02-29 36")), bool(re.fullmatch(line, "2023-02-29 36"))
(True, False)

All are of ASCII characters only, and match the same texts in both.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from smcprog import validate
from smcprog.errors import SettingError
from smcprog.grammars.builtin.digits import between, from_on

__all__ = [
    "date", "date_time", "email", "hostname", "integer", "ipv4", "ipv6", "number", "time", "url",
    "uuid",
]  # fmt: skip

MAX_DIGITS = 100  # of a bound
MAX_DECIMALS = 20

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_WORD = "[0-9A-Fa-f]{1,4}"


def date() -> str:
    """A date of the Gregorian calendar, ``YYYY-MM-DD``, in the years 0001 to 9999."""
    return f"(?:{_YEAR}-{_DAY}|{_LEAP}-02-29)"


def time(*, seconds: bool = True, fraction: bool = False, zone: bool = False) -> str:
    """A time of day, ``HH:MM:SS``, from 00:00:00 to 23:59:59.

    Parameters
    ----------
    seconds : bool
        Whether it has seconds.
    fraction : bool
        Whether a fraction of 1 to 6 digits may follow the seconds.
    zone : bool
        Whether ``Z`` or an offset such as ``+02:00`` (less than a day) follows.

    Raises
    ------
    SettingError
        For a fraction without seconds.
    """
    if fraction and not seconds:
        raise SettingError("a fraction is one of seconds: set seconds=True")
    out = _HOUR_MINUTE
    if seconds:
        out += ":[0-5][0-9]"
    if fraction:
        out += r"(?:\.[0-9]{1,6})?"
    if zone:
        out += f"(?:Z|[+-]{_HOUR_MINUTE})"
    return f"(?:{out})"


def date_time(*, separator: str = "T", fraction: bool = False, zone: bool = False) -> str:
    """A `date`, a separator (``"T"`` or a blank) and a `time` with seconds.

    Raises
    ------
    SettingError
        For another separator.
    """
    if separator not in ("T", " "):
        raise SettingError(f"separator is 'T' or ' ', got {separator!r}")
    return f"(?:{date()}{separator}{time(fraction=fraction, zone=zone)})"


def uuid(version: int | None = None) -> str:
    """A UUID (RFC 9562) in five groups of hexadecimal digits.

    Parameters
    ----------
    version : int, optional
        1 to 8, with the variant of the RFC. By default any 128 bits.

    Raises
    ------
    SettingError
    """
    third, fourth = "[0-9a-fA-F]{4}", "[0-9a-fA-F]{4}"
    if version is not None:
        third = f"{validate.whole('version', version, 1, 8)}[0-9a-fA-F]{{3}}"
        fourth = "[89abAB][0-9a-fA-F]{3}"
    return f"(?:[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{third}-{fourth}-[0-9a-fA-F]{{12}})"


def ipv4() -> str:
    """An IPv4 address: four numbers to 255 without leading zeros."""
    return rf"(?:(?:{_BYTE}\.){{3}}{_BYTE})"


def ipv6() -> str:
    """An IPv6 address (RFC 4291), without zone; its end may be written as an IPv4 address."""
    last = f"(?:{_WORD}:{_WORD}|{ipv4()})"
    options = [f"(?:{_WORD}:){{6}}{last}"]
    for after in range(5, -1, -1):  # groups between "::" and the last two
        options.append(f"{_up_to(5 - after)}::(?:{_WORD}:){{{after}}}{last}")
    options.append(f"{_up_to(6)}::{_WORD}")
    options.append(f"{_up_to(7)}::")
    return f"(?:{'|'.join(options)})"


def _up_to(groups: int) -> str:
    """At most so many groups of an IPv6 address, with colons between."""
    if groups == 0:
        return ""
    return f"(?:(?:{_WORD}:){{0,{groups - 1}}}{_WORD})?"


def hostname() -> str:
    """A host name (RFC 1123): labels of 1 to 63 letters, digits and inner hyphens.

    The last label does not begin with a digit, so that it is no IPv4 address. The limit of 253
    characters for the whole is not in it.
    """
    last = "[A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
    return rf"(?:(?:{_LABEL}\.)*{last})"


def email() -> str:
    """An e-mail address: a dotted local part at a host name with a dot.

    The common form of RFC 5322: no quoted local part, no address literal, no comment. The
    limits of 64 and 254 characters are not in it.
    """
    atom = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
    return rf"(?:{atom}(?:\.{atom})*@(?:{_LABEL}\.)+[A-Za-z](?:[0-9A-Za-z-]{{0,61}}[0-9A-Za-z]))"


def url(*, schemes: tuple[str, ...] = ("http", "https")) -> str:
    """A URL with a host (RFC 3986), without user name.

    Parameters
    ----------
    schemes : tuple of str
        In lower case.

    Notes
    -----
    A host name or IPv4 address, a port from 0 to 65535, path, query and fragment, in ASCII:
    other characters are written with ``%`` and two hexadecimal digits.

    Raises
    ------
    SettingError
        For a scheme that is none.
    """
    for scheme in schemes:
        if not (
            scheme[:1].isalpha() and scheme.isascii() and scheme.isalnum() and scheme.islower()
        ):
            raise SettingError(f"a scheme is lower-case letters and digits, got {scheme!r}")
    if not schemes:
        raise SettingError("schemes is empty")
    char = r"(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
    more = r"(?:[0-9A-Za-z._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
    port = integer(0, 65535)
    return (
        f"(?:(?:{'|'.join(schemes)})://(?:{hostname()}|{ipv4()})(?::{port})?"
        rf"(?:/{char}*)*(?:\?{more})?(?:#{more})?)"
    )


def integer(low: int | None = None, high: int | None = None) -> str:
    """A whole number from `low` to `high`, both included, without leading zeros, ``+`` or ``-0``.

    Parameters
    ----------
    low, high : int, optional
        None is no bound.

    Raises
    ------
    SettingError
        If there is no such number, or a bound has more than 100 digits.
    """
    limit = 10**MAX_DIGITS
    low = None if low is None else validate.whole("low", low, -limit, limit)
    high = None if high is None else validate.whole("high", high, -limit, limit)
    return _signed(low, high, 0)


def number(low: Any = None, high: Any = None, *, decimals: int = 2) -> str:
    """A decimal number from `low` to `high`, both included, with at most so many decimals.

    Written without exponent, ``+``, or leading zeros; ``-0``, ``-0.0`` and so on are left out, and
    zeros at the end are not.

    Parameters
    ----------
    low, high : int, float, str or decimal.Decimal, optional
        None is no bound; a float is what `repr` shows of it.
    decimals : int
        From 0 to 20.

    Raises
    ------
    SettingError
        If there is no such number, or a bound is none.
    """
    decimals = validate.whole("decimals", decimals, 0, MAX_DECIMALS)
    least, most = _bound("low", low), _bound("high", high)
    options = []
    for places in range(decimals + 1):
        scaled_low = None if least is None else _ceiling(least, places)
        scaled_high = None if most is None else -_ceiling(-most, places)
        if scaled_low is None or scaled_high is None or scaled_low <= scaled_high:
            options.append(_signed(scaled_low, scaled_high, places))
    if not options:
        raise SettingError(
            f"there is no number from {low} to {high} with at most {decimals} decimals"
        )
    return f"(?:{'|'.join(options)})"


def _bound(name: str, value: Any) -> Decimal | None:
    if value is None:
        return None
    try:
        number = Decimal(value) if isinstance(value, (str, Decimal)) else Decimal(repr(value))
    except (ArithmeticError, ValueError, TypeError):
        raise SettingError(f"{name} must be a number, got {value!r}") from None
    if isinstance(value, bool) or not number.is_finite() or abs(number.adjusted()) > MAX_DIGITS:
        raise SettingError(f"{name} must be a number of at most {MAX_DIGITS} digits, got {value!r}")
    return number


def _ceiling(value: Decimal, places: int) -> int:
    """The least whole number that is not below `value` times 10 to the power of `places`."""
    top, bottom = value.as_integer_ratio()
    return -(-top * 10**places // bottom)


def _signed(low: int | None, high: int | None, places: int) -> str:
    """Whole numbers in a range, with a point before the last `places` digits."""
    if low is not None and high is not None and low > high:
        raise SettingError(f"there is no number from {low} to {high}")
    options = []
    if low is None or low < 0:
        smallest = 1 if high is None or high >= 0 else -high
        found = from_on(smallest, places) if low is None else between(smallest, -low, places)
        options.append(f"-{found}")
    if high is None or high >= 0:
        smallest = 0 if low is None or low < 0 else low
        options.append(
            from_on(smallest, places) if high is None else between(smallest, high, places)
        )
    return f"(?:{'|'.join(options)})"
