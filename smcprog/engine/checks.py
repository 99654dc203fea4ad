"""Whether the engine can run a model, and then gives the model's own logits."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from smcprog.attention import IMPLEMENTATION, TorchPagedAttention
from smcprog.engine.engine import Engine
from smcprog.engine.quantised import quantisation
from smcprog.engine.sequences import PagedSequences
from smcprog.errors import ModelError

__all__ = ["check_dispatchable", "check_logits", "own_copy"]

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
CHUNKS = (4, 1, 3)
# Eager attention takes its softmax in float32, whatever the type of the model.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
LOW_PRECISION_TOLERANCE = 0.2


def check_dispatchable(config: Any, cls: type | None = None) -> None:
    """Raise ModelError if the architecture keeps state besides attention that we can replace.

    Looks at the configuration and the class (default: the one that loading would use) only.
    """
    kind = getattr(config, "model_type", type(config).__name__)
    if cls is None:
        try:
            cls = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        except KeyError:
            raise ModelError(f"a model of type {kind!r} is not a causal language model") from None
    text = config.get_text_config()
    types = set(getattr(text, "layer_types", None) or ())
    other = sorted(map(str, types - ATTENTION_LAYERS))
    if other:
        raise ModelError(
            f"a model of type {kind!r} cannot be run: it has layers of type {', '.join(other)}, "
            "and the engine runs models whose layers are all full or sliding-window attention"
        )
    if not getattr(cls, "_supports_attention_backend", False):
        raise ModelError(
            f"the attention of a model of type {kind!r} cannot be replaced: it does not use the "
            "attention interface of transformers; use an architecture that does (Llama, Qwen2, "
            "Qwen3, Mistral, Gemma 2, Gemma 3, GPT-2, ...)"
        )


def own_copy(model: Any) -> Any:
    """The same model with modules and configuration of its own; the weights are shared."""
    memo = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo).eval()


@torch.no_grad()
def check_logits(model: Any, page_size: int, max_context: int) -> tuple[int, int]:
    """Compare a few tokens through pages with the model's own attention.

    The tokens go through in pieces, so a model that keeps state elsewhere, or whose attention
    does more than the engine knows, shows.

    Returns
    -------
    vocab_size, bytes_per_page : int
        Width of the logits; what a page takes over all layers.

    Raises
    ------
    ModelError
        If the logits differ, or a layer never called the attention.
    """
    kind = getattr(model.config, "model_type", type(model).__name__)
    size = model.get_input_embeddings().weight.shape[0]
    chunks = [c for i, c in enumerate(CHUNKS) if sum(CHUNKS[: i + 1]) <= max_context] or [1]
    tokens = ((torch.arange(sum(chunks)) * 7919 + 11) % size)[None].to(model.device)
    try:
        model.set_attn_implementation("eager")
        expected = model(input_ids=tokens, use_cache=False).logits
    except Exception as error:
        raise ModelError(f"a model of type {kind!r} does not run: {error}") from error
    finally:
        model.set_attn_implementation(IMPLEMENTATION)

    pages = -(-sum(chunks) // page_size) + 1
    attention = TorchPagedAttention(pages, page_size, model.device)
    engine = Engine(model, attention, max_context, expected.shape[-1])
    rows = PagedSequences.empty(engine, 1)
    got: list[Tensor] = []
    begin = 0
    for chunk in chunks:
        piece = tokens[:, begin : begin + chunk]
        if begin == 0:
            rows.append(piece[:, :1])
            got.append(rows.next_logits()[:, None])
            piece = piece[:, 1:]
        if piece.shape[1]:
            got.append(torch.cat([rows.score(piece)[:, 1:], rows.next_logits()[:, None]], dim=1))
        begin += chunk
    rows.close()

    layers = model.config.get_text_config().num_hidden_layers
    absent = sorted(set(range(layers)) - attention.layers)
    if absent:
        raise ModelError(
            f"a model of type {kind!r} cannot be run: layer {absent[0]} of {layers} never called "
            "the attention interface"
        )
    actual = torch.cat(got, dim=1).double()
    wanted = expected.double()
    off = float((actual - wanted).norm() / wanted.norm().clamp_min(1e-30))
    tolerance = TOLERANCE.get(expected.dtype, LOW_PRECISION_TOLERANCE)
    if quantisation(model.config) is not None:  # what is rounded may depend on the batch
        tolerance = LOW_PRECISION_TOLERANCE
    if not off <= tolerance:
        raise ModelError(
            f"a model of type {kind!r} cannot be run: through paged attention its logits differ "
            f"from its own by {off:.1e} (relative); it keeps state besides attention, or its "
            "attention does something the engine does not know"
        )
    return int(expected.shape[-1]), attention.bytes_per_page
