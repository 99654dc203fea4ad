"""Products, mixtures and guidance of the default model, against plain `transformers`."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from smcprog import Guidance, Mixture, Target

DOG = "My favourite animal, a dog, is"
CAT = "My favourite animal, a cat, is"
CLOSE = {"abs": 2e-3}  # float32, in batches of other shapes


@pytest.fixture(scope="module")
def plain(default_model):
    return AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32).eval()


def steps(lm, plain, prompt, tokens):
    """log p of every next token after each prefix, [T, V], from one plain forward."""
    prompt = lm.encode(prompt)
    with torch.no_grad():
        logits = plain(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)


def log_p(table, tokens):
    return float(table.gather(1, torch.tensor(tokens)[:, None]).sum())


def test_prompt_intersection(default_lm, plain):
    """log γ of "what both prompts could go on with" is the sum of the plain log-probabilities."""
    target = Target(default_lm, prompt=DOG) * Target(default_lm, prompt=CAT)
    post = target.sample(particles=2, max_tokens=4, seed=0)
    for p in post.particles:
        both = [log_p(steps(default_lm, plain, q, p.tokens), p.tokens) for q in (DOG, CAT)]
        assert p.log_target == pytest.approx(sum(both), **CLOSE)
    assert default_lm.pages_in_use == 0


def test_mixtures_and_guidance(default_lm, plain):
    dog, cat = (Target(default_lm, prompt=q) for q in (DOG, CAT))
    settings = {"particles": 2, "max_tokens": 3, "seed": 1}
    for p in Mixture([dog, cat], [3, 1]).sample(**settings).particles:
        both = [log_p(steps(default_lm, plain, q, p.tokens), p.tokens) for q in (DOG, CAT)]
        want = math.log(0.75 * math.exp(both[0]) + 0.25 * math.exp(both[1]))
        assert p.log_target == pytest.approx(want, **CLOSE)
    for p in (
        Guidance(default_lm, 1.5, prompt=DOG, negative_prompt=CAT).sample(**settings).particles
    ):
        one, two = (steps(default_lm, plain, q, p.tokens) for q in (DOG, CAT))
        table = torch.log_softmax(1.5 * one - 0.5 * two, -1)
        assert p.log_target == pytest.approx(log_p(table, p.tokens), **CLOSE)
    assert default_lm.pages_in_use == 0
