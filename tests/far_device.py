"""A second device on the CPU: tensors that say so, and that mix with others as those of a GPU do.

Whoever forgets to move a tensor finds out here as on a machine with two devices: an operation on
tensors of both raises, but for what PyTorch allows (numbers in tensors without dimensions, copies,
and indices that lie on the CPU).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
FAR = torch.device("far", 0)

_aten = torch.ops.aten
_COPIES = {_aten._to_copy.default, _aten.copy_.default}
_INDEXING = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}


class FarTensor(Tensor):
    """A tensor of the far device; its numbers lie in `near`, on the CPU."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        far = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.near.tolist()

    def __repr__(self) -> str:
        return f"FarTensor({self.near!r})"


_library = torch.library.Library("aten", "IMPL")
"""What C++ makes on the far device by itself, such as the number in ``x[i] = 1``."""


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **options: Any) -> FarTensor:
    return FarTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _near(target).copy_(_near(source))
    return target


_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")


class FarDevice(TorchDispatchMode):
    """While this lasts, tensors can be made on the far device and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    wanted = kwargs.get("device")
    leaves = [*_tensors(args), *_tensors(kwargs.values())]
    far = [x for x in leaves if isinstance(x, FarTensor)]
    if not far and wanted != FAR:
        return func(*args, **kwargs)
    # An index may lie on the CPU, and so may what is copied, or a number.
    anywhere = func in _COPIES or (func in _INDEXING and isinstance(leaves[0], FarTensor))
    if far and len(far) < len(leaves) and not anywhere:
        for x in leaves:
            if x.dim() and not isinstance(x, FarTensor):
                raise RuntimeError(f"{func}: tensors on {FAR} and on {x.device}")
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    out = func(*_near(args), **{name: _near(value) for name, value in kwargs.items()})
    if func is _aten.copy_.default:
        return args[0]
    if wanted is not None and wanted != FAR:
        return out
    given = {id(x.near): x for x in far}  # an operation in place gives back what it was given

    def wrapped(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return type(x)(wrapped(each) for each in x)
        if id(x) in given:
            return given[id(x)]
        return FarTensor(x) if isinstance(x, Tensor) else x

    return wrapped(out)


def _tensors(values: Any) -> list[Tensor]:
    """The tensors among the arguments of an operation, lists opened."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _near(x: Any) -> Any:
    if isinstance(x, FarTensor):
        return x.near
    return type(x)(map(_near, x)) if type(x) in (list, tuple) else x


def to_far(model: nn.Module) -> nn.Module:
    """Move a model, in place; inside of `FarDevice` only."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                far = moved.setdefault(
                    id(parameter), nn.Parameter(FarTensor(parameter.detach()), requires_grad=False)
                )
                module._parameters[name] = far
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = FarTensor(buffer)
    return model
