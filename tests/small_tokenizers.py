"""Small tokenizers of every family that language models use, built here."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS}*{SMALL}+{SHORT}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{LETTERS}+{SMALL}*{SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = [b"he", b"ll", b"hell", b" w", b"or", b" wor", b"  ", b"12", b"\xc3\xa9", b'{"', b'":']


def fast(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level(*, digits: bool = False) -> PreTrainedTokenizerFast:
    """GPT-2's kind: every byte, merges, its own splitting rule; digits apart as in SmolLM."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("Ġ", "Ġ"), ("'", "t"), ("Ã", "©")]
    merges += [("{", '"'), ('"', ":"), ("ð", "Ł"), ("ðŁ", "ĺ")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), split]) if digits else split
    )
    tokenizer.decoder = decoders.ByteLevel()
    made = fast(tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>")
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("é!", special=False)])
    return made


def ranks() -> dict[bytes, int]:
    """As tiktoken has them: every byte, then what merges."""
    found = {bytes([b]): b for b in range(256)}
    for word in WORDS:
        found[word] = len(found)
    return found


def encoding(pattern: str = CL100K) -> tiktoken.Encoding:
    special = {"<|endoftext|>": len(ranks())}
    return tiktoken.Encoding(
        "small", pat_str=pattern, mergeable_ranks=ranks(), special_tokens=special
    )


def from_tiktoken(folder: Path, pattern: str = CL100K) -> PreTrainedTokenizerFast:
    """A file of tiktoken ranks, converted as transformers does."""
    path = folder / "small.tiktoken"
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks().items())
    path.write_text("".join(lines))
    convert = TikTokenConverter(str(path), pattern, extra_special_tokens=["<|endoftext|>"])
    return fast(convert.converted(), eos_token="<|endoftext|>")


def fallback_vocab(*pieces: str) -> dict[str, int]:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    return {name: i for i, name in enumerate(names)}


def llama_like(*, prefix: bool = True) -> PreTrainedTokenizerFast:
    """Llama 2's kind: one BPE over the whole text, ▁ for a blank, bytes for what is unknown."""
    pieces = ["▁", "h", "e", "l", "o", "w", "1", "'", "{", '"', ":", "▁▁"]
    merges = [("▁", "h"), ("e", "l"), ("▁h", "el"), ("l", "o"), ("▁hel", "lo"), ("▁", "▁")]
    merges += [("{", '"'), ('"', ":")]
    vocab = fallback_vocab(*dict.fromkeys([*pieces, *(a + b for a, b in merges)]))
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    begin = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return fast(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram(*, prefix: bool = True) -> PreTrainedTokenizerFast:
    """Unigram with byte fallback and one piece a word."""
    pieces = [("▁", -3.0), ("h", -4.0), ("e", -4.0), ("l", -4.0), ("o", -4.0), ("▁he", -2.0)]
    pieces += [("llo", -2.5), ("lo", -3.0), ("el", -3.1), ("é", -5.0), ("{", -5.0), ('"', -5.0)]
    scores = dict.fromkeys(fallback_vocab(), -20.0) | dict(pieces)
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=0, byte_fallback=True))
    scheme = "always" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return fast(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def metaspace() -> PreTrainedTokenizerFast:
    """Unigram with neither byte fallback nor a step-by-step decoder."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("a", -3.0), ("é", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return fast(tokenizer, unk_token="<unk>", eos_token="</s>")


TEXTS = ["hello world, the cat sat", "naïve café 12 the hat", "a b c the mat sat on that"]


def sentencepiece_model(kind: str) -> bytes:
    """A model trained by the sentencepiece library: "bpe" or "unigram"."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_writer=out,
        vocab_size=330,
        model_type=kind,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=5,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    return out.getvalue()


def from_sentencepiece(folder: Path, model: bytes) -> PreTrainedTokenizerFast:
    """A folder with ``tokenizer.model``, as transformers loads it."""
    (folder / "tokenizer.model").write_bytes(model)
    config = {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return LlamaTokenizer.from_pretrained(folder)


def letters(pieces, merges, *, splitter=None, ignore_merges=False, added=()):
    """Byte-level BPE over a few letters."""
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    made = fast(tokenizer, eos_token="<eos>")
    made.add_tokens([AddedToken(text, special=False) for text in added])
    return made


def splitting(splitter, alphabet: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of one way of splitting, in which any two letters merge."""
    vocab = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = sorted({c for letter in alphabet for c in plain.pre_tokenize_str(letter)[0][0]})
    pairs = [(a, b) for a in letters for b in letters]
    for a, b in pairs:
        vocab[a + b] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, pairs))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    return fast(tokenizer, eos_token="<eos>")


def by_pattern(pattern: str):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, plain])
