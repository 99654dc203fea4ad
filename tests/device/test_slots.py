"""A batch whose requests are moved by hand: who left is gone from the device, too."""

from __future__ import annotations

import pytest

from smcprog import Target
from smcprog.smc.call import Call
from smcprog.smc.device.batch import Batches
from smcprog.smc.results import build_posterior
from smcprog.smc.wave import WaveRequest

from ..tiny import tiny_llama

POOL = {"page_size": 4, "kv_pages": 1000, "prefix_cache": False}
OPTIONS = {"vocab_size": 6, "eos": 5, "scale": 0.1, **POOL}
SETTINGS = {"particles": 4, "draft_tokens": 2, "max_tokens": 24, "ess_threshold": 1.0}


class Table:
    """Requests of one kind, and where they may sit."""

    def __init__(self):
        self.models = [tiny_llama(seed=seed, graphs=True, **OPTIONS) for seed in (1, 2)]
        self.call = Call.of(Target(self.models[0]), None, draft=self.models[1], **SETTINGS)
        self.batches = Batches()

    def request(self, seed):
        return WaveRequest(0, self.call.request([0, seed % 5, 1]), seed)

    def seat(self, seed):
        wave = self.call.slot_wave(self.request(seed), self.batches, self.wait)
        wave.start()
        return wave

    def beside(self, seed):
        """One that is no part of any batch, and takes pages as it grows."""
        wave = self.call.wave([self.request(seed)])
        wave.start()
        return wave

    @staticmethod
    def wait(ready, rest):
        for _ in range(1000):
            if ready():
                return
            rest()
        raise AssertionError("somebody who is not read holds up the others")


def finish(*waves):
    """Play them in turn, each until it is over; what each drew."""
    done = {}
    while len(done) < len(waves):
        for wave in waves:
            if wave not in done and wave.running:
                wave.play_round()
            if wave not in done and not wave.running:
                done[wave] = outcome(wave)
    return [done[wave] for wave in waves]


def outcome(wave):
    post = build_posterior(wave, 0)
    wave.release()
    return [p.tokens for p in post.particles], post.log_evidence


def check(got, seeds):
    alone = tiny_llama(seed=1, graphs=False, **OPTIONS), tiny_llama(seed=2, graphs=False, **OPTIONS)
    for (tokens, log_evidence), seed in zip(got, seeds, strict=True):
        post = Target(alone[0]).sample([0, seed % 5, 1], draft=alone[1], seed=seed, **SETTINGS)
        assert tokens == [p.tokens for p in post.particles]
        assert log_evidence == pytest.approx(post.log_evidence, abs=1e-9)


@pytest.mark.filterwarnings("ignore:the draft")
def test_pages_of_who_left_are_others():
    """An empty slot goes on as padding; it must not write where somebody else does now."""
    table = Table()
    stays, goes = table.seat(1), table.seat(2)
    for _ in range(2):
        stays.play_round()
        goes.play_round()
    goes.release()
    # What was given back last is taken first.
    other = table.beside(3)
    check(finish(stays, other), [1, 3])


@pytest.mark.filterwarnings("ignore:the draft")
def test_slots_are_filled_again():
    """Whoever comes later finds nothing of who sat there, nor of where the batch was before."""
    table = Table()
    first = [table.seat(seed) for seed in range(5)]
    for wave in first:
        wave.play_round()
    for wave in first[1:]:
        wave.release()
    last = [table.seat(seed) for seed in (7, 8, 9)]
    check(finish(first[0], *last), [0, 7, 8, 9])
    for lm in table.models:
        assert lm.pages_in_use == 0
        lm.check_pages()
