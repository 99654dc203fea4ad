"""A draft that is slower than its target is said to be so, with the measured ratio."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from smcprog import LM, Target
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SlowDraftWarning


def llama(layers, width):
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        eos_token_id=7,
        bos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    vocab = Vocabulary.from_tokens([bytes([97 + i]) for i in range(8)], [7])
    return LM.from_model(LlamaForCausalLM(config).eval(), vocab, name=f"{layers}x{width}")


def test_a_slow_draft_is_named_once_with_its_ratio():
    """16 layers against one: the measured ratio is far from 1 on any machine."""
    small, large = llama(1, 32), llama(16, 128)
    options = {"particles": 4, "max_tokens": 16, "draft_tokens": 2, "seed": 0}
    with pytest.warns(SlowDraftWarning, match=r"draft 16x128 .* target 1x32") as caught:
        Target(small).sample([0], draft=large, **options)
    ratio = float(re.search(r"takes ([\d.]+) times", str(caught[0].message))[1])
    assert ratio > 2
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Target(small).sample([0], draft=large, **options)
        Target(large).sample([0], draft=small, **options)
    for lm in (small, large):
        lm.check_pages()
