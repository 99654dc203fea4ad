"""Potentials of users that hang, or are slow: their own request ends, the others go on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from smcprog import (
    BatchError,
    Check,
    Potential,
    PotentialError,
    RequestTimeoutError,
    Scheduler,
    SettingError,
    Target,
)
from smcprog.smc import guard

from ..exactness.toys import random_toy
from ..tiny import tiny_llama
from .test_bad_potentials import BAD, Quiet

LM = random_toy(np.random.default_rng(0), eos=0.1).lm()
DRAFT = random_toy(np.random.default_rng(1)).lm("draft")
OPTIONS = {"particles": 3, "max_tokens": 6, "draft": DRAFT, "draft_tokens": 2}
METHODS = ["start", "advance", "fork", "mask", "next_logw", "lookahead", "token_logprobs"]


@pytest.fixture
def never():
    """An event that never comes while the test lasts; then those who wait for it may go."""
    event = threading.Event()
    yield event
    event.set()


def hanging(method, never, **attributes):
    """ψ = 1, but one method hangs for the prompt [1]."""

    class Hanging(Quiet):
        masks = method == "mask"

        def start(self, request, n):
            return self._maybe("start", n, n, request.prompt == [1])

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            log_psi_N = torch.zeros(state[0], dtype=torch.float64)
            return self._maybe("advance", state, (state, log_psi_N), state[1])

        def fork(self, state, ancestors_M):
            return self._maybe("fork", state, (len(ancestors_M), state[1]), state[1])

        def _maybe(self, name, state, result, bad):
            if name == "start":
                result = (state, bad)
            if bad and name == method:
                never.wait()
            return result

    def mask(self, state):
        return self._maybe("mask", state, torch.ones((state[0], 3), dtype=torch.bool), state[1])

    def next_logw(self, state):
        return self._maybe("next_logw", state, torch.zeros((state[0], 3)), state[1])

    def lookahead(self, state, tokens_N_T, lengths_N):
        shape = (state[0], tokens_N_T.shape[1] + 1, 3)
        return self._maybe("lookahead", state, torch.zeros(shape), state[1])

    def token_logprobs(self, state):
        return self._maybe("token_logprobs", state, None, state[1])

    extra = {"mask": mask, "token_logprobs": token_logprobs}
    if method in ("next_logw", "lookahead"):
        extra |= {"next_logw": next_logw, "lookahead": lookahead}
    for name, function in {**extra, **attributes}.items():
        if name in (method, "next_logw") or name in attributes:
            setattr(Hanging, name, function)
    return Hanging()


def options_for(method):
    """Settings under which the method is called."""
    if method == "lookahead":
        return {**OPTIONS, "coupling": 1.5}
    if method == "fork":  # drafts far from the target, resampled at once
        return {**OPTIONS, "ess_threshold": 1.0, "particles": 16}
    return OPTIONS


CALLED = [m for m in METHODS if m != "token_logprobs"]  # which is asked of the lead model


@pytest.mark.parametrize("method", CALLED)
def test_a_time_limit_ends_it_anywhere(method, never):
    target = Target(LM) * hanging(method, never, time_limit=0.5)
    options = options_for(method)
    with pytest.raises(BatchError, match=f"1 of 3 .* {method} did not return within 0.5 sec") as e:
        target.sample([[0], [1], [0, 0]], seed=0, **options)
    first, second, third = e.value.results
    assert isinstance(second, PotentialError) and second.potential == "Hanging"
    assert first.alive and third.alive


@pytest.mark.parametrize("method", ["advance", "mask"])
def test_under_a_scheduler_the_timeout_of_the_request_ends_it(method, never, monkeypatch):
    """Also for a list, whose requests have one potential and one timeout."""
    monkeypatch.setattr(guard, "PATIENCE", 0.05)
    target = Target(LM) * hanging(method, never)
    with Scheduler() as scheduler:
        other = scheduler.submit(Target(LM), [0], seed=0, **OPTIONS)
        handle = scheduler.submit(
            target, [[0], [1], [0, 0]], seed=0, timeout=3, **options_for(method)
        )
        error = handle.exception()
        assert other.result().alive
    assert isinstance(error, BatchError)
    first, second, third = error.results
    assert isinstance(second, RequestTimeoutError)
    assert first.alive and third.alive


def test_a_time_limit_under_a_scheduler(never):
    target = Target(LM) * hanging("advance", never, time_limit=0.5)
    with Scheduler() as scheduler:
        error = scheduler.submit(target, [[0], [1], [0, 0]], seed=0, **OPTIONS).exception()
    assert [type(r).__name__ for r in error.results] == ["Posterior", "PotentialError", "Posterior"]


def test_a_potential_that_works_on_all_requests_in_one_call(never):
    """The call is given up, and each request gets its own."""

    class Joining(Quiet):
        joins = True
        time_limit = 0.5

        def start(self, request, n):
            return [request.prompt == [1]] * n

        def join(self, states):
            return [row for state in states for row in state]

        def fork(self, state, ancestors_M):
            return [state[a] for a in ancestors_M.tolist()]

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            if any(state) and tokens_N_T.shape[1]:
                never.wait()
            return state, torch.zeros(len(state), dtype=torch.float64)

    with pytest.raises(BatchError, match=r"1 of 3 .* advance did not return") as caught:
        (Target(LM) * Joining()).sample([[0], [1], [0, 0]], seed=0, **OPTIONS)
    assert isinstance(caught.value.results[1], PotentialError)


def test_rounds_of_others_are_played_while_one_hangs(never):
    lm = tiny_llama(8, eos=7, context=128, kv_pages=200)
    begun = threading.Event()

    class Stuck(Quiet):
        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            begun.set()
            never.wait()

    with Scheduler() as scheduler:
        stuck = scheduler.submit(Target(lm) * Stuck(), [0], particles=2, max_tokens=8)
        begun.wait(30)
        posts = scheduler.submit(Target(lm), [[1], [2]], particles=2, max_tokens=8).result()
        assert all(p.alive for p in posts) and not stuck.done()
        assert stuck.cancel()
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_a_check_that_hangs(never):
    def hangs(text):
        if "b" in text:
            never.wait()
        return True

    with Scheduler() as scheduler:
        stuck = scheduler.submit(
            Target(LM) * Check(hangs, prefix=hangs), [0], particles=32, max_tokens=8, timeout=0.5
        )
        assert scheduler.submit(Target(LM), [0], **OPTIONS).result().alive
        assert isinstance(stuck.exception(), RequestTimeoutError)
    limited = Check(hangs)
    limited.time_limit = 0.5
    with pytest.raises(PotentialError, match=r"Check\(hangs\): advance did not return within 0.5"):
        (Target(LM) * limited).sample([0], particles=32, max_tokens=8, seed=0)


def test_calls_of_one_potential_are_made_one_at_a_time():
    inside, most = [], []

    class Watched(Quiet):
        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.002)
            inside.pop()
            return super().advance(state, tokens_N_T, lengths_N, ended_N)

    target = Target(LM) * Watched()
    with Scheduler() as scheduler:
        posts = scheduler.submit(target, [[0]] * 6, seed=list(range(6)), **OPTIONS).result()
    plain = Target(LM).sample([[0]] * 6, seed=list(range(6)), **OPTIONS)
    assert [p.text for p in posts] == [p.text for p in plain]
    assert set(most) == {1}
    assert len(most) == sum(len(p.rounds) + 1 for p in posts)


def test_what_a_lost_call_holds_is_not_released_under_its_feet(never):
    released = []

    class Holds(Quiet):
        def start(self, request, n):
            return [n, request.prompt]

        def fork(self, state, ancestors_M):
            return [len(ancestors_M), state[1]]

        def release(self, state):
            released.append(state[1])

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            if state[1] == [1] and tokens_N_T.shape[1]:
                never.wait()
            return state, torch.zeros(state[0], dtype=torch.float64)

    with Scheduler() as scheduler:
        fine = scheduler.submit(Target(LM) * Holds(), [0], seed=0, **OPTIONS)
        lost = scheduler.submit(Target(LM) * Holds(), [1], seed=0, timeout=0.3, **OPTIONS)
        assert fine.result().alive
        assert isinstance(lost.exception(), RequestTimeoutError)
    assert [0] in released and [1] not in released


@pytest.mark.parametrize(("kind", "make"), BAD.values(), ids=BAD)
def test_bad_values_under_a_scheduler(kind, make):
    """As in a list: named, and its own request's failure only."""
    with Scheduler() as scheduler:
        good = [scheduler.submit(Target(LM), [i], seed=i, **OPTIONS) for i in range(2)]
        bad = scheduler.submit(Target(LM) * kind(make), [0], seed=0, **OPTIONS)
        error = bad.exception()
        assert isinstance(error, PotentialError)
        assert error.potential == kind(make).name
        assert all(h.result().alive for h in good)


def test_a_time_limit_that_is_none_is_refused():
    for limit in (-1, "1", float("nan")):
        quiet = Quiet()
        quiet.time_limit = limit
        with pytest.raises(SettingError, match="time_limit of Quiet"):
            (Target(LM) * quiet).sample([0], max_tokens=2)


def test_a_potential_may_stay_in_its_thread():
    """`aside = False` is for those who look after themselves."""
    threads = set()

    class Here(Quiet):
        aside: bool | None = False

        def advance(self, state, tokens_N_T, lengths_N, ended_N):
            threads.add(threading.current_thread().name)
            return super().advance(state, tokens_N_T, lengths_N, ended_N)

    class Beside(Here):
        aside = None

    for potential, name in ((Here(), "smcprog-scheduler"), (Beside(), "smcprog-aside")):
        threads.clear()
        with Scheduler() as scheduler:
            assert scheduler.submit(Target(LM) * potential, [0], **OPTIONS).result().alive
        assert threads == {name}


def test_powers_of_a_users_potential_go_aside_too(never):
    powered = hanging("advance", never, time_limit=0.5) ** 2
    assert isinstance(powered, Potential)
    with pytest.raises(PotentialError, match="did not return"):
        (Target(LM) * powered).sample([1], seed=0, **OPTIONS)
