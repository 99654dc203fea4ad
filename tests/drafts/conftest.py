from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from smcprog import LM
from smcprog.drafts import DistillSettings
from smcprog.engine.vocab import Vocabulary

SIZE = 12


def deep_model(layers=4, seed=0, **changes):
    """A tiny Llama in float64 with several layers that all matter."""
    options = {
        "vocab_size": SIZE,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "eos_token_id": SIZE - 1,
        "bos_token_id": None,
        "pad_token_id": None,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**options | changes)).double().eval()


def lm_of(model):
    size = model.get_input_embeddings().weight.shape[0]
    tokens = [bytes([ord("a") + i]) for i in range(size - 1)] + [b"<eos>"]
    return LM.from_model(model, Vocabulary.from_tokens(tokens, [size - 1]), name="tiny")


@pytest.fixture
def lm():
    return lm_of(deep_model())


@pytest.fixture
def settings():
    return DistillSettings(
        layers=[0, 3],
        vocabulary=8,
        text_tokens=400,
        held_tokens=150,
        text_length=16,
        text_batch=16,
        tokens=6000,
        batch=128,
        rate=1e-2,
        storage="float64",
    )
