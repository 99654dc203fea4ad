"""Pairs of models in the shapes of published ones, with random weights made on the device.

Nothing is downloaded: speed depends on shapes and types, not on what the weights say. Logits are
scaled so that draft and target differ about as much as real pairs do: then a share of drafts is
refused, weights differ, and populations are resampled.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from smcprog.bench.gpu.cells import Grid, output_tokens
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError

__all__ = ["PAIRS", "ModelPair", "Shape", "build_pair", "check_fits", "letters", "pair_names"]

LOGIT_SPREAD = 0.23
"""Standard deviation of the logits of each model. Two such models overlap by Σ min(p, q) ≈ .87 and
have χ² ≈ .11 a token, so that ESS/N is about .4 after nine tokens."""

LLAMA = {"vocab_size": 128_256, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN3 = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One model.

    Attributes
    ----------
    name : str
    family : str
        "llama" or "qwen3".
    sizes : dict
        Arguments of the configuration.
    theta : float
        Base of the rotary positions.
    """

    name: str
    family: str
    sizes: dict[str, Any]
    theta: float

    def config(self) -> Any:
        """The configuration of `transformers`, without end-of-sequence token."""
        import transformers

        cls = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[self.family]
        return cls(
            **self.sizes,
            rope_parameters={"rope_type": "default", "rope_theta": self.theta},
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )


def _tiny(name: str, layers: int) -> Shape:
    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 16_384,
    }
    return Shape(name, "llama", sizes, 10_000.0)


LLAMA_1B = Shape(
    "Llama-3.2-1B",
    "llama",
    {
        **LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
    },
    500_000.0,
)
LLAMA_8B = Shape(
    "Llama-3.1-8B",
    "llama",
    {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    },
    500_000.0,
)
QWEN3_06B = Shape(
    "Qwen3-0.6B",
    "qwen3",
    {
        **QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    1_000_000.0,
)
QWEN3_8B = Shape(
    "Qwen3-8B",
    "qwen3",
    {
        **QWEN3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": False,
    },
    1_000_000.0,
)

PAIRS: dict[str, tuple[Shape, Shape]] = {
    "llama": (LLAMA_8B, LLAMA_1B),
    "qwen3": (QWEN3_8B, QWEN3_06B),
    "tiny": (_tiny("tiny-4", 4), _tiny("tiny-1", 1)),
}
"""Target and draft by the name of the pair."""


def pair_names(text: str) -> list[str]:
    """Names of a list such as ``llama,qwen3``.

    Raises
    ------
    SettingError
        If one is unknown or there is none.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or any(name not in PAIRS for name in names):
        raise SettingError(f"--shapes must be of {', '.join(PAIRS)}, got {text!r}")
    return list(dict.fromkeys(names))


def check_fits(name: str, grid: Grid, rounds: int) -> None:
    """Raise SettingError unless the longest outputs of a grid fit the context of a pair."""
    longest = max(grid.prompts) + output_tokens(rounds + 1, max(grid.draft_tokens))
    for shape in PAIRS[name]:
        context = shape.sizes["max_position_embeddings"]
        if longest > context:
            raise SettingError(
                f"bench gpu: prompts of {max(grid.prompts)} tokens with {rounds} rounds reach "
                f"{longest} tokens, and the context of {shape.name} is {context}: give a smaller "
                "--prompt-tokens, --rounds or -k"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class ModelPair:
    """Two models in memory, as `transformers` makes them, and their vocabulary.

    Attributes
    ----------
    name : str
    target, draft : transformers.PreTrainedModel
    vocab : Vocabulary
        No end of sequence: outputs have the length that is asked for.
    shapes : tuple of Shape
        Of target and draft.
    """

    name: str
    target: Any
    draft: Any
    vocab: Vocabulary
    shapes: tuple[Shape, Shape]


def build_pair(name: str, device: torch.device, dtype: torch.dtype) -> ModelPair:
    """The models of a pair, made on their device."""
    target, draft = PAIRS[name]
    vocab = Vocabulary.from_tokens(letters(target.sizes["vocab_size"]), [0])
    _ = vocab.token_bytes  # built once
    vocab.eos_ids = ()
    return ModelPair(
        name,
        _random_model(target, device, dtype, seed=0),
        _random_model(draft, device, dtype, seed=1),
        vocab,
        (target, draft),
    )


def letters(count: int) -> list[bytes]:
    """So many different words of small letters, of equal length."""
    width = max(1, math.ceil(math.log(max(count, 2), 26) - 1e-9))
    return [bytes(97 + i // 26**p % 26 for p in reversed(range(width))) for i in range(count)]


@torch.no_grad()
def _random_model(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            shape.config(), dtype=dtype, attn_implementation="sdpa"
        ).eval()
    # Hidden states come out of a norm with mean square 1, so logits have this deviation.
    head = model.get_output_embeddings().weight
    head.normal_(0, LOGIT_SPREAD / math.sqrt(shape.sizes["hidden_size"]))
    return model
