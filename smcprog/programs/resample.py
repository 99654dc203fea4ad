"""`resample`: copy particles in proportion to their weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from smcprog.particles import ess
from smcprog.resampling import resample
from smcprog.rng import STREAM_RESAMPLE, uniforms
from smcprog.validate import real

if TYPE_CHECKING:
    from smcprog.programs.population import Population

__all__ = ["resample_population"]


def resample_population(p: Population, threshold: float | None) -> bool:
    """See `Population.resample`; finished particles are candidates as well."""
    run = p.run
    if threshold is not None:
        threshold = real("threshold", threshold, 0, 1)
    p.begin("resample")
    log_w_1_N = p.log_w_N[None]
    if threshold is not None and not bool(ess(log_w_1_N)[0] < threshold * p.n):
        return False
    u_1_N = uniforms(run.seeds(1), 0, run.next_round(), torch.arange(p.n), STREAM_RESAMPLE)
    ancestors_N = resample(run.options.resampling, log_w_1_N, u_1_N)[0]
    total = float(p.log_w_N.logsumexp(0))
    run.record(p, p.log_w_N, ancestors_N, int(p.lengths.max()))
    run.reshaped |= p.parent is not None
    p.become(ancestors_N.numpy())
    p.log_w_N = torch.full_like(p.log_w_N, total - math.log(p.n))
    return True
