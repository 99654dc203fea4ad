"""Pages that rounds of fixed shape take at once, and what happens where there are too few."""

from __future__ import annotations

import contextlib

import pytest

from smcprog import LM, Target
from smcprog.potentials.models.target import Target as TargetFactor
from smcprog.smc.block import DEAD
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


class Enough(Exception):
    pass


@pytest.mark.parametrize("broken_off", [False, True])
def test_kept_programs_are_padding(broken_off):
    """Whoever takes one next, and fills some of its slots, finds the others idle."""
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)

    def watch(event):
        if broken_off and event.round == 2:
            raise Enough

    with contextlib.suppress(Enough):
        options = {"particles": 4, "max_tokens": 40, "seed": [1, 2], "truncate": False}
        Target(lm).sample(PROMPTS[:2], on_round=watch, **options)
        assert not broken_off
    (launcher,) = lm.engine.kept.values()
    program = launcher.program
    assert (program.state.finish_M == DEAD).all()
    assert (program.state.length_M == 2).all() and (program.state.limit_M == 2).all()
    assert not program.target.arena.tables_M_W.any()
    assert not program.target.arena.pages_R_A.any()
    assert lm.pages_in_use == 0
