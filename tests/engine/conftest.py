"""Small real models and tokenizers for the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from smcprog.engine import LM, Vocabulary

V = 50
CONTEXT = 128
WINDOW = 8
SIZES = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": V - 1,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SIZES),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 8}),
    "mistral": ("MistralConfig", {**SIZES, "sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2Config",
        {
            **SIZES,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gemma3": ("Gemma3TextConfig", {**SIZES, "head_dim": 8, "sliding_window": WINDOW}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": V,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": CONTEXT,
            "eos_token_id": V - 1,
            "bos_token_id": 0,
        },
    ),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model(arch: str, seed: int = 0, **changes: Any) -> Any:
    """Random model with weights large enough that attention matters."""
    name, sizes = CONFIGS[arch]
    config = getattr(transformers, name)(**{**sizes, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


def toy_vocabulary(size: int = V) -> Vocabulary:
    tokens = [bytes([33 + i]) for i in range(size - 1)]
    return Vocabulary.from_tokens([*tokens, b"<eos>"], [size - 1])


def byte_level_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """A real byte-level BPE tokenizer: every byte, a few merges, special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **(special or {"eos_token": "<eos>", "bos_token": "<bos>"})
    )


@pytest.fixture
def model_of() -> Callable[..., Any]:
    return make_model


@pytest.fixture
def lm_of() -> Callable[..., LM]:
    def make(arch: str = "llama", **settings: Any) -> LM:
        return LM.from_model(make_model(arch), toy_vocabulary(), **settings)

    return make


@pytest.fixture
def byte_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return byte_level_tokenizer


@pytest.fixture
def vocabulary() -> Vocabulary:
    return toy_vocabulary()


@pytest.fixture
def reference() -> Callable[[Any, list[list[int]]], list[torch.Tensor]]:
    """Plain forward of full sequences: logits [length, V] of each."""

    @torch.no_grad()
    def forward(model: Any, rows: list[list[int]]) -> list[torch.Tensor]:
        longest = max(map(len, rows))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        logits = model(input_ids=padded, use_cache=False).logits  # causal: padding changes nothing
        return [logits[i, : len(row)] for i, row in enumerate(rows)]

    return forward
