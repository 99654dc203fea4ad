"""The student: some layers of a target, to be trained to follow the whole of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smcprog.drafts.head import TrimmedHead
from smcprog.drafts.layers import keep_layers
from smcprog.drafts.recurrent import RecurrentDraft
from smcprog.engine.checks import own_copy
from smcprog.engine.linears import make_plain
from smcprog.errors import ModelError

__all__ = [
    "build_recurrent",
    "build_student",
    "check_head",
    "head_of",
    "hidden_states",
    "padded",
    "plain_twin",
    "stored",
    "trainable",
]


def build_student(
    model: Any,
    layers: Sequence[int],
    kept_M: Tensor | None = None,
    log_rest_V: Tensor | None = None,
) -> Any:
    """A model of the target's `layers`, which are copied; embeddings and head are shared with it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The target; not changed.
    layers : list of int
        Indices of layers, ascending.
    kept_M, log_rest_V : Tensor, optional
        For a `TrimmedHead`, whose rows are copies; without them the head is the target's.

    Raises
    ------
    ModelError
        If the model keeps its layers, or makes its logits, in a way that is not known.
    """
    student = own_copy(model)
    keep_layers(student, layers)
    make_plain(student)
    shared = _shared_names(student)
    fresh: dict[int, nn.Parameter] = {}  # so that tied parameters stay tied
    for name, value in list(student.named_parameters(remove_duplicate=False)):
        own = name not in shared
        weight = value.detach().clone() if own else value.detach()
        parameter = fresh.setdefault(id(value), nn.Parameter(weight, requires_grad=own))
        _set(student, name, parameter)
    if kept_M is not None and log_rest_V is not None:
        head = _trimmed(head_of(student), kept_M, log_rest_V)
        student.set_submodule(_head_name(student), head)
        student.config.tie_word_embeddings = False
    return student


def build_recurrent(
    model: Any,
    inner: int,
    tokens: int,
    kept_M: Tensor | None = None,
    log_rest_V: Tensor | None = None,
) -> RecurrentDraft:
    """A `RecurrentDraft` over the target's embeddings and head; its own weights are not set.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The target; not changed.
    inner, tokens : int
        As for `RecurrentDraft`.
    kept_M, log_rest_V : Tensor, optional
        As for `build_student`.
    """
    embedding = nn.Embedding.from_pretrained(model.get_input_embeddings().weight.detach())
    old = head_of(model)
    if kept_M is not None and log_rest_V is not None:
        head: nn.Module = _trimmed(old, kept_M, log_rest_V)
    else:
        head = nn.Linear(old.in_features, old.out_features, old.bias is not None, device="meta")
        head.weight = nn.Parameter(old.weight.detach(), requires_grad=False)
        if old.bias is not None:
            head.bias = nn.Parameter(old.bias.detach().clone())
    return RecurrentDraft(embedding, head, inner, tokens)


def _trimmed(old: Any, kept_M: Tensor, log_rest_V: Tensor) -> TrimmedHead:
    weight_V_D = old.weight.detach()
    rows_M = kept_M.to(weight_V_D.device)
    head = TrimmedHead(weight_V_D[rows_M], rows_M, log_rest_V.to(rows_M.device))
    if old.bias is not None:
        with torch.no_grad():
            head.kept.bias.copy_(old.bias[rows_M])
    return head


def plain_twin(model: Any) -> Any:
    """The same model with dense weights and the attention of transformers, for whole texts."""
    twin = own_copy(model)
    make_plain(twin)
    twin.set_attn_implementation("sdpa" if getattr(twin, "_supports_sdpa", False) else "eager")
    return twin


def trainable(student: Any) -> dict[str, nn.Parameter]:
    """What is trained, by name: layers, final norm, and the small parts of the head."""
    return {name: p for name, p in student.named_parameters() if p.requires_grad}


def stored(student: Any) -> dict[str, Tensor]:
    """What a student's file holds, by name: what is trained, and a trimmed head's lists."""
    tensors: dict[str, Tensor] = {name: p.detach() for name, p in trainable(student).items()}
    head = head_of(student)
    if isinstance(head, TrimmedHead):
        prefix = _head_name(student)
        tensors |= {f"{prefix}.{name}": value for name, value in head.named_buffers()}
    return tensors


def head_of(model: Any) -> Any:
    """The module that makes logits of hidden states: a linear map, or a `TrimmedHead`.

    Raises
    ------
    ModelError
        If the model has none.
    """
    return model.get_submodule(_head_name(model))


def hidden_states(model: Any, tokens_B_T: Tensor) -> Tensor:
    """What the head of `model` is given for padded rows of tokens, [B, T, D].

    Padding is on the right, so that causal attention needs no mask.
    """
    states: Tensor = model.base_model(input_ids=tokens_B_T, use_cache=False).last_hidden_state
    return states


@torch.no_grad()
def check_head(model: Any) -> None:
    """Raise ModelError unless the logits of `model` are a linear head's output, untouched.

    Some architectures scale or cap them, or project hidden states first.
    """
    head = head_of(model)
    tokens = (
        torch.arange(4, device=model.device)[None] % model.get_input_embeddings().weight.shape[0]
    )
    logits = model(input_ids=tokens, use_cache=False).logits
    same = (
        isinstance(head, nn.Linear) and head.in_features == hidden_states(model, tokens).shape[-1]
    )
    if not same or not torch.allclose(
        head(hidden_states(model, tokens)).float(), logits.float(), rtol=1e-2, atol=1e-2
    ):
        kind = getattr(model.config, "model_type", type(model).__name__)
        raise ModelError(
            f"a model of type {kind!r} does more than a linear head to make its logits (a cap or "
            "a scale), which a student cannot follow; use a model whose head is all there is"
        )


def _head_name(model: Any) -> str:
    wanted = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, TrimmedHead) or (wanted is not None and module is wanted):
            return str(name)
    kind = getattr(model.config, "model_type", type(model).__name__)
    raise ModelError(f"a model of type {kind!r} has no output head, so no student can be made")


def _shared_names(model: Any) -> set[str]:
    """Parameters that stay the target's own: every embedding, and the matrix of the head."""
    names = {f"{_head_name(model)}.weight"}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            names.add(f"{name}.weight")
    return names


def _set(model: Any, name: str, value: nn.Parameter) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, value)


def padded(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Rows of token ids padded on the right with zeros, int64 [B, T]."""
    tokens = nn.utils.rnn.pad_sequence([r.long() for r in rows], batch_first=True)
    return tokens.to(device)
