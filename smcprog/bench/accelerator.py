"""What a described accelerator allows: the roofline from bandwidth, arithmetic and model sizes.

A forward of n tokens reads every weight once and does two operations a weight and token,

    t(n) = o + max(bytes / bandwidth, 2 · weights · n / flops),

with the keys and values of the tokens before, and their arithmetic, beside the weights. So up to
the knee n* = flops · bytes_per_weight / (2 · bandwidth) tokens are free. There, with a draft of c
times the target's weights, a round of K drafts is (K + 1) / (1 + K·c) times as fast as K + 1 steps
without a draft, whatever the number of particles N with N·(K + 1) ≤ n*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smcprog.errors import SettingError
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["ACCELERATORS", "Accelerator", "Size", "parse_accelerator", "predict", "size_of"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A machine by its data sheet.

    Attributes
    ----------
    name : str
    bandwidth : float
        Bytes a second of its memory.
    flops : float
        Operations a second in `dtype`, dense.
    dtype : str
        Type of weights, keys and values.
    overhead : float
        Seconds that a forward takes beyond both (launching kernels).
    """

    name: str
    bandwidth: float
    flops: float
    dtype: str = "bfloat16"
    overhead: float = 0.0

    @property
    def knee(self) -> float:
        """Tokens of a forward at which arithmetic takes as long as reading the weights."""
        return self.flops * BYTES[self.dtype] / (2 * self.bandwidth)

    def seconds(
        self,
        size: Size,
        rows: float,
        columns: float,
        *,
        context: float = 0.0,
        shared: float = 0.0,
        groups: int = 1,
    ) -> float:
        """Least seconds of a forward: what has to be read, or what has to be computed.

        Parameters
        ----------
        size : Size
        rows, columns : float
            Sequences, and new tokens of each.
        context : float
            Tokens of a row before, read once a row.
        shared : float
            Tokens before those that all rows of a group hold, read once a group.
        groups : int
        """
        numbers = size.weights + size.kv * (rows * context + groups * shared)
        work = rows * columns * (2 * size.weights + 4 * size.attention * (context + shared))
        return self.overhead + max(BYTES[self.dtype] * numbers / self.bandwidth, work / self.flops)


ACCELERATORS = {
    "a100": Accelerator("a100", 2.04e12, 3.12e14),
    "h100": Accelerator("h100", 3.35e12, 9.89e14),
    "h200": Accelerator("h200", 4.8e12, 9.89e14),
    "b200": Accelerator("b200", 8.0e12, 2.25e15),
}
"""Dense bfloat16 figures of the data sheets."""


@dataclasses.dataclass(frozen=True)
class Size:
    """A model by what a forward has to read.

    Attributes
    ----------
    weights : float
        Weights that take part in a forward.
    kv : float
        Keys and values of one token of context, in numbers.
    attention : float
        Queries of one token over all layers, in numbers: each is multiplied with a key and a
        value of every token before.
    """

    weights: float
    kv: float = 0.0
    attention: float = 0.0


def parse_accelerator(text: str) -> Accelerator:
    """An accelerator by name, or as ``bandwidth=4.8e12,flops=9.9e14,dtype=bfloat16``.

    Raises
    ------
    SettingError
    """
    if text.lower() in ACCELERATORS:
        return ACCELERATORS[text.lower()]
    hint = (
        f"--accelerator is one of {', '.join(ACCELERATORS)}, or a description such as "
        "bandwidth=4.8e12,flops=9.9e14,dtype=bfloat16,overhead=2e-4"
    )
    given: dict[str, str] = {}
    for part in text.split(","):
        key, sign, value = part.partition("=")
        if not sign or key.strip() not in ("bandwidth", "flops", "dtype", "overhead"):
            raise SettingError(f"{hint}; got {text!r}")
        given[key.strip()] = value.strip()
    if not {"bandwidth", "flops"} <= set(given):
        raise SettingError(f"{hint}; bandwidth and flops are needed, got {text!r}")
    dtype = given.get("dtype", "bfloat16")
    if dtype not in BYTES:
        raise SettingError(f"--accelerator: dtype must be one of {', '.join(BYTES)}, got {dtype!r}")
    numbers = {k: _number(k, given[k]) for k in ("bandwidth", "flops", "overhead") if k in given}
    return Accelerator("described", dtype=dtype, **numbers)


def size_of(lm: LM | FedDraft) -> Size:
    """Sizes of a loaded model, counted from its configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    from smcprog.drafts.fed import FedDraft

    if isinstance(lm, FedDraft):
        return Size(float(lm.weights), 0.0)

    text = lm.config.get_text_config()
    with torch.device("meta"):
        bare = AutoModelForCausalLM.from_config(lm.config)
    inside = {id(p): p.numel() for p in bare.parameters()}
    for module in (bare.get_input_embeddings(), bare.get_output_embeddings()):
        inside.pop(id(module.weight), None)
    head = bare.get_output_embeddings().weight
    kept = getattr(lm.model.get_output_embeddings(), "kept", None)  # a trimmed head
    weights = sum(inside.values()) + (head if kept is None else kept.weight).numel()
    heads = text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv = 2 * text.num_hidden_layers * (getattr(text, "num_key_value_heads", None) or heads) * width
    return Size(float(weights), float(kv), float(text.num_hidden_layers * heads * width))


def predict(
    accelerator: Accelerator,
    target: Size,
    draft: Size,
    particles: Sequence[int],
    draft_tokens: Sequence[int],
    *,
    requests: Sequence[int] = (1,),
    context: float = 0.0,
    acceptance: float | None = None,
) -> dict[str, Any]:
    """Speed of SMC-SD and lossless rounds over one autoregressive stream of the target.

    Parameters
    ----------
    particles, draft_tokens, requests : list of int
    context : float
        Tokens before; their keys and values are read once a row (not shared).
    acceptance : float, optional
        Of a drafted token, for the lossless mode with one particle.

    Returns
    -------
    dict
        `knee_tokens`, `cost_ratio` c, and a list of `cells`.
    """

    def seconds(size: Size, rows: int, columns: int) -> float:
        return accelerator.seconds(size, rows, columns, context=context)

    step = seconds(target, 1, 1)
    ratio = seconds(draft, 1, 1) / step
    cells = []
    for r in requests:
        for n in particles:
            for k in draft_tokens:
                rows = r * n
                spent = k * seconds(draft, rows, 1) + seconds(target, rows, k + 1)
                cells.append(
                    {
                        "requests": r,
                        "particles": n,
                        "draft_tokens": k,
                        "tokens": rows * (k + 1),
                        "memory_bound": rows * (k + 1) <= accelerator.knee,
                        "round_seconds": spent,
                        "smc_speed": (k + 1) / spent,
                        "smc_speedup": (k + 1) * step / spent,
                        "memory_bound_speedup": (k + 1) / (1 + k * ratio),
                        "lossless_speedup": None
                        if acceptance is None
                        else sum(acceptance**i for i in range(k + 1)) * step / spent,
                    }
                )
    return {
        "accelerator": dataclasses.asdict(accelerator),
        "target_weights": target.weights,
        "draft_weights": draft.weights,
        "context": context,
        "acceptance": acceptance,
        "knee_tokens": accelerator.knee,
        "cost_ratio": ratio,
        "autoregressive_speed": 1 / step,
        "cells": cells,
    }


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise SettingError(f"--accelerator: {name} must be a number, got {text!r}") from None
    value = real(f"--accelerator: {name}", value, 0)
    if value == 0 and name != "overhead":
        raise SettingError(f"--accelerator: {name} must be greater than 0")
    return value
