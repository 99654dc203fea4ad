"""Random-weight transformers models, small enough to enumerate, run by the real engine."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from smcprog import LM
from smcprog.engine.vocab import Vocabulary


def tiny_model(
    vocab_size: int = 3, eos: int = 2, seed: int = 0, scale: float = 1.0, context: int = 64
) -> LlamaForCausalLM:
    """A two-layer Llama in float64, all of it.

    `scale` multiplies the random logits: large values make a peaked model.
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=eos,
        bos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LlamaRMSNorm):
                # Llama's own norm rounds to float32, which hides the last seven digits.
                setattr(module, name, torch.nn.RMSNorm(16, eps=child.variance_epsilon))
    model = model.double().eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, scale)
    return model


def tiny_llama(vocab_size: int = 3, eos: int = 2, **options) -> LM:
    """`LM` of a `tiny_model` over the letters a, b, c, … and one EOS id.

    Options are those of `tiny_model`, or of `LM`'s memory.
    """
    known = ("kv_pages", "page_size", "prefix_cache", "graphs")
    memory = {k: options.pop(k) for k in known if k in options}
    tokens = [bytes([ord("a") + i]) for i in range(vocab_size)]
    tokens[eos] = b"<eos>"
    model = tiny_model(vocab_size, eos, **options)
    return LM.from_model(model, Vocabulary.from_tokens(tokens, [eos]), **memory)
