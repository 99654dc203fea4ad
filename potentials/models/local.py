"""Local distributions of a language model: logits → log p of the next token.

The order of the transformations is that of `transformers`: temperature, top-k, top-p,
min-p; each works on what the one before left, renormalised.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.validate import real, whole

__all__ = ["Local", "LocalDistribution", "check_temperature"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 1e6  # beyond, float32 logits lose all meaning


def check_temperature(name: str, value: Any) -> float:
    """A local temperature as a float; 0 is greedy."""
    temperature = real(name, value, 0, MAX_TEMPERATURE)
    if 0 < temperature < MIN_TEMPERATURE:
        raise SettingError(
            f"{name} must be 0 (greedy) or at least {MIN_TEMPERATURE:g}, got {temperature:g}"
        )
    return temperature


@dataclasses.dataclass(frozen=True)
class LocalDistribution:
    """p(v) ∝ exp(logit_v / τ), optionally truncated and renormalised.

    Parameters
    ----------
    temperature : float
        Local temperature τ ≥ 0. It shapes every step, and is not a power of the
        sequence's probability. 0 is greedy: all mass on the most probable token (the first
        of those that tie).
    top_k : int, optional
        Keep the k most probable tokens (and those tied with the last of them).
    top_p : float, optional
        Keep the smallest set of most probable tokens with mass at least `top_p`.
    min_p : float, optional
        Keep tokens with at least `min_p` times the largest probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        keep = object.__setattr__  # checked values, once; frozen afterwards
        keep(self, "temperature", check_temperature("temperature", self.temperature))
        if self.top_k is not None:
            keep(self, "top_k", whole("top_k", self.top_k, 1, 1 << 40))
        if self.top_p is not None:
            top_p = real("top_p", self.top_p, 0, 1)
            if top_p == 0:
                raise SettingError("top_p must be greater than 0, or nothing is left to draw")
            keep(self, "top_p", top_p)
        if self.min_p is not None:
            keep(self, "min_p", real("min_p", self.min_p, 0, 1))

    @property
    def truncated(self) -> bool:
        """Whether some tokens may get probability zero."""
        return (
            self.temperature == 0
            or self.top_k is not None
            or self.top_p is not None
            or bool(self.min_p)
        )

    def describe(self) -> str:
        """In words, for reports."""
        if self.temperature == 0:
            return "the arg-max"
        scaled = "" if self.temperature == 1 else f" / {self.temperature:g}"
        cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        cut = ", ".join(f"{k}={v:g}" for k, v in cuts.items() if v is not None)
        return f"softmax(logits{scaled})" + (f" cut to {cut}" if cut else "")

    def log_probs(self, logits: Tensor) -> Tensor:
        """Log-probabilities of shape [..., V], float32 or wider; −∞ where truncated."""
        if self.temperature == 0:
            first = logits.argmax(dim=-1, keepdim=True)
            dtype = logits.dtype if logits.dtype == torch.float64 else torch.float32
            return torch.full_like(logits, -math.inf, dtype=dtype).scatter_(-1, first, 0.0)
        x = self._scaled(logits)
        if self.top_k is not None and self.top_k < x.shape[-1]:
            kth = x.topk(self.top_k, dim=-1).values[..., -1:]
            x = x.masked_fill(x < kth, -math.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = x.sort(dim=-1, descending=True, stable=True)
            mass = torch.softmax(ordered.double(), dim=-1)
            dropped = mass.cumsum(-1) - mass >= self.top_p  # mass before the token suffices
            dropped[..., 0] = False
            x = x.masked_fill(torch.zeros_like(dropped).scatter(-1, index, dropped), -math.inf)
        if self.min_p:
            floor = x.amax(dim=-1, keepdim=True) + math.log(self.min_p)
            x = x.masked_fill(x < floor, -math.inf)
        return torch.log_softmax(x, dim=-1)

    def log_prob_of(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """log p of given tokens: logits [..., V], tokens [...] → [...]."""
        if self.truncated:
            return self.log_probs(logits).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        x = self._scaled(logits)
        chosen = x.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        return chosen - x.logsumexp(dim=-1)

    def _scaled(self, logits: Tensor) -> Tensor:
        # Weights are computed in float32 at least, whatever the model runs in.
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        return x if self.temperature == 1 else x / self.temperature


class Local:
    """What a model factor is that draws from one local distribution, `local`, to a power."""

    local: LocalDistribution
    power: float

    @property
    def draft_temperature(self) -> float:
        return self.local.temperature / abs(self.power)

    @property
    def normalized(self) -> bool:
        return self.power == 1

    @property
    def greedy(self) -> bool:
        return self.local.temperature == 0

    @property
    def truncated(self) -> bool:
        return self.local.truncated
