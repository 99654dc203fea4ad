"""Lark grammars of several files, and Lark's own."""

from __future__ import annotations

import itertools

import lark
import pytest

from smcprog import Grammar, GrammarError


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.lark"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def agrees(path, alphabet, length, **options):
    """Whether a grammar accepts what Lark's parser does; Lark reads the same files."""
    grammar = Grammar.lark(path, **options)
    reference = lark.Lark.open(str(path), lexer="dynamic_complete", **options)
    inside = 0
    for n in range(length + 1):
        for letters in itertools.product(alphabet, repeat=n):
            text = "".join(letters)
            try:
                reference.parse(text)
                expected = True
            except lark.exceptions.LarkError:
                expected = False
            assert grammar.accepts(text) == expected, text
            inside += expected
    assert inside


def test_imports_from_files(folder):
    path = folder(
        main="""
            %import .base.pair
            %import .sub.more (word, _sep)
            %import common.INT -> NUMBER
            %override pair: "(" word _sep NUMBER ")" | pair_of{NUMBER}
            pair_of{x}: x "+" x
            start: pair
            DIGIT: "x"
            """,
        base='pair: A A\nA: "a"\n%ignore "b"\n',
        sub__more="%import ..base.A\n".replace("..", ".") + 'word: A _sep? B\nB: "b"\n_sep: "," \n',
        sub__base='A: "a"~1..2\n',
    )
    agrees(path / "main.lark", "a,(1+)", 4)
    assert Grammar.lark(path / "main.lark").accepts("(aab,12)")


def test_names_of_other_files_stay_apart(folder):
    """What an imported rule needs is its own, whatever the importing file calls alike."""
    path = folder(
        main='%import .one (x)\n%import .two.x -> y\nstart: x y A\nA: "c"\nt: A\n',
        one='x: t A\nt: "a"\nA: "b"\n',
        two='x: t{A}\nt{z}: z z\nA: "d"\n',
    )
    grammar = Grammar.lark(path / "main.lark")
    assert grammar.accepts("abddc")
    assert not grammar.accepts("cbddc")
    agrees(path / "main.lark", "abcd", 5)
    # INT is made of common's DIGIT, not of this one.
    assert Grammar.lark('start: INT DIGIT\nDIGIT: "x"\n%import common.INT\n').accepts("12x")


def test_extending_what_is_imported(folder):
    path = folder(
        main='%import .base (start, B)\n%extend start: "c" start\n%extend B: "e"\n'
        '%override base__inner: "d"\n',
        base='start: inner B\ninner: "a"\nB: "b"\n',
    )
    agrees(path / "main.lark", "abcde", 3)


def test_folders_for_imports(folder):
    path = folder(lib__base='x: "a"\n', main="%import base.x\nstart: x\n")
    agrees(path / "main.lark", "ab", 2, import_paths=[str(path / "lib")])
    text = "%import .base.x\nstart: x\n"
    assert Grammar.lark(text, import_paths=[path / "lib"]).accepts("a")
    with pytest.raises(GrammarError, match=r"line 1, column 1: .*need the grammar to be a file"):
        Grammar.lark(text)


def test_grammars_that_lark_ships():
    """What is lazy there needs Lark; the rest is translated."""
    text = "start: name (HEX_NUMBER | WS)+\n%import python (name, HEX_NUMBER)\n%import unicode.WS\n"
    grammar = Grammar.lark(text)
    assert grammar.accepts("a_1 0x1F\xa0")
    assert not grammar.accepts("1a0x1F")
    assert grammar.accepts("match0X_f")
    string = Grammar.lark("start: string\n%import python.string\n")
    reference = lark.Lark("start: string\n%import python.string\n")
    for body in ["'a'", '"a\\"b"', '"""a"\nb"""', "'a\nb'", 'rb"x"', '"a" "b"', '""', '"""a"']:
        try:
            reference.parse(body)
            expected = True
        except lark.exceptions.LarkError:
            expected = False
        assert string.accepts(body) == expected, body
    with pytest.raises(GrammarError, match=r"_NEWLINE|_INDENT|post-lexer"):
        Grammar.lark("start: file_input\n%import python.file_input\n")


def test_common_is_as_in_lark():
    """Every terminal of `common`, alone, on mutations of its texts."""
    names = ["INT", "SIGNED_FLOAT", "NUMBER", "ESCAPED_STRING", "CNAME", "WS", "NEWLINE", "WORD"]
    names += ["SH_COMMENT", "CPP_COMMENT", "C_COMMENT", "SQL_COMMENT", "HEXDIGIT", "WS_INLINE"]
    texts = ["12", "-1.5e+3", ".5", "1.", '"a\\"b"', '"\\\\"', '"a\nb"', "a_1", "1a", " \t\n"]
    texts += ["\r\n", "\r", "f", "G", "# x", "# x\n", "// x", "/* a ** / b */", "/**/", "/* */ */"]
    texts += ["-- x", ""]
    for name in names:
        text = f"start: X\n%import common.{name} -> X\n"
        reference, grammar = lark.Lark(text, lexer="dynamic_complete"), Grammar.lark(text)
        assert "nothing" in grammar.explain()
        for one in texts:
            try:
                reference.parse(one)
                expected = True
            except lark.exceptions.LarkError:
                expected = False
            assert grammar.accepts(one) == expected, (name, one)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"main": "%import .b.x\nstart: x\n", "b": "\n%import .main.start\nx: start\n"},
            r"^grammar b\.lark, line 2, column 1: .*in a circle",
        ),
        (
            {"main": "start: x\n%import .b.x\n"},
            r"line 2, column 1: %import \.b: there is no b\.lark",
        ),
        ({"main": "start: x\n%import x\n"}, "line 2, column 1: %import x: nothing is imported"),
        (
            {"main": "%import .b.x\nstart: x\n", "b": 'x: "a\n'},
            r"^grammar b\.lark, line 1, column 4: a string that does not end",
        ),
        (
            {"main": "%import .b.x\nstart: x\n", "b": "\nx: y\n"},
            r"^grammar b\.lark, line 2, column 4: b__y is not defined",
        ),
        (
            {"main": "%import .b.x\nstart: x\n", "b": 'x: "a" y?\ny: "b" y\n'},
            r"^grammar b\.lark, line 2, column 1: b__y derives no text",
        ),
        (
            {"main": '%import .b.x\nstart: x\nx: "b"\n', "b": 'x: "a"\n'},
            "line 3, .*x is defined twice",
        ),
        ({"main": "%import .b.x -> X\nstart: X\n", "b": 'x: "a"\n'}, "x cannot be called X"),
        (
            {"main": "%import .b.x\n%import .b.x -> y\nstart: x\n", "b": 'x: "a"\n'},
            "line 2, column 1: .*x is imported twice, as x and as y",
        ),
        (
            {f"c{i}": f"%import .c{i + 1}.x\nstart: x\n" for i in range(30)}
            | {"main": "%import .c0.x\nstart: x\n"},
            "20 inside each other",
        ),
    ],
)
def test_refused_imports(folder, files, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.lark(folder(**files) / "main.lark")
