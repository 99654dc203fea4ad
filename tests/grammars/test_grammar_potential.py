"""Grammar as a potential: masks, values, shared matchers, the token cases that go wrong."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog import Grammar, PotentialError
from smcprog.engine.vocab import Vocabulary
from smcprog.potentials.base import Request
from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.testing import check_potential

EOS = b"<eos>"


def request(vocab: Vocabulary) -> Request:
    return Request(prompt="", prompt_tokens=(), vocab=vocab, max_tokens=16, truncate=False, stop=())


def vocabulary(*tokens: bytes, eos: tuple[int, ...] = ()) -> Vocabulary:
    """The tokens, with one EOS id after them unless `eos` names some."""
    return Vocabulary.from_tokens(tokens if eos else [*tokens, EOS], eos or [len(tokens)])


def step(grammar, state, rows, ended=None):
    """Advance by ragged rows; returns (state, list of log ψ)."""
    width = max(map(len, rows), default=0)
    tokens = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows], dtype=torch.int64)
    lengths = torch.tensor([len(r) for r in rows])
    ended_N = torch.tensor(ended or [False] * len(rows))
    state, log_psi_N = grammar.advance(state, tokens.view(len(rows), width), lengths, ended_N)
    assert log_psi_N.dtype == torch.float64
    return state, log_psi_N.tolist()


def allowed(grammar, state, vocab, row=0) -> set[int]:
    mask = grammar.mask(state)
    assert mask.dtype == torch.int32
    assert mask.shape == (len(state.rows), -(-vocab.size // 32))
    return set(unpack_bitmask(mask, vocab.size)[row].nonzero().flatten().tolist())


def after(grammar, vocab, tokens):
    state, (log_psi,) = step(grammar, grammar.start(request(vocab), 1), [tokens])
    return state, log_psi


def check_against_language(grammar, vocab, accepts, viable, depth: int) -> None:
    """Masks and values of every token sequence up to `depth`, against the definition."""
    eos = vocab.eos_ids[0]
    letters = [v for v in range(vocab.size) if vocab.token_bytes[v]]
    for n in range(depth + 1):
        for tokens in itertools.product(letters, repeat=n):
            data = b"".join(vocab.token_bytes[t] for t in tokens)
            state, log_psi = after(grammar, vocab, tokens)
            assert log_psi == (0.0 if viable(data) else -math.inf), data
            if not viable(data):
                assert allowed(grammar, state, vocab) == set()
                continue
            expected = {v for v in letters if viable(data + vocab.token_bytes[v])}
            complete = _is_text(data) and bool(accepts(data.decode()))
            assert allowed(grammar, state, vocab) == expected | ({eos} if complete else set()), data
            _, (ended,) = step(grammar, state, [(eos,)], [True])
            assert ended == (0.0 if complete else -math.inf), data


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def language_of(accepts, alphabet: str, length: int) -> set[str]:
    words = ("".join(w) for n in range(length + 1) for w in itertools.product(alphabet, repeat=n))
    return {w for w in words if accepts(w)}


def prefixes_of(language: set[str]):
    prefixes = {w.encode()[:n] for w in language for n in range(len(w.encode()) + 1)}
    return prefixes.__contains__


@pytest.mark.parametrize("tokens", [[b"0", b"1"], [b"0", b"1", b"11", b"010", b"1", b"10"]])
def test_mask_of_an_infinite_language(tokens):
    def viable(data: bytes) -> bool:
        return re.fullmatch(b"1?|11[01]*|0[01]*", data) is not None

    def accepts(text: str) -> bool:
        return re.fullmatch("11[01]+|0[01]*", text) is not None

    grammar = Grammar.regex("11[01]+|0[01]*")
    check_against_language(grammar, vocabulary(*tokens), accepts, viable, 3)


@pytest.mark.parametrize(
    ("grammar", "accepts", "tokens", "longest"),
    [
        (
            Grammar.regex("0{5}|1[01]{4}"),
            re.compile("0{5}|1[01]{4}").fullmatch,
            [b"0", b"1", b"000", b"10"],
            5,
        ),
        (Grammar.lark('start: "ab"'), re.compile("ab").fullmatch, [b"a", b"b", b"ab"], 2),
        (
            Grammar.lark('start: STEM SUFFIX\nSTEM: "a" | "aba"\nSUFFIX: "bc"'),
            re.compile("(a|aba)bc").fullmatch,
            [b"a", b"b", b"c", b"ab", b"bc", b"abc"],
            5,
        ),
    ],
)
def test_mask_of_a_finite_language(grammar, accepts, tokens, longest):
    alphabet = "".join(sorted({chr(c) for t in tokens for c in t}))
    viable = prefixes_of(language_of(accepts, alphabet, longest))
    check_against_language(grammar, vocabulary(*tokens), accepts, viable, 4)


def test_dyck_words():
    def viable(data: bytes) -> bool:
        depths = list(itertools.accumulate((1 if c == 40 else -1 for c in data), initial=0))
        return min(depths) >= 0

    def accepts(text: str) -> bool:
        return viable(text.encode()) and text.count("(") * 2 == len(text)

    grammar = Grammar.lark('start: pair*\npair: "(" pair* ")"\n')
    vocab = vocabulary(b"(", b")", b"()", b"((", b"))", b")(")
    check_against_language(grammar, vocab, accepts, viable, 3)


def test_terminals_that_get_in_each_others_way_inside_a_recursion():
    grammar = Grammar.lark('start: "(" start ")" | STEM SUF\nSTEM: /a|ab/\nSUF: /bc|c/\n')
    inner = ("ac", "abc", "abbc")

    def viable(data: bytes) -> bool:
        text = data.decode()
        core = text.lstrip("(")
        depth = len(text) - len(core)
        return any(w.startswith(core) for w in inner) or any(
            core == w + ")" * n for w in inner for n in range(depth + 1)
        )

    def accepts(text: str) -> bool:
        depth = len(text) - len(text.lstrip("("))
        return text.lstrip("(") in [w + ")" * depth for w in inner]

    vocab = vocabulary(b"(", b")", b"a", b"b", b"c", b"ab", b"bc", b"((a")
    check_against_language(grammar, vocab, accepts, viable, 4)


def test_both_spellings_are_allowed_and_none_is_forced():
    vocab = vocabulary(b"a", b"b", b"ab")
    grammar = Grammar.lark('start: "ab"')
    state = grammar.start(request(vocab), 2)
    assert allowed(grammar, state, vocab) == {0, 2}
    state, log_psi = step(grammar, state, [(0, 1), (2,)])
    assert log_psi == [0.0, 0.0]
    assert allowed(grammar, state, vocab, 0) == allowed(grammar, state, vocab, 1) == {3}


words = st.text("abé", max_size=4)
token = st.lists(st.sampled_from(sorted("abé".encode())), min_size=1, max_size=3).map(bytes)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sets(words, min_size=1, max_size=5), st.lists(token, min_size=1, max_size=5))
def test_random_finite_languages_and_vocabularies(language, tokens):
    """Tokens may repeat, and may hold parts of characters."""
    grammar, vocab = Grammar.choice(sorted(language)), vocabulary(*tokens)
    check_against_language(grammar, vocab, language.__contains__, prefixes_of(language), 2)


JSON_TOKENS = [b'{"', b'a"', b":", b" ", b"1", b"}", b'"', b"a", b",", b'{"a":', b"\\u0061", b"{"]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("11[01]+|0[01]*"),
        Grammar.choice(["0", "01", "", "110"]),
        Grammar.lark('start: "0" start "1" | "1"'),
    ],
)
def test_laws_over_bits(grammar):
    check_potential(
        grammar, request(vocabulary(b"0", b"1", b"01", b"110")), samples=60, max_length=5
    )


def test_laws_over_a_schema_with_checks():
    grammar = Grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    vocab = vocabulary(*JSON_TOKENS)
    end = len(JSON_TOKENS)
    outputs = [
        (0, 1, 2, 4, 5, end),  # {"a":1}
        (9, 3, 4, 5, end),
        (11, 6, 10, 6, 2, 4, 5, end),  # {"\u0061":1}, a key in disguise: dead once it is closed
        (11, 5, end),
        (0, 1, 2, 4, 4, 8, 6),
        (4,),
    ]
    check_potential(grammar, request(vocab), sequences=outputs)
    assert after(grammar, vocab, outputs[2][:3])[1] == 0.0
    assert after(grammar, vocab, outputs[2][:4])[1] == -math.inf
    assert step(grammar, after(grammar, vocab, outputs[0][:-1])[0], [(end,)], [True])[1] == [0.0]


# ---------------------------------------------------------------------- tokens


def test_a_token_may_span_terminals():
    vocab = vocabulary(b'{"', b"x", b'":', b"1}", b"1", b"}")
    grammar = Grammar({"type": "object"})
    state, log_psi = after(grammar, vocab, (0, 1, 2))
    assert log_psi == 0.0
    assert allowed(grammar, state, vocab) == {0, 2, 3, 4}  # `":` may begin a string
    state, _ = step(grammar, state, [(3,)])
    assert allowed(grammar, state, vocab) == {6}


def test_several_eos_ids():
    vocab = vocabulary(b"a", b"<e1>", b"b", b"<e2>", eos=(1, 3))
    grammar = Grammar.regex("ab?")
    state = grammar.start(request(vocab), 2)
    assert allowed(grammar, state, vocab) == {0}
    state, _ = step(grammar, state, [(0,), (0,)])
    assert allowed(grammar, state, vocab) == {1, 2, 3}
    _, log_psi = step(grammar, state, [(1,), (3,)], [True, True])
    assert log_psi == [0.0, 0.0]


def test_an_eos_id_is_never_text_of_the_grammar():
    """Its name may be in the grammar; the text is allowed, spelled by other tokens."""
    vocab = vocabulary(b"<", b"eos>", b"<eos>", b'"', eos=(2,))
    grammar = Grammar({"type": "string"})
    state, _ = after(grammar, vocab, (3,))
    assert allowed(grammar, state, vocab) == {0, 1, 3}  # open string: no EOS
    state, log_psi = step(grammar, state, [(0, 1)])
    assert log_psi == [0.0]
    assert allowed(grammar, state, vocab) == {0, 1, 3}
    state, _ = step(grammar, state, [(3,)])
    assert allowed(grammar, state, vocab) == {2}
    assert step(grammar, after(grammar, vocab, (3,))[0], [(2,)])[1] == [-math.inf]
    assert step(grammar, after(grammar, vocab, (3,))[0], [(2,)], [True])[1] == [-math.inf]
    assert step(grammar, after(grammar, vocab, (3, 3))[0], [(2,)], [True])[1] == [0.0]


def test_special_tokens_and_padding_are_never_allowed():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({"a": 0, "<": 1, "e": 2, ">": 3, '"': 4, "Ã": 5}, [])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<e>", "<aa>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<e>")
    vocab = Vocabulary.from_tokenizer(fast, 40, (6,))
    grammar = Grammar({"type": "string"})
    state, log_psi = after(grammar, vocab, (4,))
    assert allowed(grammar, state, vocab) == {0, 1, 2, 3, 4, 5}
    state, log_psi = step(grammar, state, [(1, 2, 3)])  # the text "<e>" is text
    assert log_psi == [0.0]
    for bad in (6, 7, 8, 39):
        assert step(grammar, after(grammar, vocab, (4,))[0], [(bad,)])[1] == [-math.inf]


def test_duplicate_tokens_and_split_characters():
    e_acute = "é".encode()
    vocab = vocabulary(e_acute[:1], e_acute[1:], e_acute, b"a", e_acute)
    grammar = Grammar.regex("éa|é")
    state = grammar.start(request(vocab), 1)
    assert allowed(grammar, state, vocab) == {0, 2, 4}
    state, log_psi = step(grammar, state, [(0,)])
    assert log_psi == [0.0]
    assert allowed(grammar, state, vocab) == {1}  # half a character: not complete
    state, _ = step(grammar, state, [(1,)])
    assert allowed(grammar, state, vocab) == {3, 5}


def test_no_token_can_follow():
    """A dead end of the vocabulary, not of the language: nothing allowed, no error."""
    vocab = vocabulary(b"a")
    grammar = Grammar.regex("ab")
    state, log_psi = after(grammar, vocab, (0,))
    assert log_psi == 0.0
    assert allowed(grammar, state, vocab) == set()
    assert step(grammar, state, [(0,)])[1] == [-math.inf]


def test_truncated_and_stopped_outputs_must_be_complete():
    vocab = vocabulary(b"a", b"b")
    grammar = Grammar.regex("ab|a")
    state = grammar.start(request(vocab), 3)
    _, log_psi = step(grammar, state, [(0,), (0, 1), (1,)], [True] * 3)
    assert log_psi == [0.0, 0.0, -math.inf]
    state = grammar.start(request(vocab), 1)
    assert step(grammar, state, [()], [True])[1] == [-math.inf]
    assert step(Grammar.choice([""]), Grammar.choice([""]).start(request(vocab), 1), [()], [True])[
        1
    ] == [0.0]


# ---------------------------------------------------------------------- states


@pytest.fixture
def bits():
    vocab = vocabulary(b"0", b"1")
    return Grammar.regex("[01]{0,8}"), vocab, request(vocab)


def test_equal_rows_share_one_matcher(bits):
    grammar, _, req = bits
    state = grammar.start(req, 64)
    assert len(state.nodes) == 1
    state, _ = step(grammar, state, [(0,)] * 64)
    assert len(state.nodes) == 1
    state, _ = step(grammar, state, [(i % 2,) for i in range(64)])
    assert len(state.nodes) == 2
    state, _ = step(grammar, state, [(i // 2 % 2, 1) for i in range(64)])
    assert len(state.nodes) == 4
    forked = grammar.fork(state, torch.zeros(5, dtype=torch.int64))
    assert len(forked.nodes) == 1
    assert len(forked.rows) == 5


def test_matchers_are_copied_only_where_histories_part(bits, monkeypatch):
    grammar, _, req = bits
    state, _ = step(grammar, grammar.start(req, 8), [(0,)] * 8)
    before = state.nodes[0].matcher
    state, _ = step(grammar, state, [(1,)] * 8)
    assert state.nodes[0].matcher is before  # advanced in place
    state, _ = step(grammar, state, [(i % 2,) for i in range(8)])
    assert sum(node.matcher is before for node in state.nodes) == 1
    assert len(state.nodes) == 2


def test_a_fork_leaves_its_origin_alone(bits):
    grammar, vocab, req = bits
    state, _ = step(grammar, grammar.start(req, 2), [(0,) * 7, (1,) * 3])
    forked = grammar.fork(state, torch.tensor([0, 1, 1]))
    forked, log_psi = step(grammar, forked, [(0, 0), (1,), (0,)])
    assert log_psi == [-math.inf, 0.0, 0.0]
    assert allowed(grammar, state, vocab, 0) == {0, 1, 2}
    state, log_psi = step(grammar, state, [(0,), (1,)])
    assert log_psi == [0.0, 0.0]
    assert allowed(grammar, state, vocab, 0) == {2}
    grammar.release(forked)
    grammar.release(forked)  # twice does no harm
    state, log_psi = step(grammar, state, [(), (1,)])
    assert log_psi == [0.0, 0.0]


def test_dead_rows_stay_dead_and_may_be_forked(bits):
    grammar, vocab, req = bits
    state, log_psi = step(grammar, grammar.start(req, 2), [(0,) * 9, (0,)])
    assert log_psi == [-math.inf, 0.0]
    assert allowed(grammar, state, vocab, 0) == set()
    state = grammar.fork(state, torch.tensor([0, 0, 1]))
    state, log_psi = step(grammar, state, [(0,), (), (1,)], [False, True, False])
    assert log_psi == [-math.inf, -math.inf, 0.0]


def test_ended_rows_are_absorbing(bits):
    grammar, vocab, req = bits
    state, log_psi = step(grammar, grammar.start(req, 2), [(0, 2), (0,)], [True, False])
    assert log_psi == [0.0, 0.0]
    assert allowed(grammar, state, vocab, 0) == {2}
    state = grammar.fork(state, torch.tensor([0, 1, 0]))
    _, log_psi = step(grammar, state, [(), (1,), ()], [True, False, True])
    assert log_psi == [0.0, 0.0, 0.0]


def test_start_is_compiled_once_and_never_changed(bits):
    grammar, vocab, req = bits
    first, second = grammar.start(req, 1), grammar.start(req, 3)
    assert first.nodes[0] is second.nodes[0]
    step(grammar, first, [(0,) * 8])
    assert allowed(grammar, second, vocab, 2) == {0, 1, 2}
    # The same to a grammar, whatever object it is.
    third = grammar.start(request(vocabulary(b"0", b"1")), 1)
    assert third.compiled is second.compiled
    other = grammar.start(request(vocabulary(b"1", b"0")), 1)
    assert other.compiled is not second.compiled
    assert allowed(grammar, second, vocab, 1) == {0, 1, 2}


def test_join(bits):
    grammar, vocab, req = bits
    one, _ = step(grammar, grammar.start(req, 2), [(0,), (1,)])
    two = grammar.start(req, 1)
    three = grammar.start(req, 2)
    joined = grammar.join([one, two, three])
    assert len(joined.nodes) == 3  # the starts of two and three are one history
    joined, log_psi = step(grammar, joined, [(0,) * 7, (0,) * 8, (0,), (0,), (1,)])
    assert log_psi == [0.0, -math.inf, 0.0, 0.0, 0.0]
    assert len(joined.nodes) == 3
    assert allowed(grammar, joined, vocab, 0) == {2}


def test_masks_of_many_different_rows_equal_those_of_each_alone():
    tokens = [bytes([c]) for c in range(32, 127)] + [b"ab", b"0" * 3]
    vocab = vocabulary(*tokens)
    grammar = Grammar.regex("[a-z]{1,3}([0-9]+(ab)?)?")
    rows = [tuple(tokens.index(bytes([c])) for c in text) for text in
            (b"a", b"ab", b"abc", b"a1", b"ab12", b"z0", b"q", b"abc0")]  # fmt: skip
    state, _ = step(grammar, grammar.start(request(vocab), len(rows)), rows)
    together = grammar.mask(state)
    for i, row in enumerate(rows):
        alone, _ = after(grammar, vocab, row)
        assert torch.equal(grammar.mask(alone)[0], together[i])


def test_the_engines_limits_are_an_error_not_death():
    """Right recursion with every ambiguity: the parser runs out of items."""
    grammar = Grammar.lark('start: x*\nx: "a" x | x "a" | "a" "b"?\n')
    vocab = vocabulary(b"a" * 500, b"b")
    with pytest.raises(PotentialError, match=r"the mask engine gave up: .*items") as caught:
        state = grammar.start(request(vocab), 1)
        for _ in range(40):
            state, log_psi = step(grammar, state, [(0,)])
            assert log_psi == [0.0]
            grammar.mask(state)
    assert caught.value.potential == grammar.name
