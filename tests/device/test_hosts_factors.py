"""Factors on the host that kill, fail or forbid everything in the middle of a block.

The device goes on with rows that a factor has ended, until it hears of it: what comes out must be
what it is where a round stops at once.
"""

from __future__ import annotations

import math
import zlib

import pytest
import torch

from smcprog import Target
from smcprog.errors import AllDeadError, BatchError, PotentialError
from smcprog.potentials.base import Potential
from smcprog.smc.device.wave import DeviceWave

from ..tiny import tiny_llama

OPTIONS = {"vocab_size": 6, "eos": 5, "scale": 0.3, "page_size": 4, "kv_pages": 1000}
PROMPTS = [[0, 1, 2], [1, 1], [4]]


class Hashed(Potential):
    """Of every output it says something, as a hash of the output has it.

    Shares of outputs at which its value is zero, NaN or +∞, at which it raises, and after which
    it allows nothing. It raises, too, when asked about a token that it has forbidden.
    """

    masks = True

    def __init__(self, zero=0.0, nan=0.0, infinite=0.0, breaks=0.0, empty=0.0, allowed=0.85):
        self.shares = {-math.inf: zero, math.nan: nan, math.inf: infinite, "raise": breaks}
        self.empty, self.allowed = empty, allowed

    def hash(self, kind, tokens):
        return zlib.crc32(bytes([kind, *tokens])) / 2**32

    def start(self, request, n):
        self.eos, self.size = request.vocab.eos_ids, request.vocab.size
        return [(list(request.prompt_tokens), 0, 0.0)] * n

    def advance(self, state, tokens, lengths, ended):
        rows = []
        for (known, out, value), row, length in zip(
            state, tokens.tolist(), lengths.tolist(), strict=True
        ):
            for token in row[:length]:
                if not self.allows(known, token):
                    raise ValueError(f"token {token} was forbidden after {known}")
                known, out = [*known, token], out + 1
                value += self.said(known)
            rows.append((known, out, value))
        return rows, torch.tensor([value for _, _, value in rows], dtype=torch.float64)

    def said(self, known):
        u = self.hash(0, known)
        for value, share in self.shares.items():
            if u < share:
                if value == "raise":
                    raise RuntimeError(f"nothing to say of {known}")
                return value
            u -= share
        return self.hash(1, known)

    def allows(self, known, token):
        if self.hash(2, known) < self.empty:
            return False
        return token in self.eos or self.hash(3, [*known, token]) < self.allowed

    def mask(self, state):
        return torch.tensor([[self.allows(known, v) for v in range(self.size)]
                             for known, _, _ in state])  # fmt: skip

    def fork(self, state, ancestors_M):
        return [state[m] for m in ancestors_M.tolist()]


class Unmasked(Hashed):
    masks = False

    def mask(self, state):
        return None


FACTORS = {
    "zero": lambda: Hashed(zero=0.2),
    "rarely zero": lambda: Hashed(zero=0.05),
    "zero, unmasked": lambda: Unmasked(zero=0.2, allowed=1.0),
    "nothing allowed": lambda: Hashed(empty=0.15),
    "zero or nothing allowed": lambda: Hashed(zero=0.15, empty=0.15),
    "breaks": lambda: Hashed(breaks=0.1),
    "NaN or infinite": lambda: Hashed(nan=0.05, infinite=0.05),
    "two of them": lambda: Hashed(zero=0.1) * Unmasked(zero=0.1, allowed=1.0),
}
ROUNDS = {
    "no draft": {"draft_tokens": 0},
    "smc": {"draft_tokens": 3},
    "lossless": {"draft_tokens": 3, "coupling": 1.0},
    "coupled": {"draft_tokens": 3, "coupling": 2.0},
}

# Without a draft a factor is asked once a round: little can go wrong.
CASES = [(f, r) for f in FACTORS for r in ROUNDS if r != "no draft" or f in ("zero", "breaks")]


def pair(graphs):
    return [tiny_llama(seed=seed, graphs=graphs, **OPTIONS) for seed in (1, 2)]


def results(target, prompts=PROMPTS, **options):
    try:
        return target.sample(prompts, **options)
    except BatchError as error:
        return error.results


def check_same(a, b):
    assert type(b) is type(a)
    assert str(b) == str(a) or not isinstance(a, Exception)
    if isinstance(a, AllDeadError):
        assert (b.position, b.potential) == (a.position, a.potential)
        a, b = a.posterior, b.posterior
    if isinstance(a, Exception):
        return
    assert [p.tokens for p in b.particles] == [p.tokens for p in a.particles]
    assert [p.finish_reason for p in b.particles] == [p.finish_reason for p in a.particles]
    assert [(r.ancestors, r.length, r.alive) for r in b.rounds] == [
        (r.ancestors, r.length, r.alive) for r in a.rounds
    ]
    assert b.log_evidence == pytest.approx(a.log_evidence, abs=1e-9)
    for p, q in zip(a.particles, b.particles, strict=True):
        assert q.log_weight == pytest.approx(p.log_weight, abs=1e-9)
        assert q.log_target == pytest.approx(p.log_target, abs=1e-9)


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize(("factor", "rounds"), CASES)
def test_same_posteriors_errors_and_events(factor, rounds, monkeypatch):
    played = []
    play_round = DeviceWave.play_round
    monkeypatch.setattr(DeviceWave, "play_round", lambda w: played.append(w) or play_round(w))
    told = []
    for graphs in (False, True):
        lm, draft = pair(graphs)
        events = []
        posts = []
        # Alone, a particle's death is its request's, with what is said of it.
        for prompts, particles, target in (
            (PROMPTS, 4, Target(lm, top_k=3) * FACTORS[factor]()),
            (PROMPTS * 4, 1, FACTORS[factor]() * Target(lm, top_k=3)),
        ):
            posts += results(
                target, prompts, particles=particles, draft=draft, max_tokens=8, truncate=True,
                ess_threshold=0.8, seed=list(range(len(prompts))), on_round=events.append,
                **ROUNDS[rounds],
            )  # fmt: skip
        told.append((posts, events))
        assert played if graphs else not played
        assert lm.pages_in_use == draft.pages_in_use == 0
    (want, want_events), (got, got_events) = told
    for a, b in zip(want, got, strict=True):
        check_same(a, b)
    for a, b in zip(want_events, got_events, strict=True):
        assert b.ess == pytest.approx(a.ess, abs=1e-6)
        for name in ("request", "round", "tokens", "alive", "finished"):
            assert getattr(b, name) == getattr(a, name)


class Worded(Unmasked):
    """It has a weight for every next token, too, so that tokens are drawn from it."""

    def next_logw(self, state):
        return torch.tensor([[self.said([*known, v]) for v in range(self.size)]
                             for known, _, _ in state])  # fmt: skip


def test_what_tokens_are_drawn_from():
    posts = [
        results(Target(pair(graphs)[0]) * Worded(allowed=1.0), particles=4, max_tokens=6, seed=1)
        for graphs in (False, True)
    ]
    for a, b in zip(*posts, strict=True):
        check_same(a, b)


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize("coupling", [math.inf, 1.0, 2.0])
@pytest.mark.parametrize("broken", ["target", "draft"])
def test_models_that_say_nan(broken, coupling):
    """An error, with the same words; where the coupling is finite, a broken draft does no harm."""
    options = {"particles": 4, "draft_tokens": 2, "max_tokens": 8, "seed": [1, 2, 3]}
    told = []
    for graphs in (False, True):
        models = pair(graphs)
        for model in models:  # both are checked when they run first
            Target(model).sample([0], particles=1, max_tokens=2, seed=0)
        lm, draft = models
        with torch.no_grad():
            bad = lm if broken == "target" else draft
            bad.model.get_output_embeddings().weight[1] = math.nan
        told.append(results(Target(lm), draft=draft, coupling=coupling, **options))
    for a, b in zip(*told, strict=True):
        check_same(a, b)
        assert isinstance(a, PotentialError) == (broken == "target" or coupling == math.inf)


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize("who", ["breaks", "NaN or infinite", "the model"])
def test_events_of_requests_that_fail(who):
    """Their weights are gone in the round in which they fail, for whoever watches as well."""
    told = []
    for graphs in (False, True):
        lm, draft = pair(graphs)
        target, seen = Target(lm), []
        if who == "the model":
            target.sample(
                [0], particles=1, max_tokens=2, seed=0
            )  # it is checked when it runs first
            with torch.no_grad():
                lm.model.get_output_embeddings().weight[1] = math.nan
        else:
            target = target * FACTORS[who]()
        results(
            target, draft=draft, draft_tokens=2, particles=4, max_tokens=8, seed=[1, 2, 3],
            on_round=seen.append, ess_threshold=1.0,
        )  # fmt: skip
        told.append([(e.request, e.round, e.alive, e.finished, round(e.ess, 6)) for e in seen])
    assert told[1] == told[0]
    assert any(ess == 0 and alive == 0 for _, _, alive, _, ess in told[0])
