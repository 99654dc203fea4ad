"""Masks and rewards beside rounds of fixed shape: from pinned memory, and with the same results."""

from __future__ import annotations

import pytest
import torch

from smcprog import Grammar, Reward, Target
from smcprog.smc.device.beside import Beside

from .test_rounds import CALLS, PROMPTS, assert_same, pair


def play(lm, draft, call):
    reward = Reward(lambda texts: [text.count("A") for text in texts], beta=0.5)
    target = Target(lm) * Grammar.regex(r"[!-@]{2,6}|[A-P]+") * reward
    settings = {"draft": draft if call["draft_tokens"] else None, **call}
    return target.sample(PROMPTS, particles=4, max_tokens=9, seed=[0, 1, 2], **settings)


@pytest.mark.parametrize("call", CALLS, ids=lambda c: "-".join(map(str, c.values())))
def test_masks_through_pinned_buffers(call, device, monkeypatch):
    sent = []
    plain = Beside.send_mask

    def send_mask(self, position):
        sent.append(all(b.is_pinned() for b in self._masks))
        assert self._program.mask_B_M_W.device.type == device.type
        plain(self, position)

    monkeypatch.setattr(Beside, "send_mask", send_mask)
    lm, draft = pair(device, torch.float32)
    found = play(lm, draft, call)
    assert sent and all(pinned == (device.type == "cuda") for pinned in sent)
    assert_same(play(lm, draft, call), found)  # replayed
    lm.graphs = False
    assert_same(found, play(lm, draft, call))
    for post in found:
        assert all(p.finish_reason in ("eos", "length", "dead") for p in post.particles)
