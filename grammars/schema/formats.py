r"""String formats of JSON Schema, as they are asserted.

Each of `FORMAT_PATTERNS` is a regular expression for the whole string, in a syntax that
means the same to the mask engine and to Python's `re`. Those of `CHECKED_FORMATS` are no
regular languages of a sensible size and are checked on the value. Any other format is an
annotation, as the standard has it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import jsonschema_rs

__all__ = ["CHECKED_FORMATS", "FORMAT_PATTERNS", "MAX_LENGTHS", "format_checks"]

CHECKED_FORMATS = ("idn-email", "idn-hostname", "regex")

_YEAR = "[0-9]{4}"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    f"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
# RFC 3339. A leap second is one of UTC, so it is written there.
_TIME = (
    rf"(?:{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+\-]{_HOUR_MINUTE})"
    r"|23:59:60(?:\.[0-9]+)?(?:[zZ]|[+\-]00:00))"
)

# RFC 1123: 1 to 63 letters, digits and hyphens, no hyphen at an end. Labels with hyphens in
# places 3 and 4 are encodings of international names, whose validity is not a matter of
# spelling, and are left out.
_ALNUM = "[0-9A-Za-z]"
_LDH = r"[0-9A-Za-z\-]"
_LABEL = (
    f"(?:{_ALNUM}|{_ALNUM}{_ALNUM}|{_ALNUM}{_LDH}{_ALNUM}|{_ALNUM}{_LDH}{_LDH}{_ALNUM}"
    rf"|{_ALNUM}{_LDH}(?:{_ALNUM}{_LDH}|\-{_ALNUM}){_LDH}{{0,58}}{_ALNUM})"
)
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
# RFC 3986, IPv6address.
_IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LS32}"
    f"|::(?:{_H16}:){{5}}{_LS32}"
    f"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    + "".join(f"|(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LS32}" for n in (1, 2, 3))
    + f"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    f"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

# RFC 5321, Mailbox.
_ATEXT = r"[0-9A-Za-z!#$%&'*+\-/=?\^_`{|}~]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL = (
    rf"(?:{_ATEXT}(?:\.{_ATEXT})*|{_QUOTED})"
    rf"@(?:{_HOST}|\[{_IPV4}\]|\[IPv6:{_IPV6}\])"
)

# RFC 3339, appendix A. Weeks stand alone.
_DAY_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = (
    "P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    f"(?:{_DAY_TIME})?|{_DAY_TIME}|[0-9]+W)"
)
_HEX = "[0-9A-Fa-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"


def _uri(more: str, private: str) -> tuple[str, str]:
    """RFC 3986 or 3987: an absolute URI (with or without fragment), and a reference.

    `more` are characters that the latter adds to the unreserved ones, `private` those that
    it adds to queries.
    """
    unreserved = rf"0-9A-Za-z\-._~{more}"
    escaped = f"%{_HEX}{_HEX}"
    user = rf"(?:[{unreserved}!$&'()*+,;=:]|{escaped})*"
    name = rf"(?:[{unreserved}!$&'()*+,;=]|{escaped})*"
    future = r"[vV][0-9A-Fa-f]+\.[0-9A-Za-z\-._~!$&'()*+,;=:]+"
    authority = rf"(?:{user}@)?(?:\[(?:{_IPV6}|{future})\]|{name})(?::[0-9]*)?"
    char = rf"(?:[{unreserved}!$&'()*+,;=:@]|{escaped})"
    char_no_colon = rf"(?:[{unreserved}!$&'()*+,;=@]|{escaped})"
    rest = f"(?:/{char}*)*"
    absolute = f"/(?:{char}+{rest})?"
    tail = (
        rf"(?:\?(?:[{unreserved}{private}!$&'()*+,;=:@/?]|{escaped})*)?"
        rf"(?:\#(?:[{unreserved}!$&'()*+,;=:@/?]|{escaped})*)?"
    )
    scheme = r"[A-Za-z][0-9A-Za-z+\-.]*:"
    full = f"{scheme}(?://{authority}{rest}|{absolute}|{char}+{rest}|){tail}"
    relative = f"(?://{authority}{rest}|{absolute}|{char_no_colon}+{rest}|){tail}"
    return full, f"(?:{full}|{relative})"


# RFC 3987: ucschar and iprivate.
_UCS = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef" + "".join(
    f"{chr(plane << 16 | (0x1000 if plane == 14 else 0))}-{chr(plane << 16 | 0xFFFD)}"
    for plane in range(1, 15)
)
_PRIVATE = "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"
_URI, _URI_REFERENCE = _uri("", "")
_IRI, _IRI_REFERENCE = _uri(_UCS, _PRIVATE)

# RFC 6901, and the draft on relative pointers.
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_RELATIVE_POINTER = rf"(?:0|[1-9][0-9]*)(?:\#|{_POINTER})"

# RFC 6570: literals and expressions.
_VARIABLE = rf"(?:[0-9A-Za-z_]|%{_HEX}{_HEX})(?:\.?(?:[0-9A-Za-z_]|%{_HEX}{_HEX}))*"
_MODIFIER = r"(?::[1-9][0-9]{0,3}|\*)?"
_TEMPLATE = (
    rf"(?:[!\#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%{_HEX}{_HEX}"
    rf"|\{{[+\#./;?&=,!@|]?{_VARIABLE}{_MODIFIER}(?:,{_VARIABLE}{_MODIFIER})*\}})*"
)

FORMAT_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "json-pointer": _POINTER,
    "relative-json-pointer": _RELATIVE_POINTER,
    "time": _TIME,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "uri-template": _TEMPLATE,
    "uuid": _UUID,
}

MAX_LENGTHS: dict[str, int] = {"hostname": 253}
"""Formats that also bound the length of the string."""


@functools.cache
def format_checks() -> dict[str, Callable[[str], bool]]:
    """What decides on each format, for the validator: the same language as the mask's."""
    checks: dict[str, Callable[[str], bool]] = {}
    for name in FORMAT_PATTERNS:
        checks[name] = functools.partial(_matches, name)
    for name in CHECKED_FORMATS:
        # In one draft, so that a schema of any draft asserts the same formats.
        newest = jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)
        checks[name] = newest.is_valid
    return checks


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(FORMAT_PATTERNS[name])


def _matches(name: str, text: str) -> bool:
    short = name not in MAX_LENGTHS or len(text) <= MAX_LENGTHS[name]
    return short and _pattern(name).fullmatch(text) is not None
