"""The settings of one `sample` call, checked once, before anything runs."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from smcprog.errors import SettingError
from smcprog.limits import MAX_PARTICLES, MAX_TOKENS
from smcprog.resampling import SCHEMES

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["RoundEvent", "Settings"]


@dataclasses.dataclass(frozen=True)
class RoundEvent:
    """What an observer learns after every round of a request.

    Attributes
    ----------
    request : int
        Index of the request in the list of prompts.
    round : int
        From 0, the round that draws the first token.
    tokens, max_tokens : int
        Length of the longest output so far, and the limit.
    alive, finished : int
        Particles of positive weight, and those among them that are complete.
    ess : float
    text : str
        Text of the heaviest particle so far.
    """

    request: int
    round: int
    tokens: int
    max_tokens: int
    alive: int
    finished: int
    ess: float
    text: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """See `Potential.sample` for each setting. `max_tokens` counts EOS."""

    particles: int = 8
    draft: LM | None = None
    draft_tokens: int = 4
    draft_temperature: float | None = None
    coupling: float = math.inf
    max_tokens: int = 256
    truncate: bool | None = None
    ess_threshold: float = 0.5
    resampling: str = "systematic"
    stop: tuple[str, ...] = ()
    deterministic: bool = False
    on_round: Callable[[RoundEvent], Any] | None = None

    def __post_init__(self) -> None:
        _whole("particles", self.particles, 1, MAX_PARTICLES)
        _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        _whole("draft_tokens", self.draft_tokens, 0, MAX_TOKENS)
        if self.draft is not None and not hasattr(self.draft, "sequences"):
            raise SettingError(f"draft must be an LM, got {type(self.draft).__name__}")
        t = self.draft_temperature
        if t is not None:
            if not _number(t) or not (t >= 0 and math.isfinite(t)):
                raise SettingError(f"draft_temperature must be a positive number, got {t!r}")
            if t == 0:
                raise SettingError(
                    "draft_temperature=0 would draft by arg-max, which has no density to weigh: "
                    "use a temperature › 0"
                )
        if not _number(self.coupling) or not self.coupling >= 1:
            raise SettingError(f"coupling must be at least 1, got {self.coupling!r}")
        if self.coupling != math.inf:
            raise SettingError(
                f"coupling={self.coupling:g} is not supported: coupling=inf (SMC-SD) is"
            )
        if not _number(self.ess_threshold) or not 0 <= self.ess_threshold <= 1:
            raise SettingError(f"ess_threshold must be in [0, 1], got {self.ess_threshold!r}")
        if self.resampling not in SCHEMES:
            raise SettingError(
                f"resampling must be one of {', '.join(SCHEMES)}, got {self.resampling!r}"
            )
        for s in self.stop:
            if not isinstance(s, str) or not s:
                raise SettingError(f"stop must be non-empty strings, got {s!r}")

    @classmethod
    def of(cls, stop: str | Sequence[str] | None, **settings: Any) -> Settings:
        """Settings with `stop` as a user may write it: one string, several, or None."""
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        return cls(stop=stops, **settings)


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value


def _whole(name: str, value: Any, low: int, high: int) -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or int(value) < low:
        raise SettingError(f"{name} must be a whole number of at least {low}, got {value!r}")
    if int(value) > high:
        raise SettingError(f"{name} must be at most {high}, got {value!r}")
