"""Independent runs taken together: one evidence, one weighted population.

With runs r of N_r particles and unbiased Ẑ_r, the mean with weights c_r ∝ N_r,

    Ẑ = Σ_r c_r Ẑ_r,

is unbiased too, and a particle of run r with normalised weight w̄ weighs w̄ · c_r Ẑ_r / Ẑ: a run
counts by what it found. The spread of the runs gives the standard error without reading any
genealogy: with R runs,

    Var(Ẑ) ≈ R/(R − 1) · Σ_r c_r² (Ẑ_r − Ẑ)²,     SE(log Ẑ) ≈ SE(Ẑ) / Ẑ     (delta method).

A run in which every particle died counts with Ẑ_r = 0.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import torch

from smcprog.errors import InputError
from smcprog.rng import STREAM_CHOICE, seed_word, uniforms
from smcprog.smc.posterior import Posterior

__all__ = ["PooledPosterior", "evidence_ess", "pool"]


@dataclasses.dataclass(eq=False, repr=False)
class PooledPosterior(Posterior):
    """What several independent runs say together.

    A `Posterior` whose particles are those of all runs, in order, with log-weights that sum to
    1 after `exp`. It has no rounds of its own: the genealogies are those of `runs`.

    Parameters
    ----------
    runs : sequence of Posterior
    """

    runs: Sequence[Posterior] = ()

    @functools.cached_property
    def log_evidence_se(self) -> float:
        """Standard error of `log_evidence`, from the spread of the runs.

        Of one run, what its genealogy says. NaN if every particle is dead.
        """
        if len(self.runs) < 2:
            return self.runs[0].log_evidence_se
        if self.log_evidence == -math.inf:
            return math.nan
        share_R = _shares(self.runs)
        z_R = np.exp([run.log_evidence - self.log_evidence for run in self.runs])
        r = len(self.runs)
        return float(np.sqrt(r / (r - 1) * np.sum((share_R * (z_R - 1)) ** 2)))

    @property
    def log_evidence_se_approximate(self) -> bool:
        """Not beyond first order, unless there is only one run."""
        return len(self.runs) < 2 and self.runs[0].log_evidence_se_approximate

    @property
    def evidence_ess(self) -> float:
        """(ΣẐ)²/ΣẐ² over the runs: how many of them carry the evidence; 0 if all are dead."""
        return evidence_ess([run.log_evidence for run in self.runs])


def pool(posteriors: Sequence[Posterior]) -> PooledPosterior:
    """Pool independent runs of one target and prompt, each by its evidence.

    Parameters
    ----------
    posteriors : sequence of Posterior
        At least one; runs of different seeds. Numbers of particles may differ.

    Returns
    -------
    PooledPosterior
        Its `log_evidence` is log of the mean of the runs' Ẑ (weighted by particles), and its
        sample is that of a run drawn in proportion to its share in it.

    Raises
    ------
    InputError
        No run, runs of different prompts, or two of one seed, which are not independent.
    """
    runs: list[Posterior] = []
    for post in posteriors:
        if not isinstance(post, Posterior):
            raise InputError(f"pool takes posteriors, got {type(post).__name__}")
        runs.extend(post.runs if isinstance(post, PooledPosterior) else [post])
    if not runs:
        raise InputError("pool was given no posterior")
    if any(run.prompt_text != runs[0].prompt_text for run in runs):
        raise InputError("pool takes runs of one prompt, and these have several")
    seeds = [run.seed for run in runs if run.seed is not None]
    if len(set(seeds)) < len(seeds):
        twice = next(s for s in seeds if seeds.count(s) > 1)
        raise InputError(f"pool takes independent runs, and two of these have the seed {twice}")
    log_z_R = np.array([run.log_evidence for run in runs]) + np.log(_shares(runs))
    log_evidence = float(np.logaddexp.reduce(log_z_R))
    particles = []
    for run, log_z in zip(runs, log_z_R.tolist(), strict=True):
        with np.errstate(divide="ignore"):
            log_w_N = np.log(run.weights) + (
                log_z - log_evidence if log_z > -math.inf else -math.inf
            )
        particles += [
            dataclasses.replace(particle, log_weight=log_w)
            for particle, log_w in zip(run, log_w_N.tolist(), strict=True)
        ]
    return PooledPosterior(
        particles=particles,
        rounds=[],
        log_evidence=log_evidence,
        sample_index=_sample(runs, log_z_R - log_evidence) if log_evidence > -math.inf else None,
        seed=None,
        prompt_text=runs[0].prompt_text,
        resampling=runs[0].resampling,
        ess_threshold=runs[0].ess_threshold,
        runs=tuple(runs),
    )


def evidence_ess(log_z_R: Sequence[float]) -> float:
    """(ΣẐ)²/ΣẐ², from 1 to R; 0 where every Ẑ is."""
    top = max(log_z_R)
    if top == -math.inf:
        return 0.0
    z_R = np.exp(np.asarray(log_z_R) - top)
    return float(z_R.sum() ** 2 / (z_R**2).sum())


def _shares(runs: Sequence[Posterior]) -> np.ndarray:
    """c_r, float64 [R]."""
    count_R = np.array([len(run) for run in runs], dtype=np.float64)
    return count_R / count_R.sum()


def _sample(runs: Sequence[Posterior], log_share_R: np.ndarray) -> int:
    """The sample of a run drawn in proportion to its share, as a particle of the pool."""
    # The uniform of the first run that has a seed; no run draws at this position.
    seed = next((run.seed for run in runs if run.seed is not None), 0)
    u = uniforms(torch.tensor([seed_word(seed)]), 0, 0, len(runs), STREAM_CHOICE)
    cdf_R = np.exp(log_share_R).cumsum()
    drawn = int(np.searchsorted(cdf_R, float(u[0]) * cdf_R[-1], side="right"))
    alive = np.flatnonzero(log_share_R > -math.inf)
    drawn = min(drawn, int(alive[-1]))
    index = runs[drawn].sample_index
    assert index is not None  # the run has evidence
    return sum(len(run) for run in runs[:drawn]) + index
