"""Requests that share rounds, join and leave: each gets what it gets alone."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from smcprog import Grammar, Scheduler, Target
from smcprog.smc.device import cache
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.slot import SlotWave

from ..tiny import tiny_llama
from .recorded import capture_on_cpu

POOL = {"page_size": 4, "kv_pages": 4000, "prefix_cache": False}
OPTIONS = {"vocab_size": 6, "eos": 5, "scale": 0.3, **POOL}


@pytest.fixture(params=[False, True], ids=["played", "recorded"])
def recorded(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(cache, "captures", lambda lm: True)
        monkeypatch.setattr(Launcher, "_capture", capture_on_cpu)
    return request.param


@pytest.fixture
def batched(monkeypatch):
    """How many requests were in their batch at each round."""
    sizes = []
    play_round = SlotWave.play_round

    def counted(wave):
        sizes.append(len(wave._batch.members))
        play_round(wave)

    monkeypatch.setattr(SlotWave, "play_round", counted)
    return sizes


def check_same(alone, together):
    assert [p.tokens for p in together.particles] == [p.tokens for p in alone.particles]
    assert [r.ancestors for r in together.rounds] == [r.ancestors for r in alone.rounds]
    assert together.log_evidence == pytest.approx(alone.log_evidence, abs=1e-9)
    for p, q in zip(alone.particles, together.particles, strict=True):
        assert q.logprobs == pytest.approx(p.logprobs, abs=1e-9)
        assert q.log_weight == pytest.approx(p.log_weight, abs=1e-9)
        assert q.finish_reason == p.finish_reason


@pytest.mark.filterwarnings("ignore:the draft")
def test_mixed_requests(recorded, batched):
    """Of different lengths and settings, in any order, beside others that do not share rounds."""
    rng = random.Random(3)
    asked = []
    for i in range(24):
        prompt = [rng.randrange(5) for _ in range(rng.choice([1, 2, 5, 9]))]
        settings = {
            "particles": rng.choice([3, 3, 4]),
            "draft_tokens": rng.choice([0, 2, 2]),
            "max_tokens": rng.choice([2, 3, 9, 14]),
            "ess_threshold": 1.0,
            "seed": i,
        }
        asked.append((prompt, settings, rng.choice(["plain", "plain", "plain", "grammar"])))

    def target_of(lm, kind):
        return Target(lm) * Grammar.regex("[ab]?[a-d]*") if kind == "grammar" else Target(lm)

    before, small_before = (tiny_llama(seed=s, graphs=False, **OPTIONS) for s in (1, 2))
    lm, small = (tiny_llama(seed=s, graphs=True, **OPTIONS) for s in (1, 2))
    with Scheduler() as scheduler:
        handles = [
            scheduler.submit(target_of(lm, kind), prompt, draft=small, **settings)
            for prompt, settings, kind in asked
        ]
        got = [handle.result(timeout=120) for handle in handles]
    for (prompt, settings, kind), post in zip(asked, got, strict=True):
        check_same(target_of(before, kind).sample(prompt, draft=small_before, **settings), post)
    assert max(batched) >= 4  # they did share
    for model in (lm, small):
        assert model.pages_in_use == 0
        model.check_pages()
        model.engine.kept.clear()


@pytest.mark.filterwarnings("ignore:the draft")
def test_who_goes_leaves_nothing_behind(recorded):
    """Cancelled and late requests give their pages back; those beside them do not notice."""
    before = tiny_llama(seed=1, graphs=False, **OPTIONS)
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    settings = {"particles": 4, "max_tokens": 40, "ess_threshold": 1.0}
    with Scheduler() as scheduler:
        kept, gone = [], []
        for i in range(12):
            handle = scheduler.submit(
                Target(lm), [0, 1, i % 5], seed=i, timeout=0.0 if i % 4 == 3 else None, **settings
            )
            (gone if i % 4 in (1, 3) else kept).append((i, handle))
        for i, handle in gone:
            if i % 4 == 1:
                threading.Event().wait(0.01)
                handle.cancel()
        got = [(i, handle.result(timeout=120)) for i, handle in kept]
    for i, post in got:
        check_same(Target(before).sample([0, 1, i % 5], seed=i, **settings), post)
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_an_error_reaches_all_and_the_next_batch_works(monkeypatch):
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    launches = []
    schedule = Launcher.schedule

    def failing(launcher, length_M):
        launches.append(len(length_M))
        if len(launches) == 3:
            raise RuntimeError("the device had enough")
        schedule(launcher, length_M)

    monkeypatch.setattr(Launcher, "schedule", failing)
    settings = {"particles": 4, "max_tokens": 20}
    with Scheduler() as scheduler:
        handles = [scheduler.submit(Target(lm), [0, 1, i], seed=i, **settings) for i in range(3)]
        outcomes = [handle.exception(timeout=60) for handle in handles]
        assert any(isinstance(e, RuntimeError) and "had enough" in str(e) for e in outcomes)
        again = scheduler.submit(Target(lm), [0, 1], seed=9, **settings).result(timeout=60)
    assert again.alive
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_no_memory_for_a_smaller_program(monkeypatch):
    """Then all stay where they are, and who leaves gives everything back."""
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    lm.vocab.eos_ids = ()  # so that they end one after the other
    sizes: list[int] = []
    take = cache.take

    def short(target, draft, form):
        if sizes and form.requests < max(sizes):
            sizes.append(0)
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(form.requests)
        return take(target, draft, form)

    monkeypatch.setattr(cache, "take", short)
    with Scheduler() as scheduler:
        handles = [
            scheduler.submit(Target(lm), [0, 1, i], particles=3, max_tokens=12 + 8 * i, seed=i)
            for i in range(5)
        ]
        got = [handle.result(timeout=60) for handle in handles]
    assert 0 in sizes  # it was wanted
    monkeypatch.undo()
    for i, post in enumerate(got):
        alone = Target(lm).sample([0, 1, i], particles=3, max_tokens=12 + 8 * i, seed=i)
        check_same(alone, post)
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_small_pools_play_as_before(batched):
    lm = tiny_llama(seed=1, graphs=True, **{**OPTIONS, "kv_pages": 24})
    with Scheduler() as scheduler:
        post = scheduler.submit(Target(lm), [0, 1], particles=4, max_tokens=16, seed=1).result(60)
    assert post.alive and not batched


@pytest.mark.filterwarnings("ignore:the draft")
def test_observers_see_rounds_as_they_were(recorded):
    """Whoever watches a request is told of each round with the texts of that round."""

    def events(graphs, sample):
        lm, draft = (tiny_llama(seed=s, graphs=graphs, **OPTIONS) for s in (1, 2))
        seen = []
        options = {"particles": 4, "max_tokens": 20, "seed": 7, "ess_threshold": 1.0}
        options |= {"draft": draft, "draft_tokens": 1}
        sample(Target(lm), [0, 1, 2], on_round=seen.append, **options)
        return seen[1:]  # in the first round all weights are equal, and rounding says who is best

    def scheduled(target, prompt, **options):
        with Scheduler() as scheduler:
            scheduler.submit(target, prompt, **options).result(60)

    want = events(False, lambda target, prompt, **options: target.sample(prompt, **options))
    assert len(want) >= 3
    for sample in (lambda t, prompt, **options: t.sample(prompt, **options), scheduled):
        got = events(True, sample)
        assert len(got) == len(want)
        for a, b in zip(want, got, strict=True):
            assert b.ess == pytest.approx(a.ess)
            for name in ("request", "round", "tokens", "alive", "finished", "text"):
                assert getattr(a, name) == getattr(b, name)
