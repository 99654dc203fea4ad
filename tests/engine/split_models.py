"""Two small models that can be split, and the jobs that must not notice it.

Their weights are float64. Splitting a sum changes its last bits (about 1e-16 of it), and Llama's
and Qwen's norms round to float32, so that a logit may differ by 1e-7 at most; a token differs only
where a uniform falls so close to the border between two. That is less than 1e-4 for all draws of
these tests together, and, as seeds are fixed, the same in every run on a machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from smcprog import LM, Grammar, Target
from tests.engine.conftest import byte_level_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 50,  # an odd half: 25 for each of two
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
MEMORY: dict[str, Any] = {"device": "cpu", "dtype": "float64", "kv_pages": 1500}
PROMPT = "well hello w" * 6
"""Long enough for the kernel of wide passes."""


def save_models(folder: Path) -> None:
    """A Llama and a smaller Qwen3 with one tokenizer, in "big" and "small"."""
    tokenizer = byte_level_tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    size = {"vocab_size": len(tokenizer), "pad_token_id": None}
    for name, kind, layers in (("big", "Llama", 2), ("small", "Qwen3", 1)):
        config = getattr(transformers, f"{kind}Config")(
            **SIZES, **ids, **size, num_hidden_layers=layers, tie_word_embeddings=name == "big"
        )
        torch.manual_seed(layers)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).double()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(2.5)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


def main_job(lm: LM, small: LM, **options: Any) -> dict[str, Any]:
    """A grammar, a draft and particles: what came out."""
    target = Target(lm, temperature=0.9) * Grammar.regex(r"[a-e]{4,9}[0-9]{2}")
    settings = {"particles": 7, "draft_tokens": 4, "max_tokens": 14, "seed": 11}
    return outcome(target.sample(PROMPT, draft=small, ess_threshold=0.9, **settings, **options))


JOBS = {
    "main": {},
    "lossless": {"coupling": 1.0},
    "coupled": {"coupling": 2.0},
}
"""Names of main jobs, and their options."""


def outcome(post: Any) -> dict[str, Any]:
    """Tokens, weights and evidence of a posterior."""
    return {
        "tokens": [p.tokens for p in post.particles],
        "log_weights": [p.log_weight for p in post.particles],
        "log_evidence": post.log_evidence,
        "resampled": [bool(r.resampled) for r in post.rounds],
    }
