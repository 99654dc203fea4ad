"""The drafts that come with the package, for the default model."""

from __future__ import annotations

import pytest
import torch

from smcprog import SettingError, Target
from smcprog.drafts.fed import FedDraft
from smcprog.drafts.load import SHIPPED
from smcprog.drafts.report import measure
from smcprog.drafts.student import plain_twin
from smcprog.drafts.text import sample_text

QUESTIONS = ["What is the capital of France?", "Write a short poem about the sea."]


def test_they_are_small_and_say_where_it_comes_from():
    folders = [f for f in SHIPPED.iterdir() if f.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        names = {file.name for file in folder.iterdir()}
        assert names == {"draft.json", "draft.safetensors", "NOTICE"}
    files = [file for folder in folders for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 30_000_000


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


def test_the_recurrent_one_follows_its_target(default_lm):
    prompts = [default_lm.encode([{"role": "user", "content": q}]) for q in QUESTIONS]
    plain = plain_twin(default_lm.model)
    text = sample_text(default_lm, plain, prompts, [1.0, 1.0], 48, seed=0)
    draft = default_lm.draft(design="recurrent")
    assert isinstance(draft, FedDraft)
    first, second = measure(plain, draft.network, text, [1.0], [1, 2])
    assert first.tokens > second.tokens > 20
    assert first.acceptance > 0.25
    assert first.kl < 3.5


def test_the_design_must_be_one_that_is_there(default_lm):
    with pytest.raises(SettingError, match="design must be one of layers, recurrent"):
        default_lm.draft(design="tree")
    with pytest.raises(SettingError, match="leave it out, or path"):
        default_lm.draft("folder", design="layers")


@pytest.mark.parametrize("coupling", [1.0, float("inf")])
def test_the_recurrent_one_drafts(default_lm, coupling):
    draft = default_lm.draft(design="recurrent")
    post = Target(default_lm).sample(
        "Once upon a time", particles=2, draft=draft, draft_tokens=2, coupling=coupling,
        max_tokens=12, seed=0,
    )  # fmt: skip
    assert all(0 < len(p.tokens) <= 12 for p in post.particles)
    assert torch.isfinite(torch.tensor(post.log_evidence))
    default_lm.check_pages()


def test_it_drafts(default_lm):
    draft = default_lm.draft(kv_pages=200)
    post = Target(default_lm).sample(
        "Once upon a time", particles=4, draft=draft, draft_tokens=3, max_tokens=12, seed=0
    )
    assert all(0 < len(p.tokens) <= 12 for p in post.particles)
    assert torch.isfinite(torch.tensor(post.log_evidence))
    assert draft.pages_in_use == 0
