"""Our attention as an attention implementation of transformers.

The function is registered once, under `IMPLEMENTATION`. It holds no state: what belongs to one
forward travels as the keyword argument `BATCH_ARGUMENT` of the model, which transformers hands
down to every attention layer. No mask function is registered on purpose: transformers then
builds no mask, and does not read the position ids back from the device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from smcprog.attention.base import PagedAttention
from smcprog.errors import ModelError

__all__ = ["BATCH_ARGUMENT", "IMPLEMENTATION", "PagedBatch"]

IMPLEMENTATION = "smcprog"
BATCH_ARGUMENT = "smcprog_batch"


@dataclasses.dataclass(frozen=True, eq=False)
class PagedBatch:
    """What the attention layers need to know of one forward."""

    attention: PagedAttention
    plan: Any


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every attention layer."""
    batch: PagedBatch | None = kwargs.get(BATCH_ARGUMENT)
    if batch is None:
        raise ModelError("this model belongs to an LM; run it through the LM, not on its own")
    if kwargs.get("s_aux") is not None:
        raise ModelError("the model uses attention sinks, which the engine does not represent")
    if "sliding_window" in kwargs:
        window = kwargs["sliding_window"]
    else:
        window = _configured_window(module)
    out = batch.attention.attend(
        batch.plan,
        module.layer_idx,  # type: ignore[arg-type]
        query,
        key,
        value,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=window,
        softcap=softcap,
    )
    return out, None


def _configured_window(module: nn.Module) -> int | None:
    """The window of a layer that leaves it to the mask, which is not built here."""
    config: Any = module.config
    types = getattr(config, "layer_types", None)
    if types is not None and types[module.layer_idx] != "sliding_attention":
        return None
    return getattr(config, "sliding_window", None)


AttentionInterface.register(IMPLEMENTATION, _attention)
