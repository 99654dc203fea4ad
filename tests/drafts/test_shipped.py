"""The draft that comes with the package, for the default model."""

from __future__ import annotations

import torch

from smcprog import Target
from smcprog.drafts.load import SHIPPED
from smcprog.drafts.report import measure
from smcprog.drafts.student import plain_twin
from smcprog.drafts.text import sample_text

QUESTIONS = ["What is the capital of France?", "Write a short poem about the sea."]


def test_it_is_small_and_says_where_it_comes_from():
    (folder,) = (f for f in SHIPPED.iterdir() if f.is_dir())
    names = {file.name for file in folder.iterdir()}
    assert names == {"draft.json", "draft.safetensors", "NOTICE"}
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 30_000_000


def test_it_follows_its_target(default_lm):
    """As its report says, within what so short a text allows."""
    prompts = [default_lm.encode([{"role": "user", "content": q}]) for q in QUESTIONS]
    plain = plain_twin(default_lm.model)
    text = sample_text(default_lm, plain, prompts, [1.0, 1.0], 48, seed=0)
    draft = default_lm.draft(kv_pages=200)
    (figures,) = measure(plain, plain_twin(draft.model), text, [1.0])
    assert figures.tokens > 20
    assert figures.acceptance > 0.3
    assert figures.kl < 3


def test_it_drafts(default_lm):
    draft = default_lm.draft(kv_pages=200)
    post = Target(default_lm).sample(
        "Once upon a time", particles=4, draft=draft, draft_tokens=3, max_tokens=12, seed=0
    )
    assert all(0 < len(p.tokens) <= 12 for p in post.particles)
    assert torch.isfinite(torch.tensor(post.log_evidence))
    assert draft.pages_in_use == 0
