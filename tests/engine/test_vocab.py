"""Vocabularies of small real tokenizers, and toy ones."""

from __future__ import annotations

import llguidance
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from smcprog.engine import Vocabulary
from smcprog.errors import ModelError, VocabularyMismatchError


def sentencepiece_like():
    """Unigram-style BPE with byte fallback, as in Llama 2: ▁ for a space, <0x..> for bytes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in ["▁", "h", "i", "▁h", "▁hi"]:
        vocab[piece] = len(vocab)
    model = models.BPE(
        vocab=vocab,
        merges=[("▁", "h"), ("▁h", "i")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def test_byte_level(byte_tokenizer):
    tokenizer = byte_tokenizer()
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    assert vocab.known_V is None
    text = "hello world, naïve 🙂\n"
    ids = tokenizer(text)["input_ids"]
    assert vocab.decode(ids) == text
    assert b"".join(vocab.token_bytes[i] for i in ids) == text.encode()
    assert vocab.token_bytes[tokenizer.convert_tokens_to_ids("Ġw")] == b" w"
    assert len(vocab.token_bytes) == vocab.size


def test_special_tokens_have_no_text(byte_tokenizer):
    tokenizer = byte_tokenizer(eos_token="<eos>", bos_token="<bos>", pad_token="<pad>")
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    special = {tokenizer.convert_tokens_to_ids(t) for t in ("<eos>", "<bos>", "<pad>")}
    assert special <= vocab.special_ids
    assert all(vocab.token_bytes[i] == b"" for i in special)
    ids = [tokenizer.bos_token_id, *tokenizer("hell")["input_ids"], tokenizer.eos_token_id]
    assert vocab.decode(ids) == "hell"
    assert vocab.decode(torch.tensor(ids)) == "hell"


def test_added_text_tokens_keep_their_text(byte_tokenizer):
    tokenizer = byte_tokenizer()
    added = ["plain text", "<think>", "<|fim|>"]
    tokenizer.add_tokens([AddedToken(token, special=False) for token in added])
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    for token in added:
        i = tokenizer.convert_tokens_to_ids(token)
        assert vocab.token_bytes[i] == token.encode()
        assert vocab.decode([i]) == tokenizer.decode([i], skip_special_tokens=True)


def test_byte_fallback():
    tokenizer = sentencepiece_like()
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [2])
    assert vocab.token_bytes[tokenizer.convert_tokens_to_ids("<0x0A>")] == b"\n"
    assert vocab.token_bytes[tokenizer.convert_tokens_to_ids("▁hi")] == b" hi"
    ids = tokenizer("hi hi é", add_special_tokens=False)["input_ids"]
    assert vocab.decode(ids) == "hi hi é"
    assert vocab.decode(ids[:-1]) == "hi hi �"  # half a character


def test_padded_logits(byte_tokenizer):
    tokenizer = byte_tokenizer()
    real = len(tokenizer)
    vocab = Vocabulary.from_tokenizer(tokenizer, real + 10, [tokenizer.eos_token_id])
    assert vocab.size == real + 10
    assert vocab.known_V.tolist() == [True] * real + [False] * 10
    assert vocab.token_bytes[real:] == [b""] * 10
    assert not any(i >= real for i in vocab.special_ids)
    assert vocab.ll_tokenizer.vocab_size == real + 10


def test_several_eos_ids(byte_tokenizer):
    tokenizer = byte_tokenizer()
    eos = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("a")]
    vocab = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), [*eos, eos[0]])
    assert vocab.eos_ids == tuple(eos)
    assert sorted(vocab.ll_tokenizer.eos_tokens) == sorted(eos)
    assert vocab.token_bytes[eos[1]] == b""
    assert set(eos) <= vocab.special_ids


def test_eos_out_of_range(byte_tokenizer):
    tokenizer = byte_tokenizer()
    with pytest.raises(ModelError, match="outside the vocabulary"):
        Vocabulary.from_tokenizer(tokenizer, 10, [tokenizer.eos_token_id])


def test_without_eos():
    with pytest.raises(ModelError, match="no output could end"):
        Vocabulary.from_tokens([b"a", b"b"], [])


def test_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Vocabulary.from_tokenizer(Slow(), 10, [0])


def test_masks_agree_with_bytes():
    """Both spellings of "ab" are allowed first, as the bytes say."""
    vocab = Vocabulary.from_tokens([b"a", b"b", b"ab", b"<eos>"], [3])
    assert vocab.token_bytes == [b"a", b"b", b"ab", b""]
    grammar = '%llguidance {"no_forcing": true}\nstart: "ab"'
    matcher = llguidance.LLMatcher(vocab.ll_tokenizer, grammar)
    assert not matcher.is_error()
    mask = int.from_bytes(matcher.compute_bitmask()[:4], "little")
    assert mask == 0b0101
    assert matcher.consume_token(2)
    assert int.from_bytes(matcher.compute_bitmask()[:4], "little") == 0b1000


def test_toy_with_two_eos_and_equal_tokens():
    vocab = Vocabulary.from_tokens([b"a", b"a", b"<e>", b"<f>"], [2, 3])
    assert len(vocab.ids()) == 4
    assert vocab.known_V is None
    assert vocab.decode([0, 1, 3]) == "aa"
    assert vocab.special_ids == {2, 3}


def test_ids_is_read_only():
    vocab = Vocabulary.from_tokens([b"a", b"<eos>"], [1])
    with pytest.raises(TypeError):
        vocab.ids()["a"] = 5


def test_check_same():
    one = Vocabulary.from_tokens([b"a", b"b", b"c", b"<eos>"], [3])
    same = Vocabulary.from_tokens([b"a", b"b", b"c", b"<eos>"], [3])
    one.check_same(one, this="draft", that="target")
    one.check_same(same, this="draft", that="target")
    one.check_same(same, this="draft", that="target")
    swapped = Vocabulary.from_tokens([b"a", b"c", b"b", b"<eos>"], [3])
    with pytest.raises(VocabularyMismatchError, match=r"token id 1 is 'b' in draft and 'c' in tar"):
        one.check_same(swapped, this="draft", that="target")
    shorter = Vocabulary.from_tokens([b"a", b"b", b"c"], [2])
    with pytest.raises(VocabularyMismatchError, match=r"token id 3 is '<eos>'.*unused in target"):
        one.check_same(shorter, this="draft", that="target")


def test_check_same_ignores_padding(byte_tokenizer):
    """Models of one family pad their logits to different widths; the tokens are the same."""
    tokenizer = byte_tokenizer()
    eos = [tokenizer.eos_token_id]
    narrow = Vocabulary.from_tokenizer(tokenizer, len(tokenizer), eos)
    wide = Vocabulary.from_tokenizer(tokenizer, len(tokenizer) + 6, eos)
    narrow.check_same(wide, this="narrow", that="wide")
    wide.check_same(narrow, this="wide", that="narrow")
