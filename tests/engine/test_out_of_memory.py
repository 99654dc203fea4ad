"""The device runs out of memory in a pass: it is cut smaller, and only what cannot be cut fails."""

from __future__ import annotations

import contextlib

import pytest
import torch

from smcprog import BatchError, DeviceMemoryError, Scheduler, Target, program
from smcprog.engine import LM
from smcprog.errors import ModelError
from smcprog.smc.device.wave import DeviceWave
from smcprog.smc.scheduler.admission import Reservations
from smcprog.smc.scheduler.task import Task

from .conftest import byte_level_tokenizer


@contextlib.contextmanager
def memory_for(lm, tokens):
    """Passes of more than so many tokens raise."""
    seen = []

    def hook(module, arguments, options):
        size = options["input_ids"].numel()
        if size > tokens:
            seen.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nhints")

    handle = lm.model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.fixture
def lm(lm_of):
    return lm_of(kv_pages=400)


PROMPTS = [[1 + i, 2, 3, 4, 5] * (2 + i) for i in range(5)]
SETTINGS = {"particles": 3, "max_tokens": 7, "ess_threshold": 0.5}


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 1, 4], [0, 6, 2]])
def test_a_pass_in_parts_is_the_pass(lm, tokens, counts):
    def score():
        rows = lm.sequences([1, 2, 3] * 4, 3)
        rows.score(torch.tensor([[3], [4], [5]]))
        block = torch.arange(18).view(3, 6)
        logits = rows.score(block, counts)
        after = rows.next_logits()
        rows.close()
        lm.engine.prefixes.clear()
        real = torch.arange(6) < torch.tensor(counts)[:, None]
        return torch.cat([logits[real], after])

    whole = score()
    with memory_for(lm, tokens) as seen:
        parts = score()
    assert seen
    torch.testing.assert_close(parts, whole, atol=2e-5, rtol=2e-5)
    lm.check_pages()


def test_one_token_that_does_not_get_through(lm):
    rows = lm.sequences([1, 2, 3], 2)
    before = lm.pages_in_use
    with memory_for(lm, 0), pytest.raises(torch.OutOfMemoryError):
        rows.score(torch.ones(2, 3, dtype=torch.int64))
    assert lm.pages_in_use == before
    lm.check_pages()
    assert rows.score(torch.ones(2, 3, dtype=torch.int64)).shape == (2, 3, 50)
    rows.close()


def test_a_list_is_run_in_smaller_waves(lm):
    """Where not even one token gets through beside what the other requests hold."""
    target = Target(lm)
    expected = [p.tokens for p in target.sample(PROMPTS, seed=0, **SETTINGS)]
    failed = []

    def hook(module, arguments, options):
        held = sum(rows.n for rows in lm.engine.live)
        if held > 2 * SETTINGS["particles"] + 1:  # a prompt that is being run is a row
            failed.append(held)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    handle = lm.model.register_forward_pre_hook(hook, with_kwargs=True)
    got = [p.tokens for p in target.sample(PROMPTS, seed=0, **SETTINGS)]
    handle.remove()
    assert failed
    assert got == expected
    lm.check_pages()


def test_alone_it_fails_with_the_settings_named(lm):
    with (
        memory_for(lm, 0),
        pytest.raises(
            DeviceMemoryError,
            match=r"particles=3, blocks of 1 tokens and max_tokens=7 \(CUDA out of memory\. Tried "
            r"to allocate 2\.00 GiB\.\).*kv_pages below 400",
        ) as caught,
    ):
        Target(lm).sample(PROMPTS[0], seed=0, **SETTINGS)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.__cause__.__traceback__ is None  # its frames hold tensors
    with memory_for(lm, 0), pytest.raises(BatchError) as many:
        Target(lm).sample(PROMPTS, seed=0, **SETTINGS)
    assert [type(r) for r in many.value.results] == [DeviceMemoryError] * len(PROMPTS)
    assert Target(lm).sample(PROMPTS[0], seed=0, **SETTINGS).text
    lm.check_pages()


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_scheduler_runs_smaller_passes(lm, tokens):
    target = Target(lm)
    expected = [target.sample(p, seed=0, **SETTINGS).tokens for p in PROMPTS]
    with memory_for(lm, tokens) as seen, Scheduler() as scheduler:
        handles = [scheduler.submit(target, p, seed=0, **SETTINGS) for p in PROMPTS]
        got = [h.result().tokens for h in handles]
    assert seen
    assert got == expected
    lm.check_pages()


def test_the_scheduler_puts_back_what_has_no_room_beside_others(lm):
    target = Target(lm)
    expected = [target.sample(p, seed=0, **SETTINGS).tokens for p in PROMPTS]
    failed = []

    def hook(module, arguments, options):
        if scheduler.running > 1:
            failed.append(scheduler.running)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with Scheduler() as scheduler:
        handle = lm.model.register_forward_pre_hook(hook, with_kwargs=True)
        handles = [scheduler.submit(target, p, seed=0, **SETTINGS) for p in PROMPTS]
        got = [h.result().tokens for h in handles]
        handle.remove()
    assert failed
    assert got == expected
    lm.check_pages()


class Waits(Task):
    def _play(self, breathe):
        return None


def test_nobody_is_let_in_beside_one_that_must_be_alone():
    reservations = Reservations(8)
    first, alone, later = Waits({}, None), Waits({}, None), Waits({}, None)
    alone.alone = True
    reservations.enter(first)
    assert reservations.next([alone, later]) is None  # nor does anybody overtake it
    assert reservations.next([later]) is later
    reservations.leave(first)
    assert reservations.next([alone, later]) is alone
    reservations.enter(alone)
    assert reservations.next([later]) is None
    reservations.leave(alone)
    assert reservations.next([later]) is later


def test_what_cannot_run_alone_fails_alone(lm):
    target = Target(lm)
    with Scheduler() as scheduler:
        with memory_for(lm, 0):
            bad = scheduler.submit(target, PROMPTS[0], seed=0, **SETTINGS)
            worse = scheduler.submit(target, PROMPTS[1], seed=0, **SETTINGS)
            for handle in (bad, worse):
                with pytest.raises(DeviceMemoryError, match="use fewer particles"):
                    handle.result()
        good = scheduler.submit(target, PROMPTS[2], seed=0, **SETTINGS)
        assert good.result().text
    lm.check_pages()
    assert lm.pages_in_use == 0


def test_no_round_is_told_twice(lm):
    told = []
    target = Target(lm)

    def tell(event):
        told.append(event)
        if len(told) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with Scheduler() as scheduler:
        other = scheduler.submit(target, PROMPTS[1], seed=0, particles=3, max_tokens=20)
        watched = scheduler.submit(target, PROMPTS[0], seed=0, on_round=tell, **SETTINGS)
        with pytest.raises(DeviceMemoryError):
            watched.result()
        assert other.result().text
    assert len(told) == 2


def test_a_program_says_so_too(lm):
    @program
    def continues(p):
        p.prompt([1, 2, 3])
        p.extend(Target(lm), max_tokens=4)

    assert continues(particles=2, max_tokens=20, seed=0).particles
    lm.engine.prefixes.clear()
    with memory_for(lm, 0), pytest.raises(DeviceMemoryError, match=r"particles=2.*kv_pages below"):
        continues(particles=2, max_tokens=20, seed=0)
    lm.check_pages()
    assert lm.pages_in_use == 0


@pytest.mark.parametrize("first", [0, 3])
def test_rounds_of_fixed_shape_give_way(first, monkeypatch, model_of, vocabulary):
    """Where there is no memory for them, the request is played in ordinary rounds."""
    lm = LM.from_model(model_of("llama"), vocabulary, kv_pages=400, graphs=True)
    expected = Target(lm).sample(PROMPTS[0], seed=0, **SETTINGS).tokens
    calls = []
    play = DeviceWave.play_round

    def short(self):
        calls.append(self)
        if len(calls) > first:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return play(self)

    monkeypatch.setattr(DeviceWave, "play_round", short)
    assert Target(lm).sample(PROMPTS[0], seed=0, **SETTINGS).tokens == expected
    assert len(calls) == first + 1
    lm.check_pages()


def test_weights_that_do_not_fit(monkeypatch, tmp_path, model_of):
    model = model_of("llama", vocab_size=300)
    model.save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)

    def full(self, *arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "to", full)
        with pytest.raises(ModelError, match=r"do not fit on cpu: the files hold 0\.0 GiB.*dtype="):
            LM(tmp_path)
    assert LM(tmp_path).kv_pages
