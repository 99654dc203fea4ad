"""The main job on the real model: right outputs, repeatable bits, errors that leave it usable."""

from __future__ import annotations

import json
import math

import pytest

from smcprog import (
    LM,
    AllDeadError,
    BatchError,
    Grammar,
    PagesExhaustedError,
    PotentialError,
    PromptError,
    Reward,
    SettingError,
    Target,
)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "rank": {"enum": [1, 2, 3]}},
    "required": ["city", "rank"],
    "additionalProperties": False,
}
PROMPT = [{"role": "user", "content": "Name a city and its rank as JSON."}]


def bits(post):
    return [(p.tokens, p.log_weight, p.logprobs, p.log_target) for p in post], post.log_evidence


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_json_from_a_schema(default_lm, draft_tokens):
    target = Grammar(SCHEMA) * Target(default_lm, temperature=0.7)
    post = target.sample(
        PROMPT,
        particles=6,
        max_tokens=48,
        seed=0,
        draft=default_lm if draft_tokens else None,
        draft_tokens=draft_tokens,
    )
    for particle in post:
        if particle.alive:
            value = json.loads(particle.text)
            assert set(value) == {"city", "rank"} and value["rank"] in (1, 2, 3)
            assert particle.finish_reason == "eos"
            # Under the mask nothing is renormalised away: γ is the model's own probability.
            assert particle.log_target == pytest.approx(sum(particle.logprobs))
    assert -math.inf < post.log_evidence < 0
    assert default_lm.pages_in_use == 0


def test_same_request_and_seed_same_tokens(default_lm):
    target = Target(default_lm)
    runs = [
        target.sample("Once upon a time", particles=4, max_tokens=8, seed=3, draft=default_lm)
        for _ in range(2)
    ]
    assert bits(runs[0]) == bits(runs[1])


def test_deterministic_is_bitwise_alone_or_among_others(default_lm):
    target = Target(default_lm) * Grammar.regex("[a-z ,]{5,40}[.]")
    prompts = ["The first colour is", "My favourite food, as everybody knows, is", "Rain and"]
    options = {"particles": 4, "max_tokens": 10, "deterministic": True, "draft": default_lm}
    together = target.sample(prompts, seed=[1, 2, 3], draft_tokens=2, **options)
    for prompt, seed, post in zip(prompts, (1, 2, 3), together, strict=True):
        alone = target.sample(prompt, seed=seed, draft_tokens=2, **options)
        assert bits(alone) == bits(post)


def test_a_batch_equals_its_requests_up_to_rounding(default_lm):
    target = Target(default_lm)
    prompts = ["The first colour is", "My favourite food, as everybody knows, is"]
    together = target.sample(prompts, seed=5, particles=3, max_tokens=6)
    for prompt, post in zip(prompts, together, strict=True):
        alone = target.sample(prompt, seed=5, particles=3, max_tokens=6)
        assert [p.tokens for p in alone] == [p.tokens for p in post]
        for a, b in zip(alone, post, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_prompt_and_length_limits(default_lm):
    context = default_lm.max_context
    with pytest.raises(PromptError, match=str(context)):
        Target(default_lm).sample([5] * (context + 1), max_tokens=1)
    with pytest.raises(SettingError, match="max_tokens may be at most 3"):
        Target(default_lm).sample([5] * (context - 3), max_tokens=4)
    with pytest.raises(PromptError, match="empty"):
        Target(default_lm).sample("")


def test_pages_exhausted_leaves_the_model_usable(default_model):
    lm = LM(default_model, kv_pages=8)
    target = Target(lm)
    with pytest.raises(PagesExhaustedError, match="kv_pages"):
        target.sample("A long story about", particles=6, max_tokens=60, seed=0)
    assert lm.pages_in_use == 0
    assert target.sample("A short story", particles=2, max_tokens=8, seed=0).text
    assert lm.pages_in_use == 0


def test_failures_stay_with_their_request(default_lm):
    def judge(texts):
        if any("blue" in t for t in texts):
            raise ValueError("no blue")
        return [0.0] * len(texts)

    target = Target(default_lm) * Grammar.choice([" red", " blue"]) * Reward(judge)
    with pytest.raises(BatchError) as caught:
        target.sample(["The rose is", "", "The sky is"], seed=[0, 1, 2], particles=8)
    results = caught.value.results
    assert isinstance(results[1], PromptError)
    assert isinstance(results[2], PotentialError)
    assert default_lm.pages_in_use == 0
    assert Target(default_lm).sample("The rose is", max_tokens=2).tokens


def test_all_dead_is_typed_and_carries_the_posterior(default_lm):
    target = Target(default_lm) * Reward(lambda texts: [-math.inf] * len(texts), name="never")
    with pytest.raises(AllDeadError) as caught:
        target.sample("Say something:", particles=3, max_tokens=4, seed=0)
    assert caught.value.potential == "Reward(never)"
    assert caught.value.posterior.log_evidence == -math.inf
    assert len(caught.value.posterior.particles) == 3
    assert default_lm.pages_in_use == 0
