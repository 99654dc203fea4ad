"""How often a score is called: for all particles and requests at once, and each text once."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time

import numpy as np
import pytest

from smcprog import BatchError, Grammar, InputError, PotentialError, Reward, Scheduler, Target
from smcprog.potentials.rewards import kept

from ..exactness.toys import random_toy
from ..tiny import tiny_llama

LM = random_toy(np.random.default_rng(0), eos=0.05).lm()
DRAFT = random_toy(np.random.default_rng(1)).lm("draft")
OPTIONS = {"max_tokens": 9, "particles": 6, "draft": DRAFT, "draft_tokens": 3}


class Counted:
    """A score that notes every call."""

    def __init__(self, value=len):
        self.value = value
        self.batches = []

    def __call__(self, texts):
        self.batches.append(list(texts))
        return [float(self.value(t)) for t in texts]


@pytest.mark.parametrize("at", ["end", "round", "b"])
def test_one_call_a_round_for_all_requests(at):
    """And never a text twice."""
    score = Counted()
    target = Target(LM) * Reward(score, at=at)
    posts = target.sample([[0]] * 4 + [[1]] * 4, seed=list(range(8)), **OPTIONS)
    assert 1 <= len(score.batches) <= max(len(p.rounds) for p in posts)
    seen = [t for batch in score.batches for t in batch]
    assert len(seen) == len(set(seen))
    assert {p.text for post in posts for p in post} <= set(seen)
    again = target.sample([[0]] * 4 + [[1]] * 4, seed=list(range(8)), **OPTIONS)
    assert [t for batch in score.batches for t in batch] == seen  # all known
    assert [p.log_evidence for p in again] == [p.log_evidence for p in posts]
    assert target.factors[1].calls == len(score.batches)


def test_the_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(kept, "CACHED_TEXTS", 2)
    score = Counted()
    calls = Reward(score)._calls
    for text in ("a", "bb", "a", "ccc", "a", "bb"):
        assert calls.of([("", text)]) == {("", text): len(text)}
    assert [b[0] for b in score.batches] == ["a", "bb", "ccc", "bb"]
    assert calls._known.characters == sum(len(text) for _, text in calls._known)
    monkeypatch.setattr(kept, "CACHED_CHARACTERS", 5)
    calls.of([("", "eeee"), ("", "ffff")])
    assert list(calls._known) == [("", "ffff")]


def test_a_reward_can_be_copied_and_pickled():
    reward = Reward(np.sum, at="b", name="sum")
    for twin in (copy.deepcopy(reward), pickle.loads(pickle.dumps(reward)), copy.copy(reward)):
        assert repr(twin) == "Reward(sum, beta=1, at='b')"
    assert Reward(len)._calls.wants_prompts is False  # a built-in function


@pytest.mark.parametrize("wrapped", [False, True])
def test_asynchronous_scores(wrapped):
    loops = set()

    async def score(texts):
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0)
        return [float(len(t)) for t in texts]

    plain = Target(LM) * Reward(lambda texts: [float(len(t)) for t in texts], at="round")
    target = Target(LM) * Reward((lambda texts: score(texts)) if wrapped else score, at="round")
    want = plain.sample([0], seed=0, **OPTIONS).log_evidence
    assert target.sample([0], seed=0, **OPTIONS).log_evidence == want

    async def main():
        return target.sample([0], seed=1, **OPTIONS).log_evidence  # inside of a running loop

    assert asyncio.run(main()) == plain.sample([0], seed=1, **OPTIONS).log_evidence
    with Scheduler() as scheduler:
        handle = scheduler.submit(target, [0], seed=2, **OPTIONS)
        assert handle.result().log_evidence == plain.sample([0], seed=2, **OPTIONS).log_evidence
    assert len(loops) <= 2  # one, and one before it was known to be asynchronous


# ------------------------------------------------------------------ under a scheduler


def submit_all(scheduler, target, count, **options):
    """All arrive at once."""
    with scheduler._changed:
        return [
            scheduler.submit(target, [i % 2], seed=i, **{**OPTIONS, **options})
            for i in range(count)
        ]


def test_requests_share_calls():
    score = Counted()
    target = Target(LM) * Reward(score, at="round")
    with Scheduler() as scheduler:
        handles = submit_all(scheduler, target, 12)
        posts = [h.result() for h in handles]
    # In step, since nothing but the reward makes them wait: one call a round serves all.
    assert len(score.batches) <= max(len(p.rounds) for p in posts)
    for i, post in enumerate(posts):
        alone = (Target(LM) * Reward(len_of, at="round")).sample([i % 2], seed=i, **OPTIONS)
        assert [p.tokens for p in alone] == [p.tokens for p in post]
        assert alone.log_evidence == post.log_evidence


def len_of(texts):
    return [float(len(t)) for t in texts]


def test_a_slow_reward_adds_one_call_a_round_and_others_go_on():
    """50 ms a batch. While one is scored, another request plays all of its rounds."""
    lm = tiny_llama(8, eos=7, context=128, kv_pages=600)
    words = Grammar.regex("[a-g]{11}")
    events = []
    begun, go = threading.Event(), threading.Event()

    def score(texts):
        events.append("score")
        begun.set()
        go.wait(30)  # until the other request is done
        time.sleep(0.05)
        events.append("scored")
        return len_of(texts)

    options = {"particles": 4, "max_tokens": 12, "seed": 0}
    with Scheduler() as scheduler:
        slow = scheduler.submit(
            Target(lm) * words * Reward(score, at="round"), [0, 1], **options,
            on_round=lambda event: events.append("slow"),
        )  # fmt: skip
        begun.wait(30)
        other = scheduler.submit(
            Target(lm) * words, [2], **options, on_round=lambda event: events.append("other")
        )
        assert other.result().alive and not slow.done()
        go.set()
        post = slow.result()
    rounds = len(post.rounds)
    assert events[: events.index("scored")] == ["score"] + ["other"] * len(other.result().rounds)
    assert events.count("score") <= rounds
    assert events.count("slow") == rounds


def test_what_arrives_during_a_call_goes_into_the_next_one():
    begun, go = threading.Event(), threading.Event()
    batches = []

    def score(texts):
        batches.append(set(texts))
        begun.set()
        go.wait(30)
        return len_of(texts)

    calls = Reward(score, time_limit=60)._calls
    threads = [
        threading.Thread(target=calls.of, args=([("", text)],)) for text in ("a", "b", "c", "b")
    ]
    threads[0].start()
    begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(calls._waiting) < 3:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join()
    assert batches == [{"a"}, {"b", "c"}]


# ------------------------------------------------------------------ failures


def picky(texts):
    """Raises for some texts only."""
    if any(t.startswith("bb") for t in texts):
        raise ValueError("bb")
    return len_of(texts)


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_failing_call_for_several_is_the_fault_of_one(scheduled):
    target = Target(LM) * Reward(picky, at="round", name="picky")
    options = {**OPTIONS, "particles": 1}
    prompts, seeds = [[0]] * 12, list(range(12))
    with pytest.raises(BatchError) as caught:
        if scheduled:
            with Scheduler() as scheduler:
                scheduler.submit(target, prompts, seed=seeds, **options).result()
        else:
            target.sample(prompts, seed=seeds, **options)
    plain = (Target(LM) * Reward(len_of, at="round")).sample(prompts, seed=seeds, **options)
    failed = [isinstance(r, PotentialError) for r in caught.value.results]
    assert any(failed) and not all(failed)
    for result, post, bad in zip(caught.value.results, plain, failed, strict=True):
        assert bad == post.text.startswith("bb")
        if bad:
            assert result.potential == "Reward(picky)" and "ValueError: bb" in str(result)
        else:
            assert result.text == post.text


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_call_that_hangs_is_given_up(scheduled):
    """The others, which were in the same call, go on; so does what comes later."""
    never = threading.Event()

    def hangs(texts):
        if any(t.startswith("bb") for t in texts):
            never.wait()
        return len_of(texts)

    target = Target(LM) * Reward(hangs, time_limit=0.5, name="slow")
    options = {**OPTIONS, "particles": 1}
    prompts, seeds = [[0]] * 3, [1, 2, 3]
    plain = [Target(LM).sample([0], seed=s, **options) for s in range(40)]
    bad = next(s for s, p in enumerate(plain) if p.text.startswith("bb"))
    good = [s for s, p in enumerate(plain) if not p.text.startswith("bb")][:2]
    seeds = [good[0], bad, good[1]]
    with pytest.raises(BatchError) as caught:
        if scheduled:
            with Scheduler() as scheduler:
                scheduler.submit(target, prompts, seed=seeds, **options).result()
        else:
            target.sample(prompts, seed=seeds, **options)
    first, second, third = caught.value.results
    assert isinstance(second, PotentialError)
    assert "Reward(slow)" in str(second) and "within 0.5 seconds" in str(second)
    assert first.text == plain[good[0]].text and third.text == plain[good[1]].text
    assert target.sample([0], seed=good[0], **options).text == first.text
    never.set()


def test_a_call_for_several_that_hangs_is_made_again_for_each():
    never, begun, go = threading.Event(), threading.Event(), threading.Event()
    batches, outcomes = [], {}

    def hangs(texts):
        batches.append(set(texts))
        begun.set()
        (never if "bad" in texts else go).wait(30)
        return len_of(texts)

    calls = Reward(hangs, time_limit=0.5)._calls

    def ask(text):
        try:
            outcomes[text] = calls.of([("", text)])["", text]
        except PotentialError as error:
            outcomes[text] = str(error)

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("first", "bad", "good")]
    threads[0].start()
    begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(calls._waiting) < 2:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(30)
    assert batches[:2] == [{"first"}, {"bad", "good"}]
    assert sorted(map(sorted, batches[2:])) == [["bad"], ["good"]]
    assert (outcomes["first"], outcomes["good"]) == (5, 4)
    assert "within 0.5 seconds (called with 1 text, the first 'bad')" in outcomes["bad"]
    never.set()


def test_a_request_that_is_given_up_holds_up_nobody():
    """Without a time limit the request's own ends the wait, and the call it waited for."""
    never, begun = threading.Event(), threading.Event()

    def hangs_once(texts):
        if not begun.is_set():
            begun.set()
            never.wait()
        return len_of(texts)

    target = Target(LM) * Reward(hangs_once)
    with Scheduler() as scheduler:
        stuck = scheduler.submit(target, [0], seed=0, **OPTIONS)
        begun.wait(30)
        stuck.cancel()
        assert scheduler.submit(target, [1], seed=1, **OPTIONS).result().alive
    never.set()


def test_scores_of_no_list_of_texts_are_refused():
    reward = Reward(lambda texts, prompts: [float(len(t)) for t in texts])
    assert reward(["a", "bc"], ["x", "y"]) == [1.0, 2.0]
    for texts in ("abc", None):
        with pytest.raises(InputError, match="takes a list of texts"):
            reward(texts)
    with pytest.raises(InputError, match="1 prompts for 2 texts"):
        reward(["a", "b"], ["x"])
