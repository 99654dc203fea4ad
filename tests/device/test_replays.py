"""Recorded rounds, replayed without their Python, are what a `Wave` plays, wave after wave."""

from __future__ import annotations

import math

import pytest

from smcprog import Grammar, Reward, Target
from smcprog.smc.device import cache
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.program import RoundProgram

from ..tiny import tiny_llama
from .recorded import capture_on_cpu

PROMPTS = [[0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2, 3], [1, 1]]
CASES = {
    "smc": {"draft_tokens": 3},
    "no draft": {"draft_tokens": 0},
    "lossless": {"draft_tokens": 3, "coupling": 1.0},
    "coupled": {"draft_tokens": 2, "coupling": 2.0, "truncate": False},
    "last round short": {"draft_tokens": 5, "max_tokens": 8},
}
FACTORS = {
    "plain": lambda: None,
    "grammar": lambda: Grammar.regex("[ab][a-d]*|c?"),
    "reward": lambda: Reward(lambda texts: [t.count("b") for t in texts], beta=0.5, at="round"),
}


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(cache, "captures", lambda lm: True)
    monkeypatch.setattr(Launcher, "_capture", capture_on_cpu)
    played = []
    pieces = RoundProgram._pieces

    def counted(program):
        found = pieces(program)
        return [lambda piece=piece: played.append(piece) or piece() for piece in found]

    monkeypatch.setattr(RoundProgram, "_pieces", counted)
    return played


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("case", CASES)
def test_replayed(case, factor, recorded):
    options = {"vocab_size": 6, "eos": 5, "scale": 0.3, "page_size": 4, "kv_pages": 1000}
    settings = {"particles": 4, "max_tokens": 11, "ess_threshold": 1.0, **CASES[case]}
    settings.setdefault("coupling", math.inf)

    def sampler(graphs):
        lm = tiny_llama(seed=1, graphs=graphs, **options)
        draft = tiny_llama(seed=2, graphs=graphs, **options) if settings["draft_tokens"] else None
        extra = FACTORS[factor]()
        target = Target(lm, temperature=0.9) if extra is None else Target(lm) * extra
        return lm, lambda prompts, seed: target.sample(
            prompts, draft=draft, seed=[seed + i for i in range(len(prompts))], **settings
        )

    _, as_before = sampler(False)
    lm, replayed = sampler(True)
    for seed, prompts in ((1, PROMPTS), (20, PROMPTS[::-1]), (40, PROMPTS[:1])):
        for a, b in zip(as_before(prompts, seed), replayed(prompts, seed), strict=True):
            assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
            assert [r.ancestors for r in a.rounds] == [r.ancestors for r in b.rounds]
            assert b.log_evidence == pytest.approx(a.log_evidence, abs=1e-9)
            for p, q in zip(a.particles, b.particles, strict=True):
                assert q.logprobs == pytest.approx(p.logprobs, abs=1e-9)
                assert q.log_target == pytest.approx(p.log_target, abs=1e-9)
        assert lm.pages_in_use == 0
    # Three requests, and one: two forms. Their Python ran in warm-ups and recordings only.
    pieces = [len(launcher.program.pieces) for launcher in lm.engine.kept.values()]
    assert len(pieces) == 2
    assert len(recorded) == 3 * sum(pieces)
