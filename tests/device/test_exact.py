"""Rounds of fixed shape on random-weight Llamas: Ẑ and Ẑ · 1[sample] against whole sums.

By the bounds of `tests/exactness/test_many_particles.py`: for another choice of seeds a mean alarms
falsely with probability 6e-5, a configuration over all its bins with 1e-4.
"""

from __future__ import annotations

import math

import pytest

from smcprog import Grammar, Target
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.settings import Settings

from ..exactness.test_many_particles import assert_unbiased, run_many, variance_of_one
from ..exactness.test_real_engine import LONG, PATTERN, SCALE, as_toy, in_regex, tiny_model
from ..exactness.toys import gamma
from ..tiny import tiny_llama


@pytest.mark.parametrize(
    ("n", "k", "coupling", "power", "masked", "scheme"),
    [
        (4, 2, math.inf, 1.0, False, "systematic"),
        (8, 4, math.inf, 1.0, True, "ssp"),
        (4, 2, 2.0, 2.0, False, "residual"),
        (4, 2, 1.0, 1.0, True, "systematic"),
    ],
)
def test_unbiased(n, k, coupling, power, masked, scheme):
    options = {"scale": SCALE, "page_size": 4, "graphs": True}
    lm = tiny_llama(seed=n + k, **options)
    toy = as_toy(lm, tiny_model(seed=n + k, scale=SCALE))
    target, exact = Target(lm, power=power), {"power": power}
    if masked:
        target, exact["accepts"] = target * Grammar.regex(PATTERN), in_regex(PATTERN)
    settings = Settings(
        particles=n, draft=tiny_llama(seed=99, **options), draft_tokens=k, coupling=coupling,
        max_tokens=LONG, resampling=scheme, ess_threshold=1.0,
    )  # fmt: skip
    gammas = gamma(toy, LONG, truncate=True, **exact)
    assert variance_of_one(target, settings, True, sum(gammas.values())) <= 4
    z, outcomes = run_many(target, settings, True, runs=1500, kind=DeviceWave)
    assert_unbiased(z, outcomes, gammas)
    assert lm.pages_in_use == 0
