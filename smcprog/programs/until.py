"""Where an extension ends before its EOS: at strings, patterns or tokens in its own text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError
from smcprog.smc.stops import StopStrings
from smcprog.validate import whole

__all__ = ["Marks", "Until"]


class Marks:
    """What `until` was given, told apart.

    Parameters
    ----------
    until : str, compiled pattern, int, or several of them

    Raises
    ------
    SettingError
    """

    def __init__(self, until: Any) -> None:
        strings: list[str] = []
        patterns: list[re.Pattern[str]] = []
        tokens: set[int] = set()
        single = isinstance(until, (str, re.Pattern)) or not isinstance(until, Iterable)
        for mark in [until] if single else until:
            if isinstance(mark, str) and mark.encode(errors="ignore").decode() == mark != "":
                strings.append(mark)
            elif isinstance(mark, re.Pattern) and isinstance(mark.pattern, str):
                patterns.append(mark)
            elif hasattr(mark, "__index__") and not isinstance(mark, bool):
                tokens.add(whole("until", mark, 0, 1 << 31))
            else:
                raise SettingError(
                    "until takes strings that are not empty, compiled patterns of str, token ids, "
                    f"or several of them; got {mark!r}"
                )
        if not strings and not patterns and not tokens:
            raise SettingError("until is empty: leave it out, or name what ends the extension")
        self.strings, self.patterns = tuple(strings), tuple(patterns)
        self.tokens = frozenset(tokens)


class Until(StopStrings):
    """The texts of some rows, and whether a token ends them; stands for `StopStrings`."""

    def __init__(self, marks: Marks, vocab: Vocabulary, rows: int) -> None:
        if marks.tokens and max(marks.tokens) >= vocab.size:
            raise SettingError(
                f"until: {max(marks.tokens)} is no token id of the model, which has ids 0 to "
                f"{vocab.size - 1}"
            )
        self._marks = marks
        self._bytes = vocab.token_bytes
        needles = [s.encode() for s in marks.strings]
        # A pattern may look at all of the text; strings need as much as could begin one.
        self._keep_bytes = None if marks.patterns else max([len(n) for n in needles], default=1) - 1
        self._needles = needles
        self._tails: list[bytes] = [b""] * rows

    def take(self, tokens: Sequence[int], running: Sequence[bool]) -> list[bool]:
        hit = [False] * len(tokens)
        for i, token in enumerate(tokens):
            if running[i]:
                text = self._tails[i] + self._bytes[token]
                hit[i] = self._ends(text, token)
                keep = self._keep_bytes
                self._tails[i] = text if keep is None else text[max(0, len(text) - keep) :]
        return hit

    def hits(self, rows: Sequence[int], tokens: Sequence[int]) -> list[bool]:
        return [
            self._ends(self._tails[row] + self._bytes[token], token)
            for row, token in zip(rows, tokens, strict=True)
        ]

    def _ends(self, data: bytes, token: int) -> bool:
        if token in self._marks.tokens or any(n in data for n in self._needles):
            return True
        if not self._marks.patterns:
            return False
        # A character that is not complete yet is not part of the text.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
        return any(p.search(text) for p in self._marks.patterns)
