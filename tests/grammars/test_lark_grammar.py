"""Lark grammars: the texts that they derive, or a refusal with line and column."""

from __future__ import annotations

import itertools
import random
import re

import lark
import pytest

from smcprog import Grammar, GrammarError

from .derive import derived_texts

# Grammar, alphabet, longest text.
AGREE = [
    ('start: STEM SUFFIX\nSTEM: "a" | "aba"\nSUFFIX: "bc"', "abc", 6),
    ("start: (/aaa/ | /a+b+z/) /b+x/", "abxz", 6),
    ("start: /ab*/ /bc?/", "abc", 6),
    ('start: "a" "b" | "ab" "c"', "abc", 4),
    ('start: "(" start ")" | STEM SUF\nSTEM: "a" | "ab"\nSUF: "bc" | "c"', "()abc", 5),
    ('start: "(" start ")" | /ab*/ /bc?/', "()abc", 5),
    ('start: x*\nx: "a" x "b" | "c"', "abc", 6),
    ('start: A B\nA: "a"+\nB: "b"\n%ignore " "', "ab ", 6),
    ('start: x\nx: "a" x "b" | "a"\n%ignore " "', "ab ", 6),
    ('start: e\ne: t ("+" t)*\nt: N | "(" e ")"\nN: /[01]+/', "01+()", 5),
    ('start: e\ne: t ("+" t)*\nt: N | "(" e ")"\nN: /[01]+/\n%ignore " "', "0+( )", 5),
    ('start: l\nl: "(" i* ")"\ni: A | l\nA: /[ab]+/\n%ignore " "', "ab( )", 5),
    ('start: ["a"] "b"~2..3 ("c" | "d")?', "abcd", 5),
    ('start: "a"~2 | b\nb: "b" b? "a"', "ab", 7),
    ('start: x\nx: y x | y\ny: "a" | "b" "b"', "ab", 6),
    ('start: x x\nx: "a"? y\ny: "b" y "c" | ', "abc", 5),
    ('start: w | "[" start "]"\nw: "a" w? ', "a[]", 6),
    ('start: k | n\nk: "if" n\nn: /[a-fi]+/', "ifa", 5),
    ('start: s*\ns: "if" n ";" | n "=" s | ";"\nn: /[fi]+/', "if=;", 5),
    ('start: (A|B) start? C\nA: "a"\nB: "ab"\nC: "c" | "bc"', "abc", 6),
    ('?start: "a" -> one\n     | b // comment\n!b: "b"i # other\n', "abAB", 3),
    ('start: A\nA: "a".."c" /[0-9]/ | B~2\nB: "\\x62\\u0063"', "abc1", 4),
    ('start: [A | B]\n_C: "c"\nA: "a" _C?\nB: /b+/i', "abcB", 3),
    ('start: A b\nA.3: "a" | "ab"\nb.-2: "b" | A -> x\n', "ab", 5),
    ('start: _sep{A, ","} "."\n_sep{x, s}: x (s x)*\nA: "a"+', "a,.", 6),
    ('start: two{"a"} two{b}\ntwo{x}: x x | "(" two{x} ")"\nb: "b" | "c"', "abc(", 5),
    ('start: on{two, "a"}\non{t, x}: t{x} "b" t{x}\ntwo{x}: x | x x', "ab", 6),
    ("start: A\nA: /a b # c\n  | c+ [ ]/x", "abc #", 4),
    ('start: A "." | "b" start\nA: /[a b]c/mx', "abc. ", 4),
    ("start: A B\nA: /.a/s\nB: /[ab]./i", "abB\n", 4),
    ('start: a\na: "a"\n%override a: "b"\n%extend a: "c" a', "abc", 4),
    ('start: A+\nA: "a"\n%extend A: "bc"', "abc", 4),
]


def accepted_texts(grammar: Grammar, alphabet: str, length: int) -> set[str]:
    words = ("".join(w) for n in range(length + 1) for w in itertools.product(alphabet, repeat=n))
    return {w for w in words if grammar.accepts(w)}


@pytest.mark.parametrize(("text", "alphabet", "length"), AGREE)
def test_accepts_what_is_derived(text, alphabet, length):
    derived = derived_texts(text, alphabet, length)
    assert derived
    assert accepted_texts(Grammar.lark(text), alphabet, length) == derived


@pytest.mark.parametrize(("text", "alphabet"), [(g, a) for g, a, _ in AGREE])
def test_agrees_with_lark(text, alphabet):
    """Lark itself, trying every length of every terminal; slow, so on shorter texts."""
    reference = lark.Lark(text, parser="earley", lexer="dynamic_complete")
    grammar = Grammar.lark(text)
    for n in range(4):
        for letters in itertools.product(alphabet, repeat=n):
            word = "".join(letters)
            try:
                reference.parse(word)
                expected = True
            except lark.exceptions.LarkError:
                expected = False
            assert grammar.accepts(word) == expected, word


PIECES = [
    "/a+/", "/ab?/", "/[ab]/", "/a|ab/", '"a"', '"b"', '"ab"', '"ba"', '"c"', "/b*c/", "/(a|)/",
    "/[ab]+c?/", '"aba"', "/a*/", "/[^a]/", '"a"~2', '"a".."b"', '"B"i',
]  # fmt: skip


def random_grammar(rng: random.Random) -> str:
    """A few rules and terminals that get in each other's way."""
    terminals = [f"T{i}" for i in range(rng.randint(1, 3))]
    rules = ["start", "x", "y"][: rng.randint(1, 3)]

    def symbol() -> str:
        kind = rng.choice([rules, terminals, PIECES])
        return f"({rng.choice(kind)}){rng.choice(['', '', '', '?', '*', '+'])}"

    def option() -> str:
        return " ".join(symbol() for _ in range(rng.choice([1, 1, 2, 2, 3])))

    lines = [f"{n}: " + " | ".join(option() for _ in range(rng.randint(1, 3))) for n in rules]
    if rng.random() < 0.6:
        lines[0] = lines[0].replace("start: ", 'start: "c" start "c" | ')
    for terminal in terminals:
        lines.append(f"{terminal}: {rng.choice(PIECES)} | {rng.choice(PIECES)}")
    if rng.random() < 0.25:
        lines.append('%ignore "_"')
    return "\n".join(lines) + "\n"


def test_random_grammars():
    rng = random.Random(0)
    compared = 0
    for _ in range(150):
        text = random_grammar(rng)
        try:
            grammar = Grammar.lark(text)
        except GrammarError as error:
            assert "derives no text" in str(error), text
            continue
        ignores = "%ignore" in text
        alphabet, length = ("abc_", 3) if ignores else ("abc", 4)
        derived = derived_texts(text, alphabet, length)
        assert accepted_texts(grammar, alphabet, length) == derived, text
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (
            'start: STEM SUFFIX\nSTEM: "list" | "listen"\nSUFFIX: "ed"',
            ["listed", "listened"],
            ["list"],
        ),
        ("start: (/aaa/ | /a+b+z/) /b+x/", ["aaabbx", "aabzbx"], ["aabbx"]),
        ("start: /aaa/ /a+b+z/ /b+x/", ["aaaabzbx"], ["aaabbx"]),
        ("start: /ab*/ /bc?/", ["abbbbc", "abbbb", "ab"], ["a", "c"]),
        ("start: /(a|)/", ["", "a"], ["aa"]),
        ("start: /[😀-🙏]+/", ["😀🙏"], ["🚀", ""]),
        (
            "start: ESCAPED_STRING\n%import common.ESCAPED_STRING",
            ['"a"', '""', r'"a\"b"', r'"\\"', '"é"'],
            ['"a', '"a"b"', r'"\"', '"a\nb"'],
        ),
        (
            'start: NAME "=" NUMBER\n%import common.CNAME -> NAME\n'
            "%import common (NUMBER, WS)\n%ignore WS",
            ["a1=1.5e3", " a = 1 ", "\n_x\t=\n.5"],
            ["1=1", "a=", "a==1", "a b=1"],
        ),
        ('start: A\nA: "x"\n%ignore " "', [" x", "x ", "  x  ", "x"], ["", " ", "xx"]),
        ('start: x\nx: "(" x ")" | "y"\n%ignore /[ ]/', [" y ", " ( y ) "], ["( )"]),
        ('start: "\\"" "\\\\" "\\n" "/" "\\t"', ['"\\\n/\t'], []),
        ('start: "a\\/b\\d"', ["a\\/b\\d"], ["a/bd", "a/b\\d"]),
        ("start: /a\\/b/ /[\\/]/", ["a/b/"], []),
        ("start: C\nC: A & B\nA: /[a-z]+/\nB: /.{2}/", ["ab"], ["a", "abc", "1a"]),
        ("start: C\nC: /[ab]+/ & ~/a+/", ["ab", "b"], ["a", "aa", ""]),
        ("start: ~/a/", ["", "b", "aa"], ["a"]),
        ('start: "(" start ")" | C "."\nC: /[ab]+/ & ~/a/\n', ["((ab.))", "b."], ["a.", "(ab."]),
        (
            'start: "(" i* ")"\ni: /[a-z]+/ | start\n%ignore " "',
            ["(ab cd(e))", " ( ) "],
            ["(A)", "a"],
        ),
        (
            'start: s*\ns: "for" N "in" N ":" | N "=" N\nN: /[a-z]+/\n%ignore " "',
            ["for x in y:", "forxiny:", "for=in x = y", "fo=f"],
            ["for x in y", "for x:"],
        ),
        (
            'start: "a"{2} | "b"{1,2} | "c"{,1} | "d"{3,}',
            ["aa", "b", "bb", "", "c", "dddd"],
            ["a", "dd"],
        ),
        ('start: ("a" |\n"b"\n) "c"\n\n   | "d"\n', ["ac", "bc", "d"], ["a"]),
        (
            "start: C_COMMENT LINE\n%import common.C_COMMENT\n%import common.SQL_COMMENT -> LINE",
            ["/* a ** b */-- x", "/**/--"],
            ["/* */ */--"],
        ),
        ("start: start A | A\nA: /a/", ["a", "aaa"], ["", "b"]),
        ('start: e start "a" | "b"\ne: start?', ["b", "ba", "bba", "baba"], ["", "a", "ab"]),
        ('start: start | x | "a"\nx: start', ["a"], ["", "aa"]),
        ("start:\n", [""], ["a"]),
        ('start: ""', [""], ["a"]),
    ],
)
def test_particular_texts(text, inside, outside):
    grammar = Grammar.lark(text)
    assert [t for t in inside if not grammar.accepts(t)] == []
    assert [t for t in outside if grammar.accepts(t)] == []


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ('start: "a\n', 1, 8, "a string that does not end"),
        ("start: /a\n", 1, 8, "a regular expression that does not end"),
        ("start: 'a'\n", 1, 8, "double quotes"),
        ("\n\nstart: foo\n", 3, 8, "foo is not defined"),
        ("start: FOO\n", 1, 8, "FOO is not defined"),
        ('start: "a"\nstart: "b"\n', 2, 1, "defined twice"),
        ('start: "a" ("b"\n', 2, 1, r"expected '\)'"),
        ('start "a"\n', 1, 7, "expected ':'"),
        ("start: /(/\n", 1, 8, "unterminated group at position 0"),
        ("start: A\nA: /[.*/\n", 2, 4, "unterminated character class"),
        ("start: A\nA{X}: X\n", 2, 2, "A: templates are for rules"),
        ("start: A\nA: sep{A}\nsep{x}: x\n", 2, 4, "templates are for rules"),
        ('start: sep{"a"}\nsep{x, y}: x y\n', 1, 8, "1 arguments, but the template has 2"),
        ('start: "b" sep{"a"}\n', 1, 12, "sep is not defined"),
        ('start: sep{"a"}\nsep: "b"\n', 1, 8, "sep is no template"),
        ("start: sep\nsep{x}: x\n", 1, 8, "sep is a template, and needs arguments"),
        ('start: sep{"a"}\nsep{x, x}: x\n', 2, 1, "the parameter x occurs twice"),
        ('start: sep{"a"}\nsep{y}: y\ny: "b"\n', 2, 1, "the parameter y is a rule, too"),
        ('start: t{A}\nt{x}: "a" t{s{x}} | x\ns{y}: y "b"\nA: "a"', 2, 11, "more than 2000 uses"),
        ('start: "a"\n%override b: "b"\n', 2, 1, "%override b: it is not defined before"),
        ('start: "a"\n%extend b: "b"\n', 2, 1, "%extend b: it is not defined before"),
        ('start: s{"a"}\ns{x}: x\n%extend s{x, y}: x\n', 3, 1, "other parameters"),
        ('__a: "a"\nstart: __a\n', 1, 1, "unexpected '_'"),
        ("start: /a/l\n", 1, 8, "flag l"),
        ('%declare _INDENT\nstart: _INDENT "a"\n', 1, 1, "%declare .*post-lexer"),
        ("%import .other.x\nstart: x\n", 1, 1, "relative imports need the grammar to be a file"),
        ("start: X\n%import common.NOPE -> X\n", 2, 1, "common.NOPE: there is no such terminal"),
        ('start: A\nA: "a" | A "b"\n', 2, 1, "the terminal A refers to itself"),
        ('start: A\nA: b\nb: "b"\n', 2, 4, "a terminal is made of terminals"),
        ('start: "a"\n%ignore WS\n', 2, 9, "WS is not defined"),
        ('start: "a"\n%ignore b\nb: "b"\n', 2, 9, "a terminal is made of terminals"),
        ("start: a\na: a\n", 1, 1, "start derives no text"),
        ('start: "x" | "y" a\na: "(" a ")"\n', 2, 1, "a derives no text"),
        ("start: <|im_end|>\n", 1, 8, "special token"),
        ("start: <[10]>\n", 1, 8, "special token"),
        ("start: @other\n", 1, 8, "another grammar"),
        ('start[lazy]: "a"\n', 1, 6, "attributes of a rule"),
        ('start: a::1\na::_: "x"\n', 1, 8, "parametric"),
        (
            '%llguidance {"allow_invalid_utf8": true}\nstart: "a"\n',
            1,
            1,
            "options .* not supported",
        ),
        ('start: %regex {"substring_chars": "ab"}\n', 1, 8, "%regex is not supported"),
        ('start: %lark { start: "a" }\n', 1, 8, "nested grammar"),
        ("start: %json {bad}\n", 1, 8, "followed by a JSON value"),
        ('start: "b".."a"\n', 1, 8, "a range goes from"),
        ('start: "a"~3..2\n', 1, 11, "a repeat from 3 to 2"),
        ('start: "a"*+\n', 1, 12, "two repeats in a row"),
        ('start: "\\ud800"\n', 1, 8, "bad escape"),
        ("start: a & B\nB: /a/\na: B\n", 1, 8, "for terminals, not for rules"),
        ('start: "(" start ")" | C "b"\nC: /[ab]+/ & ~/a/\n', 2, 4, "& or ~ cannot be told"),
        ('start: %json {"type": "integer"} /[0-9]/\n', 1, 8, "%json cannot be told"),
        ("start: " + "(" * 3000, 1, 33, "nested groups"),
    ],
)
def test_refused_by_name_and_place(text, line, column, message):
    with pytest.raises(GrammarError, match=rf"^grammar, line {line}, column {column}: .*{message}"):
        Grammar.lark(text)


def test_no_start_and_too_much():
    for text in ["", 'other: "a"\n']:
        with pytest.raises(GrammarError, match="no rule `start`"):
            Grammar.lark(text)
    with pytest.raises(GrammarError, match="at most 2000"):
        Grammar.lark('start: "a"\n' + "".join(f'r{i}: "b"\n' for i in range(2001)))
    with pytest.raises(GrammarError, match="characters; at most"):
        Grammar.lark('start: "a"\n' + "// x\n" * 200_000)


@pytest.mark.parametrize(
    "text",
    [
        "start: " + "(" * 30_000,
        "start: " + "(" * 30_000 + '"a"' + ")" * 30_000,
        "start: /" + "(" * 30_000 + "/",
        "start: /" + "(" * 30_000 + "a" + ")" * 30_000 + "/",
        "start: /" + "(" * 300 + "a(?=b)" + ")" * 300 + "b/",
        "start: /" + "(?:" * 120 + "a" + ")*" * 120 + "/x",
        'start: t{A, A}\nt{x, y}: t{s{x}, y} | t{x, s{y}}\ns{y}: y y\nA: "a"',
        "start: " + "[A] " * 40 + "B\nA: /a(?=b)/\nB: /b/",
        'start: "a"~1000000',
        "start: A\nA: B\nB: A",
        'start: x\nx: y "a"\ny: x',
    ],
)
def test_attacks_are_refused(text):
    with pytest.raises(GrammarError, match=r"^grammar, line \d+(, column \d+)?: .{,200}$"):
        Grammar.lark(text)


def test_a_file(tmp_path):
    path = tmp_path / "g.lark"
    path.write_text('start: "é"\n', encoding="utf-8")
    for source in (path, str(path)):
        grammar = Grammar.lark(source)
        assert grammar.accepts("é")
        assert grammar.name == "Grammar(g.lark)"
    with pytest.raises(GrammarError, match=r"cannot read the grammar file .*nope\.lark"):
        Grammar.lark(str(tmp_path / "nope.lark"))
    with pytest.raises(GrammarError, match=r"a str, a path or a lark\.Lark object"):
        Grammar.lark(3)


def test_explain():
    explained = Grammar.lark('start: "(" start ")" | "a"').explain()
    assert "every text that the grammar derives" in explained
    assert "checked besides: nothing" in explained


STRINGS = [
    r"a\nb",
    r"\t\r\f",
    r"\"q\"",
    r"\\",
    r"\\n",
    r"\d\w",
    r"\x41\u00e9\U0001F600",
    r"\/",
    r"\b",
    "é😀",
    r"a\\\"b",
    r"\x4",
    "//",
    "#",
]


@pytest.mark.parametrize("body", STRINGS)
def test_string_escapes_are_those_of_lark(body):
    text = f'start: A\nA: "{body}"\n'
    try:
        (terminal,) = lark.Lark(text, parser="earley").terminals
    except (lark.exceptions.LarkError, SyntaxError):
        with pytest.raises(GrammarError, match="bad escape"):
            Grammar.lark(text)
        return
    value = terminal.pattern.value
    assert re.escape(value) == terminal.pattern.to_regexp()
    assert Grammar.lark(text).accepts(value)
