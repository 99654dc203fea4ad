"""The settings of one `sample` call, checked once, before anything runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from smcprog.errors import SettingError
from smcprog.limits import (
    MAX_DRAFT_PATHS,
    MAX_LOOKAHEAD,
    MAX_MOVES,
    MAX_OUTPUT_TOKENS,
    MAX_PARTICLES,
    MAX_ROLLOUTS,
    MAX_TOKENS,
)
from smcprog.potentials.models.factor import ModelFactor
from smcprog.potentials.models.local import check_temperature
from smcprog.potentials.product import Product
from smcprog.resampling import SCHEMES
from smcprog.smc.pace import MOST_AUTO
from smcprog.validate import real, whole

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["RoundEvent", "Settings", "check_greedy"]

FIRST_TOKENS = ("drawn", "without_replacement")


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
    draft: LM | FedDraft | None = None
    draft_tokens: int | str = 4
    draft_temperature: float | None = None
    coupling: float = math.inf
    draft_paths: int = 1
    joint_draws: bool = True
    max_tokens: int = 256
    truncate: bool | None = None
    ess_threshold: float = 0.5
    resampling: str = "systematic"
    stop: tuple[str, ...] = ()
    deterministic: bool = False
    moves: int = 0
    waste_free: int = 1
    lookahead: int = 0
    rollouts: int = 4
    first_tokens: str = "drawn"
    on_round: Callable[[RoundEvent], Any] | None = None

    def __post_init__(self) -> None:
        n = self._keep("particles", whole("particles", self.particles, 1, MAX_PARTICLES))
        t = self._keep("max_tokens", whole("max_tokens", self.max_tokens, 1, MAX_TOKENS))
        if n * t > MAX_OUTPUT_TOKENS:
            raise SettingError(
                f"particles={n} times max_tokens={t} is more than the {MAX_OUTPUT_TOKENS} tokens "
                "that one request may ask for: lower one of them"
            )
        if isinstance(self.draft_tokens, str):
            self._check_auto()
        else:
            self._keep("draft_tokens", whole("draft_tokens", self.draft_tokens, 0, MAX_TOKENS))
        kinds = ("sequences", "fed_by")  # an LM, or a FedDraft
        if self.draft is not None and not any(hasattr(self.draft, kind) for kind in kinds):
            raise SettingError(f"draft must be an LM, got {type(self.draft).__name__}")
        if self.draft_temperature is not None:
            self._keep(
                "draft_temperature",
                check_temperature("draft_temperature", self.draft_temperature),
            )
            if self.draft_temperature == 0:
                raise SettingError(
                    "draft_temperature=0 would draft by arg-max, which has no density to weigh: "
                    "use a temperature › 0"
                )
        coupling = self._keep(
            "coupling", real("coupling", self.coupling, 1, math.inf, infinite=True)
        )
        paths = self._keep(
            "draft_paths", whole("draft_paths", self.draft_paths, 1, MAX_DRAFT_PATHS)
        )
        if paths > 1 and coupling != 1:
            raise SettingError(
                f"draft_paths={paths} needs coupling=1 (lossless): other couplings weigh one path"
            )
        self._keep("ess_threshold", real("ess_threshold", self.ess_threshold, 0, 1))
        if not isinstance(self.resampling, str) or self.resampling not in SCHEMES:
            raise SettingError(
                f"resampling must be one of {', '.join(SCHEMES)}, got {self.resampling!r}"
            )
        for s in self.stop:
            if not isinstance(s, str) or not s or not _is_text(s):
                raise SettingError(f"stop must be non-empty strings of Unicode text, got {s!r}")
        self._check_variants()
        if self.on_round is not None and not callable(self.on_round):
            raise SettingError(f"on_round must be callable, got {type(self.on_round).__name__}")
        if self.joint_draws not in (True, False):
            raise SettingError(f"joint_draws must be True or False, got {self.joint_draws!r}")
        if self.truncate not in (None, True, False):
            raise SettingError(f"truncate must be True, False or None, got {self.truncate!r}")

    def _check_variants(self) -> None:
        n = self.particles
        moves = self._keep("moves", whole("moves", self.moves, 0, MAX_MOVES))
        chain = self._keep("waste_free", whole("waste_free", self.waste_free, 1, MAX_MOVES))
        ahead = self._keep("lookahead", whole("lookahead", self.lookahead, 0, MAX_LOOKAHEAD))
        self._keep("rollouts", whole("rollouts", self.rollouts, 2, MAX_ROLLOUTS))
        if n % chain:
            raise SettingError(
                f"waste_free={chain} must divide particles={n}: they are chains of that length"
            )
        if moves and chain > 1:
            raise SettingError(
                f"moves={moves} and waste_free={chain} exclude each other: waste-free SMC keeps "
                "every state of its own moves"
            )
        if ahead and (moves or chain > 1):
            raise SettingError(
                "lookahead cannot be combined with moves or waste_free: each proposal would need "
                "rollouts of its own"
            )
        if self.first_tokens not in FIRST_TOKENS:
            raise SettingError(
                f"first_tokens must be one of {', '.join(FIRST_TOKENS)}, got {self.first_tokens!r}"
            )

    @property
    def rows_beside(self) -> tuple[int, int]:
        """Rows of blocks that are played on the side, per particle, and their most tokens."""
        beside = max(self.moves, self.waste_free - 1)
        if beside:
            return beside, self.most_draft_tokens + 1
        return (self.rollouts, self.lookahead) if self.lookahead else (0, 0)

    def _check_auto(self) -> None:
        if self.draft_tokens != "auto":
            raise SettingError(
                f'draft_tokens must be a number or "auto", got {self.draft_tokens!r}'
            )
        if self.deterministic:
            raise SettingError(
                'draft_tokens="auto" follows measured times, which deterministic=True cannot '
                "repeat: give a number"
            )

    @property
    def most_draft_tokens(self) -> int:
        """Most tokens drafted in a round; 0 without a draft."""
        if self.draft is None:
            return 0
        return MOST_AUTO if isinstance(self.draft_tokens, str) else self.draft_tokens

    def _keep(self, name: str, value: Any) -> Any:
        """Store a checked setting as a plain number; the class is frozen afterwards."""
        object.__setattr__(self, name, value)
        return value

    @classmethod
    def of(cls, stop: str | Sequence[str] | None, **settings: Any) -> Settings:
        """Settings with `stop` as a user may write it: one string, several, or None."""
        stops: tuple[str, ...]
        if stop is None or isinstance(stop, str):
            stops = () if stop is None else (stop,)
        elif isinstance(stop, Iterable):
            stops = tuple(stop)
        else:
            raise SettingError(f"stop must be a string or several, got {stop!r}")
        return cls(stop=stops, **settings)


def check_greedy(target: Product, settings: Settings) -> None:
    """Refuse ``temperature=0`` where arg-max would have to be weighed.

    Raises
    ------
    SettingError
        If a greedy model has companions, or is drafted for with a coupling other than 1.
    """
    if not any(isinstance(f, ModelFactor) and f.greedy for f in target.factors):
        return
    if len(target.factors) > 1:
        raise SettingError(
            f"temperature=0 is greedy decoding, and {target.name} has to be weighed: arg-max has "
            "no density. Use a temperature › 0, or the model alone"
        )
    if settings.most_draft_tokens and settings.coupling != 1:
        raise SettingError(
            "temperature=0 is greedy decoding, which SMC cannot weigh (arg-max has no density): "
            "leave the draft out, draft without loss (coupling=1), or use a temperature › 0"
        )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
