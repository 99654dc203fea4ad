"""Launches: on which stream, in which order, and what they leave behind."""

from __future__ import annotations

import ast
import gc
import weakref
from pathlib import Path

import pytest
import torch

import smcprog
from smcprog import Grammar, Reward, Target
from smcprog.smc.device import cache
from smcprog.smc.device.beside import Beside
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.program import RoundProgram

from ..tiny import tiny_llama

POOL = {"page_size": 4, "kv_pages": 2000, "prefix_cache": False}
OPTIONS = {"vocab_size": 6, "eos": 5, "scale": 0.3, **POOL}
ROOT = Path(smcprog.__file__).parent
#: What means the current device where it is not told which one.
OF_A_DEVICE = {"record", "current_stream", "default_stream", "Stream", "synchronize"}


def files():
    for folder in ("smc/device", "attention", "engine"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_streams_and_events_are_of_the_models_device():
    """A model may be on another device than the current one, whose streams have no part in it."""
    seen = 0
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            where, name = f"{path.name}:{node.lineno}", node.func.attr
            if name == "synchronize" and ast.unparse(node.func.value) != "torch.cuda":
                continue  # of an event, or of a stream
            if name in OF_A_DEVICE:
                seen += 1
                assert node.args, f"{where}: {name} of the current device"
            if ast.unparse(node.func) == "torch.cuda.graph":
                seen += 1
                assert "stream" in {k.arg for k in node.keywords}, where
    assert seen >= 6


@pytest.mark.filterwarnings("ignore:the draft")
def test_the_host_thinks_while_a_pass_runs(monkeypatch):
    """Drafted tokens are looked at after the next pass was launched, not before."""
    log: list[str] = []
    pieces = RoundProgram._pieces

    def noted(program):
        found = pieces(program)
        return [lambda i=i, p=p: log.append(f"piece {i}") or p() for i, p in enumerate(found)]

    monkeypatch.setattr(RoundProgram, "_pieces", noted)
    for name in ("took", "send_mask", "commit"):
        plain = getattr(Beside, name)

        def call(self, *args, name=name, plain=plain):
            log.append(name)
            return plain(self, *args)

        monkeypatch.setattr(Beside, name, call)
    lm, draft = (tiny_llama(seed=s, graphs=True, **OPTIONS) for s in (1, 2))
    target = Target(lm) * Grammar.regex("[a-d]*")
    target.sample([0, 1], draft=draft, draft_tokens=3, particles=3, max_tokens=30, seed=0)
    begin = log.index("piece 0")
    assert log[begin : begin + 17] == [
        "piece 0", "send_mask",
        "piece 1", "piece 2", "took", "send_mask",
        "piece 3", "piece 4", "took", "send_mask",
        "piece 5", "piece 6", "took", "send_mask",
        "piece 7", "commit", "piece 8",
    ]  # fmt: skip


def test_who_judges_blocks_only_stops_rounds_once():
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    target = Target(lm) * Reward(lambda texts: [len(t) for t in texts], beta=0.1)
    target.sample([0, 1], particles=3, max_tokens=6, seed=0)
    (launcher,) = lm.engine.kept.values()
    assert len(launcher.groups) == 2


def sample(lm, particles):
    return Target(lm).sample([0, 1], particles=particles, max_tokens=6, seed=3)


def test_memory_of_kept_programs_is_given_up_for_a_new_one(monkeypatch):
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    want = [p.tokens for p in sample(lm, 5).particles]
    for particles in (2, 3):
        sample(lm, particles)
    lm.engine.kept.popitem(last=False)[1].close()  # that of five
    calls: list[int] = []

    def launcher(program, capture):
        calls.append(len(lm.engine.kept))
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Launcher(program, capture)

    monkeypatch.setattr(cache, "Launcher", launcher)
    assert [p.tokens for p in sample(lm, 5).particles] == want
    assert calls == [2, 0]
    monkeypatch.undo()


def test_a_closed_program_is_gone_at_once():
    """A program holds graphs and their memory, which must not wait for the collector."""
    lm = tiny_llama(seed=1, graphs=True, **OPTIONS)
    sample(lm, 3)
    (launcher,) = lm.engine.kept.values()
    gone = weakref.ref(launcher.program)
    del launcher
    gc.collect()
    gc.disable()
    try:
        assert gone() is not None
        with lm.engine.lock:
            lm.engine.close_kept()
        assert gone() is None
    finally:
        gc.enable()
