"""Many requests in one batch: each as if it were alone, whatever happens to the others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time

import numpy as np
import pytest
import torch

from smcprog import (
    AllDeadError,
    BatchError,
    Grammar,
    PagesExhaustedError,
    Potential,
    PotentialError,
    PromptError,
    RequestTimeoutError,
    Reward,
    Scheduler,
    SchedulerClosedError,
    SettingError,
    Target,
)

from ..exactness.toys import CASE_A, REGEX_A, gamma, in_regex, random_toy
from ..tiny import tiny_llama

OPTIONS = {"max_tokens": 12, "particles": 3, "seed": 0}
LONG = [0, 1, 2, 3, 4, 5] * 12


@pytest.fixture(scope="module")
def lms():
    """A target, and a draft of the same vocabulary."""
    return tuple(tiny_llama(8, eos=7, seed=s, context=128, kv_pages=600) for s in (0, 1))


@pytest.fixture(autouse=True)
def _all_pages_come_back(lms):
    yield
    for lm in lms:
        lm.check_pages()
        assert lm.pages_in_use == 0


def same(one, other):
    assert [p.tokens for p in one] == [p.tokens for p in other]
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)
    assert len(one.rounds) == len(other.rounds)
    assert one.text == other.text


class Hook(Potential):
    """The constant 1, which calls `hook(length, ended)` as its outputs grow."""

    def __init__(self, hook):
        self.hook = hook

    def start(self, request, n):
        return torch.zeros(n, dtype=torch.int64)

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        state = state + lengths_N
        self.hook(int(state.max()), bool(ended_N.all()))
        return state, torch.zeros(len(state), dtype=torch.float64)

    def fork(self, state, ancestors_M):
        return state[ancestors_M]


def lengths(texts):
    return [float(len(text)) for text in texts]


def mixed_jobs(lm, draft):
    """Targets, prompts and settings of many kinds."""
    words = Grammar.regex("[a-c]+d?")
    sharp = Target(lm, temperature=0.5)
    return [
        (Target(lm), [0, 1], {}),
        (Target(lm), LONG, {"particles": 5}),
        (sharp, [1, 2, 3], {"draft": draft, "draft_tokens": 3}),
        (sharp**2, LONG[:40], {"draft": draft, "draft_tokens": 1, "max_tokens": 5}),
        (Target(lm) * words, [2], {"particles": 4}),
        (words * Target(lm), LONG[:30], {"draft": draft, "ess_threshold": 1.0}),
        (Target(lm) * Reward(lengths, beta=-0.5), [3, 3], {"draft": draft, "max_tokens": 20}),
        (Target(lm) * Target(draft), [4], {"resampling": "multinomial"}),
        (Target(draft), LONG, {"draft": lm}),
        (Target(lm), [5], {"draft": lm, "coupling": 1.0}),
        (Target(lm), LONG[:20], {"draft": draft, "coupling": 2.0, "draft_tokens": 5}),
        (Target(lm), [6], {"stop": "ab", "max_tokens": 30}),
        (Target(lm, top_k=3), [0, 1], {"deterministic": True}),
        (Target(lm), LONG[:33], {"deterministic": True, "draft": draft}),
    ]


def test_mixed_requests_equal_each_alone(lms):
    lm, draft = lms
    jobs = mixed_jobs(lm, draft)
    alone = [t.sample(p, **{**OPTIONS, "seed": i, **o}) for i, (t, p, o) in enumerate(jobs)]
    with Scheduler() as scheduler:
        handles = [
            scheduler.submit(t, p, **{**OPTIONS, "seed": i, **o})
            for i, (t, p, o) in enumerate(jobs)
        ]
        for handle, post, (_, _, options) in zip(handles, alone, jobs, strict=True):
            same(handle.result(), post)
            if options.get("deterministic"):
                assert [p.logprobs for p in handle.result()] == [p.logprobs for p in post]
    assert scheduler.running == scheduler.queued == 0


def test_work_is_shared(lms):
    """Eight requests in step take the forwards of one, not of eight."""
    lm, draft = lms
    options = {**OPTIONS, "draft": draft, "draft_tokens": 3, "max_tokens": 13}
    never_ends = Target(lm) * Grammar.regex("[a-g]{50}")
    with pytest.raises(AllDeadError):
        never_ends.sample([0], **options)
    passes = []
    for count in (1, 8):
        with Scheduler() as scheduler:
            with scheduler._changed:  # all arrive at once
                handles = [
                    scheduler.submit(never_ends, [i % 7], **{**options, "seed": i})
                    for i in range(count)
                ]
            assert all(isinstance(h.exception(), AllDeadError) for h in handles)
        passes.append(scheduler.passes)
    assert passes[1] <= passes[0] + 8 < 3 * passes[0]


def test_evidence_is_unbiased_under_the_scheduler():
    toy = CASE_A
    target = Target(toy.lm()) * Grammar.regex(REGEX_A)
    draft = random_toy(np.random.default_rng(3)).lm("draft")
    draft.vocab = target.factors[0].lm.vocab
    total = sum(gamma(toy, 6, truncate=False, accepts=in_regex(REGEX_A)).values())
    runs = 250
    with Scheduler(max_running=16) as scheduler:
        handles = [
            scheduler.submit(
                target, [0], seed=s, particles=2, draft=draft, draft_tokens=2, max_tokens=6
            )
            for s in range(runs)
        ]
        z = []
        for handle in handles:
            error = handle.exception()
            post = handle.result() if error is None else error.posterior
            z.append(math.exp(post.log_evidence))
    error = np.std(z, ddof=1) / math.sqrt(runs)
    assert abs(np.mean(z) - total) < 4 * error


def test_failures_stay_with_their_request(lms):
    lm, draft = lms

    def fail(length, ended):
        if length >= 3:
            raise ValueError("at three")

    bad = [
        (Target(lm) * Hook(fail), {}, PotentialError),
        (Target(lm) * Reward(lambda texts: [math.nan] * len(texts)), {}, PotentialError),
        (Target(lm) * Grammar.regex("[a-g]{90}"), {"max_tokens": 8}, AllDeadError),
        (Target(lm), {"on_round": lambda event: 1 / 0}, ZeroDivisionError),
    ]
    good = mixed_jobs(lm, draft)[:7]
    with Scheduler() as scheduler:
        failing, fine = [], []
        for i, (t, p, o) in enumerate(good):
            fine.append(scheduler.submit(t, p, **{**OPTIONS, **o}))
            t, o, _ = bad[i % len(bad)]
            failing.append(scheduler.submit(t, p, **{**OPTIONS, "draft": draft, **o}))
        for i, handle in enumerate(failing):
            assert isinstance(handle.exception(), bad[i % len(bad)][2])
        for handle, (t, p, o) in zip(fine, good, strict=True):
            same(handle.result(), t.sample(p, **{**OPTIONS, **o}))


def test_cancelled_in_the_middle_of_a_round(lms, monkeypatch):
    """Cancelled while its work is in a forward that others share."""
    lm, draft = lms
    options = {**OPTIONS, "draft": draft, "draft_tokens": 4, "max_tokens": 30}
    target = Target(lm) * Grammar.regex("[a-g]{29}")
    alone = target.sample(LONG[:9], **options)
    handles = []
    submitted = threading.Event()
    call, calls = draft.engine.call_model, []

    def watched(ids, *arguments):
        submitted.wait()
        calls.append(ids.numel())
        if len(calls) == 5:
            held = draft.pages_in_use
            assert handles[0].cancel()
            assert draft.pages_in_use == held  # not under the forward's feet
        return call(ids, *arguments)

    monkeypatch.setattr(draft.engine, "call_model", watched)
    with Scheduler() as scheduler:
        handles += [scheduler.submit(target, p, **options) for p in ([1], LONG[:9], LONG)]
        submitted.set()
        same(handles[1].result(), alone)
        assert handles[0].cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            handles[0].result()
        assert handles[2].result().alive


def test_cancelled_while_its_prompt_is_run(lms, monkeypatch):
    lm, _ = lms
    lm.engine.prefixes.clear()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 7, size=100).tolist() for _ in range(4)]
    handles = []
    submitted = threading.Event()
    call = lm.engine.call_model

    def watched(ids, *arguments):
        submitted.wait()
        handles[2].cancel()  # wide work beyond the first pass: it is done in part, or not begun
        return call(ids, *arguments)

    monkeypatch.setattr(lm.engine, "call_model", watched)
    with Scheduler() as scheduler:
        handles += [scheduler.submit(Target(lm), p, **OPTIONS) for p in prompts]
        submitted.set()
        for i in (0, 1, 3):
            same(handles[i].result(), Target(lm).sample(prompts[i], **OPTIONS))
    assert handles[2].cancelled()


def test_cancelled_in_the_queue_and_after_the_end(lms):
    lm, _ = lms
    go = threading.Event()
    with Scheduler(max_running=1) as scheduler:
        first = scheduler.submit(Target(lm), [0], **OPTIONS, on_round=lambda event: go.wait())
        second = scheduler.submit(Target(lm), [1], **OPTIONS)
        third = scheduler.submit(Target(lm), [2], **OPTIONS)
        assert second.cancel()
        assert second.done() and not second.running()
        go.set()
        assert third.result().alive
        assert not third.cancel()
        assert first.result().alive


def test_timeouts(lms):
    lm, _ = lms
    begun = time.monotonic()

    def dawdle(event):
        while time.monotonic() < begun + 0.3:
            time.sleep(0.01)

    with Scheduler(max_running=2) as scheduler:
        late = scheduler.submit(Target(lm), [0], **OPTIONS, timeout=0.25, on_round=dawdle)
        fine = scheduler.submit(Target(lm), [1], **OPTIONS, timeout=1000)
        never = scheduler.submit(Target(lm), [2], **OPTIONS, timeout=0)
        for handle, seconds in ((late, "0.25"), (never, "0")):
            with pytest.raises(RequestTimeoutError, match=f"not done {seconds} seconds"):
                handle.result()
        assert isinstance(late.exception(), TimeoutError)
        same(fine.result(), Target(lm).sample([1], **OPTIONS))


def test_waits_for_pages_and_nobody_overtakes(monkeypatch):
    lm = tiny_llama(8, eos=7, context=128, kv_pages=20)
    target = Target(lm) * Grammar.regex("[a-g]{15}")
    options = {**OPTIONS, "max_tokens": 16}
    small, large = [0] * 5, LONG[:70]
    need = lm.pages_needed(5, 3, 16), lm.pages_needed(70, 3, 16)
    assert need == (9, 17)
    order, most = [], [0, 0]
    with Scheduler() as scheduler:
        start = scheduler._hub.start

        def watched(task):
            order.append(task.request.seed)
            start(task)

        monkeypatch.setattr(scheduler._hub, "start", watched)

        def look(event):
            most[0] = max(most[0], scheduler.running)
            most[1] = max(most[1], lm.pages_in_use)

        with scheduler._changed:  # all arrive at once
            handles = [
                scheduler.submit(
                    target, large if i in (3, 6) else small, **{**options, "seed": i}, on_round=look
                )
                for i in range(12)
            ]
        posts = [handle.result() for handle in handles]
    assert all(len(post.best.tokens) == 16 for post in posts)
    assert order == list(range(12))
    assert most[0] == 2
    assert 12 <= most[1] <= 20  # twins share pages, so fewer than were reserved
    lm.check_pages()
    assert lm.pages_free == 20


def test_a_wait_for_one_model_does_not_hold_up_another(lms):
    other = tiny_llama(8, eos=7, context=128, kv_pages=20)
    lm, _ = lms
    with Scheduler() as scheduler, other.sequences([0] * 100, 1):
        stuck = scheduler.submit(Target(other), LONG[:70], **{**OPTIONS, "max_tokens": 16})
        assert scheduler.submit(Target(lm), [0], **OPTIONS).result().alive
        assert not stuck.done() and not stuck.running()
        stuck.cancel()


def test_waits_for_pages_that_others_hold():
    lm = tiny_llama(8, eos=7, context=128, kv_pages=20)
    rows = lm.sequences([0] * 100, 1)
    with Scheduler() as scheduler:
        handle = scheduler.submit(Target(lm), LONG[:70], **{**OPTIONS, "max_tokens": 16})
        time.sleep(0.05)
        assert not handle.running()
        rows.close()
        assert handle.result().alive


def test_what_can_never_fit_is_refused_at_once():
    lm = tiny_llama(8, eos=7, context=128, kv_pages=20)
    with Scheduler() as scheduler:
        with pytest.raises(PagesExhaustedError, match=r"41 pages of 8 tokens .*20.*kv_pages=41"):
            scheduler.submit(Target(lm), LONG, particles=16, max_tokens=10)
        handle = scheduler.submit(Target(lm), [LONG, [0]], **{**OPTIONS, "max_tokens": 40})
        with pytest.raises(BatchError, match=r"1 of 2 requests failed.*request 0") as caught:
            handle.result()
    assert isinstance(caught.value.results[0], PagesExhaustedError)
    assert caught.value.results[1].alive


def test_common_prompts_are_run_once(monkeypatch):
    lm = tiny_llama(8, eos=7, context=128)
    tokens = []
    call = lm.engine.call_model

    def watched(ids, *arguments):
        tokens.append(ids.numel())
        return call(ids, *arguments)

    monkeypatch.setattr(lm.engine, "call_model", watched)
    with Scheduler() as scheduler:
        handles = scheduler.submit(
            Target(lm), [[*LONG[:48], i] for i in range(6)], particles=2, max_tokens=1
        )
        assert len(handles.result()) == 6
    assert sum(tokens) == 49 + 5 * 1


def test_if_who_runs_a_common_prompt_fails_another_does(monkeypatch):
    lm = tiny_llama(8, eos=7, context=128)
    target = Target(lm)
    prompts = [[*LONG, i] for i in range(3)]
    alone = target.sample(prompts, **OPTIONS)
    lm.engine.prefixes.clear()
    handles, submitted = [], threading.Event()
    call = lm.engine.call_model

    def watched(ids, *arguments):
        submitted.wait()
        handles[0].cancel()
        return call(ids, *arguments)

    monkeypatch.setattr(lm.engine, "call_model", watched)
    with Scheduler() as scheduler:
        handles += [scheduler.submit(target, p, **OPTIONS) for p in prompts]
        submitted.set()
        for i in (1, 2):
            same(handles[i].result(), alone[i])
    lm.check_pages()


def test_modes_of_autograd_do_not_leak(lms):
    lm, draft = lms

    class Moody(Target):
        def advance(self, *arguments):
            with torch.inference_mode():
                return super().advance(*arguments)

        def next_logw(self, state):
            with torch.no_grad():
                out = super().next_logw(state)
                assert not torch.is_grad_enabled()
                return out

    modes = set()

    def look(event):
        modes.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    with Scheduler() as scheduler:
        handles = [
            scheduler.submit(kind(lm), [i], **OPTIONS, draft=draft, on_round=look)
            for i in range(6)
            for kind in (Moody, Target)
        ]
        for moody, plain in zip(handles[::2], handles[1::2], strict=True):
            same(moody.result(), plain.result())
    assert modes == {(True, False)}


def test_lists_of_prompts(lms):
    lm, _ = lms
    prompts = [[0], [1, 1], [0]]
    expected = Target(lm).sample(prompts, **{**OPTIONS, "seed": [1, 2, 3]})
    with Scheduler() as scheduler:
        handle = scheduler.submit(Target(lm), prompts, **{**OPTIONS, "seed": [1, 2, 3]})
        for one, other in zip(handle.result(), expected, strict=True):
            same(one, other)
        bad = scheduler.submit(Target(lm), [[0], [99]], **OPTIONS)
        with pytest.raises(BatchError) as caught:
            bad.result()
        assert isinstance(caught.value.results[1], PromptError)
        same(caught.value.results[0], Target(lm).sample([0], **OPTIONS))
        all_bad = scheduler.submit(Target(lm), [[98], [99]], **OPTIONS)
        assert isinstance(all_bad.exception(), BatchError)
        go = threading.Event()
        given_up = scheduler.submit(
            Target(lm), [[0], LONG], **OPTIONS, on_round=lambda event: go.wait()
        )
        assert given_up.cancel()
        go.set()
    assert given_up.cancelled()


def test_from_many_threads(lms):
    lm, draft = lms
    out = {}

    def ask(i):
        out[i] = scheduler.submit(Target(lm), [i % 7], draft=draft, **OPTIONS).result()

    with Scheduler() as scheduler:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(14)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i in range(7):
        same(out[i], out[i + 7])


def test_callbacks_may_submit(lms):
    lm, _ = lms
    second = concurrent.futures.Future()
    with Scheduler() as scheduler:
        first = scheduler.submit(Target(lm), [0], **OPTIONS)
        first.add_done_callback(
            lambda handle: second.set_result(scheduler.submit(Target(lm), [1], **OPTIONS))
        )
        assert second.result().result().alive


def test_shut_down(lms):
    lm, _ = lms
    scheduler = Scheduler(max_running=1)
    handles = []

    def dawdle(event):
        while len(handles) < 5 or not handles[-1].cancelled():
            time.sleep(0.001)

    handles += [scheduler.submit(Target(lm), [i], **OPTIONS, on_round=dawdle) for i in range(5)]
    scheduler.shutdown(cancel=True)
    assert all(handle.done() for handle in handles)
    assert handles[-1].cancelled()
    with pytest.raises(SchedulerClosedError, match="shut down"):
        scheduler.submit(Target(lm), [0], **OPTIONS)
    with pytest.raises(KeyError), Scheduler() as scheduler:
        handle = scheduler.submit(Target(lm), LONG, **{**OPTIONS, "max_tokens": 50})
        raise KeyError
    assert handle.done()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"particles": 0}, "particles"), ({"timeout": -1}, "timeout"), ({"timeout": "x"}, "timeout")],
)
def test_bad_settings_are_refused_at_once(lms, options, words):
    with Scheduler() as scheduler, pytest.raises(SettingError, match=words):
        scheduler.submit(Target(lms[0]), [0], **options)
    with pytest.raises(SettingError, match="max_running"):
        Scheduler(max_running=0)


def test_await(lms):
    lm, draft = lms
    target = Target(lm)

    async def several():
        return await asyncio.gather(
            *(target.asample([i], draft=draft, **OPTIONS) for i in range(4)),
            target.asample([[5], [6]], **OPTIONS),
        )

    *single, many = asyncio.run(several())
    for i, post in enumerate(single):
        same(post, target.sample([i], draft=draft, **OPTIONS))
    for i, post in enumerate(many):
        same(post, target.sample([5 + i], **OPTIONS))
    with pytest.raises(SettingError):
        asyncio.run(target.asample([0], particles=0))
    with pytest.raises(RequestTimeoutError):
        asyncio.run(target.asample([0], timeout=0, **OPTIONS))


def test_cancelling_a_coroutine_frees_its_pages(lms):
    lm, _ = lms
    playing, given_up, rounds = threading.Event(), threading.Event(), []

    def look(event):
        rounds.append(event.round)
        playing.set()
        given_up.wait()

    async def main(scheduler):
        task = asyncio.create_task(
            Target(lm).asample(LONG, scheduler=scheduler, max_tokens=50, on_round=look)
        )
        await asyncio.to_thread(playing.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        given_up.set()

    with Scheduler() as scheduler:
        asyncio.run(main(scheduler))
    assert lm.pages_in_use == 0
    assert scheduler.running == 0
    assert rounds == [0]


def test_waiting_for_cancelled_handles_ends(lms):
    lm, _ = lms
    go = threading.Event()
    with Scheduler(max_running=1) as scheduler:
        first = scheduler.submit(Target(lm), [0], **OPTIONS, on_round=lambda event: go.wait())
        others = [scheduler.submit(Target(lm), p, **OPTIONS) for p in ([1], [[2], [3]])]
        assert all(handle.cancel() for handle in others * 2)
        go.set()
        done, rest = concurrent.futures.wait([first, *others], timeout=60)
    assert len(done) == 3
    assert not rest
