"""Small models on a device: random ones that FlashInfer can run, and ones that are a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from smcprog import LM
from smcprog.engine.vocab import Vocabulary

from ..engine.conftest import make_model
from ..exactness.toys import CASE_A, CASE_C, CASES, Case, Toy

HEAD = 64  # the smallest head that FlashInfer has kernels for
NEVER = -1e4  # a logit whose probability is 0 in any type


def random_model(arch: str, device: torch.device, dtype: torch.dtype, **changes: Any) -> Any:
    """A model of two layers with heads of 64, on a device."""
    sizes = {"hidden_size": 2 * HEAD, "num_attention_heads": 2, "num_key_value_heads": 1}
    if arch in ("qwen3", "gemma2", "gemma3"):
        sizes["head_dim"] = HEAD
    if arch == "gpt2":
        sizes = {"n_embd": 2 * HEAD, "n_head": 2}
    model = make_model(arch, **{**sizes, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.div_(3)  # large enough that attention matters, not that rounding rules
    return model.to(dtype).to(device)


@dataclasses.dataclass(frozen=True)
class Table:
    """A bigram model: p(v) after each token, and after the prompt, whose token is the last row.

    Attributes
    ----------
    tokens : tuple of bytes
        Without the prompt's token, which is the id after them and never drawn.
    eos : int
    rows : tuple
        Probabilities after each token, one more for the prompt's.
    """

    tokens: tuple[bytes, ...]
    eos: int
    rows: tuple[Sequence[float], ...]

    @property
    def prompt(self) -> list[int]:
        return [len(self.tokens)]

    def softened(self, share: float) -> Table:
        """A draft: the same, mixed with what is uniform over the same support."""
        mixed = []
        for row in self.rows:
            support = [p > 0 for p in row]
            mixed.append(
                tuple(
                    (1 - share) * p + share * s / sum(support)
                    for p, s in zip(row, support, strict=True)
                )
            )
        return dataclasses.replace(self, rows=tuple(mixed))

    def lm(self, device: torch.device, dtype: torch.dtype, **options: Any) -> LM:
        """As a Llama: every state is its last token, and attention adds nothing to it.

        Its layers run as any others do; what they add is multiplied by 0. The norm before the
        head makes of token v the vector √H · e_v, and row v of the head's transpose holds log p.
        """
        size = len(self.tokens) + 1
        config = LlamaConfig(
            vocab_size=size,
            hidden_size=2 * HEAD,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=HEAD,
            max_position_embeddings=64,
            rms_norm_eps=1e-12,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
        root = math.sqrt(config.hidden_size)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            model.model.embed_tokens.weight.zero_()
            model.model.embed_tokens.weight[:, :size] = root * torch.eye(size)
            model.lm_head.weight.zero_()
            for v, row in enumerate(self.rows):
                logits = [math.log(p) if p > 0 else NEVER for p in (*row, 0.0)]
                model.lm_head.weight[:, v] = torch.tensor(logits) / root
        vocab = Vocabulary.from_tokens([*self.tokens, b"<prompt>"], [self.eos])
        return LM.from_model(model.to(dtype).to(device), vocab, **options)

    def toy(self, lm: LM) -> Toy:
        """What `lm` says, in its own type: p(v | last token) as its plain model computes it."""
        found = []
        with torch.no_grad():
            for v in range(len(self.tokens) + 1):
                rows = lm.sequences([v], 1)
                logits = rows.next_logits()[0].double().cpu()
                found.append(torch.softmax(logits, -1).tolist())
                rows.close()
        return Toy(
            (*self.tokens, b"<prompt>"), self.eos, lambda h: found[h[-1] if h else -1], order=1
        )


def _of(toy: Toy) -> Table:
    """A toy of order 1 as it is."""
    states = range(len(toy.tokens))
    return Table(
        toy.tokens, toy.eos, (*(toy.conditional((v,)) for v in states), toy.conditional(()))
    )


def _case_b() -> Table:
    """Five fair bits, then EOS: bits of different places are different tokens of equal bytes."""
    tokens = [b"0", b"1"] * 5 + [b"<eos>"]
    rows = []
    for v in range(11):
        row = [0.0] * 11
        if v >= 8:
            row[10] = 1.0
        else:
            row[2 * (v // 2) + 2] = row[2 * (v // 2) + 3] = 0.5
        rows.append(tuple(row))
    start = (0.5, 0.5, *[0.0] * 9)
    return Table(tuple(tokens), 10, (*rows, start))


def _case_d() -> Table:
    """Where case D looks two tokens back, its grammar has no text any more."""
    end = (0.0, 0.0, 0.0, 1.0)
    return Table(
        (b"a", b"b", b"ab", b"<eos>"),
        3,
        ((0.4, 0.2, 0.2, 0.2), end, end, end, (0.3, 0.3, 0.1, 0.3)),
    )


TABLES: dict[str, tuple[Table, Case]] = {
    "A": (_of(CASE_A), CASES["A"]),
    "B": (_case_b(), CASES["B"]),
    "C": (_of(CASE_C), CASES["C"]),
    "D": (_case_d(), CASES["D"]),
}
