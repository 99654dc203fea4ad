"""Regular expressions for the comparison with genlm-control, from short outputs to long ones.

ASCII only and without ``.``, so that a pattern means the same over characters and over bytes.
"""

from __future__ import annotations

import dataclasses

__all__ = ["PATTERNS", "Pattern"]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A regular expression, and what to ask for."""

    pattern: str
    prompt: str


_FRUIT = "(apples|pears|plums|cherries)"
_WORD = "[a-z]{1,12}"

PATTERNS = {
    "date": Pattern("[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]", "Write today's date as YYYY-MM-DD."),
    "phone": Pattern(
        r"\+1 \([0-9]{3}\) [0-9]{3}-[0-9]{4}",
        "Write a phone number of New York in international form.",
    ),
    "e-mail": Pattern(
        r"[a-z]{2,12}\.[a-z]{2,12}@[a-z]{2,16}\.(com|org|net)",
        "Write the e-mail address of Ada Lovelace.",
    ),
    "colours": Pattern(
        "#[0-9a-f]{6}(, #[0-9a-f]{6}){5}", "Write six colours of autumn in hexadecimal."
    ),
    "shopping": Pattern(
        rf"{_FRUIT}: [1-9][0-9]?(, {_FRUIT}: [1-9][0-9]?){{4,8}}",
        "Write a shopping list of fruit with quantities.",
    ),
    "log line": Pattern(
        r"\[20[0-9]{2}-[01][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9]\] "
        r"(INFO|WARN|ERROR): [A-Za-z]{1,12}( [a-z]{1,12}){4,12}",
        "Write one line of a server's log.",
    ),
    "sentence": Pattern(
        rf"[A-Z][a-z]{{1,12}}( {_WORD}){{11,19}}\.",
        "Write one sentence of twelve to twenty plain words about the sea.",
    ),
    "acrostic": Pattern(
        "S[a-z]{1,12}( [a-z]{1,12}){4,7}\nE[a-z]{1,12}( [a-z]{1,12}){4,7}\n"
        "A[a-z]{1,12}( [a-z]{1,12}){4,7}",
        "Write three lines of verse whose first letters spell SEA.",
    ),
}
