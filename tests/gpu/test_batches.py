"""Requests that share captured rounds, come and go; and several threads that capture."""

from __future__ import annotations

import concurrent.futures

import pytest
import torch

from smcprog import Scheduler, Target

from .conftest import flashinfer_lm
from .test_rounds import PROMPTS, assert_same, pair

SETTINGS = {"draft_tokens": 3, "particles": 4, "ess_threshold": 1.0}
JOBS = [(PROMPTS[i % 3], 6 + 5 * (i % 3), i) for i in range(10)]


def alone(lm, draft):
    return [
        Target(lm).sample(prompt, draft=draft, max_tokens=most, seed=seed, **SETTINGS)
        for prompt, most, seed in JOBS
    ]


@pytest.mark.filterwarnings("ignore:the draft")
def test_each_gets_what_it_gets_alone(device):
    """In float32 under PyTorch's attention, with one request cancelled in the middle."""
    lm, draft = pair(device, torch.float32)
    with Scheduler() as scheduler:
        handles = [
            scheduler.submit(
                Target(lm), prompt, draft=draft, max_tokens=most, seed=seed, **SETTINGS
            )
            for prompt, most, seed in JOBS
        ]
        gone = scheduler.submit(Target(lm), PROMPTS[0], draft=draft, max_tokens=60, **SETTINGS)
        together = [handle.result(timeout=300) for handle in handles]
        gone.cancel()
    assert any(key[-1].requests > 1 for key in lm.engine.kept)  # some did share
    assert_same(together, alone(lm, draft))
    assert lm.pages_in_use == draft.pages_in_use == 0


@pytest.mark.filterwarnings("ignore:the draft")
def test_threads_that_capture(device):
    """Two threads make and play programs of their own over the same models."""
    lm, draft = pair(device, torch.float32)

    def sample(particles):
        options = {**SETTINGS, "particles": particles}
        return Target(lm).sample(PROMPTS, draft=draft, max_tokens=12, seed=[1, 2, 3], **options)

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = list(threads.map(sample, (3, 5)))
    for posts, particles in zip(found, (3, 5), strict=True):
        assert_same(posts, sample(particles))


@pytest.mark.filterwarnings("ignore:the draft")
def test_narrow_pages_in_a_graph(device):
    """FlashInfer over fp8 pages, replayed: the rounds that go step by step, in what they weigh."""
    models = pair(device, torch.bfloat16, flashinfer_lm, kv_dtype="float8_e4m3fn")
    lm, draft = models
    first, again = alone(lm, draft), alone(lm, draft)
    assert_same(again, first)
    for model in models:
        model.graphs = False
    for post, plain in zip(first, alone(lm, draft), strict=True):
        # Kernels of other shapes round otherwise, and in bfloat16 a token may differ.
        assert abs(post.log_evidence - plain.log_evidence) < 3
        assert post.alive == plain.alive
