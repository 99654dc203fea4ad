"""Cases A to D in rounds of fixed shape, by real models on the device.

Ẑ and Ẑ · 1[outcome in bin] are unbiased. Runs are seeds 0..R−1, so on one device and
library the tests are deterministic; for other seeds the chance of a false alarm is about 6e-5 a
mean and 1e-4 a configuration over its bins.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import Target

from ..exactness.test_many_particles import LENGTHS, assert_unbiased
from ..exactness.toys import gamma
from .conftest import CUDA, need_flashinfer
from .models import TABLES

TOGETHER = 128  # requests of a call
SETTINGS = [
    {"draft_tokens": 2},
    {"draft_tokens": 3, "coupling": 2.0, "resampling": "multinomial", "ess_threshold": 1.0},
    {"draft_tokens": 0},
    {"draft_tokens": 2, "coupling": 1.0},
]
# Device, type, runs, settings: on the CPU just enough to see that it works.
PLACES = [
    *(pytest.param("cpu", torch.float32, 100, s) for s in SETTINGS[:2]),
    *(
        pytest.param("cuda", dtype, 512, s, marks=CUDA.marks)
        for dtype in (torch.float32, torch.bfloat16)
        for s in SETTINGS
    ),
]


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize(("device", "dtype", "runs", "settings"), PLACES)
def test_reference_cases(case, device, dtype, runs, settings):
    table, of = TABLES[case]
    length = LENGTHS[case]
    on = torch.device(device)
    if dtype != torch.float32:
        need_flashinfer()
    attention = "torch" if dtype == torch.float32 else "flashinfer"
    options = {"graphs": True, "attention": attention}
    lm = table.lm(on, dtype, **options)
    draft = table.softened(0.3).lm(on, dtype, **options) if settings["draft_tokens"] else None
    gammas = gamma(table.toy(lm), length, truncate=False, accepts=of.accepts)
    target, posts = Target(lm) * of.grammar(), []
    for begin in range(0, runs, TOGETHER):
        seeds = list(range(begin, min(begin + TOGETHER, runs)))
        posts += target.sample(
            [table.prompt] * len(seeds),
            particles=8,
            draft=draft,
            max_tokens=length,
            seed=seeds,
            **settings,
        )
    assert lm.engine.kept, "played step by step"
    z = np.array([math.exp(post.log_evidence) for post in posts])
    assert_unbiased(z, [tuple(post.tokens) for post in posts], gammas, rounding=1e-5)
    assert lm.pages_in_use == 0


@pytest.mark.parametrize("case", TABLES)
def test_the_models_are_the_cases(case, device):
    """The same Z as by the tables, whose own tests hold them against what is published."""
    table, of = TABLES[case]
    lm = table.lm(device, torch.float32, attention="torch", kv_pages=100)
    toy = table.toy(lm)
    z = sum(gamma(toy, LENGTHS[case], truncate=False, accepts=of.accepts).values())
    exact = sum(gamma(of.toy, LENGTHS[case], truncate=False, accepts=of.accepts).values())
    assert z == pytest.approx(exact, rel=1e-5)
