"""A match that is called settled is the same whatever follows; masks hold every match."""

from __future__ import annotations

import itertools
import random
import re
import warnings

import pytest

from smcprog import Grammar
from smcprog.grammars.lark.settled import Ways
from smcprog.grammars.lark.sre import char_set, char_test, frozen, parse_pattern

ALPHABET = "ab\nB "


class Patterns:
    """Random patterns of Python's `re`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def atom(self, depth: int) -> str:
        choice, kind = self.rng.choice, self.rng.random()
        if kind < 0.45 or depth == 0:
            return choice(["a", "b", "ab", "[ab]", "[^a]", ".", "\n", r"\w", "B", r"[^\W]", r"\s"])
        if kind < 0.82:
            return choice(["(?:%s)", "(?:%s)", "(?=%s)", "(?!%s)"]) % self.any(depth - 1)
        if kind < 0.9:
            return choice([r"\b", r"\B", "^", "$", r"\Z", r"\A"])
        if kind < 0.95:
            return choice(["(?<=%s)", "(?<!%s)"]) % choice(
                ["a", "ab", "[ab]b", "a|b", "^a", r"a\b"]
            )
        return choice(["(?i:%s)", "(?m:%s)", "(?s:%s)"]) % self.any(depth - 1)

    def repeated(self, depth: int) -> str:
        atom = self.atom(depth)
        quantifier = self.rng.choice(
            ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{2,}"]
        )
        return f"(?:{atom}){quantifier}" if quantifier else atom

    def any(self, depth: int) -> str:
        return "|".join(
            "".join(self.repeated(depth) for _ in range(self.rng.randint(1, 3)))
            for _ in range(self.rng.choice([1, 1, 2]))
        )


def test_settled_matches_do_not_change():
    patterns = Patterns(0)
    rng, settled, open_ = patterns.rng, 0, 0
    endings = ["".join(e) for n in (1, 2) for e in itertools.product(ALPHABET, repeat=n)]
    for _ in range(500):
        some = [patterns.any(2) for _ in range(rng.choice([1, 1, 2, 3]))]
        compiled = re.compile("|".join(f"(?P<T{i}>{p})" for i, p in enumerate(some)))
        ways = Ways(some, 0)
        for _ in range(6):
            before = "".join(rng.choices(ALPHABET, k=rng.randint(0, 2)))
            text, at = before + "".join(rng.choices(ALPHABET, k=rng.randint(1, 4))), len(before)
            if ways.may_grow(text, at):
                open_ += 1
                continue
            settled += 1
            results = {
                (match.span(), match.lastgroup) if match else None
                for ending in ["", *endings]
                for match in [compiled.match(text + ending, at)]
            }
            assert len(results) == 1, (some, text, at)
    assert settled > 1_000
    assert open_ > 500


@pytest.mark.parametrize(
    ("patterns", "text", "grows"),
    [
        (["a"], "a", False),
        (["a+"], "a", True),
        (["a+"], "ab", False),
        (["a", "ab"], "a", False),  # the first is taken
        (["ab", "a"], "a", True),
        ([r"a\b"], "a", True),
        ([r"a\b"], "a ", False),
        (["a(?=bc)"], "ab", True),
        (["a(?!bc)"], "abd", False),
        (["a$"], "a\n", True),
        (["a$"], "a\nb", False),
        (['".*?"'], '"a', True),
        (['".*?"'], '"a"', False),
        ([r"(a|b)\1"], "ab", True),  # back-references are not followed
        (["(?:a{90}){90}b"], "a", True),  # too large to be followed
        (["b"], "a", False),
    ],
)
def test_when_a_match_is_settled(patterns, text, grows):
    assert Ways(patterns, 0).may_grow(text, 0) == grows


def test_masks_hold_every_match():
    """Terminals that need Lark; the mask alone, on texts that `re` matches as a whole."""
    patterns = Patterns(1)
    found = 0
    for _ in range(150):
        pattern = patterns.any(2)
        if "/" in pattern or "\n" in pattern or parse_pattern(pattern).getwidth()[0] == 0:
            continue
        try:
            grammar = Grammar.lark(f"start: T\nT: /{pattern}/\n", parser="earley")
        except ValueError as error:
            assert "no text is in the language" in str(error) or "never ends" in str(error)
            continue
        compiled = re.compile(pattern)
        for n in range(1, 5):
            for letters in itertools.product("ab B\n", repeat=n):
                text = "".join(letters)
                match = compiled.match(text)
                if match and match.group() == text:
                    assert grammar.accepts(text), (pattern, text)
                    found += 1
    assert found > 1_000


def test_character_sets_are_those_of_python():
    """Also with case ignored, on every character with case and some without."""
    chars = [chr(c) for c in range(0x250)] + list("ſKİıµΜμßẞςσΣǅǆǄﬅﬆ٣一\u2028\u3000")
    for source in [
        "a",
        "i",
        "k",
        "s",
        "[^k]",
        "[a-z]",
        r"[^\W\d]",
        r"\d",
        r"[^\s]",
        "µ",
        "[ß-ö]",
        "ǆ",
    ]:
        for flags in (0, re.IGNORECASE, re.IGNORECASE | re.ASCII, re.ASCII):
            tree = parse_pattern(source, flags)
            (op, value), *_ = tree
            test = char_test(str(op), frozen(value), flags)
            compiled = re.compile(source, flags)
            _, mask = char_set(str(op), frozen(value), flags)
            for c in chars:
                expected = compiled.fullmatch(c) is not None
                assert test(c) == expected, (source, flags, c)
                assert not expected or mask >> min(ord(c), 128) & 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_pattern("[[a]")
