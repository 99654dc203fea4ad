"""From a population to what the user gets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import numpy as np

from smcprog.particles import normalized
from smcprog.programs.pieces import text_of
from smcprog.rng import STREAM_CHOICE, uniforms
from smcprog.smc.draws import categorical
from smcprog.smc.posterior import FinishReason, Particle, Posterior

if TYPE_CHECKING:
    from smcprog.programs.state import PopulationState

__all__ = ["posterior_of"]


def posterior_of(p: PopulationState, timing: dict[str, float] | None = None) -> Posterior:
    """The posterior of a run, whose population this is."""
    run = p.run
    log_evidence = float(p.log_w_N.logsumexp(0)) - math.log(run.options.particles)
    chosen: int | None = None
    if log_evidence > -math.inf:
        u = uniforms(run.seeds(1), 0, run.rounds, 0, STREAM_CHOICE)
        chosen = int(categorical(normalized(p.log_w_N[None]), u)[0])
    prompt = run.prompt
    if prompt is not None and not isinstance(prompt, str):
        prompt = "" if run.lm is None else run.lm.vocab.decode(run.lm.encode(prompt))
    post = Posterior(
        particles=[_particle(p, i) for i in range(p.n)],
        rounds=[r for r in run.records if len(r.ancestors) == p.n],
        log_evidence=log_evidence,
        sample_index=chosen,
        seed=run.seed,
        prompt_text=prompt or "",
        timing=dict(timing or {}),
        resampling=run.options.resampling if not run.reshaped else "in parts",
        ess_threshold=run.options.ess_threshold,
    )
    if run.reshaped:  # the rounds do not show all that was copied
        post.__dict__["log_evidence_se"] = _standard_error(p)
    return post


def _particle(p: PopulationState, i: int) -> Particle:
    history = p.histories[i]
    log_w = float(p.log_w_N[i])
    tokens = [t for piece in history for t in piece.tokens]
    logprobs = [x for piece in history for x in piece.logprobs]
    if history and history[-1].end is not None:
        tokens.append(history[-1].end[0])
        logprobs.append(history[-1].end[1])
    reason = "dead" if log_w == -math.inf else p.done[i] or p.finish_reason(i)
    return Particle(
        text=text_of(history),
        tokens=tokens,
        log_weight=log_w,
        logprobs=logprobs,
        log_target=float(p.log_gamma_N[i]),
        finish_reason=cast("FinishReason", reason),
    )


def _standard_error(p: PopulationState) -> float:
    """From the initial particles that the final ones descend from (Chan and Lai 2013)."""
    n = p.run.options.particles
    w_N = normalized(p.log_w_N[None])[0].numpy()
    families_E = np.bincount(p.eve_N, weights=w_N, minlength=n)
    if n < 2 or np.count_nonzero(families_E) < 2:
        return math.nan
    excess = max(float(np.sum(families_E**2)) - 1 / n, 0.0)
    return math.sqrt(n / (n - 1) * excess)
