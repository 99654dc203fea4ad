"""What a benchmark runs: modes, and the grid of cells they make with N, K, τ and requests."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from smcprog.errors import SettingError
from smcprog.limits import MAX_PARTICLES, MAX_TOKENS
from smcprog.validate import real, whole

__all__ = ["AUTO_K", "Cell", "Mode", "draft_lengths", "grid", "parse_modes", "reals", "wholes"]

AUTO_K = "auto"
MOST_REQUESTS = 4096


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way to decode.

    Attributes
    ----------
    name : str
        As on the command line.
    coupling : float or None
        λ; None where nobody drafts.
    paths : int
        J, drafts per particle.
    """

    name: str
    coupling: float | None = None
    paths: int = 1

    @property
    def drafts(self) -> bool:
        """Whether it needs a draft."""
        return self.coupling is not None

    @property
    def exact(self) -> bool:
        """Whether every output is drawn from the model itself, whatever N is."""
        return self.coupling in (None, 1.0)

    @property
    def outside(self) -> bool:
        """Whether it is `transformers.generate`, not the engine."""
        return self.name == "generate"

    @property
    def kind(self) -> str:
        """Which round of the core it plays: "auto", "smc" or "coupled"."""
        if self.coupling is None:
            return "auto"
        return "smc" if math.isinf(self.coupling) else "coupled"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting that is timed.

    Attributes
    ----------
    mode : Mode
    particles : int
        N of each request.
    draft_tokens : int or "auto"
        K; 0 where nobody drafts.
    temperature : float
    requests : int
        Prompts worked on together.
    """

    mode: Mode
    particles: int
    draft_tokens: int | str
    temperature: float
    requests: int = 1

    @property
    def name(self) -> str:
        """Short name, unique in a grid."""
        parts = [self.mode.name, f"N={self.particles}"]
        if self.mode.drafts:
            parts.append(f"K={self.draft_tokens}")
        parts.append(f"τ={self.temperature:g}")
        if self.requests > 1:
            parts.append(f"R={self.requests}")
        return " ".join(parts)


def parse_modes(text: str) -> list[Mode]:
    """Modes of a list such as ``generate,auto,lossless,coupled:2,smc``.

    ``lossless:J`` drafts J paths a particle; ``coupled:λ`` needs a finite λ ≥ 1.

    Raises
    ------
    SettingError
        If one is unknown or there is none.
    """
    modes = [_mode(part.strip()) for part in text.split(",") if part.strip()]
    if not modes:
        raise SettingError("--modes is empty: give at least one, such as auto")
    return list(dict.fromkeys(modes))


def _mode(text: str) -> Mode:
    name, _, value = text.partition(":")
    if name in ("generate", "auto") and not value:
        return Mode(name)
    if name == "smc" and not value:
        return Mode(name, math.inf)
    if name == "lossless":
        paths = 1 if not value else wholes("--modes lossless:J, J", value, 1, 64)[0]
        return Mode(text, 1.0, paths)
    if name == "coupled" and value:
        coupling = reals("--modes coupled:λ, λ", value, 1)[0]
        return Mode(f"coupled:{coupling:g}", coupling)
    raise SettingError(
        f"--modes: unknown mode {text!r}; there are generate, auto, lossless, lossless:J, "
        "coupled:λ (such as coupled:2) and smc"
    )


def grid(
    modes: Sequence[Mode],
    particles: Sequence[int],
    draft_tokens: Sequence[int | str],
    temperatures: Sequence[float],
    requests: Sequence[int] = (1,),
) -> list[Cell]:
    """Every combination, each once: a mode without a draft has no K."""
    return list(
        dict.fromkeys(
            Cell(mode, n, k, tau, r)
            for tau in temperatures
            for r in requests
            for mode in modes
            for n in particles
            for k in (draft_tokens if mode.drafts else (0,))
        )
    )


def wholes(name: str, text: str, low: int = 1, high: int | None = None) -> list[int]:
    """The whole numbers of a list with commas.

    Raises
    ------
    SettingError
        If there is none, or something else is in it.
    """
    most = high or {"--particles": MAX_PARTICLES, "--requests": MOST_REQUESTS}.get(name, MAX_TOKENS)
    values = []
    for part in _parts(name, text):
        try:
            value = int(part)
        except ValueError:
            raise SettingError(
                f"{name} must be whole numbers with commas between them, such as 1,8, got {text!r}"
            ) from None
        values.append(whole(name, value, low, most))
    return values


def draft_lengths(text: str) -> list[int | str]:
    """Values of K: whole numbers, and "auto"."""
    found: list[int | str] = []
    for part in _parts("--draft-tokens", text):
        found += [AUTO_K] if part == AUTO_K else wholes("--draft-tokens", part)
    return found


def reals(name: str, text: str, low: float = 0.0) -> list[float]:
    """The numbers of a list with commas.

    Raises
    ------
    SettingError
        If there is none, or something else is in it.
    """
    values = []
    for part in _parts(name, text):
        try:
            value = float(part)
        except ValueError:
            raise SettingError(
                f"{name} must be numbers with commas between them, such as 0.7,1, got {text!r}"
            ) from None
        values.append(real(name, value, low))
    return values


def _parts(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SettingError(f"{name} is empty: give at least one number")
    return list(dict.fromkeys(parts))
