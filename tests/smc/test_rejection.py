"""Checks on text and draws by rejection: what is asked, how often, and what goes wrong how."""

from __future__ import annotations

import asyncio
import collections
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

import smcprog
from smcprog import AllDeadError, BatchError, Check, PotentialError, SettingError, Target
from smcprog.potentials import Request
from smcprog.potentials import check as check_module
from smcprog.smc.urn import Urn
from smcprog.testing import TabularLM

from ..exactness.toys import CASE_A, random_toy

LM = random_toy(np.random.default_rng(0)).lm()
DRAFT = random_toy(np.random.default_rng(1)).lm("draft")


def uniform_lm(tokens):
    """Every token, EOS (the last) included, is equally likely."""
    size = len(tokens)
    return TabularLM(tokens, [size - 1], np.zeros((1, size)), np.zeros((1, size), dtype=int))


def one_letter(letter):
    return Check(
        lambda t: set(t) <= {letter}, prefix=lambda t: set(t) <= {letter}, name=f"only {letter}"
    )


# ------------------------------------------------------------------------ urn


def test_draws_without_replacement_have_the_right_law():
    """All orders of four weights, χ² at 1e-4 false alarms."""
    weights = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
    rng = np.random.default_rng(0)
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    runs = 8_000
    for _ in range(runs):
        urn = Urn(weights.copy(), lambda i: rng.random())
        order = []
        while urn.left:
            order.append(urn.draw())
            urn.remove(order[-1])
        seen[tuple(order)] += 1
    expected = {}
    for order in itertools.permutations([0, 2, 3, 4]):
        left, p = 1.0, 1.0
        for v in order:
            p *= weights[v] / left
            left -= weights[v]
        expected[order] = p * runs
    assert set(seen) <= set(expected)
    chi2 = sum((seen[o] - e) ** 2 / e for o, e in expected.items())
    assert chi2 < stats.chi2.isf(1e-4, len(expected) - 1)


def test_what_is_left_ends_at_exactly_nothing():
    rng = np.random.default_rng(3)
    weights = rng.random(50) * 10.0 ** rng.integers(-14, 1, size=50)
    urn = Urn(weights.copy(), lambda i: rng.random())
    gone = []
    while urn.left:
        gone.append(urn.draw())
        left = urn.left
        assert left == pytest.approx(np.delete(weights, gone[:-1]).sum(), rel=1e-12)
        urn.remove(gone[-1])
    assert sorted(gone) == list(range(50)) and urn.left == 0


# ---------------------------------------------------------------- how often


def test_few_candidates_are_looked_at():
    """2,000 tokens of which a tenth is good: about twice ten checks a draw, not 2,000."""
    tokens = [bytes([97 + i // 100, 97 + i // 10 % 10, 97 + i % 10]) for i in range(2000)]
    lm = uniform_lm([*tokens, b"<eos>"])
    asked = []

    def good(text, finished):
        asked.append(text)
        return not finished and all(text[i : i + 1] in "af" for i in range(2, len(text), 3))

    check = Check(good, at="prefix")
    n, length = 16, 4
    with pytest.raises(AllDeadError):  # no text may end
        (Target(lm) * check).sample([0], particles=n, max_tokens=length, truncate=False, seed=0)
    draws = n * (length - 1)  # the last token can only be EOS
    assert draws < len(asked) < 40 * draws
    # The tokens taken are good ones, all of them: nobody died before the end.
    lengths = collections.Counter(len(t) for t in asked)
    assert lengths[3 * (length - 1)] > n


def test_no_more_than_max_checks_a_draw():
    tokens = [bytes([97 + i]) for i in range(26)]
    lm = uniform_lm([*tokens, b"<eos>"])
    calls = []
    never = Check(lambda t: False, prefix=lambda t: calls.append(t) or not t, max_checks=5)
    with pytest.raises(AllDeadError) as caught:
        (Target(lm) * never).sample([0], particles=1, max_tokens=3, seed=1)
    assert caught.value.potential == "Check(<lambda>)" and caught.value.position == 0
    texts = [t for t in calls if t]
    assert len(texts) <= 5 and len(set(texts)) == len(texts)
    dead = caught.value.posterior.particles[0]
    assert dead.finish_reason == "dead" and len(dead.tokens) == 1 and dead.log_weight == -math.inf


def test_the_smallest_limit_of_several_checks_counts():
    lm = uniform_lm([*[bytes([97 + i]) for i in range(20)], b"<eos>"])
    calls = []
    never = Check(lambda t: False, prefix=lambda t: calls.append(t) or not t, max_checks=200)
    always = Check(lambda t: True, prefix=lambda t: True, max_checks=3)
    with pytest.raises(AllDeadError):
        (Target(lm) * never * always).sample([0], particles=1, max_tokens=3, seed=1)
    assert len([t for t in calls if t]) <= 3


def test_a_text_is_asked_about_once(monkeypatch):
    calls = []
    check = Check(lambda text, finished: not calls.append((text, finished)), at="prefix")
    target = Target(LM) * check
    first = target.sample([0], particles=8, max_tokens=4, seed=0)
    assert len(set(calls)) == len(calls)
    asked = len(calls)
    assert target.sample([0], particles=8, max_tokens=4, seed=0).text == first.text
    assert len(calls) == asked
    monkeypatch.setattr(check_module, "CACHED_TEXTS", 2)  # kept answers are bounded
    target.sample([0], particles=8, max_tokens=4, seed=5)
    assert len(check._known) <= 2
    assert check._characters == sum(len(text) for text, _ in check._known)


# ------------------------------------------------------------ what is asked


def judged(tokens, walk, stop=(), rejection=True):
    """What a check is asked about along one output, foretold and after the fact."""
    lm = uniform_lm([*tokens, b"<eos>"])
    request = Request([0], (0,), lm.vocab, max_tokens=len(walk), stop=stop)
    asked = []
    for foretold in (True, False):
        seen = []
        check = Check(
            lambda text, finished, seen=seen: not seen.append((text, finished)), at="prefix"
        )
        state = check.start(request, 1)
        for t, token in enumerate(walk):
            ended = t == len(walk) - 1
            if foretold:
                check.admits(state, [0], [token], [ended])
            before = len(seen)
            state, _ = check.advance(
                state, torch.tensor([[token]]), torch.tensor([1]), torch.tensor([ended])
            )
            assert not foretold or len(seen) == before  # what was asked is known
        asked.append(seen)
    assert asked[0] == asked[1]
    return asked[0]


def test_split_characters_are_held_back():
    smile = "😀".encode()
    tokens = [smile[:1], smile[1:3], smile[3:], b"x"]
    assert judged(tokens, [3, 0, 1, 2, 3]) == [("x", False), ("x😀", False), ("x😀x", True)]
    # A cut character is judged where it is final: at the end, or before what does not go on.
    assert judged(tokens, [3, 0, 1]) == [("x", False), ("x\ufffd", True)]
    assert judged(tokens, [3, 0, 3, 3])[1:] == [("x\ufffdx", False), ("x\ufffdxx", True)]


def test_what_may_begin_a_stop_string_is_held_back():
    tokens = [b"a", b"-", b"--a", b"->"]
    stop = ("-->", "-b")
    assert judged(tokens, [0, 1, 1, 1, 0], stop) == [
        ("a", False), ("a-", False), ("a---a", True)
    ]  # fmt: skip
    assert judged(tokens, [0, 1, 3], stop) == [("a", False), ("a", True)]
    assert judged(tokens, [0, 2, 1], stop) == [("a", False), ("a--a", False), ("a--a-", True)]


@pytest.mark.parametrize("rejection", [True, False])
def test_no_unsettled_text_is_asked_about_while_sampling(rejection):
    seen = []
    check = Check(
        lambda text, finished: not seen.append((text, finished)), at="prefix", rejection=rejection
    )
    lm = uniform_lm([b"a", b"-", "é".encode()[:1], "é".encode()[1:], b"<eos>"])
    posts = (Target(lm) * check).sample([0], particles=64, max_tokens=5, seed=0, stop="-a")
    running = {text for text, finished in seen if not finished}
    assert {"", "a", "é"} <= running and not any("-a" in text for text in running)
    assert {p.text for p in posts} <= {text for text, finished in seen if finished}
    assert {p.finish_reason for p in posts} == {"eos", "stop", "length"}


def test_a_check_of_finished_texts_sees_no_others():
    seen = []
    check = Check(lambda text: not seen.append(text))
    posts = (Target(LM) * check).sample([0], particles=8, max_tokens=4, seed=3)
    assert not check.rejects and set(seen) == {p.text for p in posts}


# ------------------------------------------------------------------ batches


def outcome(post):
    return [(p.tokens, p.log_weight) for p in post], post.log_evidence


@pytest.mark.parametrize("k", [0, 3])
def test_one_seed_one_result_whatever_else_runs(k):
    target = Target(LM) * one_letter("a")
    options = {"draft": DRAFT, "draft_tokens": k} if k else {}
    options |= {"particles": 6, "max_tokens": 6}
    alone = target.sample([0], seed=7, **options)
    among = target.sample([[0], [1], [2]], seed=[5, 7, 9], **options)[1]
    assert outcome(alone) == outcome(among)
    assert all(set(p.text) <= {"a"} for p in alone)


def test_async_requests_draw_as_sample_does():
    target = Target(LM) * one_letter("b")

    async def both():
        return await asyncio.gather(
            *(target.asample([0], particles=4, max_tokens=5, seed=s) for s in (3, 4))
        )

    for seed, post in zip((3, 4), asyncio.run(both()), strict=True):
        assert outcome(post) == outcome(target.sample([0], particles=4, max_tokens=5, seed=seed))


def test_batches_and_single_texts_agree():
    def holds(text, finished):
        return text.count("a") < 2

    single = Target(LM) * Check(holds, at="prefix")
    batch = Check(
        lambda texts, ends: np.array([holds(t, e) for t, e in zip(texts, ends, strict=True)]),
        at="prefix",
        batch=True,
    )
    options = {"particles": 8, "max_tokens": 5, "seed": 2}
    assert outcome(single.sample([0], **options)) == outcome(
        (Target(LM) * batch).sample([0], **options)
    )


# ------------------------------------------------------------------- errors

WRONG = {
    "raises": (lambda t: 1 // 0, {}, "prefix raised ZeroDivisionError"),
    "a number": (lambda t: 1, {}, "True or False, got int"),
    "nothing": (lambda t: None, {}, "True or False, got NoneType"),
    "one bool for many": (lambda t: True, {"batch": True}, "one bool a text, got bool"),
    "too few": (lambda t: [], {"batch": True}, "of them, got 0"),
    "text for bools": (lambda t: "yes", {"batch": True}, "one bool a text, got str"),
    "numbers in a batch": (lambda t: [1.0] * len(t), {"batch": True}, "True or False, got float"),
}


@pytest.mark.parametrize(("prefix", "options", "says"), WRONG.values(), ids=WRONG)
def test_wrong_answers_are_named(prefix, options, says):
    check = Check(lambda t: True, prefix=prefix, name="mine", **options)
    with pytest.raises(PotentialError, match=r"Check\(mine\): prefix .*") as caught:
        (Target(LM) * check).sample([0], particles=2, max_tokens=4, seed=0)
    assert says in str(caught.value) and caught.value.potential == "Check(mine)"


@pytest.mark.parametrize("rejection", [True, False])
def test_only_the_request_that_hits_the_error_fails(rejection):
    lm = CASE_A.lm()

    def holds(text, finished):
        if finished and text == "1":
            raise ValueError("no 1 please")
        return True

    target = Target(lm) * Check(holds, at="prefix", rejection=rejection)
    # max_checks = 1 where it rejects would do as well: what matters is who meets the text.
    options = {"particles": 1, "max_tokens": 2}
    with pytest.raises(BatchError) as caught:
        target.sample([[0]] * 12, seed=list(range(12)), **options)
    results = caught.value.results
    failed = [i for i, r in enumerate(results) if isinstance(r, PotentialError)]
    assert failed and len(failed) < 12
    for i, result in enumerate(results):
        if i in failed:
            assert "no 1 please" in str(result) and "'1'" in str(result)
        else:
            assert outcome(result) == outcome(target.sample([0], seed=i, **options))


BAD_SETTINGS = {
    "no function": ((3,), {}, "function of a text, got int"),
    "at": ((bool,), {"at": "round"}, 'at must be "end" or "prefix"'),
    "prefix": ((bool,), {"prefix": 3}, "prefix must be a function"),
    "twice": ((bool,), {"at": "prefix", "prefix": bool}, "leave prefix= out"),
    "max_checks": ((bool,), {"max_checks": 0}, "at least 1"),
    "rejection": ((bool,), {"rejection": "yes"}, "rejection must be True or False"),
    "batch": ((bool,), {"batch": None}, "batch must be True or False"),
}


@pytest.mark.parametrize(("arguments", "options", "says"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_are_checked(arguments, options, says):
    with pytest.raises(SettingError, match=says):
        Check(*arguments, **options)


def test_a_check_that_refuses_everything_is_dead_at_the_start():
    target = Target(LM) * Check(lambda t: False, prefix=lambda t: False, name="never")
    with pytest.raises(AllDeadError, match=r"Check\(never\)"):
        target.sample([0], particles=2, max_tokens=3, seed=0)


# --------------------------------------------------------------- real model


@pytest.mark.parametrize("k", [0, 2])
def test_the_default_model_under_a_check(default_lm, k):
    calls = []

    def lower(text, finished):
        calls.append(text)
        letters = text.replace(" ", "")
        return not letters or (letters.isascii() and letters.isalpha() and text == text.lower())

    target = Target(default_lm) * Check(lower, at="prefix")
    post = target.sample(
        "The opposite of cold is", particles=4, max_tokens=6, seed=0,
        draft=default_lm if k else None, draft_tokens=k,
    )  # fmt: skip
    assert all(lower(p.text, True) for p in post if p.finish_reason != "dead")
    assert math.isfinite(post.log_evidence)
    assert len(set(calls)) < 4 * 6 * 40 < default_lm.vocab.size  # all draws together


def test_it_is_part_of_the_package():
    assert smcprog.Check is Check
