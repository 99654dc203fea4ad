"""Adaptive N: independent populations are added until the evidence is known well enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from smcprog.errors import AllDeadError, BatchError, SettingError
from smcprog.limits import MAX_PARTICLES
from smcprog.potentials.base import Potential
from smcprog.smc.call import Call
from smcprog.smc.posterior import Posterior
from smcprog.smc.variants.pooling import PooledPosterior, pool
from smcprog.validate import real, whole

__all__ = ["grow"]


def grow(
    target: Potential,
    prompt: Any = None,
    *,
    evidence_ess: float | None = None,
    log_evidence_se: float | None = None,
    max_particles: int = 1024,
    particles: int = 8,
    seed: int | None = None,
    **settings: Any,
) -> PooledPosterior:
    """Add independent populations until the ESS of their evidences, or the error, is good enough.

    Parameters
    ----------
    target : Potential
    prompt
        One prompt, as for `Potential.sample`.
    evidence_ess : float, optional
        Stop when (ΣẐ)²/ΣẐ² over the populations reaches this. 8 if neither goal is given.
    log_evidence_se : float, optional
        Stop when the standard error of the pooled log Ẑ has come down to this.
    max_particles : int
        Particles of all populations together, at most; at least two populations.
    particles : int
        N of each population.
    seed : int, optional
        Population i of one seed is the same whatever the goal.
    **settings
        As for `Potential.sample`.

    Returns
    -------
    PooledPosterior
        Of all populations that were run, in order, dead ones included (with Ẑ = 0); see its
        `runs`, `evidence_ess` and `log_evidence_se` for what was used and reached.

    Raises
    ------
    SettingError, PromptError
    AllDeadError
        No population has survived when `max_particles` are spent.
    SMCError
        As `Potential.sample`.

    Notes
    -----
    The number of populations depends on their evidences, so Ẑ is consistent (as the goal grows)
    and no longer exactly unbiased: stopping early is a little likelier after a large Ẑ. Where
    that matters, decide on the number of runs beforehand and `pool` them.
    """
    if evidence_ess is None and log_evidence_se is None:
        evidence_ess = 8.0
    goal = 0.0 if evidence_ess is None else real("evidence_ess", evidence_ess, 1)
    error = math.inf
    if log_evidence_se is not None:
        error = real("log_evidence_se", log_evidence_se, 0)
    most = whole("max_particles", max_particles, 2, MAX_PARTICLES) // whole(
        "particles", particles, 1, MAX_PARTICLES
    )
    if most < 2:
        raise SettingError(
            f"max_particles={max_particles} must hold two populations of particles={particles}"
        )
    if goal > most:
        raise SettingError(
            f"evidence_ess={goal:g} cannot be reached by max_particles={max_particles} in "
            f"populations of {particles}, which are {most}: raise max_particles"
        )
    checked = {"stop": None, "particles": particles, **settings}
    call = Call.of(target, **checked)
    prompts, many = call.prompts(prompt)
    if many:
        raise SettingError("grow works on one prompt: call it once for each")
    first = call.seeds(seed, 1)[0] % 2**64
    runs: list[Posterior] = []
    died: AllDeadError | None = None
    while True:
        pooled = pool(runs) if runs else None
        wanted = _more(pooled, goal, error, most)
        if pooled is not None and not wanted:
            break
        seeds = [
            int(np.random.SeedSequence([first, i]).generate_state(1, np.uint64)[0])
            for i in range(len(runs), len(runs) + wanted)
        ]
        added, died = _populations(target, prompts[0], seeds, particles, settings)
        runs += added
    assert pooled is not None
    if not pooled.alive:
        assert died is not None
        raise AllDeadError(
            f"in all of {len(runs)} populations, {died}",
            posterior=pooled,
            potential=died.potential,
            position=died.position,
        )
    return pooled


def _more(pooled: PooledPosterior | None, goal: float, error: float, most: int) -> int:
    """How many populations to add; 0 at the goal, or where no more are allowed."""
    if pooled is None:
        return min(most, max(2, math.ceil(goal)))
    count = len(pooled.runs)
    reached, spread = pooled.evidence_ess, pooled.log_evidence_se
    if reached >= goal and (error == math.inf or spread <= error):
        return 0
    # ESS grows like the number of runs, the error falls like its root; at most double.
    wish = count * goal / max(reached, 1e-9) if reached < goal else 0.0
    if error < math.inf and not spread <= error:
        wish = max(wish, count * (spread / error) ** 2 if error > 0 and spread > 0 else math.inf)
    return min(most - count, max(1, math.ceil(min(wish, 2.0 * count)) - count))


def _populations(
    target: Potential, prompt: Any, seeds: Sequence[int], particles: int, settings: dict[str, Any]
) -> tuple[list[Posterior], AllDeadError | None]:
    """One population a seed, dead ones included; and how the last of those died."""
    prompts = [prompt] * len(seeds)
    try:
        runs = target.sample(prompts, particles=particles, seed=list(seeds), **settings)
    except BatchError as failure:
        runs, died = [], None
        for result in failure.results:
            if isinstance(result, AllDeadError):
                died, result = result, result.posterior
            if not isinstance(result, Posterior):
                raise result from failure
            runs.append(result)
        return runs, died
    return list(runs), None
