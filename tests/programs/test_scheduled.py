"""Many programs in one batch: as if each were alone, with their models' work shared."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from smcprog import (
    AllDeadError,
    BatchError,
    Grammar,
    PagesExhaustedError,
    RequestTimeoutError,
    Reward,
    Scheduler,
    Target,
)
from smcprog.programs import program

from ..potentials.tiny_classifiers import tiny_classifier
from ..tiny import tiny_llama

OPTIONS = {"particles": 3, "max_tokens": 40}


@pytest.fixture(scope="module")
def lms():
    """A target, and a draft of the same vocabulary."""
    return tuple(tiny_llama(8, eos=7, seed=s, scale=0.3, context=128, kv_pages=300) for s in (0, 1))


@pytest.fixture(autouse=True)
def _all_pages_come_back(lms):
    yield
    for lm in lms:
        lm.check_pages()
        assert lm.pages_in_use == 0


@program
def steps(p, start, lm, draft=None, seen=None):
    p.prompt(start)
    for _ in range(3):
        p.extend(Target(lm), max_tokens=4, until="b", draft=draft, draft_tokens=2)
        p.observe("c")
        p.branch(lambda text: len(text) > 4, lambda q: q.choose(["d", "ef"]))
        if seen is not None:
            seen.append(threading.current_thread().name)


def same(one, other):
    assert [p.tokens for p in one] == [p.tokens for p in other]
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


def test_many_inputs_equal_each_alone_and_share_forwards(lms):
    lm, draft = lms
    inputs = [([i % 7, 2, 3], lm, draft) for i in range(4)]
    alone = [steps(*args, seed=i, **OPTIONS) for i, args in enumerate(inputs)]
    passes = []
    for some in (inputs[:1], inputs):
        with Scheduler() as scheduler:
            got = steps.map(some, scheduler=scheduler, seed=range(len(some)), **OPTIONS)
            passes.append(scheduler.passes)
        for post, want in zip(got, alone, strict=False):
            same(post, want)
    # Four in step take little more than one: forwards are merged.
    assert passes[1] < 2.5 * passes[0]


def test_programs_and_requests_interleave(lms):
    """A program and a plain request of one model run in the forwards of the longer of them."""
    lm, _ = lms
    target = Target(lm) * Grammar.regex("[a-g]{30}")
    want = target.sample([1], seed=5, particles=2, max_tokens=31)
    alone = steps([1, 2], lm, seed=1, **OPTIONS)
    with Scheduler() as scheduler:
        steps.submit(scheduler, [1, 2], lm, seed=1, **OPTIONS).result()
        of_program = scheduler.passes
    with Scheduler() as both:
        with both._changed:
            one = both.submit(target, [1], seed=5, particles=2, max_tokens=31)
            two = steps.submit(both, [1, 2], lm, seed=1, **OPTIONS)
        same(one.result(), want)
        same(two.result(), alone)
    with Scheduler() as scheduler:
        scheduler.submit(target, [1], seed=5, particles=2, max_tokens=31).result()
        of_request = scheduler.passes
    assert both.passes <= max(of_program, of_request) + 4 < of_program + of_request


def test_a_slow_tool_does_not_hold_up_others(lms):
    lm, _ = lms
    release = threading.Event()

    def tool(texts):
        release.wait(20)
        return ["a"] * len(texts)

    @program
    def waits(p):
        p.prompt([1, 2])
        p.extend(Target(lm), max_tokens=2)
        p.map(tool, time_limit=20)

    with Scheduler() as scheduler:
        slow = waits.submit(scheduler, seed=0, **OPTIONS)
        quick = steps.submit(scheduler, [1, 2], lm, seed=0, **OPTIONS)
        quick.result(timeout=20)
        assert not slow.done()
        release.set()
        assert all(p.text.endswith("a") for p in slow.result(timeout=20))


def test_cancel_and_timeout_free_pages(lms):
    lm, _ = lms
    hang = threading.Event()

    @program
    def hangs(p):
        p.prompt([1, 2])
        p.extend(Target(lm), max_tokens=4)
        p.map(lambda texts: hang.wait(20), time_limit=20)

    with Scheduler() as scheduler:
        handle = hangs.submit(scheduler, seed=0, **OPTIONS)
        late = hangs.submit(scheduler, seed=0, timeout=0.3, **OPTIONS)
        with pytest.raises(RequestTimeoutError):
            late.result(timeout=20)
        handle.cancel()
        end = time.monotonic() + 20
        while scheduler.running and time.monotonic() < end:
            time.sleep(0.01)
        assert scheduler.running == 0
        assert lm.pages_in_use == 0
    hang.set()


def test_asample_and_failures_in_a_list(lms):
    lm, draft = lms

    async def many():
        return await asyncio.gather(
            *[steps.asample([1, i], lm, draft, seed=i, **OPTIONS) for i in range(3)]
        )

    for i, post in enumerate(asyncio.run(many())):
        same(post, steps([1, i], lm, draft, seed=i, **OPTIONS))

    @program
    def some_fail(p, text):
        p.prompt([1, 2])
        p.extend(Target(lm) * Grammar.choice([text]), max_tokens=3)
        p.extend(Target(lm), max_tokens=2)

    with pytest.raises(BatchError) as caught:
        some_fail.map(["ab", "abcdef"], seed=0, **OPTIONS)
    good, bad = caught.value.results
    assert good.text.startswith("ab") and isinstance(bad, AllDeadError)
    with pytest.raises(ZeroDivisionError):
        program(lambda p: p.branch(1 / 0, None)).map([()], seed=0)


def test_pages_are_reserved_by_max_tokens(lms):
    """What cannot fit is refused by name; what has to wait, waits, but never two for each other."""
    lm, draft = lms
    with Scheduler() as scheduler, pytest.raises(PagesExhaustedError, match="kv_pages"):
        steps.submit(scheduler, [1, 2], lm, seed=0, particles=60, max_tokens=100).result()
    half = {"particles": 10, "max_tokens": 110}  # 140 of 300 pages a model
    with Scheduler() as scheduler:
        posts = steps.map([([1, 2], lm)] * 4, scheduler=scheduler, seed=0, **half)
    assert len({post.log_evidence for post in posts}) == 1

    @program
    def both(p, first, second, gate):
        p.prompt([1, 2])
        p.extend(Target(first), max_tokens=3)
        p.map(lambda texts: [str(gate.wait(20))[:0]] * len(texts), time_limit=20)
        p.extend(Target(second), max_tokens=3)

    large = {"particles": 14, "max_tokens": 100, "seed": 0}  # more than half of each pool
    gate = threading.Barrier(2)
    with Scheduler() as scheduler:
        handles = [
            both.submit(scheduler, *pair, gate, **large) for pair in ((lm, draft), (draft, lm))
        ]
        assert all(len(handle.result(timeout=20)) == 14 for handle in handles)


def test_pages_of_reward_models_are_reserved(lms):
    """A pool that holds one run at a time; the others wait for it."""
    lm, _ = lms
    reward = Reward.model(tiny_classifier(8, double=True), lm.vocab, at="round", kv_pages=20)

    @program
    def p(p, start):
        p.prompt(start)
        p.extend(Target(lm) * reward, max_tokens=24)
        p.weigh(reward**0.5)

    inputs = [([i, 1],) for i in range(6)]
    posts = p.map(inputs, particles=4, seed=list(range(6)), max_tokens=24)
    for (start,), post, seed in zip(inputs, posts, range(6), strict=True):
        same(post, p(start, particles=4, seed=seed, max_tokens=24))
    reward.lm.check_pages()
    assert reward.lm.pages_in_use == 0
