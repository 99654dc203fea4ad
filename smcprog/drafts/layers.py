"""Decoder layers of a model: chosen, left out, and copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from smcprog.errors import ModelError, SettingError
from smcprog.validate import whole

__all__ = ["check_layers", "keep_layers", "layer_count", "layer_list"]


def layer_list(model: Any) -> tuple[nn.Module, str, nn.ModuleList]:
    """The module that holds the decoder layers, their name in it, and the list itself.

    Raises
    ------
    ModelError
        If the model does not keep its layers in one list.
    """
    count = model.config.get_text_config().num_hidden_layers
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(found) != 1:
        kind = getattr(model.config, "model_type", type(model).__name__)
        raise ModelError(
            f"layers of a model of type {kind!r} cannot be left out: it has {len(found)} lists of "
            f"{count} modules, and exactly one must hold its decoder layers"
        )
    return found[0]


def layer_count(model: Any) -> int:
    """Decoder layers of `model`."""
    return int(model.config.get_text_config().num_hidden_layers)


def check_layers(name: str, layers: Any, count: int) -> list[int]:
    """`layers` as a list of different indices below `count`, ascending.

    Raises
    ------
    SettingError
        If it is empty, or an index is unknown or named twice; `name` is used in the message.
    """
    if isinstance(layers, (str, bytes)) or not isinstance(layers, (Sequence, range, set)):
        raise SettingError(f"{name} must be a list of layer indices, got {layers!r:.60}")
    chosen = [whole(f"{name}: layer", i, 0, count - 1) for i in layers]
    twice = sorted({i for i in chosen if chosen.count(i) > 1})
    if twice:
        raise SettingError(f"{name} names layer {twice[0]} twice")
    if not chosen:
        raise SettingError(f"{name} is empty; at least one of the {count} layers must stay")
    return sorted(chosen)


def keep_layers(model: Any, layers: Sequence[int]) -> None:
    """Leave only the given layers in `model`, in their order; changes it in place.

    `model` must have modules and a configuration of its own (`own_copy`).
    """
    parent, name, every = layer_list(model)
    kept = nn.ModuleList([every[i] for i in layers])
    for index, layer in enumerate(kept):
        for module in layer.modules():
            if getattr(module, "layer_idx", None) is not None:
                module.layer_idx = index  # type: ignore[assignment]
    setattr(parent, name, kept)
    text = model.config.get_text_config()
    types = getattr(text, "layer_types", None)
    text.num_hidden_layers = len(kept)
    if types is not None:
        text.layer_types = [types[i] for i in layers]
