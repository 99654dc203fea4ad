"""`lark.Lark` objects, and texts that need Lark: accepted exactly where Lark's parser accepts."""

from __future__ import annotations

import itertools
import random

import lark
import pytest
import torch
from lark.indenter import Indenter

from smcprog import Grammar, GrammarError
from smcprog.engine.vocab import Vocabulary
from smcprog.potentials.base import Request
from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.potentials.matchers import compiled_bytes

PARSERS = [
    {"parser": "lalr"},
    {"parser": "lalr", "lexer": "basic"},
    {"parser": "earley"},
    {"parser": "earley", "lexer": "dynamic_complete"},
    {"parser": "earley", "lexer": "basic"},
    {"parser": "cyk"},
]

# Grammar, alphabet, longest text.
CASES = [
    ('start: "if" NAME | NAME\nNAME: /[if]+/\n%ignore " "', "if ", 4),
    ('start: IF x | x\nx: NAME\nIF: "if"\nNAME: /[a-i]+/\n', "ifa", 3),
    ("start: A B\nA: /a+/\nB: /ab/\n", "ab", 5),
    ('start: A+\nA: /a(?=b)b/ | /b(?!b)/ | "c"\n', "abc", 4),
    ('start: S+\nS: /".*?"/\n', '"ab', 4),
    ('start: (S "b")+\nS: "a" /.*?/ "a"\n', "ab", 6),
    ('start: N+\nN: /\\ba/ | /b\\b/ | "c"\n%ignore " "', "abc ", 3),
    ('start: e\ne: e "+" e | N\nN: /[01]+/', "01+", 4),
    ('start: "(" start ")" start |\n', "()", 6),
    ("start: K | V\nK.2: /ab/\nV: /a.?c?/\n", "abc", 4),
    ("start: (K | V | B)+\nK.2: /aa/\nV: /a+b/\nB: /b/\n", "ab", 5),
    ("start: (A|B)*\nA: /a$/\nB: /b|a/\n%ignore /\\n/", "ab\n", 4),
    ("start: A A?\nA: /^a/m | /(?<=b)c/ | /b\\n?/\n", "abc\n", 3),
    ("start: A C?\nA: /(a|b)\\1/i\nC: /c/\n", "aAbc", 3),
    ('start: s{"a"} | s{B}\ns{x}: x ("," x)*\nB: "b"i~1..2\n%ignore "_"', "aB,_", 4),
    ('start: "c" start "c" | T T\nT: /b[ab]*/ | "aba"\n', "abc", 5),
    ('start: a+ "b"?\n?a: A -> x | "(" _l ")"\n_l: a*\n!A.1: "a"\n'.replace("!A", "A"), "ab()", 4),
]


def words(alphabet, length):
    for n in range(length + 1):
        yield from map("".join, itertools.product(alphabet, repeat=n))


def parses(reference, text, start=None):
    try:
        reference.parse(text, start=start)
    except (lark.exceptions.LarkError, AssertionError, RuntimeError):
        return False
    return True


def compare(grammar, reference, texts):
    """Mask ⊇ language, the check alone is exact, and so are both; how many, and how many die."""
    inside = dead = 0
    (check,) = grammar._text.checks
    for text in texts:
        expected = parses(reference, text)
        data = text.encode()
        matcher = compiled_bytes(grammar._text).deep_copy()
        masked = matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()
        state = check.begin()
        for byte in data:
            state = state.feed(bytes([byte]))
            if state is None:
                break
        checked = state is not None and state.complete()
        assert checked == expected, text
        assert masked or not expected, text
        assert grammar.accepts(text) == expected, text
        inside += expected
        dead += state is None
    return inside, dead


@pytest.mark.parametrize("options", PARSERS, ids=lambda o: "-".join(o.values()))
def test_accepts_what_lark_parses(options):
    refused = inside = dead = 0
    for text, alphabet, length in CASES:
        try:
            reference = lark.Lark(text, **options)
            grammar = Grammar.lark(reference)
        except (lark.exceptions.LarkError, GrammarError) as error:
            assert "CYK doesn't" in str(error) or "back-reference" in str(error)
            refused += 1
            continue
        new_inside, new_dead = compare(grammar, reference, words(alphabet, length))
        inside += new_inside
        dead += new_dead
    assert refused <= 5
    assert inside > 150
    assert dead > 400  # wrong texts are found out before they are finished


PIECES = [
    "/a+/", "/ab?/", "/[ab]/", "/a|ab/", '"a"', '"b"', '"ab"', "/a(?=b)/", "/b(?!a)/", "/.+?b/",
    "/(?<!a)b/", '"c"', "/b*c/", '"aba"', "/\\ba/", "/c$/", '"B"i', "/[^a]/", '"a" /b?/',
    "/[ab]+/", "/[a-c]+/", "/b[ab]*/", '"bab"',
]  # fmt: skip


def random_grammar(rng):
    """A few rules and terminals that get in each other's way."""
    terminals = [f"T{i}" for i in range(rng.randint(1, 3))]
    rules = ["start", "x", "y"][: rng.randint(1, 3)]

    def symbol():
        kind = rng.choice([rules[1:] or terminals, terminals, PIECES])
        return f"({rng.choice(kind)}){rng.choice(['', '', '', '?', '*', '+'])}"

    def option():
        return " ".join(symbol() for _ in range(rng.choice([1, 1, 2, 3])))

    lines = [f"{n}: " + " | ".join(option() for _ in range(rng.randint(1, 2))) for n in rules]
    if rng.random() < 0.5:
        lines[0] = lines[0].replace("start: ", 'start: "c" start "c" | ')
    for terminal in terminals:
        priority = rng.choice(["", "", ".2"])
        lines.append(f"{terminal}{priority}: {rng.choice(PIECES)} | {rng.choice(PIECES)}")
    if rng.random() < 0.3:
        lines.append('%ignore "_"')
    return "\n".join(lines) + "\n"


def test_random_grammars():
    rng = random.Random(0)
    compared = 0
    for _ in range(100):
        text, options = random_grammar(rng), rng.choice(PARSERS[:5])
        try:
            reference = lark.Lark(text, **options)
            grammar = Grammar.lark(reference)
        except lark.exceptions.LarkError:
            continue
        except GrammarError as error:
            assert "derives no text" in str(error), text
            continue
        alphabet = "abc_" if "%ignore" in text else "abc"
        texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 7))) for _ in range(25)]
        compare(grammar, reference, texts)
        compared += 1
    assert compared > 40


def test_a_text_that_needs_lark_is_what_lark_parses_by_default():
    text = 'start: STRING ("," STRING)*\nSTRING: /".*?(?<!\\\\)"/\n%ignore " "\n'
    grammar = Grammar.lark(text)
    assert 'parser="earley", lexer="dynamic"' in grammar.explain()
    compare(grammar, lark.Lark(text), words('",\\ ', 4))


def test_a_parser_may_be_named():
    text = "start: A B\nA: /a+/\nB: /ab/\n"
    assert Grammar.lark(text).accepts("aab")
    for options in PARSERS[:5]:
        assert not Grammar.lark(text, **options).accepts("aab") or "lexer" in options
    with pytest.raises(GrammarError, match=r'lark\.Lark\(parser="lalr"\) refuses it'):
        Grammar.lark('start: a | b\na: "x"\nb: "x"\n', parser="lalr")
    with pytest.raises(GrammarError, match=r"^grammar, line 2, column 1: .*Reduce/Reduce"):
        Grammar.lark('start: a | b\na: "x"\nb: "x"\n', parser="lalr")
    with pytest.raises(GrammarError, match="refuses it"):
        Grammar.lark(text, parser="lalr", lexer="dynamic")
    with pytest.raises(GrammarError, match=r"^grammar, line 1, column 8: .*look-around is left to"):
        Grammar.lark("start: /a?(?=b)/ /b/\n")


def test_priorities_choose_tokens_only_where_a_lexer_does():
    text = "start: K | V\nK.2: /ab/\nV: /a.?c?/\n"
    assert Grammar.lark(text).accepts("abc")
    assert not Grammar.lark(text, parser="lalr").accepts("abc")


class Blocks(Indenter):
    NL_type = "_NL"
    OPEN_PAREN_types = ("LPAR",)
    CLOSE_PAREN_types = ("RPAR",)
    INDENT_type = "_INDENT"
    DEDENT_type = "_DEDENT"
    tab_len = 2


TREE = r"""
start: (_NL | node)*
node: NAME [LPAR NAME* RPAR] _NL [_INDENT node+ _DEDENT]
NAME: /[a-z]/
LPAR: "("
RPAR: ")"
_NL: /(\r?\n[\t ]*)+/
%ignore " "
%declare _INDENT _DEDENT
"""


@pytest.mark.parametrize("parser", ["lalr", "earley"])
def test_an_indenter_is_followed(parser):
    reference = lark.Lark(TREE, parser=parser, postlex=Blocks(), lexer="basic")
    grammar = Grammar.lark(reference)
    texts = ["a\n", "a\n b\n", "a\n b\nc\n", "a\n b\n  c\n d\n", "a(\n b)\n", "a (b\n\n  c)\n d\n"]
    assert all(map(grammar.accepts, texts))
    rng = random.Random(1)
    for _ in range(300):
        text = list(rng.choice(texts))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randint(0, 1)] = rng.choice(["", " ", "\n", "a", "(", ")", "\t"])
        texts.append("".join(text))
    inside, dead = compare(grammar, reference, texts)
    assert inside > 15
    assert dead > 50
    assert grammar._text.checks[0].begin().feed(b"a\n  b\n c\n") is None


def test_line_ends_of_an_indenter_have_one_parse():
    """Blanks and line ends may stand anywhere: long runs of them must not tire the mask engine."""
    text = TREE.replace('%ignore " "', r"%ignore /[ \t]+/").replace("(_NL | node)*", "_NL* node")
    grammar = Grammar.lark(lark.Lark(text, parser="lalr", postlex=Blocks()))
    runs = ["".join(c) for n in range(1, 4) for c in itertools.product([" ", "\t", "\n"], repeat=n)]
    runs += [c * n for c in ("\n", "\r\n", "\n\t", " ") for n in range(4, 45)]
    vocab = Vocabulary.from_tokens([*(r.encode() for r in runs), b"a", b"<eos>"], [len(runs) + 1])
    state = grammar.start(Request("", (), vocab, 99), 1)
    for token in (runs.index("\n"), len(runs), runs.index("\n\n\n")):
        assert unpack_bitmask(grammar.mask(state), vocab.size)[0, : len(runs)].all()
        state, log_psi = grammar.advance(
            state, torch.tensor([[token]]), torch.tensor([1]), torch.tensor([False])
        )
        assert log_psi.item() == 0
    assert grammar.accepts("\n a\n\n\n") is False  # indented, and so it stays
    assert grammar.accepts("\na \t\n\n\n  a \n\t\n")


class Doubler(Blocks):
    def process(self, stream):
        for token in stream:
            yield token
            if token.type == "A":
                yield lark.Token("B", "")


def test_other_post_lexers_and_callbacks_are_checked_at_the_end():
    text = 'start: (A B)* "c"\nA: "a"\nB: "b"\nD: "d"\n'
    reference = lark.Lark(text, parser="lalr", lexer="basic", postlex=Doubler())
    grammar = Grammar.lark(reference)
    assert "on the finished text" in grammar.explain()
    compare(grammar, reference, words("abc", 4))
    assert grammar.accepts("aac")

    def rename(token):
        return token.update(type="A") if token == "b" else token

    reference = lark.Lark(text, parser="lalr", lexer="basic", lexer_callbacks={"B": rename})
    compare(Grammar.lark(reference), reference, words("abc", 4))


def test_start_rules():
    text = 'one: "1" two?\ntwo: "2" | "3" one\nstart: "s"\n'
    assert Grammar.lark(text, start="two").accepts("312")
    assert not Grammar.lark(text, start="two").accepts("1")
    assert Grammar.lark('a: "x" start | "y"\nstart: "z" a | "w"\n', start="a").accepts("xzy")
    several = lark.Lark(text, start=["one", "two"], parser="lalr")
    with pytest.raises(GrammarError, match=r"start rules \['one', 'two'\]; say which"):
        Grammar.lark(several)
    with pytest.raises(GrammarError, match="start='three'"):
        Grammar.lark(several, start="three")
    grammar = Grammar.lark(several, start="two")
    assert grammar.accepts("312")
    assert not grammar.accepts("1")
    assert Grammar.lark(lark.Lark(text, start="one")).accepts("12")
    with pytest.raises(GrammarError, match="no rule `three`"):
        Grammar.lark(text, start="three")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lark.Lark('start: "a"', parser=None, lexer="basic"), "for lexing only"),
        (lambda: lark.Lark('start: "a"', parser="lalr", use_bytes=True), "parses bytes"),
        (
            lambda: lark.Lark(
                'start: "a"', parser="lalr", lexer=type("Own", (lark.lexer.Lexer,), {
                    "__init__": lambda self, conf: None, "lex": lambda self, data: iter(())})
            ),
            "a lexer class",
        ),
        (
            lambda: lark.Lark('start: "a" | _X\n%declare _X\n', parser="lalr"),
            "line 2, column 1: _X is declared",
        ),
        (
            lambda: lark.Lark('start: "a" b?\nb: "(" b ")"\n', parser="lalr"),
            "line 2, column 1: b derives no text",
        ),
    ],
)  # fmt: skip
def test_objects_that_are_refused(make, message):
    with pytest.raises(GrammarError, match=message):
        Grammar.lark(make())


def test_options_that_do_not_go_together():
    with pytest.raises(GrammarError, match="has its own parser"):
        Grammar.lark(lark.Lark('start: "a"'), parser="lalr")
    with pytest.raises(GrammarError, match="no limit on its time"):
        Grammar.lark("start: /(a+)+(?=b)/ /b/\n", trusted=False)


def test_characters_split_between_tokens():
    grammar = Grammar.lark(lark.Lark('start: /[é😀]+/ "."', parser="lalr"))
    state = grammar._text.checks[0].begin()
    for byte in "é😀é.".encode():
        state = state.feed(bytes([byte]))
    assert state.complete()
    assert grammar.accepts("é.")
    assert not grammar.accepts("e.")


LANGUAGE = r"""
start: (stmt ";")+
stmt: NAME "=" expr | "if" expr "then" stmt | "print" expr | "in" INT
?expr: expr "+" atom | atom
?atom: INT | NAME | "(" expr ")" | ESCAPED_STRING
NAME: /[a-z_]\w*/
%import common (INT, ESCAPED_STRING, WS)
%ignore WS
"""


@pytest.mark.parametrize("lexer", ["contextual", "basic"])
def test_keywords_and_names_stay_whole_in_the_mask(lexer):
    """Lark never cuts a name short, so the mask need not provide for `ifx` as two tokens."""
    reference = lark.Lark(LANGUAGE, parser="lalr", lexer=lexer)
    grammar = Grammar.lark(reference)
    assert r"_NAME: /[a-z_]/ /[\p{L}\p{N}_]/*" in grammar.lark_text
    pieces = ["if", "then", "print", "in", "x", "i", "int", "_1", "12", "=", "+", "(", ")", ";"]
    pieces += ['"a;"', " ", " ", " ", "\n"]
    texts = [
        "x=1;",
        "if x then i=12;",
        "print(x+1);if x then in 1;",
        "in 1;int=in1+if_;",
        "x=1then;",
    ]
    texts += [
        "if 1then x=1;",
        "if x thenx=1;",
        "printx;",
        "print1;",
        'print"a;"+x ;',
        "in1;",
        "ifx=1;",
    ]
    rng = random.Random(2)
    for _ in range(400):
        words = list(rng.choice(texts[:4]).replace(" ", "~ ~").replace(";", "~;~").split("~"))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(words) + 1)
            words[at : at + rng.randint(0, 1)] = [rng.choice(pieces)]
        texts.append("".join(words))
    inside, dead = compare(grammar, reference, texts)
    assert inside > 30
    assert dead > 100


@pytest.mark.parametrize(
    ("name", "keyword"),
    [
        ("/[a-z]+?/", '"ab"'),  # the shortest
        ("/[a-z]{2}|[a-z]{4}/", '"ab"'),  # goes on without a match in between
        ("/(?:[a-z][a-z])+/", '"ab"'),
        ("/a|ab|abc/", '"ab"'),  # the first
        ("/[a-z]+/", 'K\nK.2: "ab"'),  # a keyword that goes before
        ("/[a-z]+/", '"ab" | "ab0"'),  # a keyword that the name does not cover
    ],
)
def test_names_that_lark_may_cut_short(name, keyword):
    text = f'start: "(" start ")" | (NAME | k)+\nNAME: {name}\nk: {keyword}\n'
    for options in PARSERS[:5]:
        reference = lark.Lark(text, **options)
        compare(Grammar.lark(reference), reference, ["(ab0)", *words("abc", 4), "(abab)", "(abcd)"])
