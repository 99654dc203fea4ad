"""A fork moves the partly filled tail pages of its rows and nothing else, by bytes."""

from __future__ import annotations

import pytest
import torch

from smcprog import Target
from smcprog.smc.device import cache
from smcprog.smc.device.launch import Launcher

from .conftest import flashinfer_lm
from .models import random_model

SIZE = 16
ROWS = 8


class Mover:
    """The attention's own copies, with the bytes that they move."""

    def __init__(self, lm, monkeypatch):
        self.lm = lm
        self.bytes: list[int] = []
        attention = lm.engine.attention
        copy, move = attention.copy_pages, attention.move_pages

        def copy_pages(source, target):
            self.bytes.append(len(source) * attention.bytes_per_page)
            with monkeypatch.context() as inner:  # a copy may itself be a move
                inner.setattr(attention, "move_pages", move)
                copy(source, target)

        def move_pages(source_M, target_M):
            self.bytes.append(int((target_M != 0).sum()) * attention.bytes_per_page)
            move(source_M, target_M)

        monkeypatch.setattr(attention, "copy_pages", copy_pages)
        monkeypatch.setattr(attention, "move_pages", move_pages)


@pytest.fixture
def lms(device):
    """Target and draft."""
    options = {"page_size": SIZE, "kv_pages": 400, "graphs": True}
    models = [random_model("llama", device, torch.bfloat16, num_hidden_layers=n) for n in (2, 1)]
    return [flashinfer_lm(model, **options) for model in models]


@pytest.mark.parametrize("length", [3 * SIZE, 3 * SIZE + 5])
def test_rows_that_are_forked(length, lms, device, monkeypatch):
    lm = lms[0]
    rows = lm.sequences([(5 * i) % 49 for i in range(length)], ROWS)
    rows.append(torch.arange(ROWS)[:, None].to(device))  # rows part: each has a tail of its own
    rows.next_logits()
    mover = Mover(lm, monkeypatch)
    forked = rows.fork([0, 0, 0, 3, 3, 5, 6, 7])
    assert mover.bytes == []  # until it is written to, nothing moves
    rows.close()
    forked.append(torch.arange(ROWS)[:, None].to(device))
    forked.next_logits()
    # Three of the rows wrote behind somebody else's back: 0, 0 and 3 have a page already.
    assert sum(mover.bytes) == 3 * lm.engine.attention.bytes_per_page
    forked.close()
    assert lm.pages_in_use == 0


def test_rounds_of_fixed_shape(lms, monkeypatch):
    """At most one page a row and model in a round, whatever the length of the rows."""
    lm, draft = lms
    launched = []

    def step_by_step(program, capture):  # in a graph, nobody could count
        launched.append(program)
        return Launcher(program, capture=False)

    monkeypatch.setattr(cache, "Launcher", step_by_step)
    movers = [Mover(lm, monkeypatch), Mover(draft, monkeypatch)]
    post = Target(lm).sample(
        [(5 * i) % 49 for i in range(100)], particles=ROWS, draft=draft, draft_tokens=3,
        max_tokens=25, ess_threshold=1.0, seed=0,
    )  # fmt: skip
    assert launched and sum(r.resampled for r in post.rounds) >= 3
    for mover in movers:
        page = mover.lm.engine.attention.bytes_per_page
        assert len(mover.bytes) >= len(post.rounds)
        assert max(mover.bytes) <= ROWS * page
        assert 0 < sum(mover.bytes) < len(mover.bytes) * ROWS * (100 // SIZE) * page
