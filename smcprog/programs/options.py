"""The settings of a run, checked once, before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from smcprog.errors import SettingError
from smcprog.limits import MAX_OUTPUT_TOKENS, MAX_PARTICLES, MAX_TOKENS
from smcprog.resampling import SCHEMES
from smcprog.validate import real, whole

__all__ = ["Options"]

MOST_STEPS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a run; see `Program`."""

    particles: int = 8
    max_tokens: int = 1024
    max_steps: int = 1000
    ess_threshold: float = 0.5
    resampling: str = "systematic"
    truncate: bool = True
    deterministic: bool = False
    on_round: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        n = whole("particles", self.particles, 1, MAX_PARTICLES)
        t = whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        if n * t > MAX_OUTPUT_TOKENS:
            raise SettingError(
                f"particles={n} times max_tokens={t} is more than the {MAX_OUTPUT_TOKENS} tokens "
                "that one program may ask for: lower one of them"
            )
        whole("max_steps", self.max_steps, 1, MOST_STEPS)
        real("ess_threshold", self.ess_threshold, 0, 1)
        if not isinstance(self.resampling, str) or self.resampling not in SCHEMES:
            raise SettingError(
                f"resampling must be one of {', '.join(SCHEMES)}, got {self.resampling!r}"
            )
        for name in ("truncate", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise SettingError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.on_round is not None and not callable(self.on_round):
            raise SettingError(f"on_round must be callable, got {type(self.on_round).__name__}")
