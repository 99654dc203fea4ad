"""From a path or hub id to a model and its tokenizer: safetensors only, no remote code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig

from smcprog.attention import IMPLEMENTATION
from smcprog.engine.checks import check_dispatchable
from smcprog.engine.quantised import loading_error, placement
from smcprog.errors import ModelError

__all__ = [
    "check_safetensors",
    "load",
    "quiet",
    "resolve_device",
    "resolve_dtype",
    "resolve_path",
]

LOW_PRECISION = (torch.bfloat16, torch.float16)
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]


def resolve_path(path: str | os.PathLike[str] | None) -> Path:
    """Local folder of a model: the default model, a folder as it is, or a hub download.

    Raises
    ------
    ModelError
        If there is nothing there.
    """
    if path is None:
        from smcprog.models.default import default_model_path

        return default_model_path()
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise ModelError(f"a model is a folder or a hub id, got {type(path).__name__}")
    text = os.fspath(path)
    if not text:
        raise ModelError("the model path is empty; leave it out for the default model")
    folder = Path(text).expanduser()
    if len(text) > 1024 or "\0" in text:
        raise ModelError(f"no model at {text[:60]!r}…: that is no path and no hub id")
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise ModelError(f"{text!r} is a file; a model is a folder with config.json and weights")
    if text[0] in "./~" or text.count("/") > 1 or "\\" in text or folder.is_absolute():
        raise ModelError(
            f"no model at {text!r}: the folder does not exist; give a local folder or a hub id "
            "such as 'HuggingFaceTB/SmolLM2-135M-Instruct'"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except Exception as error:
        raise ModelError(
            f"no model {text!r}: it is not a local folder, and the hub did not provide it "
            f"({_first_line(error)})"
        ) from error


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The given device, else CUDA, else the CPU.

    Of the CUDA devices it is the current one, and under a launcher that of the local rank.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"unknown device {device!r}: {_first_line(error)}") from error
    rank = os.environ.get("LOCAL_RANK", "")
    if place.type == "cuda" and place.index is None and rank.isdigit():
        return torch.device("cuda", int(rank)) if int(rank) < torch.cuda.device_count() else place
    return place


def resolve_dtype(
    dtype: str | torch.dtype | None, config: Any, device: torch.device
) -> torch.dtype:
    """The given type, else float32 on the CPU and the checkpoint's own type elsewhere."""
    if dtype is None:
        stored = getattr(config, "dtype", None)
        if isinstance(stored, str):
            stored = getattr(torch, stored, None)
        return stored if device.type != "cpu" and stored in LOW_PRECISION else torch.float32
    resolved = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(resolved, torch.dtype) or not resolved.is_floating_point:
        raise ModelError(f"dtype {dtype!r} is not a floating-point type such as 'float32'")
    return resolved


def load(
    folder: Path, device: torch.device, dtype: str | torch.dtype | None, *, shards: int = 1
) -> tuple[Any, Any]:
    """Model (in evaluation mode, our attention set) and tokenizer of a local folder.

    Parameters
    ----------
    folder : Path
    device : torch.device
    dtype : str or torch.dtype or None
    shards : int, default 1
        Processes of the process group that load it together, each a part of its weights.

    Raises
    ------
    ModelError
        If the folder holds no model, its weights are not safetensors or are incomplete, its
        attention cannot be dispatched, or it has no tokenizer.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model at {str(folder)!r}: the folder has no config.json")
    check_safetensors(folder)
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with quiet():
        try:
            config = AutoConfig.from_pretrained(folder, **local)
        except Exception as error:
            raise ModelError(f"cannot read {folder / 'config.json'}: {_tail(error)}") from error
        check_dispatchable(config)
        if shards > 1:
            placed = {"distributed_config": DistributedConfig(tp_size=shards)}
        else:
            placed = placement(config, device)
        failure: ModelError | None = None
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=resolve_dtype(dtype, config, device),
                use_safetensors=True,
                attn_implementation=IMPLEMENTATION,
                output_loading_info=True,
                **placed,
                **local,
            )
            if not placed:
                model = model.to(device)
        except Exception as error:
            failure, cause = loading_error(error, folder, config, device), error
        if failure is not None:
            raise failure from cause
        missing = sorted(report["missing_keys"])
        if missing:
            raise ModelError(
                f"the weights in {str(folder)!r} are incomplete: {len(missing)} tensors are "
                f"missing, the first is {missing[0]!r}"
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        except Exception as error:
            raise ModelError(f"no tokenizer in {str(folder)!r}: {_tail(error)}") from error
    return model.eval(), tokenizer


def check_safetensors(folder: Path) -> None:
    """Raise ModelError unless the folder has safetensors weights."""
    if any(folder.glob("*.safetensors")):
        return
    other = [
        p.name
        for kind in ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5")
        for p in sorted(folder.glob(kind))
    ]
    found = f"it has {other[0]!r}" if other else "it has no weights"
    raise ModelError(
        f"the model in {str(folder)!r} has no safetensors weights ({found}); only safetensors "
        "are loaded, since other formats can run code: convert it with "
        "model.save_pretrained(folder)"
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers unless a person is watching."""
    logging = transformers.utils.logging
    if sys.stderr.isatty() or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _tail(error: BaseException) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"
