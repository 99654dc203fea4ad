"""What an error of a device means for the request that met it, and for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from smcprog.attention.torch_pool import ACCELERATOR_ERRORS

__all__ = ["Fault", "advice", "fault_of", "first_line", "without_frames"]

Fault = Literal["memory", "lost", "call"]
"""Out of memory; a device that answers no call any more; a call that failed by itself."""

NO_MEMORY = ("out of memory", "alloc_failed", "can't allocate memory")
LOST = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "illegal address",
    "misaligned address",
    "invalid program counter",
    "invalid address space",
    "operation not supported on global/shared address space",
    "hardware stack error",
    "unspecified launch failure",
    "launch timed out",
    "launch failure",
    "uncorrectable ecc",
)
"""After these, CUDA fails every later call of the process."""
DEVICE = ("cuda error", "hip error", "cublas_status", "cudnn_status", "acceleratorerror")


def fault_of(error: BaseException | None) -> Fault | None:
    """What went wrong with the device, if anything did; causes count."""
    kinds = [kind for kind in map(_kind, _chain(error)) if kind is not None]
    return "lost" if "lost" in kinds else kinds[0] if kinds else None


def advice(fault: Fault | None) -> str:
    """What to say after the message of a potential that met it."""
    if fault == "memory":
        return (
            ". The device has no memory left for it, and only this request fails: let it work on "
            "fewer rows at a time, or leave it more memory with smaller kv_pages"
        )
    if fault == "lost":
        return (
            ". From now on CUDA reports every call of this process as failed, whatever it is for: "
            "restart the process. Kernels run later than they are called, so an earlier call may "
            "be to blame; CUDA_LAUNCH_BLOCKING=1 shows which"
        )
    if fault == "call":
        return ". Only this request fails; CUDA_LAUNCH_BLOCKING=1 shows which call it was"
    return ""


def first_line(error: BaseException) -> str:
    """The start of a message; those of CUDA go on with hints for developers of PyTorch."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def without_frames(error: BaseException) -> None:
    """Let go of the frames that an error and its causes came through: they hold tensors."""
    for each in _chain(error):
        each.__traceback__ = None


def _kind(error: BaseException) -> Fault | None:
    if isinstance(error, torch.OutOfMemoryError):
        return "memory"
    if not isinstance(error, RuntimeError):
        return None
    text = str(error).lower()
    device = isinstance(error, ACCELERATOR_ERRORS) or any(word in text for word in DEVICE)
    if device and any(word in text for word in LOST):
        return "lost"
    if any(word in text for word in NO_MEMORY) and (device or "alloc" in text):
        return "memory"
    return "call" if device else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
