"""Put the fast linear layers into a model, and take them out again."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from smcprog.engine.linears.choice import choose
from smcprog.engine.linears.modules import FastLinear, Stack
from smcprog.engine.linears.storage import Packed, Plain, Storage, can_pack, pack_shared

__all__ = ["install", "make_plain", "weight_count"]

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one parent that read the same input, in the order in which they are called."""
LEAST_WEIGHTS = 1 << 16
"""Smaller weights stay as they are: the product is not what their layer costs."""

BOTH_BYTES = 1 << 30
"""Weights of a model up to which both layouts are kept: the packed one, which is fastest for
populations, and the dense one, which is faster for a single stream."""

Place = tuple[nn.Module, str]


@torch.no_grad()
def install(model: nn.Module, *, pack: bool, least: int | None = None) -> None:
    """Replace the float32 `nn.Linear` modules of a model on the CPU, in place.

    Other types, devices and modules (GPT-2's `Conv1D`, experts, anything derived from
    `nn.Linear`) stay as they are, and so do layers with quantised weights.

    Parameters
    ----------
    model : nn.Module
        Its parameters are not changed, but with `pack` no longer referred to.
    pack : bool
        Store weights in the packed layout, siblings under each other, where the machine has
        it. Frees the dense weight if the model is large (`BOTH_BYTES`), unless something else
        (a tied embedding, another model) holds it too; models with one tied embedding share
        its packed head. Without it the dense weights stay, and only the kernel is chosen.
    least : int, optional
        Weights with fewer elements stay. Default: `LEAST_WEIGHTS`.
    """
    least = LEAST_WEIGHTS if least is None else least
    pack = pack and can_pack()
    owners = collections.Counter(
        id(p) for m in model.modules() for p in m.parameters(recurse=False)
    )
    stacks: list[tuple[Stack, Storage]] = []
    groups = list(_groups(model, pack, least))
    both = _bytes(groups) <= BOTH_BYTES
    for group in groups:
        layers = [getattr(parent, name) for parent, name in group]
        tied = owners[id(layers[0].weight)] > 1
        storage = _store(layers, pack, tied, both)
        stack = Stack(storage, None, len(layers))  # type: ignore[arg-type]
        stacks.append((stack, storage))
        begin = 0
        for member, ((parent, name), layer) in enumerate(zip(group, layers, strict=True)):
            has_bias = layer.bias is not None
            fast = FastLinear(stack, member, begin, layer.out_features, has_bias)
            setattr(parent, name, fast.train(layer.training))
            begin += layer.out_features
        del layers, layer
    alike: dict[tuple[int, int, bool], list[Storage]] = {}
    for _, s in stacks:
        alike.setdefault((s.out_features, s.in_features, s.bias is None), []).append(s)
    for stack, s in stacks:
        stack.choice = choose(alike[s.out_features, s.in_features, s.bias is None])


@torch.no_grad()
def make_plain(model: nn.Module) -> None:
    """Put dense `nn.Linear` modules, as training needs them, back in place.

    Weights that were stored packed become new ones; tied ones are tied again.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, FastLinear):
                dense = nn.Linear(layer.in_features, layer.out_features, False, device="meta")
                dense.weight = nn.Parameter(layer.weight.detach(), requires_grad=False)
                if layer.bias is not None:
                    dense.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
                setattr(parent, name, dense.train(layer.training))
    if hasattr(model, "tie_weights"):
        model.tie_weights()  # type: ignore[operator]


def weight_count(model: nn.Module) -> int:
    """Parameters of a model, packed weights included, shared ones once."""
    fast = [m for m in model.modules() if isinstance(m, FastLinear)]
    packed = sum(m.in_features * m.out_features for m in fast if not m.dense)
    seen = {id(m.weight): m.weight for m in fast if m.dense}
    seen |= {id(p): p for p in model.parameters()}
    return packed + sum(p.numel() for p in seen.values())


def _groups(model: nn.Module, pack: bool, least: int) -> Iterator[list[Place]]:
    """Places of layers to replace; several together where one product serves them."""
    seen: set[int] = set()
    for parent in model.modules():
        names = [n for n, m in parent.named_children() if _fits(m)]
        if pack:
            for siblings in SIBLINGS:
                if all(n in names for n in siblings):
                    layers = [getattr(parent, n) for n in siblings]
                    alone = not any(id(m) in seen for m in layers)
                    if alone and len({m.in_features for m in layers}) == 1:
                        names = [n for n in names if n not in siblings]
                        seen.update(map(id, layers))
                        if sum(m.weight.numel() for m in layers) >= least:
                            yield [(parent, n) for n in siblings]
        for name in names:
            layer = getattr(parent, name)
            if id(layer) not in seen and layer.weight.numel() >= least:
                seen.add(id(layer))
                yield [(parent, name)]


def _fits(module: nn.Module) -> bool:
    # Quantizers leave layers that have weights of other classes, none, or a forward of their own.
    weight = module._parameters.get("weight")
    return (
        type(module) is nn.Linear
        and type(weight) is nn.Parameter
        and "forward" not in vars(module)
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def _bytes(groups: list[list[Place]]) -> int:
    weights = {id(w): w for g in groups for p, n in g for w in [getattr(p, n).weight]}
    return sum(w.numel() * w.element_size() for w in weights.values())


def _store(layers: list[nn.Linear], pack: bool, tied: bool, both: bool) -> Storage:
    if not pack:
        return Plain(layers[0].weight, layers[0].bias)
    if len(layers) == 1 and tied:
        return pack_shared(layers[0].weight, layers[0].bias)
    weights: list[Tensor] = [m.weight for m in layers]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias: Tensor | None = None
    if any(m.bias is not None for m in layers):
        parts: list[Tensor] = [
            m.weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in layers
        ]
        bias = torch.cat(parts) if len(parts) > 1 else parts[0]
    return Packed(weight, bias, keep=both)
