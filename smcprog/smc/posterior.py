"""What a run returns: the weighted particles of one request and what they say of the target."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import SMCError
from smcprog.smc.standard_error import log_evidence_standard_error, normalised

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

__all__ = ["FinishReason", "Particle", "Posterior", "RoundInfo"]

FinishReason = Literal["eos", "stop", "length", "dead"]

Answer = TypeVar("Answer", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Particle:
    """One output of one request.

    Attributes
    ----------
    text : str
        The output, without EOS and cut before the stop string that ended it.
    tokens : list of int
        Its token ids; EOS, where it ended in one, is the last.
    log_weight : float
        Unnormalised log-weight among the final particles, −∞ if dead. After a resampling
        all weights start again from 0, so it is *not* the probability of the output.
    logprobs : list of float
        One entry a token: log p of the token given what precedes it, under the target's
        language model with its temperature and truncation.
    log_target : float
        log γ(y): the sum of the log potentials of the whole output. Comparable between
        particles and between runs of one target.
    finish_reason : {"eos", "stop", "length", "dead"}
        What ended it.
    """

    text: str
    tokens: list[int]
    log_weight: float
    logprobs: list[float]
    log_target: float
    finish_reason: FinishReason

    @property
    def alive(self) -> bool:
        """Whether its weight is positive."""
        return self.log_weight > -math.inf

    def __repr__(self) -> str:
        return (
            f"Particle({_shortened(self.text)!r}, log_weight={self.log_weight:.4g}, "
            f"finish_reason={self.finish_reason!r})"
        )


@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """What one round did to the population.

    Attributes
    ----------
    ess : float
        Effective sample size 1 / Σ w̄² after reweighting, before resampling; 0 if all are dead.
    resampled : bool
        Whether the round resampled.
    ancestors : list of int
        Entry i is the particle, numbered as before resampling, that particle i continues.
        0, 1, …, N − 1 where the round did not resample.
    log_evidence : float
        log Ẑ of the prefixes so far.
    length : int
        Tokens of the longest particle after this round.
    alive : int
        Particles of positive weight before resampling.
    log_weights : list of float
        Log-weights before resampling.
    moves, moves_accepted : int
        Moves tried after the round, and those accepted.
    """

    ess: float
    resampled: bool
    ancestors: list[int]
    log_evidence: float
    length: int
    alive: int
    log_weights: list[float]
    moves: int = 0
    moves_accepted: int = 0


@dataclasses.dataclass(eq=False)
class Posterior:
    """The weighted particles of one request.

    It is a sequence of its particles: ``len(post)``, ``post[i]``, ``for particle in post``.

    Parameters
    ----------
    particles : sequence of Particle
        The final population, at least one.
    rounds : sequence of RoundInfo
        One entry a round, in order.
    log_evidence : float
        log Ẑ, where Ẑ estimates Z = Σ_y γ(y) without bias. −∞ if every particle is dead.
    sample_index : int or None
        The particle that was drawn with probability proportional to its weight; None if
        every particle is dead.
    seed : int or None
        Repeats the run.
    prompt_text : str
        The prompt as text.
    timing : mapping of str to float
        Seconds and counts of the run.
    resampling : str
        Name of the resampling scheme.
    ess_threshold : float or None
        The share of N below which ESS makes a round resample.
    one_run_tells : bool
        Whether the genealogy can tell the standard error of `log_evidence`. It cannot where
        particles are dependent by design: waste-free SMC, first tokens without replacement.

    Raises
    ------
    ValueError
        No particles, or `sample_index` names none or a dead one.
    """

    particles: Sequence[Particle]
    rounds: Sequence[RoundInfo]
    log_evidence: float
    sample_index: int | None
    seed: int | None = None
    prompt_text: str = ""
    timing: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resampling: str = "systematic"
    ess_threshold: float | None = None
    one_run_tells: bool = True

    def __post_init__(self) -> None:
        if not self.particles:
            raise ValueError("a posterior needs at least one particle, got none")
        if self.sample_index is not None and not (
            0 <= self.sample_index < len(self.particles) and self.particles[self.sample_index].alive
        ):
            raise ValueError(
                f"sample_index must name one of the {len(self.particles)} particles, and one "
                f"of positive weight, got {self.sample_index}"
            )

    @functools.cached_property
    def log_evidence_se(self) -> float:
        """Standard error of `log_evidence` from this run alone, read off the genealogy.

        NaN where one run cannot tell: one particle, all dead, all survivors descended from
        one initial particle (see `smcprog.smc.standard_error`), or not `one_run_tells`. Then
        `smcprog.pool` of several runs does.
        """
        if not self.one_run_tells:
            return math.nan
        return log_evidence_standard_error(
            [info.ancestors if info.resampled else None for info in self.rounds],
            [particle.log_weight for particle in self.particles],
            multinomial=self.resampling == "multinomial",
        )

    @property
    def log_evidence_se_approximate(self) -> bool:
        """Whether `log_evidence_se` is approximate beyond first order: not if multinomial."""
        return self.resampling != "multinomial"

    @property
    def move_rate(self) -> float:
        """Share of the moves that were accepted; NaN if there were none."""
        tried = sum(info.moves for info in self.rounds)
        accepted = sum(info.moves_accepted for info in self.rounds)
        return accepted / tried if tried else math.nan

    @property
    def sample(self) -> Particle | None:
        """The particle drawn with probability proportional to its weight; None if all dead."""
        return None if self.sample_index is None else self.particles[self.sample_index]

    @property
    def text(self) -> str:
        """Text of the drawn particle; empty if every particle is dead."""
        return "" if self.sample is None else self.sample.text

    @property
    def tokens(self) -> list[int]:
        """Token ids of the drawn particle, EOS included; empty if every particle is dead."""
        return [] if self.sample is None else self.sample.tokens

    @property
    def alive(self) -> bool:
        """Whether any particle has positive weight."""
        return any(particle.alive for particle in self.particles)

    @property
    def best(self) -> Particle:
        """The particle of largest log γ(y) among those of positive weight.

        It is the most probable output *found*, not a draw from the target: use `text` for
        a sample. The first wins a tie.

        Raises
        ------
        SMCError
            Every particle is dead.
        """
        index = self.best_index
        if index is None:
            raise SMCError(
                f"all {len(self.particles)} particles have weight zero, so none is best; "
                "`particles` holds what was drawn before they died"
            )
        return self.particles[index]

    @property
    def best_index(self) -> int | None:
        """Position of `best` in `particles`; None if every particle is dead."""
        living = [i for i, particle in enumerate(self.particles) if particle.alive]
        return max(living, key=lambda i: self.particles[i].log_target, default=None)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Final weights normalised to sum 1; zeros if every particle is dead. float64, [N]."""
        return normalised([particle.log_weight for particle in self.particles])

    @property
    def ess(self) -> float:
        """Effective sample size 1 / Σ w̄² of the final weights, from 1 to N; 0 if all dead."""
        total = float(np.sum(self.weights**2))
        return 1.0 / total if total > 0 else 0.0

    @overload
    def probabilities(self) -> dict[str, float]: ...
    @overload
    def probabilities(self, key: Callable[[str], Answer]) -> dict[Answer, float]: ...

    def probabilities(self, key: Callable[[str], Any] | None = None) -> dict[Any, float]:
        """Estimated posterior mass of each distinct text, or of each answer.

        Parameters
        ----------
        key : callable, optional
            Maps a text to the answer it stands for, such as ``str.lower``; the mass of
            texts with equal answers is added up. Default: the text itself.

        Returns
        -------
        dict
            Answer → mass, largest first; the masses sum to 1. Empty if every particle is
            dead. Particles of weight zero are left out.
        """
        mass: dict[Any, float] = {}
        for particle, weight in zip(self.particles, self.weights.tolist(), strict=True):
            if weight > 0:
                answer = particle.text if key is None else key(particle.text)
                mass[answer] = mass.get(answer, 0.0) + weight
        return dict(sorted(mass.items(), key=lambda item: -item[1]))

    def to_dict(self, *, rounds: bool = True) -> dict[str, Any]:
        """The whole result as plain JSON values; NaN and ±∞ become None.

        Parameters
        ----------
        rounds : bool
            Whether to include the per-round record, which grows with rounds × particles.

        Returns
        -------
        dict
            Keys ``text``, ``tokens``, ``finish_reason``, ``log_evidence``,
            ``log_evidence_se``, ``log_evidence_se_approximate``, ``ess``, ``seed``,
            ``prompt``, ``sample_index``, ``best_index``, ``resampling``, ``ess_threshold``,
            ``particles``, ``timing``, and ``rounds``. Each particle has the fields of
            `Particle` and its normalised ``weight``.
        """
        sample = self.sample
        result: dict[str, Any] = {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": "dead" if sample is None else sample.finish_reason,
            "log_evidence": self.log_evidence,
            "log_evidence_se": self.log_evidence_se,
            "log_evidence_se_approximate": self.log_evidence_se_approximate,
            "ess": self.ess,
            "seed": self.seed,
            "prompt": self.prompt_text,
            "sample_index": self.sample_index,
            "best_index": self.best_index,
            "resampling": self.resampling,
            "ess_threshold": self.ess_threshold,
            "particles": [
                {**dataclasses.asdict(particle), "weight": weight}
                for particle, weight in zip(self.particles, self.weights.tolist(), strict=True)
            ],
            "timing": self.timing,
        }
        if rounds:
            result["rounds"] = [dataclasses.asdict(info) for info in self.rounds]
        plain = _plain(result)
        assert isinstance(plain, dict)
        return plain

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the genealogy of the particles, ESS per round and the final weights.

        Parameters
        ----------
        path : path, optional
            Where to save it; the suffix chooses the format (.png, .svg, .pdf).

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it; no window is opened.
        """
        from smcprog.plots.posterior import plot_posterior

        return plot_posterior(self, path)

    def __len__(self) -> int:
        return len(self.particles)

    def __iter__(self) -> Iterator[Particle]:
        return iter(self.particles)

    def __getitem__(self, index: int) -> Particle:
        return self.particles[index]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({_shortened(self.text)!r}, particles={len(self.particles)}, "
            f"log_evidence={evidence_text(self)}, ess={self.ess:.3g}, seed={self.seed})"
        )

    def _repr_html_(self) -> str:
        from smcprog.smc.html import posterior_html

        return posterior_html(self)


def evidence_text(post: Posterior) -> str:
    """``-12.34 ± 0.21``, ``± ~0.21`` where approximate; the value alone where the error is NaN."""
    value = f"{post.log_evidence:.4f}"
    if math.isnan(post.log_evidence_se):
        return value
    return f"{value} ± {'~' if post.log_evidence_se_approximate else ''}{post.log_evidence_se:.2g}"


def _shortened(text: str, width: int = 60) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _plain(value: Any) -> Any:
    """`value` with arrays, tuples and numbers turned into what JSON has."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return str(value)
