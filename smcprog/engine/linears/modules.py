"""Modules that stand in for `nn.Linear`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smcprog.engine.linears.choice import Choice
from smcprog.engine.linears.storage import Storage

__all__ = ["FastLinear", "Stack"]


class Stack:
    """One weight under the outputs of one or more layers that read the same input.

    The product is taken once, when the first of the layers is called, and the others find
    it by the identity of their input. The pair is stored and read as one object, so that
    threads can at worst repeat the product.
    """

    def __init__(self, storage: Storage, choice: Choice, members: int) -> None:
        self.storage = storage
        self.choice = choice
        self.members = members
        self._last: tuple[Tensor, Tensor] | None = None

    def output(self, x: Tensor, member: int) -> Tensor:
        """The product with all outputs, [..., out]."""
        last = self._last
        if last is not None and last[0] is x:
            out = last[1]
        else:
            rows = x.reshape(-1, x.shape[-1])
            out = self.storage.multiply(self.choice.kernel(rows.shape[0]), rows)
            out = out.view(*x.shape[:-1], -1)
            if self.members == 1:
                return out
        self._last = None if member == self.members - 1 else (x, out)
        return out


class FastLinear(nn.Module):
    """``y = x Wᵀ + b`` for inference, by the kernel that is fastest for the number of rows.

    The weight may lie packed, alone or under those of sibling layers; `weight` and `bias` give
    it back dense, and so does `state_dict`.

    Parameters
    ----------
    stack : Stack
    member, begin, out_features : int
        Number of this layer in the stack, its first output and how many it has.
    has_bias : bool
    """

    def __init__(
        self, stack: Stack, member: int, begin: int, out_features: int, has_bias: bool
    ) -> None:
        super().__init__()
        self.in_features = stack.storage.in_features
        self.out_features = out_features
        self._has_bias = has_bias
        self._stack = stack
        self._member = member
        self._span = slice(begin, begin + out_features)
        self._whole = out_features == stack.storage.out_features

    @property
    def weight(self) -> Tensor:
        """[out, in]; a copy where the weight is stored packed."""
        weight = self._stack.storage.weight
        return weight if self._whole else weight[self._span]

    @property
    def bias(self) -> Tensor | None:
        """[out], or None."""
        bias = self._stack.storage.bias
        return bias[self._span] if self._has_bias and bias is not None else None

    @property
    def dense(self) -> bool:
        """Whether `weight` is the stored tensor itself."""
        return self._stack.storage.dense

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        out = self._stack.output(x, self._member)
        return out if self._whole else out[..., self._span]

    __call__ = forward  # no hooks: these modules belong to an engine's own copy of a model

    def extra_repr(self) -> str:
        kind = type(self._stack.storage).__name__.lower()
        return f"{self.in_features}, {self.out_features}, bias={self._has_bias}, {kind}"

    def __deepcopy__(self, memo: dict[int, Any]) -> FastLinear:
        stack = memo.get(id(self._stack))
        if stack is None:
            old = self._stack
            stack = memo[id(old)] = Stack(old.storage, old.choice, old.members)
        return FastLinear(stack, self._member, self._span.start, self.out_features, self._has_bias)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight.detach()
        if self.bias is not None:
            destination[prefix + "bias"] = self.bias.detach()
