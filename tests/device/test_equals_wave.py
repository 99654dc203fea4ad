"""Rounds of fixed shape draw what a `Wave` draws: every token, weight and ancestor.

The wave's rounds are proven exact elsewhere (`tests/exactness`), so these are.
"""

from __future__ import annotations

import math
import warnings

import pytest
from covertable import make

from smcprog import Grammar, Reward, Target
from smcprog.errors import AllDeadError, BatchError
from smcprog.potentials import Product
from smcprog.smc.device.suits import reason_against
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.settings import Settings

from ..tiny import tiny_llama

PROMPTS = [[0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2, 3], [1, 1]]
DIMENSIONS = {
    "k": [0, 1, 3],
    "coupling": [math.inf, 1.0, 2.0],
    "n": [1, 4, 8],
    "most": [1, 2, 9, 12],
    "power": [1.0, 2.0],
    "local": [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.05}],
    "truncate": [True, False],
    "masked": [False, True],
    "reward": [None, "end", "round"],
    "page": [1, 4],
    "scheme": ["systematic", "ssp", "multinomial"],
    "threshold": [0.5, 1.0],
    "joint": [True, False],
}


def configurations():
    for row in make(DIMENSIONS, strength=2):
        if row["k"] == 0:
            row = {**row, "coupling": math.inf}
        yield pytest.param(row, id="-".join(str(v) for v in row.values()))


def posteriors(c, *, graphs, monkeypatch):
    memory = {"page_size": c["page"], "kv_pages": 2000, "graphs": graphs}
    options = {"vocab_size": 6, "eos": 5, "scale": 0.3, **memory}
    lm = tiny_llama(seed=1, **options)
    draft = tiny_llama(seed=2, **options) if c["k"] else None
    target = Target(lm, **c["local"]) ** c["power"]
    if c["masked"]:
        target = target * Grammar.regex("[ab][a-d]*|c?")
    if c["reward"]:
        score = Reward(lambda texts: [t.count("b") for t in texts], beta=0.5, at=c["reward"])
        target = target * score
    played = []
    play_round = DeviceWave.play_round
    monkeypatch.setattr(DeviceWave, "play_round", lambda w: played.append(w) or play_round(w))
    posts = results(
        target,
        particles=c["n"],
        draft=draft,
        draft_tokens=c["k"],
        coupling=c["coupling"],
        max_tokens=c["most"],
        truncate=c["truncate"],
        resampling=c["scheme"],
        ess_threshold=c["threshold"],
        joint_draws=c["joint"],
        seed=[11, 12, 13],
    )
    monkeypatch.undo()
    for model in (lm, draft):
        if model is not None:
            assert model.pages_in_use == 0
            model.check_pages()
    return posts, len(played)


def results(target, **options):
    """Posteriors, and errors of requests in which all died."""
    try:
        return target.sample(PROMPTS, **options)
    except BatchError as error:
        return error.results


@pytest.mark.parametrize("c", list(configurations()))
def test_same_posterior(c, monkeypatch):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the draft")
        want, no_rounds = posteriors(c, graphs=False, monkeypatch=monkeypatch)
        got, rounds = posteriors(c, graphs=True, monkeypatch=monkeypatch)
    assert no_rounds == 0
    for a, b in zip(want, got, strict=True):
        if isinstance(a, AllDeadError):
            assert str(b) == str(a)
            a, b = a.posterior, b.posterior
        assert rounds >= len(b.rounds) - 1
        assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
        assert [p.finish_reason for p in a.particles] == [p.finish_reason for p in b.particles]
        assert a.text == b.text
        assert b.log_evidence == pytest.approx(a.log_evidence, abs=1e-9)
        assert [r.ancestors for r in a.rounds] == [r.ancestors for r in b.rounds]
        assert [r.length for r in a.rounds] == [r.length for r in b.rounds]
        assert [r.ess for r in b.rounds] == pytest.approx([r.ess for r in a.rounds], abs=1e-6)
        for p, q in zip(a.particles, b.particles, strict=True):
            assert q.log_target == pytest.approx(p.log_target, abs=1e-9)
            assert q.log_weight == pytest.approx(p.log_weight, abs=1e-9)
            assert q.logprobs == pytest.approx(p.logprobs, abs=1e-9)


def reason(target, **options):
    product = target if isinstance(target, Product) else Product([target])
    return reason_against(product, Settings.of(options.pop("stop", None), **options))


def test_reasons():
    lm, other = tiny_llama(seed=1), tiny_llama(seed=2)
    assert reason(Target(lm)) is None
    assert reason(Target(lm), draft=other, draft_tokens=2, coupling=2.0) is None
    assert "several models" in reason(Target(lm) * Target(other))
    assert "greedy" in reason(Target(lm, temperature=0))
    assert "stop" in reason(Target(lm), stop="b")
    assert "auto" in reason(Target(lm), draft=other, draft_tokens="auto")
    assert "moves" in reason(Target(lm), moves=1)
    assert "deterministic" in reason(Target(lm), deterministic=True)


OTHERS = [{"stop": "bb"}, {"moves": 1}, {"first_tokens": "without_replacement"}]


@pytest.mark.parametrize("options", OTHERS)
def test_what_does_not_suit_is_played_as_before(options):
    kept = {"vocab_size": 6, "eos": 5, "scale": 0.3}
    posts = [
        Target(tiny_llama(seed=1, graphs=graphs, **kept)).sample(
            [0, 1], particles=4, max_tokens=8, seed=3, **options
        )
        for graphs in (False, True)
    ]
    assert [p.tokens for p in posts[0].particles] == [p.tokens for p in posts[1].particles]


@pytest.mark.parametrize("graphs", ["yes", 1, None])
def test_bad_option(graphs):
    with pytest.raises(ValueError, match="graphs must be True, False or"):
        tiny_llama(graphs=graphs)
