"""Checkpoints whose weights are stored in fewer bits, and what can go wrong in loading any.

Transformers has a quantizer for each format, which replaces the layers while it loads them. Most
need a library of their own, and some a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from smcprog.engine.faults import fault_of, first_line, without_frames
from smcprog.engine.memory import available_bytes
from smcprog.errors import ModelError

__all__ = ["loading_error", "placement", "quantisation"]

LIBRARIES = {
    "aqlm": ("aqlm",),
    "auto-round": ("auto-round",),
    "awq": ("gptqmodel",),
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes_4bit": ("bitsandbytes",),
    "bitsandbytes_8bit": ("bitsandbytes",),
    "compressed-tensors": ("compressed-tensors",),
    "eetq": ("kernels",),
    "fbgemm_fp8": ("fbgemm-gpu",),
    "gptq": ("optimum", "gptqmodel"),
    "higgs": ("flute-kernel",),
    "hqq": ("hqq",),
    "mxfp4": ("kernels",),
    "quanto": ("optimum-quanto",),
    "quark": ("amd-quark",),
    "spqr": ("spqr_quant",),
    "torchao": ("torchao",),
    "vptq": ("vptq",),
}
"""Packages that the quantizers ask for, by `quant_method`."""


def quantisation(config: Any) -> str | None:
    """`quant_method` of a checkpoint; None where its weights are stored as they are."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    get = stored.get if isinstance(stored, dict) else lambda key: getattr(stored, key, None)
    if get("load_in_4bit") or get("load_in_8bit"):
        return "bitsandbytes"
    method = get("quant_method")
    return str(getattr(method, "value", method))


def placement(config: Any, device: torch.device) -> dict[str, Any]:
    """Options of `from_pretrained` for a checkpoint that must be loaded where it will run.

    Some kernels lay out weights for one device, and refuse to be moved.

    Raises
    ------
    ModelError
        If transformers has no quantizer for it: it would take the weights as they are.
    """
    method = quantisation(config)
    if method is None:
        return {}
    if method != "bitsandbytes" and method not in AUTO_QUANTIZER_MAPPING:
        known = ", ".join(sorted(AUTO_QUANTIZER_MAPPING))
        raise ModelError(
            f"the weights are quantised (quant_method {method!r}), and this version of "
            f"transformers knows no such format, but {known}"
        )
    return {"device_map": {"": device}}


def loading_error(error: Exception, folder: Path, config: Any, device: torch.device) -> ModelError:
    """What to say when a model cannot be loaded."""
    method, text = quantisation(config), f"{type(error).__name__}: {first_line(error)}"
    if fault_of(error) == "memory":
        without_frames(error)  # they hold what was loaded so far
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return ModelError(
            f"the weights in {str(folder)!r} do not fit on {device}: the files hold "
            f"{size / 2**30:.1f} GiB, and {available_bytes(device) / 2**30:.1f} GiB are free. Use "
            "dtype='bfloat16', a quantised checkpoint, another device or tensor_parallel, or "
            "load it before the models whose pages fill the device, or give those fewer kv_pages"
        )
    if method is None:
        return ModelError(f"cannot load the model in {str(folder)!r}: {text}")
    missing = ""
    if isinstance(error, ImportError) and method in LIBRARIES:
        missing = f"; this format needs: pip install {' '.join(LIBRARIES[method])}"
    return ModelError(
        f"cannot load the model in {str(folder)!r}, whose weights are quantised "
        f"(quant_method {method!r}): {text}{missing}"
    )
