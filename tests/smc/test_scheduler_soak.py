"""Two thousand requests of every kind, cancelled at random: nothing is left behind."""

from __future__ import annotations

import collections
import concurrent.futures
import random

import torch

from smcprog import (
    AllDeadError,
    Grammar,
    PotentialError,
    RequestTimeoutError,
    Reward,
    Scheduler,
    Target,
)

from ..tiny import tiny_llama

REQUESTS = 2000
OUTSTANDING = 96


def stumble(texts):
    """A score that fails for some outputs."""
    if any(text.startswith("c") for text in texts):
        raise ValueError("c")
    return [-float(len(text)) for text in texts]


def test_two_thousand_requests():
    lm, draft = (tiny_llama(8, eos=7, seed=seed, context=128, kv_pages=160) for seed in (0, 1))
    targets = [
        Target(lm),
        Target(lm, temperature=0.6),
        Target(lm) * Grammar.regex("[a-e]{1,4}"),
        Target(lm) * Reward(stumble),
        Target(lm) * Target(draft),
        Target(lm) * Grammar.regex("[a-g]{30}"),  # longer than any output may be
    ]
    rng = random.Random(0)
    stems = [[rng.randrange(7) for _ in range(40)] for _ in range(3)]

    def options(seed):
        return {
            "seed": seed,
            "particles": rng.choice([1, 2, 2, 4]),
            "max_tokens": rng.choice([1, 3, 5, 8]),
            "draft": rng.choice([None, draft, lm]),
            "draft_tokens": rng.choice([1, 3]),
            "coupling": rng.choice([float("inf"), 1.0]),
            "deterministic": rng.random() < 0.05,
        }

    def prompt():
        stem = rng.choice(stems)[: rng.choice([0, 8, 17, 40])]
        return stem + [rng.randrange(7) for _ in range(rng.choice([1, 2, 9, 30]))]

    kinds = collections.Counter()
    checked = []
    with Scheduler(max_running=24) as scheduler:
        outstanding = []
        for number in range(REQUESTS):
            target, ask, settings = rng.choice(targets), prompt(), options(number)
            timeout = rng.choice([0, 0.002, 0.05]) if rng.random() < 0.1 else None
            handle = scheduler.submit(target, ask, timeout=timeout, **settings)
            outstanding.append(handle)
            if number % 100 == 0:
                checked.append((handle, target, ask, settings))
            elif rng.random() < 0.1:
                handle.cancel()
            if rng.random() < 0.2:
                rng.choice(outstanding[-32:]).cancel()  # queued, running or done
            if len(outstanding) >= OUTSTANDING:
                concurrent.futures.wait(outstanding[: OUTSTANDING // 2])
                kinds.update(map(kind, outstanding[: OUTSTANDING // 2]))
                del outstanding[: OUTSTANDING // 2]
            if number % 500 == 250:
                lm.check_pages()  # in the midst of everything
    kinds.update(map(kind, outstanding))

    assert sum(kinds.values()) == REQUESTS
    assert set(kinds) == {None, "cancelled", AllDeadError, PotentialError, RequestTimeoutError}
    assert kinds[None] > REQUESTS / 3
    assert kinds["cancelled"] > REQUESTS / 20
    assert scheduler.running == scheduler.queued == 0
    for model in (lm, draft):
        model.check_pages()
        assert (model.pages_in_use, model.pages_free) == (0, 160)
        model.engine.prefixes.clear()
        refs = model.engine.pages().refs
        assert not refs[1:].any()
        assert model.engine.pages().free == 160

    for handle, target, ask, settings in checked:
        if kind(handle) is None:
            alone = target.sample(ask, **settings)
            assert [p.tokens for p in handle.result()] == [p.tokens for p in alone]
            torch.testing.assert_close(handle.result().log_evidence, alone.log_evidence)


def kind(handle):
    assert handle.done()
    if handle.cancelled():
        return "cancelled"
    error = handle.exception()
    return None if error is None else type(error)
