"""What it costs to store keys and values in a narrower type: logits beside those of full pages.

A model draws a continuation of each prompt; then it reads prompt and continuation through pages of
each type, a few tokens at a time, as rounds do. Weights and tokens are the same in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.potentials import Target

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["compare", "default_kinds", "run"]

WIDTH = 8
"""Tokens of a pass."""


def default_kinds(lm: LM) -> list[str]:
    """The types to compare: all that are narrower than the model's own."""
    kinds = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    return [kind for kind in kinds if getattr(torch, kind).itemsize < lm.dtype.itemsize]


def run(
    lm: LM, prompts: Sequence[Any], kinds: Sequence[str], *, tokens: int = 128, seed: int = 0
) -> dict[str, Any]:
    """Compare pages of some types with those of the model's own.

    Parameters
    ----------
    lm : LM
        With pages of its own type.
    prompts : sequence
        As for `Potential.sample`.
    kinds : sequence of str
        Values of `kv_dtype`.
    tokens : int
        Most tokens of a continuation; it may end before.
    seed : int

    Returns
    -------
    dict
        ``tokens`` and ``context``, of all continuations and the mean length read before one;
        ``own``, the model's type, with its bytes a token; ``rows``, one a kind, as `compare`
        gives them.
    """
    from smcprog.engine.lm import LM

    histories: list[tuple[list[int], list[int]]] = []
    for prompt in prompts:
        post = Target(lm).sample(prompt, particles=1, max_tokens=tokens, seed=seed)
        histories.append((lm.encode(prompt), list(post.tokens)))
    expected_T_V = _read(lm, histories)
    rows = []
    for kind in kinds:
        other = LM.from_model(
            lm.model, lm.vocab, page_size=lm.page_size, prefix_cache=False, kv_dtype=kind
        )
        row = compare(expected_T_V, _read(other, histories))
        rows.append({"kv_dtype": kind, "bytes_per_token": _bytes_per_token(other), **row})
    lengths = [len(before) + i for before, after in histories for i in range(len(after))]
    return {
        "model": lm.name,
        "tokens": len(lengths),
        "context": sum(lengths) / len(lengths),
        "own": str(lm.dtype).removeprefix("torch."),
        "bytes_per_token": _bytes_per_token(lm),
        "rows": rows,
    }


def compare(expected_T_V: Tensor, got_T_V: Tensor) -> dict[str, float]:
    """How far logits are from others, over T tokens; sums in float64.

    Returns
    -------
    dict
        ``max_logit`` and ``mean_logit`` of the absolute differences; ``mean_kl`` and ``max_kl``
        in nats a token, of the first distribution from the second; ``top1``, how often both have
        one most probable token.
    """
    expected, got = expected_T_V.double(), got_T_V.double()
    log_p, log_q = expected.log_softmax(-1), got.log_softmax(-1)
    kl_T = (log_p.exp() * (log_p - log_q)).sum(-1)
    off = (expected - got).abs()
    return {
        "max_logit": float(off.max()),
        "mean_logit": float(off.mean()),
        "mean_kl": float(kl_T.mean()),
        "max_kl": float(kl_T.max()),
        "top1": float((expected.argmax(-1) == got.argmax(-1)).double().mean()),
    }


@torch.inference_mode()
def _read(lm: LM, histories: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Logits before each token of all continuations, [T, V], on the CPU."""
    parts = []
    for prompt, continuation in histories:
        with lm.sequences(prompt, 1) as rows:
            block = torch.tensor([continuation], device=lm.device)
            parts += [rows.score(piece)[0].float().cpu() for piece in block.split(WIDTH, dim=1)]
    return torch.cat(parts)


def _bytes_per_token(lm: LM) -> float:
    size = lm.engine.pool_size
    assert size is not None
    return size.bytes_per_page / size.page_size
