"""Recorded rounds over FlashInfer's index arrays: planned ahead, placed in the recording.

The kernels are those of `tests/attention/flashinfer_reference`. In passes of fixed shape they read
the buffers that a round fills, and insist that these are what the host had planned for.
"""

from __future__ import annotations

import math

import pytest

from smcprog import Grammar, Target
from smcprog.attention.flashinfer import FlashInferAttention, Machine
from smcprog.smc.device import cache
from smcprog.smc.device.launch import Launcher

from ..attention import flashinfer_reference as library
from ..tiny import tiny_llama
from .recorded import capture_on_cpu, opaque

PROMPTS = [[0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2, 3], [1, 1]]
ALWAYS = Machine(launch=0.0, replay=0.0, bandwidth=1.0, l2=0)  # shared pages are read apart
NEVER = Machine(launch=1.0, replay=1.0)


@pytest.fixture(autouse=True)
def recorded(monkeypatch):
    monkeypatch.setattr(cache, "captures", lambda lm: True)
    monkeypatch.setattr(Launcher, "_capture", capture_on_cpu)
    for name in ("append_paged_kv_cache", "merge_state_in_place"):
        monkeypatch.setattr(library, name, opaque(getattr(library, name)))
    monkeypatch.setattr(library.Wrapper, "_attend", opaque(library.Wrapper._attend))


def over_flashinfer(lm, machine):
    attention = FlashInferAttention(
        lm.kv_pages + 1, lm.page_size, lm.device, layers=2, library=library
    )
    attention.machine = machine
    lm.engine.attention = attention
    return lm


@pytest.mark.filterwarnings("ignore:the draft")
@pytest.mark.parametrize("machine", [ALWAYS, NEVER], ids=["cascade", "apart"])
@pytest.mark.parametrize(
    ("coupling", "k", "masked"),
    [(math.inf, 3, False), (math.inf, 0, False), (2.0, 2, False), (math.inf, 2, True)],
)
def test_same_as_before(coupling, k, masked, machine):
    options = {"vocab_size": 6, "eos": 5, "scale": 0.3, "page_size": 2, "kv_pages": 400}

    def posteriors(graphs):
        models = [tiny_llama(seed=s, graphs=graphs, **options) for s in (1, 2)]
        if graphs:
            models = [over_flashinfer(lm, machine) for lm in models]
        target = Target(models[0], temperature=0.9)
        if masked:
            target = target * Grammar.regex("[ab][a-d]*")
        draft = models[1] if k else None
        for seed, prompts in ((1, PROMPTS), (20, PROMPTS[::-1])):
            yield from target.sample(
                prompts, draft=draft, draft_tokens=k, coupling=coupling, particles=3,
                max_tokens=10, ess_threshold=1.0, seed=[seed, seed + 1, seed + 2],
            )  # fmt: skip
            assert all(lm.pages_in_use == 0 for lm in models)
        if graphs:
            programs = [launcher.program for launcher in models[0].engine.kept.values()]
            assert [p.form.shared for p in programs] == [machine is ALWAYS]

    library.MADE.clear()
    for a, b in zip(posteriors(False), posteriors(True), strict=True):
        assert [p.tokens for p in a.particles] == [p.tokens for p in b.particles]
        assert [r.ancestors for r in a.rounds] == [r.ancestors for r in b.rounds]
        # Parts of a cascade are merged by float32 sums.
        assert b.log_evidence == pytest.approx(a.log_evidence, abs=1e-5)
    fixed = [wrapper for wrapper in library.MADE if wrapper.graph]
    assert fixed and all(wrapper.plans > 3 for wrapper in fixed)  # once a round, not once a graph
