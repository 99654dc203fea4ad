"""Canonical tokenisations, against all token sequences up to a length and what is encoded."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from smcprog import Canonical, Grammar, SettingError, Target
from smcprog.engine.canonical import canonical_encoder
from smcprog.engine.vocab import Vocabulary
from smcprog.models import default_model_path
from smcprog.potentials import Request
from smcprog.testing import TabularLM, check_potential

from .. import small_tokenizers as small


def request_for(vocab):
    return Request("", (), vocab, max_tokens=9)


def vocabulary(tokenizer, **options):
    return Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def values(potential, vocab, rows, ended):
    """log ψ of whole outputs, in one call."""
    width = max(map(len, rows), default=0)
    tokens = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows]).view(len(rows), width)
    state = potential.start(request_for(vocab), len(rows))
    lengths = torch.tensor([len(r) for r in rows])
    _, log_psi = potential.advance(state, tokens.long(), lengths, torch.tensor([ended] * len(rows)))
    return log_psi.tolist()


def gpt2(*before):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def whole(pieces, merges, **options):
    """The same with blanks as ▁ and no splitting at all."""
    made = small.letters(pieces, merges, **options)
    made.backend_tokenizer.normalizer = normalizers.Replace(" ", "▁")
    made.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return made


def words(pieces):
    """Unigram, one piece a word."""
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return small.fast(tokenizer, unk_token="<unk>", eos_token="<eos>")


MERGES = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "a")]
LETTERS = ["a", "b", "ab", "ba", "aba", "aa"]
SPACED = [("Ġ", "a"), ("Ġ", "Ġ"), ("a", "b"), ("'", "s"), ("s", "a")]
SPACED_PIECES = ["a", "b", "Ġ", "'", "s", "Ġa", "ĠĠ", "ab", "'s", "sa"]
CASES = {
    "BPE of the whole text": (lambda: whole(LETTERS, MERGES), "pairs", 5),
    "blanks inside": (
        lambda: whole(["a", "▁", "▁a", "▁▁", "a▁"], [("▁", "a"), ("▁", "▁"), ("a", "▁")]),
        "pairs",
        5,
    ),
    "unreachable pieces": (
        lambda: whole(["a", "b", "c", "ab", "abc"], [("a", "b")], ignore_merges=True),
        "pairs",
        5,
    ),
    "GPT-2": (lambda: small.letters(SPACED_PIECES, SPACED, splitter=gpt2()), "pieces", 4),
    "whole words first": (
        lambda: small.letters(SPACED_PIECES[:8], SPACED[:3], splitter=gpt2(), ignore_merges=True),
        "pieces",
        4,
    ),
    "digits apart": (
        lambda: small.letters(
            ["1", "a", "Ġ", "11", "Ġ1", "ĠĠ"],
            [("1", "1"), ("Ġ", "1"), ("Ġ", "Ġ")],
            splitter=gpt2(pre_tokenizers.Digits(True)),
        ),
        "pieces",
        4,
    ),
    "added text": (
        lambda: small.letters(
            ["a", "b", "<", "Ġ", "ab", "ĠĠ", "Ġ<"],
            [("a", "b"), ("Ġ", "Ġ"), ("Ġ", "<")],
            splitter=gpt2(),
            added=["<a<", "b<"],
        ),
        "pieces",
        4,
    ),
    "characters of several bytes": (
        lambda: small.letters(["Ã", "©", "Ã©", "¨", "Ġ"], [("Ã", "©")], splitter=gpt2()),
        "pieces",
        6,
    ),
    "Unigram": (
        lambda: words([("<unk>", 0.0), ("<eos>", 0.0), ("▁", -2.0), ("a", -2.0), ("▁a", -3.0),
                       ("aa", -3.1), ("▁aa", -5.2)]),
        "pieces",
        5,
    ),
    "an unknown way of splitting": (
        lambda: small.letters(SPACED_PIECES, SPACED, splitter=pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
        "end",
        3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_sequence_up_to_a_length(name):
    """Complete: exactly what is encoded so. Not complete: whatever can still become so lives."""
    make, kind, longest = CASES[name]
    tokenizer = make()
    vocab = vocabulary(tokenizer)
    assert canonical_encoder(vocab).kind == kind
    letters = [v for v in range(vocab.size) if vocab.token_bytes[v]]
    every = [w for n in range(longest + 1) for w in itertools.product(letters, repeat=n)]

    def encoded_so(tokens):
        try:
            text = vocab.to_bytes(tokens).decode()
        except UnicodeDecodeError:
            return False
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids == [*tokens]

    canonical = {w for w in every if encoded_so(w)}
    found = {
        w for w, v in zip(every, values(Canonical(), vocab, every, True), strict=True) if not v
    }
    assert found == canonical
    assert len(canonical) > longest
    open_values = dict(zip(every, values(Canonical(), vocab, every, False), strict=True))
    for tokens in canonical:
        for n in range(len(tokens)):
            assert open_values[tokens[:n]] == 0.0, tokens
    if kind == "pairs" and not name.startswith("unreachable"):
        assert {w for w in every if open_values[w] == 0.0} == canonical
    if kind == "end":
        assert set(open_values.values()) == {0.0}
    else:
        assert -math.inf in open_values.values()


ALPHABETS = ["ab'sreAlL .", " \n\tax1!", "aAÀé中字1'd/ \n", "e\u0301\u0327 가각ᄀ\u1161x", "12a .,"]
SPLITTERS = {
    "GPT-2": lambda: gpt2(),
    "SmolLM": lambda: gpt2(pre_tokenizers.Digits(True)),
    "Llama 3": lambda: small.by_pattern(small.CL100K),
    "Qwen 2": lambda: small.by_pattern(small.CL100K.replace("{1,3}", "")),
    "o200k": lambda: small.by_pattern(small.O200K),
}


@pytest.mark.parametrize("name", SPLITTERS)
@pytest.mark.parametrize("composed", [False, True])
def test_what_is_called_final_stays_whatever_follows(name, composed):
    """Any two letters of these tokenizers merge, so that a border that moves is seen."""
    tokenizer = small.splitting(SPLITTERS[name](), "".join(ALPHABETS))
    if composed:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    encoder = canonical_encoder(vocabulary(tokenizer))
    assert encoder.kind == "pieces"
    pick = random.Random(0)
    some = 0
    for _ in range(4000):
        alphabet = pick.choice(ALPHABETS)
        text, more = ("".join(pick.choices(alphabet, k=pick.randint(0, n))) for n in (14, 8))
        final = encoder.final(text)
        some += bool(final)
        assert encoder.encode(text + more)[: len(final)] == final, (text, more)
    assert some > 1500


def test_a_beginning_without_the_blank_that_texts_begin_with():
    """The dummy prefix is no part of an output; without it, it is encoded as with it later on."""
    for make in (small.llama_like, small.unigram):
        vocab, plain = vocabulary(make()), make(prefix=False)
        for text in ("hello", " hello", "el lo", "  h", "é", "中 h"):
            ids = plain.encode(text, add_special_tokens=False)
            assert values(Canonical(), vocab, [ids], True) == [0.0], text
        letters = [vocab.ids()[c] for c in "hello"]
        assert values(Canonical(), vocab, [letters], True) == [-math.inf]


def test_special_tokens_stand_between_stretches_and_their_text_is_text():
    tokenizer = small.byte_level()
    vocab = vocabulary(tokenizer)
    ids = vocab.ids()
    start, hell, he, ll, h, e = (ids[t] for t in ("<|im_start|>", "hell", "he", "ll", "h", "e"))
    rows = [
        (hell, start, hell),
        (h, e, start, hell),
        (hell, start, he, ll),
        (start, start),
        (he, ll),
    ]
    assert values(Canonical(), vocab, rows, True) == [0.0, -math.inf, -math.inf, 0.0, -math.inf]
    assert values(Canonical(), vocab, [(h, e, start)], False) == [-math.inf]
    spelled = [ids[c] for c in "<|im_start|>"]
    assert values(Canonical(), vocab, [tuple(spelled)], True) == [0.0]
    thought = [ids[c] for c in "<think>"]  # the tokenizer has one token for this text
    assert values(Canonical(), vocab, [tuple(thought), (ids["<think>"],)], True) == [-math.inf, 0.0]


def test_ids_without_a_token_and_bytes_that_are_no_text():
    tokenizer = small.byte_level()
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer) + 5, [tokenizer.eos_token_id])
    first, second = vocab.ids()["ð"], vocab.ids()["h"]
    rows = [(len(tokenizer),), (first, second), (first,)]
    assert values(Canonical(), vocab, rows, False) == [-math.inf, -math.inf, 0.0]
    assert values(Canonical(), vocab, [(first,)], True) == [-math.inf]


def test_a_model_without_a_tokenizer_is_refused():
    vocab = Vocabulary.from_tokens([b"a", b"<eos>"], [1])
    with pytest.raises(SettingError, match="leave Canonical"):
        Canonical().start(request_for(vocab), 1)


LAWS = {
    "llama": small.llama_like,
    "unigram": small.unigram,
    "byte level": small.byte_level,
    "metaspace": small.metaspace,
}


@pytest.mark.parametrize("make", LAWS.values(), ids=LAWS)
def test_laws(make):
    tokenizer = make()
    vocab = vocabulary(tokenizer)
    pick = random.Random(0)
    texts = ["".join(pick.choices('hello {":é aa', k=6)) for _ in range(12)]
    outputs = [tuple(tokenizer.encode(t, add_special_tokens=False)) for t in texts]
    changed = [(*y[:1], pick.randrange(3, vocab.size), *y[1:]) for y in outputs]
    ended = [(*y, vocab.eos_ids[0]) for y in outputs]
    check_potential(Canonical(), request_for(vocab), sequences=[*outputs, *changed, *ended])
    check_potential(Canonical(), request_for(vocab), samples=24, max_length=4)


def test_the_evidence_is_the_probability_of_the_canonical_spellings():
    """A table model over the tokenizer's ids: exact sum, by enumeration of all spellings."""
    tokenizer = small.letters(LETTERS, MERGES)
    vocab = vocabulary(tokenizer)
    size, eos = vocab.size, vocab.eos_ids[0]
    probs = [0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.2]
    lm = TabularLM(
        [vocab.token_bytes[v] or b"<eos>" for v in range(size)],
        [eos],
        [[math.log(p) for p in probs]],
        [[0] * size],
    )
    lm.vocab = vocab
    grammar = Grammar.regex("[ab]{3}|abab")
    exact = {False: 0.0, True: 0.0}
    for n in range(5):
        for y in itertools.product(range(size - 1), repeat=n):
            text = vocab.decode(y)
            if grammar.accepts(text):
                mass = math.prod(probs[v] for v in y) * probs[eos]
                exact[False] += mass
                exact[True] += mass * (tokenizer.encode(text) == [*y])
    assert exact[True] < 0.7 * exact[False]
    for canonical, z in exact.items():
        target = Target(lm) * grammar
        if canonical:
            target = target * Canonical()
        post = target.sample([0], particles=2500, max_tokens=6, seed=1)
        # Three runs in a thousand would be further off than 3 standard errors.
        se = post.log_evidence_se
        assert post.log_evidence == pytest.approx(math.log(z), abs=3 * se)
        assert se < 0.08
        if canonical:
            for p in post.particles:
                ids = [t for t in p.tokens if t != eos]
                assert p.log_weight == -math.inf or tokenizer.encode(vocab.decode(ids)) == ids


def test_over_the_default_models_tokenizer():
    """Its own spelling lives to the end; another one dies, two words later at the latest."""
    tokenizer = AutoTokenizer.from_pretrained(default_model_path())
    vocab = vocabulary(tokenizer)
    assert canonical_encoder(vocab).kind == "pieces"
    text = 'Ada\'s  notes of 1843:\n\n  {"naïve": [12, 3.5]} and then some more words 😀.'
    ids = tuple(tokenizer.encode(text))
    prefixes = [ids[:n] for n in range(len(ids) + 1)]
    assert set(values(Canonical(), vocab, prefixes, False)) == {0.0}
    assert values(Canonical(), vocab, [ids], True) == [0.0]
    at = next(i for i, t in enumerate(ids) if vocab.token_bytes[t] == b" notes")
    split = [vocab.ids()[piece] for piece in ("Ġn", "otes")]
    other = (*ids[:at], *split, *ids[at + 1 :])
    assert vocab.decode(other) == text
    lives = [
        v == 0.0 for v in values(Canonical(), vocab, [other[:n] for n in range(len(other))], False)
    ]
    assert lives.index(False) <= at + 5
    assert lives == sorted(lives, reverse=True)
    assert values(Canonical(), vocab, [other], True) == [-math.inf]
