"""Settings of a distillation, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from smcprog.drafts.layers import check_layers, layer_count
from smcprog.drafts.train import OBJECTIVES
from smcprog.engine.lm import LM
from smcprog.errors import SettingError
from smcprog.validate import real, whole

__all__ = ["DESIGNS", "STORAGE", "DistillSettings", "default_layers"]

DESIGNS = ("layers", "recurrent")
STORAGE = ("float16", "int8", "float32", "float64")


@dataclasses.dataclass(frozen=True)
class DistillSettings:
    """What a student is made of, and how it is trained.

    Attributes
    ----------
    design : {"layers", "recurrent"}
        Some of the target's layers, or a `RecurrentDraft` that is fed with its hidden states.
    layers : list of int, optional
        The target's layers to start from; default: `default_layers`. Of "layers" only.
    inner : int
        Width of the gated part; 0: two and two thirds of the target's. This and the next two
        are of "recurrent" only.
    context : int
        Last tokens that the network looks at.
    unroll : int
        Tokens of a block that it is trained to predict.
    vocabulary : int
        Kept tokens of a trimmed head, M; 0 keeps the target's whole head.
    objective : {"forward-kl", "forward-kl+chi2"}
        KL(p‖q), or KL(p‖q) + ``chi2`` · log(1 + χ²), at temperature 1.
    chi2 : float
        Weight of the second term.
    text_tokens, held_tokens : int
        Tokens that the target draws for training, and for the report.
    text_length : int
        Longest text, in tokens.
    text_batch : int
        Texts drawn at a time.
    tokens : int
        Tokens to train on, passes over the text counted again.
    batch : int
        Tokens of a step.
    rate : float
        Highest learning rate.
    storage : {"float16", "int8", "float32", "float64"}
        How matrices are stored.
    seed : int
    bfloat16 : bool, optional
        Multiply in bfloat16 while training; default: where the processor has instructions
        for it and the target is float32.
    """

    design: str = "layers"
    layers: Sequence[int] | None = None
    inner: int = 0
    context: int = 4
    unroll: int = 2
    vocabulary: int = 16_384
    objective: str = "forward-kl"
    chi2: float = 0.1
    text_tokens: int = 200_000
    held_tokens: int = 10_000
    text_length: int = 256
    text_batch: int = 64
    tokens: int = 1_000_000
    batch: int = 512
    rate: float = 1e-3
    storage: str = "int8"
    seed: int = 0
    bfloat16: bool | None = None

    def checked(self, lm: LM) -> DistillSettings:
        """These settings with every default filled in for `lm`.

        Raises
        ------
        SettingError
            If one is out of range.
        """
        count, size = layer_count(lm.model), lm.model.get_input_embeddings().weight.shape[0]
        for name, value, allowed in (
            ("design", self.design, DESIGNS),
            ("objective", self.objective, OBJECTIVES),
            ("storage", self.storage, STORAGE),
        ):
            if value not in allowed:
                raise SettingError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        for name in ("text_tokens", "held_tokens", "text_length", "text_batch", "tokens", "batch"):
            whole(name, getattr(self, name), 1, 1 << 40)
        whole("seed", self.seed, 0, (1 << 63) - 1)
        kept = whole("vocabulary", self.vocabulary, 0, 1 << 40)
        real("rate", self.rate, 1e-12, 1.0)
        real("chi2", self.chi2, 0.0, 1e6)
        inner = whole("inner", self.inner, 0, 1 << 20)
        whole("context", self.context, 1, 64)
        whole("unroll", self.unroll, 1, 64)
        if self.design == "recurrent" and self.layers is not None:
            raise SettingError('layers is a setting of design="layers"; a recurrent draft has none')
        layers = default_layers(count) if self.layers is None else self.layers
        width = int(lm.model.get_input_embeddings().weight.shape[1])
        bfloat16 = _fast_bfloat16(lm) if self.bfloat16 is None else self.bfloat16
        return dataclasses.replace(
            self,
            layers=None if self.design == "recurrent" else check_layers("layers", layers, count),
            inner=inner or width * 8 // 3,
            vocabulary=kept if kept < size else 0,
            bfloat16=bfloat16,
        )


def default_layers(count: int) -> list[int]:
    """Six layers to start from: the first three, one a third into the model, the last two.

    Leaving out any of these costs most (measured on SmolLM2-135M); of a model with six layers
    or fewer, all but the last but one stay.
    """
    if count <= 6:
        return [i for i in range(count) if i != count - 2 or count == 1]
    return sorted({0, 1, 2, max(3, (count * 11) // 30), count - 2, count - 1})


def _fast_bfloat16(lm: LM) -> bool:
    if lm.dtype != torch.float32:
        return False
    if lm.device.type != "cpu":
        return True
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False
