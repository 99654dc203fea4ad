"""Rounds that are replayed are the rounds that were captured, and those that go step by step.

On the CPU nothing is captured: there, rounds of fixed shape are held against `smc.wave`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings

import pytest
import torch

from smcprog import LM, Target
from smcprog.smc.call import Call
from smcprog.smc.device import cache
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.records import WaveRequest

from ..engine.conftest import toy_vocabulary
from .conftest import ALWAYS, flashinfer_lm
from .models import random_model

PROMPTS = [[(11 * i + 5 * j) % 49 for i in range(30 + 7 * j)] for j in range(3)]
LONG = 12
CALLS = [
    {"draft_tokens": 0},
    {"draft_tokens": 3, "ess_threshold": 1.0},
    {"draft_tokens": 3, "coupling": 1.0},
    {"draft_tokens": 2, "coupling": 2.0, "ess_threshold": 1.0, "resampling": "residual"},
]


def step_by_step(program, capture):
    return Launcher(program, capture=False)


def pair(device, dtype, make=None, **options):
    """Target and draft; by default under PyTorch's attention."""
    # Without kept prompts, whose other shapes of passes would round otherwise.
    options |= {"kv_pages": 600, "page_size": 16, "prefix_cache": False}
    if make is None:
        options["attention"] = "torch"
        make = functools.partial(LM.from_model, tokenizer=toy_vocabulary())
    models = [random_model("llama", device, dtype, num_hidden_layers=n) for n in (2, 1)]
    return [make(model, graphs=True, **options) for model in models]


def play(lm, draft, call, seed=0, prompts=PROMPTS):
    settings = {"draft": draft if call["draft_tokens"] else None, **call}
    return Target(lm).sample(
        prompts,
        particles=5,
        max_tokens=LONG,
        seed=[seed + i for i in range(len(prompts))],
        **settings,
    )


def told(posts):
    return [
        (p.log_evidence, [r.ancestors for r in p.rounds], [q.tokens for q in p.particles])
        for p in posts
    ]


def assert_same(found, wanted):
    for (evidence, ancestors, tokens), (evidence_2, ancestors_2, tokens_2) in zip(
        told(found), told(wanted), strict=True
    ):
        assert tokens == tokens_2 and ancestors == ancestors_2
        assert evidence == pytest.approx(evidence_2, abs=1e-4)


@pytest.mark.parametrize("call", CALLS, ids=lambda c: "-".join(map(str, c.values())))
def test_replay_equals_step_by_step(call, device, monkeypatch):
    """In float32 under PyTorch's attention: the same tokens, whichever way rounds are played."""
    lm, draft = pair(device, torch.float32)
    captured = play(lm, draft, call)
    (launcher,) = lm.engine.kept.values()
    assert launcher.captured == (device.type == "cuda")
    again = play(lm, draft, call)  # a replay of what the first call left
    assert_same(again, captured)
    assert list(lm.engine.kept.values()) == [launcher]
    other = play(lm, draft, call, seed=100)
    assert told(other) != told(captured)

    lm.engine.kept.clear()
    monkeypatch.setattr(cache, "Launcher", step_by_step)
    assert_same(captured, play(lm, draft, call))
    lm.graphs = False  # rounds whose shapes follow the rows
    assert_same(captured, play(lm, draft, call))
    assert lm.pages_in_use == draft.pages_in_use == 0


def test_programs_in_turn(device, monkeypatch):
    """Captured rounds use one memory for what they make on their way; none is in another's way."""
    lm, draft = pair(device, torch.float32)
    calls = [(CALLS[1], PROMPTS), (CALLS[0], PROMPTS[:1]), (CALLS[1], PROMPTS[:2])]
    in_turn = [[play(lm, draft, call, prompts=prompts) for call, prompts in calls] for _ in (0, 1)]
    launchers = list(lm.engine.kept.values())
    assert len(launchers) == 3
    assert all(launcher.captured == (device.type == "cuda") for launcher in launchers)
    # What one of them gives back was none of the others'.
    del launchers
    lm.engine.kept.popitem(last=False)[1].close()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.full((1 << 28,), 255, dtype=torch.uint8, device=device)
    in_turn.append([play(lm, draft, call, prompts=prompts) for call, prompts in calls])
    assert len(lm.engine.kept) == 3
    lm.engine.close_kept()
    monkeypatch.setattr(cache, "Launcher", step_by_step)
    for found in in_turn:
        for (call, prompts), one in zip(calls, found, strict=True):
            assert_same(one, play(lm, draft, call, prompts=prompts))


def test_a_model_that_waits_is_not_captured(device):
    """Its rounds go step by step, and others' are captured as if nothing had happened."""
    lm, draft = pair(device, torch.float32)
    wanted = play(lm, draft, CALLS[1])
    lm.engine.close_kept()

    def look(module, args, out):
        (out if torch.is_tensor(out) else out[0]).sum().item()

    hook = lm.model.model.layers[0].register_forward_hook(look)
    on_cuda = device.type == "cuda"
    warns = pytest.warns(UserWarning, match="cannot be captured") if on_cuda else _no_warning()
    with warns:
        assert_same(play(lm, draft, CALLS[1]), wanted)
    hook.remove()
    if on_cuda:
        assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
        assert not next(iter(lm.engine.kept.values())).captured
    lm.engine.close_kept()
    assert_same(play(lm, draft, CALLS[1]), wanted)
    assert next(iter(lm.engine.kept.values())).captured == on_cuda


@contextlib.contextmanager
def _no_warning():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*cannot be captured")
        yield


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("call", CALLS[:2], ids=["auto", "draft"])
def test_the_host_books_a_round_behind(call, ends, device, monkeypatch):
    """What is launched before it is known that all rows have ended changes nothing.

    Where the limit ends them, that is known, and no round is launched in vain.
    """
    pending = []

    def as_if_captured(program, capture):
        launcher = Launcher(program, capture)
        launcher.captured = True
        return launcher

    monkeypatch.setattr(cache, "Launcher", as_if_captured)
    play_round = DeviceWave.play_round

    def watched(wave):
        play_round(wave)
        pending.append(len(wave._pending))

    monkeypatch.setattr(DeviceWave, "play_round", watched)
    lm, draft = pair(device, torch.float32)
    lm.vocab.eos_ids = tuple(range(10, 50)) if ends else ()  # four of five tokens end an output
    found = play(lm, draft, call)
    assert max(pending) == 1 and pending[-1] == 0
    rounds = max(len(post.rounds) for post in found) - 1
    assert len(pending) == rounds + ends
    assert ({len(q.tokens) for p in found for q in p.particles} == {LONG}) != ends
    lm.graphs = False
    assert_same(found, play(lm, draft, call))


@pytest.mark.parametrize("call", CALLS, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("machine", [None, ALWAYS], ids=["separate", "cascades"])
def test_flashinfer(call, machine, device, monkeypatch):
    """In bfloat16, with prompts that are read once a request, and without.

    Draws may flip where rounding differs, so the first round with forwards is compared: its
    log-weights, of the rows whose tokens are the same. They are nearly all.
    """
    make = functools.partial(flashinfer_lm, machine=machine)
    lm, draft = pair(device, torch.bfloat16, make)
    captured = play(lm, draft, call)
    assert_same(play(lm, draft, call), captured)
    (launcher,) = lm.engine.kept.values()
    assert launcher.program.form.shared == (machine is ALWAYS)
    lm.engine.kept.clear()
    monkeypatch.setattr(cache, "Launcher", step_by_step)
    eager = play(lm, draft, call)
    lm.graphs = False
    stepping = play(lm, draft, call)
    for other in (eager, stepping):
        near = 0
        for a, b in zip(captured, other, strict=True):
            first = zip(a.rounds[1].log_weights, b.rounds[1].log_weights, strict=True)
            near += sum(x == pytest.approx(y, abs=0.1) for x, y in first)
        assert near >= 12, near  # of 15


def test_padding_rows_say_nothing(device):
    """Five requests are played as six: the sixth is padding, and the five do not know."""
    lm, draft = pair(device, torch.float32)
    prompts = [PROMPTS[0]] * 5
    together = play(lm, draft, CALLS[1], prompts=prompts)
    (launcher,) = lm.engine.kept.values()
    assert launcher.program.form.requests > len(prompts)
    alone = [play(lm, draft, CALLS[1], seed=i, prompts=[prompts[i]])[0] for i in range(5)]
    assert_same(together, alone)


@contextlib.contextmanager
def no_waiting(device):
    """Whatever makes the host wait for the device is an error meanwhile."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("call", [CALLS[0], CALLS[1]], ids=["auto", "draft"])
def test_a_round_does_not_wait(call, captured, device, monkeypatch):
    if not captured:
        monkeypatch.setattr(cache, "Launcher", step_by_step)
    lm, draft = pair(device, torch.bfloat16, flashinfer_lm)
    settings = {"draft": draft if call["draft_tokens"] else None, **call}
    made = Call.of(Target(lm), None, particles=5, max_tokens=30, **settings)
    requests = [WaveRequest(i, made.request(p), i) for i, p in enumerate(PROMPTS)]
    wave = DeviceWave(made.product, requests, made.settings, made.truncate)
    try:
        wave.start()
        wave.play_round()
        with no_waiting(device):
            for _ in range(3):
                wave.play_round()
        while wave.running:
            wave.play_round()
    finally:
        wave.release()
    assert all(math.isfinite(z) for z in wave.log_evidence_R.tolist())
