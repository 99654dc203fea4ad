"""Pages that rounds of fixed shape take at once, and what happens where there are too few."""

from __future__ import annotations

import pytest

from smcprog import LM, Target
from smcprog.potentials.models.target import Target as TargetFactor
from smcprog.smc.call import Call
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.wave import Wave

from ..tiny import tiny_llama

OPTIONS = {"vocab_size": 6, "eos": 5, "scale": 0.3, "page_size": 4, "prefix_cache": False}
PROMPTS = [[0, 1, 2, 3, 0], [1, 2, 3, 4, 0, 1, 2, 3, 0], [1, 1], [2, 2, 1]]


@pytest.fixture
def waves(monkeypatch):
    """What kinds of waves were played, and for how many requests."""
    played = []
    run = Wave.run
    monkeypatch.setattr(Wave, "run", lambda w: played.append((type(w), len(w.requests))) or run(w))
    return played


def pair(kv_pages) -> tuple[LM, LM]:
    return (
        tiny_llama(seed=1, graphs=True, kv_pages=kv_pages, **OPTIONS),
        tiny_llama(seed=2, graphs=True, kv_pages=kv_pages, **OPTIONS),
    )


def sample(lm, draft, prompts=PROMPTS):
    seeds = list(range(len(prompts)))
    return Target(lm).sample(
        prompts, draft=draft, draft_tokens=3, particles=4, max_tokens=16, seed=seeds
    )


def need(lm, draft):
    """Pages that the requests take, of target and draft."""
    options = {"draft": draft, "draft_tokens": 3, "particles": 4, "max_tokens": 16}
    call = Call.of(TargetFactor(lm), None, **options)
    found = [call.wave_pages(call.request(p)) for p in PROMPTS]
    return [[f[lm] for f in found], [f[draft] for f in found]]


@pytest.mark.filterwarnings("ignore:the draft")
def test_waves_are_as_large_as_their_pages_allow(waves):
    want = [p.tokens for post in sample(*pair(1000)) for p in post.particles]
    assert waves == [(DeviceWave, 4)]
    waves.clear()
    pages = need(*pair(1000))
    lm, draft = pair(max(max(sum(side[:2]), sum(side[2:])) for side in pages))
    got = [p.tokens for post in sample(lm, draft) for p in post.particles]
    assert waves == [(DeviceWave, 2), (DeviceWave, 2)]
    assert got == want
    assert lm.pages_in_use == draft.pages_in_use == 0


@pytest.mark.filterwarnings("ignore:the draft")
def test_too_few_pages_for_fixed_shapes(waves):
    """Rounds whose shapes follow the rows need fewer pages: one request may still run so."""
    want = [p.tokens for p in sample(*pair(1000), prompts=PROMPTS[:1])[0].particles]
    waves.clear()
    pages = need(*pair(1000))
    lm, draft = pair(max(side[0] for side in pages) - 6)
    got = [p.tokens for p in sample(lm, draft, prompts=PROMPTS[:1])[0].particles]
    assert waves == [(DeviceWave, 1), (Wave, 1)]
    assert got == want
    assert lm.pages_in_use == draft.pages_in_use == 0
    lm.check_pages()


def test_programs_are_kept_and_bounded():
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    for n in range(1, 28):
        Target(lm).sample([0, 1], particles=n, max_tokens=3, seed=0)
    assert len(lm.engine.kept) == 24
    before = list(lm.engine.kept.values())
    Target(lm).sample([0, 1, 2], particles=27, max_tokens=3, seed=1)
    assert list(lm.engine.kept.values())[-1] is before[-1]
    assert len(lm.engine.kept) == 24
    lm.kv_pages = 500  # a program knows the pool's size
    assert not lm.engine.kept
    Target(lm).sample([0, 1, 2], particles=27, max_tokens=3, seed=1)
