"""Whether a model can be split over n processes: its plan, its heads, the devices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from smcprog.errors import ModelError, SettingError

__all__ = ["check_split", "shard_device"]

HEAD_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")


def check_split(folder: Path, size: int) -> None:
    """Raise ModelError unless `transformers` can split the model in a folder over `size` processes.

    What else may be wrong with the folder is left to loading.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except Exception:
        return
    text = config.get_text_config()
    plan = {**(getattr(text, "base_model_tp_plan", None) or {}), **(cls._tp_plan or {})}
    kind = getattr(config, "model_type", type(config).__name__)
    if not getattr(text, "base_model_tp_plan", None):
        raise ModelError(
            f"a model of type {kind!r} has no tensor-parallel plan in transformers, so it cannot "
            f"be split over {size} processes: leave tensor_parallel out, or use an architecture "
            "that has one (Llama, Qwen2, Qwen3, Mistral, Gemma 2, Gemma 3, ...)"
        )
    if not any(
        key.rsplit(".", 1)[-1] in HEAD_PROJECTIONS and style == "colwise"
        for key, style in plan.items()
    ):
        return  # attention is not split
    heads = _counts(text.num_attention_heads)
    kv_heads = _counts(getattr(text, "num_key_value_heads", None) or heads)
    common = math.gcd(*heads, *kv_heads)
    if common % size:
        may = [str(n) for n in range(1, common + 1) if common % n == 0]
        choice = " or ".join([*([", ".join(may[:-1])] if may[1:] else []), may[-1]])
        raise ModelError(
            f"the model in {str(folder)!r} has {_shown(heads)} attention heads and "
            f"{_shown(kv_heads)} key/value heads, and {size} processes cannot share both evenly: "
            f"tensor_parallel may be {choice}"
        )


def _counts(heads: int | Iterable[int]) -> list[int]:
    return [heads] if isinstance(heads, int) else sorted(set(heads))


def _shown(counts: list[int]) -> str:
    return " or ".join(map(str, counts))


def shard_device(device: torch.device, local_rank: int, size: int) -> torch.device:
    """Where a process of `size` keeps its part: the CPU, or the accelerator of its local rank.

    Parameters
    ----------
    device : torch.device
        What was asked for; its number, if any, must be the local rank.

    Raises
    ------
    SettingError
    """
    # transformers splits models over the machine's accelerator, whatever it is told.
    kind = torch._C._get_accelerator().type
    if kind not in ("cpu", "cuda") or device.type not in ("cpu", "cuda"):
        raise SettingError(
            f"tensor_parallel={size} runs on CUDA devices or on the CPU, not on "
            f"{kind if kind not in ('cpu', 'cuda') else device.type!r}"
        )
    if device.type != kind:
        hint = "hide them (CUDA_VISIBLE_DEVICES='')" if kind == "cuda" else "give device='cpu'"
        raise SettingError(
            f"tensor_parallel={size} on {device.type!r}: transformers splits models over the "
            f"machine's {kind!r} devices; {hint}, or leave device out"
        )
    if kind == "cpu":
        return torch.device("cpu")
    if device.index not in (None, local_rank):
        raise SettingError(
            f"device={str(device)!r} with tensor_parallel={size}: process {local_rank} of this "
            f"machine works on cuda:{local_rank}; leave device out"
        )
    if local_rank >= torch.cuda.device_count():
        raise SettingError(
            f"tensor_parallel={size} needs a CUDA device for each process of a machine, and "
            f"process {local_rank} has none: there are {torch.cuda.device_count()}"
        )
    return torch.device("cuda", local_rank)
