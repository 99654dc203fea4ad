"""What programs refuse, where they end, and what they tell."""

from __future__ import annotations

import math
import threading
import time
import warnings

import pytest
import torch

from smcprog import (
    AllDeadError,
    CountsTwiceWarning,
    Grammar,
    Reward,
    StepLimitError,
    Target,
    ToolError,
    ToolTimeoutError,
)
from smcprog.programs import Population, program
from tests.exactness.toys import CASE_A, CASE_C, REGEX_A

LM = CASE_A.lm()
TARGET = Target(LM)


def run(steps, **options):
    """A program of one text and some steps."""

    @program
    def p(p):
        p.prompt([0])
        p.extend(TARGET, max_tokens=3)
        steps(p)

    return p(**{"particles": 5, "seed": 0, **options})


def test_one_extension_is_a_sample():
    target = TARGET * Grammar.regex(REGEX_A)

    @program
    def p(p):
        p.prompt([0])
        p.extend(target, max_tokens=8)

    one = p(particles=16, seed=3)
    other = target.sample([0], particles=16, seed=3, max_tokens=8)
    assert [x.tokens for x in one] == [x.tokens for x in other]
    assert [x.finish_reason for x in one] == [x.finish_reason for x in other]
    assert [x.log_target for x in one] == [x.log_target for x in other]
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-12)
    assert one.log_evidence_se == pytest.approx(other.log_evidence_se)
    assert one.text == other.text
    assert [r.ancestors for r in one.rounds] == [r.ancestors for r in other.rounds]


def test_seed_repeats_and_verbs_draw_anew():
    def steps(p):
        for _ in range(4):
            p.extend(TARGET, max_tokens=1)

    one, other = run(steps, particles=32), run(steps, particles=32)
    assert [x.tokens for x in one] == [x.tokens for x in other]
    # Tokens of this model do not depend on the text: only uniforms used twice would repeat them.
    model = Target(CASE_C.lm())
    seen = []

    @program
    def again(p):
        p.prompt([0])
        for _ in range(3):
            p.extend(model, max_tokens=1, joint_draws=False)
            seen.append(p.last)

    again(particles=64, seed=1)
    assert len({tuple(texts) for texts in seen}) == 3


def test_a_program_that_never_ends():
    def for_ever(p):
        while True:
            p.extend(TARGET, until="1")

    post = run(for_ever, max_tokens=20)
    assert {x.finish_reason for x in post} == {"length"}
    assert all(len(x.tokens) == 20 for x in post)

    def in_a_branch(p):
        p.branch(lambda text: True, for_ever)

    assert {x.finish_reason for x in run(in_a_branch, max_tokens=20)} == {"length"}

    def no_text(p):
        while True:
            p.resample()

    with pytest.raises(StepLimitError, match="max_steps=50") as caught:
        run(no_text, max_steps=50)
    assert caught.value.steps == 50


def test_finish_reasons_and_verbs_on_the_finished():
    after = []

    def steps(p):
        p.observe("11")
        p.finish()
        after.append(p.running)
        p.observe("0")
        after.append("not reached")

    post = run(steps)
    assert after == [0]
    assert all(x.text.endswith("11") and x.finish_reason == "stop" for x in post)


def test_what_a_population_shows():
    def steps(p):
        assert len(p) == p.n == 5
        assert p.last == p.texts
        assert p.lengths.tolist() == [len(t) for t in p.texts]
        p.log_weights.fill_(7.0)  # a copy
        p.observe(["0", "1", "0", "1", "0"])
        assert [t[-1] for t in p.texts] == ["0", "1", "0", "1", "0"]
        assert p.last == [t[:-1] for t in p.texts]
        p.weigh([0.0, -1.0, -2.0, -math.inf, 0.5])
        assert p.alive.tolist() == [True, True, True, False, True]
        assert p.running == 4 and not p.finished.any()
        assert 1 < p.ess < 4
        assert p.resample(threshold=0.1) is False
        assert p.resample() is True
        assert p.ess == 5

    run(steps)


def test_all_dead_names_verb_and_potential():
    def weigh(p):
        p.weigh(Grammar.regex("1{9}"))

    with pytest.raises(AllDeadError, match=r"step 3 \(weigh\), Grammar") as caught:
        run(weigh)
    assert caught.value.potential.startswith("Grammar")
    assert caught.value.posterior.log_evidence == -math.inf
    assert {x.finish_reason for x in caught.value.posterior} == {"dead"}

    def extend(p):
        p.extend(TARGET * Grammar.regex("1{9}"), max_tokens=3)

    with pytest.raises(AllDeadError, match=r"step 3 \(extend\)") as caught:
        run(extend)
    assert caught.value.position >= 3

    def in_both_branches(p):
        p.branch(lambda t: len(t) > 1, weigh, weigh)

    with pytest.raises(AllDeadError, match="weigh"):
        run(in_both_branches)


def test_a_branch_may_die_alone():
    def steps(p):
        p.branch(lambda t: len(t) == 3, lambda q: q.weigh([-math.inf] * len(q)))
        p.resample()
        assert bool(p.alive.all())

    post = run(steps, particles=24)
    assert {len(x.text) for x in post} <= {0, 1, 2}


def test_a_potential_used_twice_warns_once():
    grammar, reward = Grammar.regex("[01]*"), Reward(lambda texts: [0.0] * len(texts))

    def twice(p):
        p.extend(TARGET * grammar, max_tokens=2)
        for _ in range(2):
            p.weigh(grammar)

    with pytest.warns(CountsTwiceWarning, match="counts twice") as caught:
        run(twice)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # where the user wrote it

    def before(p):
        p.weigh(reward)
        p.extend(TARGET * reward, max_tokens=2)

    with pytest.warns(CountsTwiceWarning, match="Reward"):
        run(before)

    def fine(p):
        p.weigh(reward)
        p.weigh(reward)
        p.extend(TARGET * grammar, max_tokens=2)
        p.extend(TARGET * grammar, max_tokens=2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(fine)


def test_weighing_counts_every_time():
    reward = Reward(lambda texts: [float(len(t)) for t in texts], beta=0.5)
    base = run(lambda p: None)
    post = run(lambda p: [p.weigh(reward) for _ in range(3)])
    for x, y in zip(post, base, strict=True):
        assert x.log_target - y.log_target == pytest.approx(1.5 * len(x.text))
        assert x.log_weight - y.log_weight == pytest.approx(1.5 * len(x.text))


def test_map_asks_once_a_text_and_tries_again():
    calls = []

    def tool(texts):
        calls.append(list(texts))
        if len(calls) < 3:
            raise OSError("busy")
        return ["1"] * len(texts)

    post = run(lambda p: p.map(tool, retries=2), particles=20)
    assert len(calls) == 3 and calls[0] == calls[2]
    assert len(calls[0]) == len(set(calls[0])) < 20
    assert all(x.text.endswith("1") and math.isnan(x.logprobs[-1]) for x in post)

    def busy(texts):
        raise OSError("busy")

    with pytest.raises(ToolError, match=r"map\(busy\) raised OSError: busy"):
        run(lambda p: p.map(busy, retries=1))
    with pytest.raises(ToolError, match="one string a text"):
        run(lambda p: p.map(lambda texts: ["a"] * (len(texts) + 1)))
    with pytest.raises(ToolError, match="strings"):
        run(lambda p: p.map(lambda texts: [1] * len(texts)))


def test_only_the_guilty_die():
    def tool(texts):
        if any(len(t) < 3 for t in texts):
            raise ValueError("too short")
        return ["0"] * len(texts)

    post = run(lambda p: p.map(tool, on_failure="die"), particles=24)
    assert {x.alive for x in post} == {True, False}
    assert all(x.alive == (len(x.text) == 4) for x in post)
    with pytest.raises(AllDeadError, match=r"map\(<lambda>\)"):
        run(lambda p: p.map(lambda texts: 1 / 0, on_failure="die"))


def test_a_tool_that_hangs_is_given_up():
    never = threading.Event()
    begun = time.monotonic()
    with pytest.raises(ToolTimeoutError, match=r"time_limit=0\.05"):
        run(lambda p: p.map(lambda texts: never.wait(30), time_limit=0.05))

    def hangs_for_short(texts):
        if any(len(t) < 3 for t in texts):
            never.wait(30)
        return [""] * len(texts)

    post = run(lambda p: p.map(hangs_for_short, time_limit=0.2, on_failure="die"), particles=24)
    assert all(x.alive == (len(x.text) == 3) for x in post)
    assert time.monotonic() - begun < 25
    never.set()


def test_errors_of_the_program_come_out_as_they_are():
    class Mine(Exception):
        pass

    def steps(p):
        raise Mine("here")

    with pytest.raises(Mine, match="here"):
        run(steps)


def test_a_program_is_a_function_of_a_population():
    @program
    def two(p, n):
        """Twice."""
        for _ in range(n):
            p.observe("0")
        return p.lengths

    assert two.__doc__ == "Twice." and "two" in repr(two)

    def steps(p):
        assert isinstance(p, Population)
        before = p.lengths
        assert torch.equal(two(p, n=2), before + 2)

    run(steps)


def test_a_model_with_a_prompt_of_its_own_needs_no_other():
    lm = CASE_A.lm()

    @program
    def p(p):
        p.extend(Target(lm, prompt=[1]), max_tokens=2)

    assert len(p(particles=2, seed=0)[0].tokens) <= 2


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (TARGET**2, {}),
        (TARGET**2 * Grammar.regex("[01]*"), {"draft": LM, "draft_tokens": 2}),
    ],
)
def test_what_is_left_of_max_tokens_follows_its_particle(target, options):
    @program
    def p(p):
        p.prompt([0])
        p.extend(TARGET, until="0", max_tokens=4)
        p.extend(target, **options)

    for seed in range(4):
        post = p(particles=16, seed=seed, max_tokens=5, ess_threshold=1.0)
        assert any(r.resampled for r in post.rounds)
        for particle in post:
            if particle.finish_reason == "length":
                assert len(particle.tokens) == 5 and not target.masks
            else:
                assert len(particle.tokens) <= 5 and particle.tokens[-1] == 2


def test_texts_that_no_model_had_read_count():
    """Only the first extension knows how many tokens they are."""

    @program
    def p(p):
        p.prompt([0])
        p.map(lambda texts: ["0101"])
        p.extend(TARGET)

    for particle in p(particles=2, seed=0, max_tokens=4):
        assert (particle.text, particle.finish_reason) == ("0101", "length")
    assert all(len(particle.tokens) == 5 for particle in p(particles=2, seed=0, max_tokens=5))


def test_weights_may_be_any_tensor():
    for given in (torch.ones(5, requires_grad=True), torch.ones(5, dtype=torch.bfloat16)):
        post = run(lambda p, given=given: p.weigh(given))
        assert [particle.log_weight for particle in post] == pytest.approx([1.0] * 5)


def test_log_target_follows_its_particle():
    """Every extension ends in EOS, of probability .3 after either token; the last one stays."""
    words = Grammar.regex("(0|1)1*")
    uneven = Reward(lambda texts: [2.0 * t.count("1") for t in texts])

    @program
    def p(p):
        p.prompt([0])
        p.extend(TARGET * words, max_tokens=4)
        p.weigh(uneven)
        p.resample()
        p.extend(TARGET**2 * words, max_tokens=4)

    for seed in range(3):
        post = p(particles=16, seed=seed, ess_threshold=1.0, resampling="multinomial")
        for particle in post:
            first = particle.log_target - sum(particle.logprobs)
            # What is left is the first EOS, the second power, and the reward of the first text.
            assert any(
                first == pytest.approx(math.log(0.3) + sum(particle.logprobs[n:]) + 2 * ones)
                for n in range(1, 5)
                for ones in [particle.text[:n].count("1")]
            )
