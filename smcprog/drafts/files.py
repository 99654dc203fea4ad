"""The folder a draft is kept in: one safetensors file and one JSON file that describes it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from smcprog.errors import ModelError

__all__ = ["pack", "read_json", "read_tensors", "unpack", "write_json", "write_tensors"]

SCALE = "::scale"


def pack(tensors: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    """Tensors as they are stored: matrices in float16, or in int8 with one scale a row.

    Vectors keep 16 or 32 bits; whole numbers stay as they are.

    Parameters
    ----------
    storage : {"float16", "int8", "float32", "float64"}
    """
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.is_floating_point():
            packed[name] = value.to(torch.int32)
        elif storage == "int8" and value.ndim == 2 and value.shape[0] > 1:
            scale = value.abs().amax(1, keepdim=True).clamp_min(1e-12).float() / 127
            packed[name] = torch.round(value.float() / scale).to(torch.int8)
            packed[name + SCALE] = scale[:, 0]
        elif storage in ("float16", "int8"):
            small = value.clamp(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
            packed[name] = small.to(torch.float16)
        else:
            packed[name] = value.to(getattr(torch, storage))
    return {name: value.detach().cpu().contiguous() for name, value in packed.items()}


def unpack(packed: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """What `pack` was given, as far as it was kept; floating-point tensors in `dtype`."""
    tensors: dict[str, Tensor] = {}
    for name, value in packed.items():
        if name.endswith(SCALE):
            continue
        if value.dtype == torch.int8:
            value = value.float() * packed[name + SCALE][:, None]
        whole = not value.is_floating_point()
        tensors[name] = value.to(torch.int64 if whole else dtype)
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Store tensors in `path`, in one piece or not at all.

    Raises
    ------
    ModelError
        If the file system refuses: disk full, read-only, no permission.
    """
    fresh = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    _write(path, lambda part: save_file(fresh, part))


def write_json(path: Path, content: Any) -> None:
    """Store JSON in `path`, in one piece or not at all; raises as `write_tensors`."""
    text = json.dumps(content, indent=2) + "\n"
    _write(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file.

    Raises
    ------
    ModelError
        If the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {os.fspath(path)}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; raises as `read_tensors`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {os.fspath(path)}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{os.fspath(path)} holds no JSON object")
    return content


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.touch()
            mode = part.stat().st_mode  # safetensors would make it the owner's alone
            write(part)
            part.chmod(mode)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses at `path` into a `ModelError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space" in str(error)
        reason = "the disk is full" if full else getattr(error, "strerror", None) or str(error)
        raise ModelError(
            f"cannot write {os.fspath(path)}: {reason}; make room or choose another folder"
        ) from error
