"""Tokens are their bytes: texts, masks and probabilities over every kind of tokenizer."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from smcprog import Grammar, ModelError, Target, VocabularyMismatchError
from smcprog.engine.vocab import Vocabulary
from smcprog.grammars.engine import byte_tokenizer, compile_text
from smcprog.potentials import Request
from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.smc.settings import Settings
from smcprog.testing import TabularLM

from .. import small_tokenizers as small
from ..exactness.enumerate_draws import enumerate_paths

_KEPT = tempfile.TemporaryDirectory()  # removed when the process ends
FOLDER = Path(_KEPT.name)
PREFIXED = {"llama", "unigram", "metaspace", "sentencepiece bpe", "sentencepiece unigram"}
ANCHOR = {"metaspace": "a"}


def folder(name: str) -> Path:
    path = FOLDER / name.replace(" ", "-")
    path.mkdir(exist_ok=True)
    return path


def default_tokenizer():
    from smcprog.models import default_model_path

    return AutoTokenizer.from_pretrained(default_model_path())


KINDS = {
    "byte level": small.byte_level,
    "digits apart": lambda: small.byte_level(digits=True),
    "tiktoken": lambda: small.from_tiktoken(folder("tiktoken")),
    "tiktoken o200k": lambda: small.from_tiktoken(folder("o200k"), small.O200K),
    "llama": small.llama_like,
    "llama, no dummy prefix": lambda: small.llama_like(prefix=False),
    "unigram": small.unigram,
    "metaspace": small.metaspace,
    "sentencepiece bpe": lambda: small.from_sentencepiece(folder("bpe"), trained("bpe")),
    "sentencepiece unigram": lambda: small.from_sentencepiece(folder("uni"), trained("unigram")),
    "default model": default_tokenizer,
}


@functools.cache
def trained(kind: str) -> bytes:
    return small.sentencepiece_model(kind)


@functools.cache
def made(kind: str):
    tokenizer = KINDS[kind]()
    return tokenizer, Vocabulary.from_tokenizer(
        tokenizer, len(tokenizer) + 7, [tokenizer.eos_token_id]
    )


def request(vocab):
    return Request("", (), vocab, max_tokens=20)


def after(grammar, vocab, tokens=(), ended=False):
    state = grammar.start(request(vocab), 1)
    block = torch.tensor([list(tokens)], dtype=torch.int64)
    lengths, end = torch.tensor([len(tokens)]), torch.tensor([ended])
    return grammar.advance(state, block, lengths, end)


def allowed(grammar, vocab, tokens=()) -> set[int]:
    state, log_psi = after(grammar, vocab, tokens)
    assert log_psi.tolist() == [0.0], vocab.decode(tokens)
    mask = unpack_bitmask(grammar.mask(state), vocab.size)[0]
    return set(mask.nonzero().flatten().tolist())


# ---------------------------------------------------------------------- texts

WILD = "ab hello 12 {\":\n\t'é中😀🙏\u0301\u200dÀ<|im_end|>▂ ½"


def texts(kind: str, count: int = 60):
    pick = random.Random(0)
    alphabet = "aé \u00a0" if kind == "metaspace" else WILD
    return ["".join(pick.choices(alphabet, k=pick.randint(1, 25))) for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_an_encoded_text_are_the_text(kind):
    tokenizer, vocab = made(kind)
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # in a text, their spelling is text
    try:
        for text in texts(kind):
            ids = backend.encode(text, add_special_tokens=False).ids
            assert not set(ids) & vocab.special_ids or kind == "metaspace"
            if set(ids) & vocab.special_ids:
                continue  # an unknown character, where there is no byte fallback
            got = vocab.to_bytes(ids).decode()
            # Metaspace and new conversions put no second blank before one that is there.
            assert got in ({text, " " + text} if kind in PREFIXED else {text})
    finally:
        backend.encode_special_tokens = False


@pytest.mark.parametrize("kind", KINDS)
def test_any_sequence_of_tokens_reads_as_the_tokenizer_reads_it(kind):
    """As a continuation: after a letter, so that no blank is taken for the dummy prefix."""
    tokenizer, vocab = made(kind)
    anchor = ANCHOR.get(kind, "h")
    before = tokenizer.convert_tokens_to_ids(anchor)
    skipped = {tokenizer.convert_tokens_to_ids("é!")}  # read as one odd byte by its decoder
    plain = [v for v in range(vocab.size) if vocab.token_bytes[v] and v not in skipped]
    # Beyond 127, single bytes are mostly no text, about which decoders differ.
    ascii_first = [v for v in plain if vocab.token_bytes[v][0] < 128]
    pick, compared = random.Random(1), 0
    for _ in range(200):
        pool = pick.choice([plain, ascii_first])
        ids = pick.choices(pool, k=pick.randint(1, 6))
        try:
            text = vocab.to_bytes(ids).decode()
        except UnicodeDecodeError:
            continue
        compared += 1
        read = tokenizer.decode([before, *ids], clean_up_tokenization_spaces=False)
        assert read == anchor + text == anchor + vocab.decode(ids)
    assert compared > 60


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_reads_its_pieces_alike(kind):
    _, vocab = made(f"sentencepiece {kind}")
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained(kind))
    for text in texts(kind):
        ids = processor.encode(text)
        assert vocab.to_bytes(ids).decode() == " " + text
        assert processor.decode(ids) == text


def test_tiktoken_reads_its_tokens_alike():
    encoding = small.encoding()
    tokenizer, vocab = made("tiktoken")
    pick = random.Random(2)
    for text in texts("tiktoken"):
        ids = encoding.encode(text)
        assert tokenizer.encode(text) == ids
        assert vocab.to_bytes(ids).decode() == text
    for _ in range(200):
        ids = [pick.randrange(len(small.ranks())) for _ in range(5)]
        assert vocab.to_bytes(ids) == encoding.decode_bytes(ids)
        assert vocab.decode(ids) == encoding.decode(ids)
    assert vocab.token_bytes[255] == b"\xff"


def test_half_a_character_at_the_end():
    for kind in ("byte level", "llama"):
        tokenizer, vocab = made(kind)
        ids = tokenizer.encode("h😀", add_special_tokens=False)
        split = len(ids) - len(tokenizer.encode("h", add_special_tokens=False))
        assert vocab.decode(ids).endswith("h😀")
        assert split > 1
        for cut in range(1, split):
            assert vocab.decode(ids[:-cut]).endswith("h�")


def test_added_text_is_text_and_is_found_as_it_stands():
    tokenizer, vocab = made("byte level")
    for text in ("<think>", "é!"):
        (i,) = tokenizer.encode(text)
        assert vocab.token_bytes[i] == text.encode()


REFUSED = {
    "WordPiece": (models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}), decoders.WordPiece()),
    "BPEDecoder": (models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"), decoders.BPEDecoder()),
    "no decoder": (models.WordLevel({"a": 0, "b": 1}, unk_token="a"), None),
    "Strip": (models.BPE({"a": 0}, []), decoders.Strip(" ", 1, 0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tokenizers_whose_bytes_cannot_be_told_are_refused_by_name(name):
    model, decoder = REFUSED[name]
    tokenizer = Tokenizer(model)
    if decoder is not None:
        tokenizer.decoder = decoder
    fast = small.fast(tokenizer, eos_token="<eos>")
    with pytest.raises(ModelError, match=name):
        Vocabulary.from_tokenizer(fast, len(fast), [fast.eos_token_id])


# ---------------------------------------------------------------------- masks

GRAMMARS = {
    "json": (
        lambda: Grammar({"type": "object", "properties": {"h": {"type": "string"}}}),
        ["", '{"h"', '{"h": "', '{"h": "el😀', '{"h":"a"}'],
    ),
    "regex": (lambda: Grammar.regex(r"(he|hell|el+o| [wé]|a)*[!é]"), ["", "he", "ello w", "hella"]),
    "lark": (
        lambda: Grammar.lark('start: word (" " word)*\nword: /[a-zé]+/ | "{" start "}"\n'),
        ["", "he", "{a h", "{{é}"],
    ),
    "emoji": (lambda: Grammar.regex("[😀-🙏]+"), ["", "😀", "🙏😃"]),
}


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("tiktoken o200k", "digits apart")])
def test_masks_are_those_of_the_bytes(kind, name):
    """Over the whole vocabulary: a token is allowed where its bytes can follow, one by one."""
    _, vocab = made(kind)
    make, starts = GRAMMARS[name]
    grammar = make()
    bytewise = compile_text(grammar._text.lark, byte_tokenizer())
    spellings = {b: v for v, b in enumerate(vocab.token_bytes) if len(b) == 1}
    eos = set(vocab.eos_ids)
    pick = random.Random(0)
    checked = 0
    for start in starts[1:3] if kind == "default model" else starts:
        data = start.encode()
        if kind == "metaspace" and not all(bytes([b]) in spellings for b in data):
            continue
        # Any spelling will do; half of them end inside of a character.
        tokens = _spell(vocab, data[: len(data) - pick.randint(0, 1)], pick)
        data = vocab.to_bytes(tokens)
        base = bytewise.deep_copy()
        assert base.try_consume_tokens(list(data)) == len(data)
        expected = set()
        for v, text in enumerate(vocab.token_bytes):
            if text and base.deep_copy().try_consume_tokens(list(text)) == len(text):
                expected.add(v)
        found = allowed(grammar, vocab, tokens)
        checked += len(found)
        assert found - eos == expected
        assert (found & eos == eos) == grammar.accepts(data.decode(errors="surrogateescape"))
    assert checked > 0 or kind == "metaspace"


def _spell(vocab, data, pick):
    out, at = [], 0
    options = {}
    for v, text in enumerate(vocab.token_bytes):
        if text and text in data:
            options.setdefault(text, []).append(v)
    while at < len(data):
        fitting = [t for t in options if data.startswith(t, at)]
        if not fitting:
            break
        text = pick.choice(fitting)
        out.append(pick.choice(options[text]))
        at += len(text)
    return out


@pytest.mark.parametrize("kind", ["byte level", "tiktoken", "llama", "default model"])
def test_a_range_of_characters_over_tokens_that_split_them(kind):
    """`[😀-🙏]+` against the characters themselves, without a matcher."""
    _, vocab = made(kind)
    grammar = Grammar.regex("[😀-🙏]+")
    characters = [chr(c).encode() for c in range(ord("😀"), ord("🙏") + 1)]
    prefixes = {c[:n] for c in characters for n in range(5)}

    def viable(data: bytes) -> bool:
        return min(data) >= 0x80 and any(
            data[:at] in _runs(characters, at) and data[at:] in prefixes
            for at in range(0, len(data) + 1, 4)
        )

    for start in (b"", b"\xf0", "😀".encode()[:3], "🙏😀".encode(), "😀".encode() + b"\xf0\x9f"):
        tokens = _spell(vocab, start, random.Random(3))
        assert vocab.to_bytes(tokens) == start
        expected = {v for v, t in enumerate(vocab.token_bytes) if t and viable(start + t)}
        found = allowed(grammar, vocab, tokens)
        assert expected
        assert found - set(vocab.eos_ids) == expected
        assert bool(found & set(vocab.eos_ids)) == (start in ("🙏😀".encode(),))


class _runs:
    """Whether so many bytes are whole characters of the range."""

    def __init__(self, characters, length):
        self.characters = set(characters)

    def __contains__(self, data):
        return all(data[i : i + 4] in self.characters for i in range(0, len(data), 4))


# ---------------------------------------------------------------------- one input each


def test_several_eos_ids_one_of_which_has_text():
    """An id that ends outputs is no text, though the grammar has what it is called."""
    tokenizer, _ = made("llama")
    eos = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("h")]
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), eos)
    grammar = Grammar.regex("he?")
    byte_h = tokenizer.convert_tokens_to_ids("<0x68>")
    assert allowed(grammar, vocab) == {byte_h}
    found = allowed(grammar, vocab, [byte_h])
    assert set(eos) <= found
    for end in eos:
        assert after(grammar, vocab, [byte_h, end], ended=True)[1].tolist() == [0.0]
        assert after(grammar, vocab, [end], ended=True)[1].tolist() == [-math.inf]
        assert after(grammar, vocab, [byte_h, end])[1].tolist() == [-math.inf]  # but as text


def test_no_eos_while_a_string_is_open():
    for kind in ("default model", "llama", "tiktoken"):
        _, vocab = made(kind)
        grammar = Grammar({"type": "string"})
        inside = _spell(vocab, b'"hell', random.Random(0))
        assert not allowed(grammar, vocab, inside) & set(vocab.eos_ids)
        assert after(grammar, vocab, [*inside, *vocab.eos_ids], ended=True)[1].item() == -math.inf
        closed = _spell(vocab, b'"hell"', random.Random(0))
        assert allowed(grammar, vocab, closed) == set(vocab.eos_ids)


def test_the_text_of_a_special_token_is_text_and_the_token_is_not():
    tokenizer, vocab = made("default model")
    special = tokenizer.convert_tokens_to_ids("<|im_end|>")
    grammar = Grammar({"type": "string"})
    quote = tokenizer.convert_tokens_to_ids('"')
    spelled = [tokenizer.convert_tokens_to_ids(c) for c in "<|im_end|>"]
    assert grammar.accepts('"<|im_end|>"')
    assert after(grammar, vocab, [quote, *spelled, quote])[1].item() == 0.0
    assert vocab.decode([quote, *spelled, quote]) == '"<|im_end|>"'
    assert special in vocab.special_ids
    assert special not in allowed(grammar, vocab, [quote])
    assert after(grammar, vocab, [quote, special])[1].item() == -math.inf
    assert vocab.decode([special]) == ""


def test_a_token_of_markup_that_is_text_is_one_more_spelling():
    tokenizer, vocab = made("byte level")
    (think,) = tokenizer.encode("<think>")
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "<think>"]
    grammar = Grammar.regex("<think>h?")
    assert allowed(grammar, vocab) == {think, letters[0]}
    assert allowed(grammar, vocab, [think]) == allowed(grammar, vocab, letters)


def test_two_ids_with_the_same_bytes():
    tokenizer, vocab = made("llama")
    both = {tokenizer.convert_tokens_to_ids(t) for t in ("h", "<0x68>")}
    assert allowed(Grammar.regex("h"), vocab) == both
    assert {vocab.token_bytes[v] for v in both} == {b"h"}


def test_a_token_over_two_terminals():
    tokenizer, vocab = made("tiktoken")
    both = tokenizer.encode('{"')
    assert len(both) == 1
    grammar = Grammar({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]})
    assert both[0] in allowed(grammar, vocab)
    assert after(grammar, vocab, [*both, *tokenizer.encode('a":null}')])[1].item() == 0.0


def test_ids_beyond_the_tokenizer_are_never_allowed():
    for kind in KINDS:
        tokenizer, vocab = made(kind)
        assert vocab.size == len(tokenizer) + 7
        grammar = Grammar.regex("(?s:.*)")
        padding = set(range(len(tokenizer), vocab.size))
        assert not allowed(grammar, vocab) & padding
        assert vocab.token_bytes[len(tokenizer) :] == [b""] * 7
        assert after(grammar, vocab, [vocab.size - 1])[1].item() == -math.inf


def test_a_byte_that_no_text_has_is_never_allowed():
    _, vocab = made("tiktoken")
    grammar = Grammar.regex("(?s:.*)")
    for byte in (0xFF, 0xFE, 0xC0):
        assert vocab.token_bytes[byte] == bytes([byte])
        assert byte not in allowed(grammar, vocab)
        assert after(grammar, vocab, [byte])[1].item() == -math.inf


def test_an_output_cut_inside_a_character_is_not_complete():
    tokenizer, vocab = made("llama")
    grammar = Grammar.regex("é|h")
    first, second = (tokenizer.convert_tokens_to_ids(t) for t in ("<0xC3>", "<0xA9>"))
    assert allowed(grammar, vocab, [first]) == {second}
    assert after(grammar, vocab, [first], ended=True)[1].item() == -math.inf
    assert after(grammar, vocab, [first, second], ended=True)[1].item() == 0.0


def test_models_of_different_vocabularies():
    def lm_of(tokenizer):
        vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
        names = [t or b"<eos>" for t in vocab.token_bytes]
        table = np.zeros((1, vocab.size))
        lm = TabularLM(names, vocab.eos_ids, table, table.astype(int))
        lm.vocab = vocab
        return lm

    pieces = ["a", "b", "ab"]
    target = lm_of(small.letters(pieces, [("a", "b")]))
    other = lm_of(small.letters(["b", "a", "ab"], [("a", "b")]))
    with pytest.raises(VocabularyMismatchError, match="token id 0 is"):
        Target(target).sample([0], draft=other, max_tokens=3, seed=0)
    same = lm_of(small.letters(pieces, [("a", "b")]))
    assert Target(target).sample([0], draft=same, max_tokens=3, seed=0).particles


# ---------------------------------------------------------------------- probabilities


def spelled_pieces():
    """Split characters, one whole one, bytes twice, and a token over two terminals."""
    tokenizer = Tokenizer(models.BPE({"Ã": 0, "©": 1, "Ã©": 2, '"': 3, '"Ã': 4, "a": 5}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = small.fast(tokenizer, eos_token="<eos>")
    fast.add_tokens([AddedToken("é", special=False)])
    return fast


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar({"enum": ["é", "éé", "a"]}),
        lambda: Grammar.regex('"?é{1,2}"?'),
        lambda: Grammar.lark('start: QUOTE E* QUOTE\nQUOTE: "\\""\nE: "é" | "a"\n'),
    ],
)
def test_every_spelling_counts_with_its_own_probability(make):
    """Over all that can be drawn, Σ q·w of each spelling is its probability; no statistics."""
    tokenizer = spelled_pieces()
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    size, eos, longest = vocab.size, vocab.eos_ids[0], 5
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(size), size)  # given the last token; row `eos` is the start
    moves = np.tile([*range(1, size + 1)], (size + 1, 1))
    table = np.log(np.vstack([probs[eos], probs]))
    names = [t or b"<eos>" for t in vocab.token_bytes]
    lm = TabularLM(names, [eos], table, moves)
    lm.vocab = vocab
    grammar = make()
    want = {}
    letters = [v for v in range(size) if v != eos]
    for n in range(longest):
        for tokens in itertools.product(letters, repeat=n):
            data = vocab.to_bytes(tokens)
            if grammar.accepts(data.decode(errors="surrogateescape")):
                steps = zip((eos, *tokens), (*tokens, eos), strict=True)
                want[(*tokens, eos)] = math.prod(probs[a, b] for a, b in steps)
    spellings = [y for y in want if vocab.decode(y) == vocab.decode(max(want, key=len))]
    assert len(spellings) > 1
    settings = Settings(particles=1, draft_tokens=0, max_tokens=longest)
    got: dict = {}
    for path in enumerate_paths(Target(lm) * grammar, [0], settings, False):
        weight = math.exp(path.log_q + path.log_z)
        if weight > 0:
            got[path.outcome] = got.get(path.outcome, 0.0) + weight
    assert got.keys() == want.keys()
    for outcome, mass in want.items():
        assert got[outcome] == pytest.approx(mass, abs=1e-12), vocab.decode(outcome)
    assert json.dumps(sorted(vocab.decode(y) for y in got))  # all of them are texts
