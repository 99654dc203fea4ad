"""The public call: prompts in, posteriors or one clear error out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smcprog import (
    AllDeadError,
    BatchError,
    Grammar,
    PotentialError,
    PromptError,
    Reward,
    SettingError,
    Target,
    VocabularyMismatchError,
)

from ..exactness.toys import CASE_A, REGEX_A, random_toy

LM = random_toy(np.random.default_rng(0)).lm()
DRAFT = random_toy(np.random.default_rng(1)).lm("draft")


def sample(target=None, prompt=(0,), **options):
    options = {"max_tokens": 6, "seed": 0, **options}
    return (target or Target(LM)).sample(list(prompt), **options)


def test_posterior_says_what_was_drawn():
    post = sample(particles=16, draft=DRAFT, draft_tokens=2)
    assert len(post) == 16
    for particle in post:
        assert len(particle.logprobs) == len(particle.tokens) <= 6
        assert particle.log_target == pytest.approx(sum(particle.logprobs))
        assert particle.finish_reason == ("eos" if particle.tokens[-1] == 2 else "length")
        assert particle.text == "".join("ab"[t] for t in particle.tokens if t < 2)
    assert post.text in {p.text for p in post}
    assert post.best.log_target == max(p.log_target for p in post if p.alive)
    assert post.seed == 0
    assert sum(post.weights) == pytest.approx(1)
    assert 1 <= post.ess <= 16
    assert post.rounds[-1].log_evidence == pytest.approx(post.log_evidence)


def test_plain_sampling_has_evidence_one():
    """Without draft, mask or power every weight is 1."""
    post = sample(particles=8)
    assert post.log_evidence == pytest.approx(0, abs=1e-12)
    assert post.ess == pytest.approx(8)


def test_same_seed_same_tokens_and_other_seed_other_tokens():
    tokens = [[p.tokens for p in sample(particles=32, seed=s, draft=DRAFT)] for s in (1, 1, 2)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_alone_or_among_others_is_the_same():
    prompts = [[0], [1], [0], [1, 0]]
    target = Target(CASE_A.lm()) * Grammar.regex(REGEX_A)
    many = target.sample(prompts, seed=[5, 6, 7, 5], max_tokens=8, particles=4)
    for prompt, seed, post in zip(prompts, [5, 6, 7, 5], many, strict=True):
        alone = target.sample(prompt, seed=seed, max_tokens=8, particles=4)
        assert [p.tokens for p in alone] == [p.tokens for p in post]
        assert alone.log_evidence == post.log_evidence
        assert len(alone.rounds) == len(post.rounds)


def test_no_seed_means_a_fresh_one_that_repeats_the_run():
    one, two = sample(seed=None, particles=32), sample(seed=None, particles=32)
    assert one.seed != two.seed
    again = sample(seed=one.seed, particles=32)
    assert [p.tokens for p in again] == [p.tokens for p in one]


def test_observer_sees_every_round():
    events = []
    post = sample(particles=4, on_round=events.append)
    assert [e.round for e in events] == list(range(len(post.rounds)))
    assert events[-1].alive == 4 == events[-1].finished
    assert events[-1].tokens == max(len(p.tokens) for p in post)


def test_stop_string_is_cut_from_the_text():
    post = sample(particles=64, stop="ab", max_tokens=12)
    reasons = {p.finish_reason for p in post}
    assert "stop" in reasons
    for p in post:
        assert "ab" not in p.text
        if p.finish_reason == "stop":
            assert p.tokens[-2:] == [0, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"particles": 0}, "particles"),
        ({"particles": 2.5}, "particles"),
        ({"particles": 10**9}, "particles"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"draft_tokens": -1}, "draft_tokens"),
        ({"draft": DRAFT, "draft_temperature": 0}, "draft_temperature=0"),
        ({"draft": "small"}, "draft must be an LM"),
        ({"ess_threshold": 1.5}, "ess_threshold"),
        ({"resampling": "random"}, "systematic"),
        ({"coupling": 0.5}, "coupling"),
        ({"coupling": math.nan}, "coupling"),
        ({"draft_paths": 0, "coupling": 1}, "draft_paths"),
        ({"draft_paths": 65, "coupling": 1}, "draft_paths"),
        ({"draft_paths": 2}, "draft_paths=2 needs coupling=1"),
        ({"joint_draws": "yes"}, "joint_draws"),
        ({"stop": ""}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"seed": [1, 2]}, "2 seeds for 1"),
        ({"seed": np.array([1, 2])}, "2 seeds for 1"),
        ({"particles": 65536, "max_tokens": 1 << 20}, "particles=65536 times max_tokens"),
        ({"draft_temperature": 1e-320}, "draft_temperature"),
        ({"draft_temperature": math.nan}, "draft_temperature"),
        ({"ess_threshold": "half"}, "ess_threshold"),
        ({"resampling": ["ssp"]}, "resampling"),
        ({"on_round": 5}, "on_round"),
        ({"truncate": "no"}, "truncate"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop"),
        ({"stop": "\ud800"}, "stop"),
    ],
)
def test_bad_settings_are_named(options, words):
    with pytest.raises(SettingError, match=words):
        sample(**options)
    assert sample().text is not None  # and the next call is served


@pytest.mark.parametrize(
    ("prompt", "words"),
    [("", "empty"), ([], "empty"), ({"role": "user"}, "list"), (3, "prompt")],
)
def test_bad_prompts_are_named(prompt, words):
    with pytest.raises(PromptError, match=words):
        Target(LM).sample(prompt, max_tokens=4)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda texts: [math.nan] * len(texts), "NaN"),
        (lambda texts: [math.inf] * len(texts), "inf"),
        (lambda texts: [0.0], "one number per text"),
        (lambda texts: 0.0, "one number per text"),
        (lambda texts: ["x"] * len(texts), "numbers"),
        (lambda texts: None, "number"),
        (lambda texts: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_bad_rewards_fail_their_request_only(score, words):
    with pytest.raises(PotentialError, match=words) as caught:
        sample(Target(LM) * Reward(score, name="judge"))
    assert caught.value.potential == "Reward(judge)"
    assert sample().text is not None


def test_one_failing_request_of_a_list_leaves_the_others():
    calls = []

    def fragile(texts):
        calls.append(list(texts))
        if any(t.startswith("b") for t in texts):
            raise ValueError("no b's please")
        return [0.0] * len(texts)

    lm = CASE_A.lm()
    with pytest.raises(BatchError) as caught:
        (Target(lm) * Reward(fragile)).sample(
            [[0], "", [0], [0]], seed=[1, 2, 3, 4], particles=1, max_tokens=2
        )
    results = caught.value.results
    assert isinstance(results[1], PromptError)
    assert len(results) == 4

    def forbid(texts):
        raise RuntimeError("broken")

    grammar = Grammar.regex("1?")
    with pytest.raises(BatchError, match="broken") as caught:
        (Target(lm) * grammar * Reward(forbid)).sample([[0], [1]], max_tokens=3)
    assert all(isinstance(r, PotentialError) for r in caught.value.results)


def test_death_is_isolated_too():
    """One population dies, its neighbour in the batch lives."""
    target = Target(LM) * Reward(lambda texts: [0.0 if t else -math.inf for t in texts])
    seeds = list(range(40))
    with pytest.raises(BatchError) as caught:
        target.sample([[0]] * 40, seed=seeds, particles=1, max_tokens=4)
    results = caught.value.results
    dead = [r for r in results if isinstance(r, AllDeadError)]
    alive = [r for r in results if not isinstance(r, AllDeadError)]
    assert dead and alive
    for r in alive:
        assert r.text
    for r in dead:
        assert r.potential.startswith("Reward(")
        assert r.posterior.log_evidence == -math.inf
        assert r.position == 0  # the EOS that ended an empty text


def test_all_dead_names_the_potential_and_the_place():
    with pytest.raises(AllDeadError) as caught:
        sample(Target(LM) * Grammar.regex("a{9}"), max_tokens=4)
    error = caught.value
    assert error.posterior.log_evidence == -math.inf
    assert error.position == 2  # one token of text was left, and none completes it
    assert "max_tokens" in str(error)
    assert "Grammar" in error.potential


def test_target_needs_a_model():
    with pytest.raises(SettingError, match="language model"):
        Grammar.regex("a").sample([0])
    with pytest.raises(SettingError, match="Target"):
        Target("gpt2")


def test_two_vocabularies_are_refused():
    other = random_toy(np.random.default_rng(2), symbols=3).lm("other")
    with pytest.raises(VocabularyMismatchError, match="draft other"):
        sample(draft=other)
    with pytest.raises(VocabularyMismatchError, match="other"):
        sample(Target(LM) * Target(other))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": 1e-40},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": "a"},
        {"top_k": math.inf},
        {"top_p": [1]},
        {"min_p": "a"},
        {"power": "a"},
        {"power": 1e300},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.2},
        {"min_p": -0.1},
        {"power": 0},
        {"power": -1},
        {"power": math.inf},
    ],
)
def test_bad_target_settings_are_named(options):
    with pytest.raises(SettingError, match=next(iter(options))):
        Target(LM, **options)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Target(LM, temperature=0) * Grammar.regex("a*"), {}),
        (Target(LM, temperature=0) * Target(LM), {}),
        (Target(LM, temperature=0), {"draft": DRAFT}),
        (Target(LM, temperature=0), {"draft": DRAFT, "coupling": 2}),
    ],
)
def test_greedy_decoding_is_not_weighed(target, options):
    with pytest.raises(SettingError, match="temperature=0 is greedy"):
        sample(target, **options)


@pytest.mark.parametrize("k", [1, 3])
def test_a_draft_equal_to_the_target_needs_no_weights(k):
    """Nothing but rounding separates the weights if the draft sees what the target sees."""
    post = sample(particles=16, draft=LM, draft_tokens=k, max_tokens=12, ess_threshold=0)
    assert post.log_evidence == pytest.approx(0, abs=1e-9)
    assert post.ess == pytest.approx(16, abs=1e-6)


@pytest.mark.parametrize("padded", ["draft", "target"])
def test_models_may_pad_their_logits_differently(padded):
    """Ids without a token are never drawn, and change nothing."""
    from smcprog.engine.vocab import Vocabulary
    from smcprog.testing import TabularLM

    def wide(lm):
        more = np.full((lm.logits_S_V.shape[0], 3), 5.0)  # likely, if nobody looks
        stay = np.zeros((lm.logits_S_V.shape[0], 3), dtype=int)
        out = TabularLM(
            lm.vocab.token_bytes,
            [2],
            np.concatenate([lm.logits_S_V, more], 1),
            np.concatenate([lm.next_S_V, stay], 1),
        )
        narrow = lm.vocab
        out.vocab = Vocabulary(
            6,
            [2],
            make_bytes=lambda: dict(enumerate(narrow.token_bytes)),
            make_ids=lambda: dict(narrow.ids()),
        )
        return out

    target, draft = (wide(LM), DRAFT) if padded == "target" else (LM, wide(DRAFT))
    post = sample(Target(target), draft=draft, draft_tokens=2, particles=64)
    plain = sample(Target(LM), draft=DRAFT, draft_tokens=2, particles=64)
    assert [p.tokens for p in post] == [p.tokens for p in plain]
    assert post.log_evidence == pytest.approx(plain.log_evidence)


def test_fractions_and_numpy_numbers_are_numbers():
    from fractions import Fraction

    target = Target(LM, temperature=Fraction(1, 2), power=np.float32(2), top_k=np.int64(3))
    options = {"ess_threshold": Fraction(1, 3), "particles": np.int64(4), "seed": np.int64(0)}
    assert len(sample(target, **options)) == 4
    plain = sample(Target(LM, temperature=0.5, power=2, top_k=3), ess_threshold=1 / 3, particles=4)
    assert [p.tokens for p in sample(target, **options)] == [p.tokens for p in plain]


def test_weights_that_differ_by_rounding_only_are_not_resampled():
    def up(texts):
        return [0.1 * t.count("a") + 0.3 * t.count("b") for t in texts]

    def down(texts):
        return [0.7 - 0.1 * t.count("a") - 0.3 * t.count("b") for t in texts]

    target = Target(LM) * Reward(up, at="round") * Reward(down, at="round")
    posts = target.sample([[0]] * 8, particles=7, seed=range(8), ess_threshold=1.0, max_tokens=6)
    assert not any(info.resampled for post in posts for info in post.rounds)


def test_a_stop_string_is_looked_for_in_bytes():
    """Half characters show as the replacement character, but are not it."""
    from smcprog.potentials import Request
    from smcprog.testing import TabularLM

    lm = TabularLM([b"\xc3", b"\xa9", b"<eos>"], [2], np.zeros((1, 3)), np.zeros((1, 3), dtype=int))
    request = Request([0], (0,), lm.vocab, max_tokens=6, stop=("\ufffd",))
    assert request.output_text([0, 0, 1, 2]) == "\ufffd\u00e9"
