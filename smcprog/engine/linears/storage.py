"""A weight as it lies in memory, and the kernels that can multiply by it."""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Kernel", "Packed", "Plain", "Storage", "can_pack", "pack_shared"]

PACKED_FOR_ROWS = 8
"""Rows the packed layout is made for; it serves other numbers about as well."""
TOLERANCE = 1e-4
"""A packed product may differ from the plain one by this much, relative to its norm."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A way to multiply: by which product, and padded to at least how many rows."""

    name: str
    pad: int = 1


SWAPPED = Kernel("swapped", 2)
"""W Xᵀ; for one or two rows it uses the memory bandwidth best."""


class Storage(ABC):
    """A weight [out, in] and an optional bias [out], never trained."""

    out_features: int
    in_features: int
    bias: Tensor | None

    @property
    @abstractmethod
    def dense(self) -> bool:
        """Whether `weight` is a stored tensor, not made when asked for."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The weight as a dense tensor, [out, in]; a copy where it is stored otherwise."""

    @abstractmethod
    def candidates(self, rows: int) -> list[Kernel]:
        """Kernels worth measuring for a number of rows; the first is the usual one."""

    @abstractmethod
    def multiply(self, kernel: Kernel, x_R_I: Tensor) -> Tensor:
        """``x @ weight.T + bias``, contiguous, [R, out]."""


class Plain(Storage):
    """A dense weight, shared with whoever else holds it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self.bias = bias

    @property
    def dense(self) -> bool:
        return True

    @property
    def weight(self) -> Tensor:
        return self._weight

    def candidates(self, rows: int) -> list[Kernel]:
        # A product with one row runs as matrix times vector, which leaves bandwidth unused.
        return [SWAPPED, Kernel("linear")] if rows <= 8 else [Kernel("linear"), SWAPPED]

    def multiply(self, kernel: Kernel, x_R_I: Tensor) -> Tensor:
        if kernel.name == "linear":
            return F.linear(x_R_I, self._weight, self.bias)
        return _swapped(self._weight, self.bias, x_R_I)


class Packed(Storage):
    """A weight in the blocked layout of oneDNN.

    With `keep` it holds on to the dense weight too, for which there are better kernels where
    there are only one or two rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, keep: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self._packed = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), PACKED_FOR_ROWS
        )
        self.bias = None if bias is None else bias.detach()
        self._kept = weight if keep else None

    @property
    def dense(self) -> bool:
        return self._kept is not None

    @property
    def weight(self) -> Tensor:
        return self._packed.to_dense() if self._kept is None else self._kept

    def candidates(self, rows: int) -> list[Kernel]:
        if rows >= 4:
            return [Kernel("packed")]
        packed = [Kernel("packed", 4), Kernel("packed")]
        return packed if self._kept is None or rows > 2 else [SWAPPED, *packed]

    def multiply(self, kernel: Kernel, x_R_I: Tensor) -> Tensor:
        if kernel is SWAPPED:
            assert self._kept is not None
            return _swapped(self._kept, self.bias, x_R_I)
        rows = x_R_I.shape[0]
        if rows < kernel.pad:
            x_R_I = _pad(x_R_I, kernel.pad)
        out = torch.ops.mkldnn._linear_pointwise(x_R_I, self._packed, self.bias, "none", [], "")
        return out if rows >= kernel.pad else out[:rows]


def pack_shared(weight: Tensor, bias: Tensor | None) -> Packed:
    """A packed copy of a weight that stays, the same one for all who share the weight."""
    if bias is not None:
        return Packed(weight, bias, keep=True)
    # The copy holds the weight, so an address cannot come to mean another one.
    key = (weight.data_ptr(), *weight.shape, *weight.stride())
    packed = _shared.get(key)
    if packed is None:
        packed = _shared[key] = Packed(weight, bias, keep=True)
    return packed


_shared: weakref.WeakValueDictionary[tuple[int, ...], Packed] = weakref.WeakValueDictionary()


def can_pack() -> bool:
    """Whether this build of torch has the packed product and gives the right results."""
    global _can_pack
    if _can_pack is None:
        _can_pack = _try_packing()
    return _can_pack


_can_pack: bool | None = None


def _try_packing() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 72, generator=generator)
    bias = torch.randn(96, generator=generator)
    x = torch.randn(5, 72, generator=generator)
    try:
        packed = Packed(weight, bias)
        off = packed.multiply(Kernel("packed"), x) - F.linear(x, weight, bias)
        return bool(torch.equal(packed.weight, weight) and off.norm() <= TOLERANCE * x.norm())
    except (AttributeError, RuntimeError):  # an operator that this build does not have
        return False


def _swapped(weight: Tensor, bias: Tensor | None, x_R_I: Tensor) -> Tensor:
    rows = x_R_I.shape[0]
    out = torch.mm(weight, _pad(x_R_I, SWAPPED.pad).t())[:, :rows].t()
    return out.contiguous() if bias is None else (out + bias).contiguous()


def _pad(x_R_I: Tensor, rows: int) -> Tensor:
    missing = rows - x_R_I.shape[0]
    if missing <= 0:
        return x_R_I
    if x_R_I.shape[0] == 1:  # copies of the row are quicker to make than zeros
        return x_R_I.expand(rows, -1).contiguous()
    return F.pad(x_R_I, (0, 0, 0, missing))
