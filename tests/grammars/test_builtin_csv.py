"""The built-in CSV grammar against Python's reader."""

from __future__ import annotations

import csv as stdlib_csv
import io
import random
import re

import pytest

from smcprog import Grammar, GrammarError, SettingError
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars import csv
from smcprog.potentials.base import Request
from smcprog.testing import check_potential

VALID = [
    "a,b\n1,2", "a,b\r\n1,2\r\n", "a", "a\nb\n", "a,b\n", ",\n,", '""', '""\n"x"', '"a,b",c\nd,e',
    '"a\nb",c\nd,e', '"he said ""no""",1\n2,3', " a , b ", "é,😀", "a\tb,c", ",,", "a'b,#",
]  # fmt: skip
INVALID = [
    "", "\n", "a\n\n", "\na", "a,b\n1", "a\n1,2", "a,b\n1,2,3", '"a', 'a"b', '"a"b', '"a" ,b',
    "a,b\n\n", "a\x00b", "a\rb", "a,b\n1,2\n3", '"a,b\nc,d',
]  # fmt: skip


def read(text: str, delimiter: str = ",") -> list[list[str]]:
    return list(stdlib_csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar(csv)


@pytest.mark.parametrize("text", VALID)
def test_valid_tables(grammar, text):
    assert grammar.accepts(text)
    assert len({len(row) for row in read(text)} - {0}) == 1


@pytest.mark.parametrize("text", INVALID)
def test_invalid_tables(grammar, text):
    assert not grammar.accepts(text)


def random_rows(rng: random.Random, columns: int) -> list[list[str]]:
    def field() -> str:
        return "".join(rng.choice('ab ,;"\n\té') for _ in range(rng.randrange(4)))

    return [[field() for _ in range(columns)] for _ in range(rng.randrange(1, 4))]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
def test_what_python_writes_is_accepted(grammar, delimiter):
    rng = random.Random(0)
    grammars = {n: Grammar(csv(n, delimiter=delimiter)) for n in (1, 2, 3)}
    free = Grammar(csv(delimiter=delimiter))
    for _ in range(60):
        columns = rng.randrange(1, 4)
        rows = random_rows(rng, columns)
        out = io.StringIO()
        stdlib_csv.writer(
            out, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]),
            quoting=rng.choice([stdlib_csv.QUOTE_MINIMAL, stdlib_csv.QUOTE_ALL]),
        ).writerows(rows)  # fmt: skip
        text = out.getvalue()
        assert read(text, delimiter) == rows
        for n, fixed in grammars.items():
            assert fixed.accepts(text) == (n == columns), text
        assert free.accepts(text), text


def test_short_texts_agree_with_python(grammar):
    """Random texts of the signs that matter: accepted where Python reads equal rows."""
    rng = random.Random(1)
    quoted = re.compile(r'(?:^|(?<=[,\n]))"(?:[^"]|"")*"(?=[,\n]|\Z)')
    accepted = 0
    for _ in range(1500):
        text = "".join(rng.choice('a,"\n') for _ in range(rng.randrange(1, 9)))
        try:
            rows = read(text)
            valid = len({len(row) for row in rows}) == 1 and rows[0] != []
        except stdlib_csv.Error:
            valid = False
        if grammar.accepts(text):
            accepted += 1
            assert valid, text
        elif valid:
            # Python lets quotes through inside a plain field, which is no CSV.
            assert '"' in quoted.sub("q", text), text
    assert accepted > 100


def test_columns_with_names():
    table = Grammar(csv(["name", 'a "b"', "x,y"]))
    assert table.accepts('name,"a ""b""","x,y"\n1,2,3')
    assert table.accepts('name,"a ""b""","x,y"')
    assert not table.accepts("1,2,3")
    assert not table.accepts('name,"a ""b""","x,y"\n1,2')
    assert Grammar(csv(["a", "b"], header=False)).accepts("1,2\n3,4")
    assert "checked besides: nothing" in table.explain()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((), {"delimiter": "ab"}, GrammarError, "delimiter is one of"),
        ((), {"delimiter": '"'}, GrammarError, "delimiter is one of"),
        ((), {"header": True}, GrammarError, "needs the names"),
        ((2,), {"header": True}, GrammarError, "needs the names"),
        ((0,), {}, SettingError, "columns"),
        ((True,), {}, SettingError, "columns"),
        (([],), {}, SettingError, "number of columns"),
        ((["a\n"],), {}, GrammarError, "control"),
        (("ab",), {}, GrammarError, "list of names, got str"),
    ],
)
def test_bad_options_are_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        csv(*arguments, **options)


def test_laws(grammar):
    tokens = [b"a", b",", b'"', b"\n", b'",', b'""', b"\xc3", b"\xa9", b"<eos>"]
    vocab = Vocabulary.from_tokens(tokens, [8])
    request = Request(
        prompt="", prompt_tokens=(), vocab=vocab, max_tokens=16, truncate=False, stop=()
    )
    check_potential(grammar, request, samples=40, max_length=7)
