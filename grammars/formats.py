"""String formats of JSON Schema whose impossible values the mask engine would let through.

Each is a regular expression in the engine's syntax for the whole string. The other formats
that the engine knows (duration, ipv4, uri, uuid) are left to it; any other is refused.
"""

from __future__ import annotations

__all__ = ["ENGINE_FORMATS", "FORMAT_PATTERNS", "MAX_LENGTHS"]

ENGINE_FORMATS = frozenset({"duration", "ipv4", "uri", "uuid"})

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

FORMAT_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv6": _IPV6,
    "time": _TIME,
}

MAX_LENGTHS: dict[str, int] = {"hostname": 253}
"""Formats that also bound the length of the string."""
