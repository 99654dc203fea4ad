"""Regular expressions: what Python's `re.fullmatch` says, or a refusal with the position."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog import Grammar, GrammarError

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("ab0-", repeat=n)]


def agree(pattern: str, texts) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python warns of some classes
        compiled = re.compile(pattern)
    grammar = Grammar.regex(pattern)
    for text in texts:
        assert grammar.accepts(text) == (compiled.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a", "(a|)", "(|a)b", "a*b*", "a?b+", "[ab]+0", "(?:ab)*", "(a)(?P<n>b)", "a{2}",
        "a{2,}", "a{,2}", "a{1,2}b", "a{", "a{x}", "{a}", "^ab$", "^a|b$", "(^a|b)0?$", r"\Aa\Z",
        "a+?b*?", "[^a]", "[]a]", "[^]a]", "[a-]", "[-a]", "[a&&b]+", "[!--]", "[+--]", "[[a]",
        "[ab][0]*", "(?i)AB", "(?i:A)b", "(?s).", ".", r"\d+", r"\w+", r"\W", r"[\d-]+", r"\-",
        "11[01]+|0[01]*", "a(?#comment)b", "((a)|(b))*", "a|b|", "", "-", "~|&|#", "(?u)a",
    ],
)  # fmt: skip
def test_agrees_with_python(pattern):
    agree(
        pattern, [*TEXTS, "{", "&", "[", "]", "AB", "Ab", "\n", "é", "a{", "a{x}", "{a}", ",", "+"]
    )


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"a/b//c", ["a/b//c"], ["a/b/c"]),
        ("a\nb", ["a\nb"], ["ab", "a\\nb"]),
        (r"\n\t\x41é\U0001F600", ["\n\tAé😀"], ["n"]),
        ("[😀-🙏]+", ["😀", "🙏😁"], ["", "🚀", "a"]),
        (r"\d{4}-\d\d-\d\d", ["2024-02-29"], ["2024-2-29", "2024-02-299"]),
        (r"\p{Lu}+", ["ÀB"], ["à"]),
        ('"[^"]*"', ['"a b"'], ['"a', '"a"b"']),
        (re.compile("ab.", re.IGNORECASE | re.DOTALL), ["AB\n"], ["a\n"]),
        (r"//[^\n]*", ["// x"], ["/"]),
        ("#&~|%json {}", ["#&~", "%json {}"], ["%"]),
    ],
)
def test_particular_texts(pattern, inside, outside):
    grammar = Grammar.regex(pattern)
    assert [t for t in inside if not grammar.accepts(t)] == []
    assert [t for t in outside if grammar.accepts(t)] == []


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("[.*", 0, "unterminated character class"),
        ("a(b", 1, "unterminated group"),
        ("ab)", 2, "unmatched"),
        ("*a", 0, "nothing to repeat"),
        ("a**", 2, "multiple repeat"),
        ("a++", 2, "possessive"),
        ("[z-a]", 3, "bad character range"),
        ("a{3,2}", 1, "min repeat greater"),
        (r"\q", 0, "unknown escape"),
        ("ab(?=c)", 2, "look-ahead"),
        ("(?!a)", 0, "negative look-ahead"),
        ("a(?<=b)", 1, "look-behind"),
        ("(?<!b)a", 0, "negative look-behind"),
        (r"(a)\1", 3, "back-reference"),
        (r"(?P<x>a)(?P=x)", 8, "back-reference"),
        (r"a\b", 1, "word boundary"),
        ("a^b", 1, "anchor"),
        ("a$b", 1, "anchor"),
        ("(?m)^a", 0, "flag m"),
        ("(?x)a b", 0, "flag x"),
        ("[[:alpha:]]", 1, "POSIX"),
        (r"\p{Nonsense}", 0, "Unicode property"),
        ("a\\", 1, "backslash"),
        ("(?>a)", 0, "atomic"),
        ("a{1000000000}", 1, "more than"),
        ("(" * 30000, 100, "nested groups"),
    ],
)
def test_refused_with_position(pattern, position, reason):
    with pytest.raises(GrammarError, match=f"position {position}: .*{reason}"):
        Grammar.regex(pattern)


def test_empty_language_and_wrong_types():
    with pytest.raises(GrammarError, match="no text is in the language"):
        Grammar.regex(r"a[^\s\S]")
    with pytest.raises(GrammarError, match="a regex is a str"):
        Grammar.regex(b"a")
    with pytest.raises(GrammarError, match="flag m"):
        Grammar.regex(re.compile("a", re.MULTILINE))


def patterns():
    atom = st.sampled_from(["a", "b", "0", "-", "[ab]", "[^a]", r"\d", ".", "(?:a|)"])
    return st.recursive(
        atom,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,1}", "*?"])).map(
                lambda p: f"(?:{p[0]}){p[1]}"
            ),
        ),
        max_leaves=6,
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(patterns())
def test_random_patterns_agree_with_python(pattern):
    agree(pattern, TEXTS[:: 1 + len(TEXTS) // 90])


@pytest.mark.parametrize("escape", [r"\d", r"\s", r"\w"])
def test_classes_are_those_of_python(escape):
    """On all assigned characters of the first planes' beginnings, where Unicode is stable."""
    grammar = Grammar.regex(escape)
    compiled = re.compile(escape)
    texts = [chr(c) for c in range(0x250)] + list("٣߀²½Ⅷ一\u2003\u3000\u200b\ufeff")
    assert [t for t in texts if grammar.accepts(t) != bool(compiled.fullmatch(t))] == []
