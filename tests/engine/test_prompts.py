"""The three forms of a prompt, and what is wrong with the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog.engine import LM
from smcprog.errors import PromptError

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def lm(model_of, byte_tokenizer):
    tokenizer = byte_tokenizer()
    return LM.from_model(model_of("llama", vocab_size=len(tokenizer) + 4), tokenizer)


def test_text_by_the_tokenizers_own_rule(lm):
    assert lm.encode("hello") == lm.tokenizer("hello")["input_ids"]
    eos = lm.tokenizer.eos_token_id
    assert lm.encode("a<eos>") == [*lm.encode("a"), eos]


def test_chat(lm):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(PromptError, match="chat template"):
        lm.encode(messages)
    lm.tokenizer.chat_template = TEMPLATE
    assert lm.encode(messages) == lm.tokenizer("<user>hi<assistant>")["input_ids"]
    with pytest.raises(PromptError, match=r"message 1 .*'role' and 'content'"):
        lm.encode([*messages, {"text": "hi"}])
    lm.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(PromptError, match="roles must alternate"):
        lm.encode(messages)


def test_ids(lm):
    for ids in ([3, 4, 5], (3, 4, 5), np.array([3, 4, 5]), torch.tensor([3, 4, 5])):
        assert lm.encode(ids) == [3, 4, 5]


@pytest.mark.parametrize("empty", ["", [], ()])
def test_empty(lm, empty):
    with pytest.raises(PromptError, match="empty"):
        lm.encode(empty)


@pytest.mark.parametrize("bad", [None, 5, b"bytes", {"role": "user"}, [1.5], ["a"], [True], [[1]]])
def test_other_forms(lm, bad):
    with pytest.raises(PromptError):
        lm.encode(bad)


def test_unknown_ids(lm):
    size = lm.vocab.size
    for bad in (-1, size, size - 1):  # the last is padding of the embedding matrix
        with pytest.raises(PromptError, match="token 1 is"):
            lm.encode([0, bad])
        with pytest.raises(PromptError):
            lm.sequences([0, bad], 1)


def test_longer_than_the_context(lm):
    with pytest.raises(PromptError, match=r"129 tokens.*context is 128"):
        lm.encode([1] * 129)
    with pytest.raises(PromptError, match=r"context is 128"):
        lm.encode("!" * 200)
    assert len(lm.encode([1] * 128)) == 128


def test_text_that_is_not_unicode(lm):
    with pytest.raises(PromptError, match="cannot be tokenized"):
        lm.encode("\ud800")


def test_toy_vocabulary_encodes_text(lm_of):
    lm = lm_of()
    assert lm.vocab.decode(lm.encode("$%&")) == "$%&"
    with pytest.raises(PromptError):
        lm.encode([{"role": "user", "content": "hi"}])
