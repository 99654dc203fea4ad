"""Errors of the device in one request's potential: that request fails, and says what it means."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import (
    BatchError,
    DeviceLostError,
    Potential,
    PotentialError,
    Reward,
    Scheduler,
    Target,
)
from smcprog.engine.faults import fault_of

from ..exactness.toys import random_toy
from ..tiny import tiny_llama

LM = random_toy(np.random.default_rng(0)).lm()

ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be ... \nCompile with"
ERRORS = {
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    "assert": torch.AcceleratorError(ASSERT),
    "old assert": RuntimeError(ASSERT),
    "address": torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    "launch": torch.AcceleratorError("CUDA error: invalid configuration argument"),
}
FAULTS = {
    "memory": "memory",
    "cublas": "memory",
    "assert": "lost",
    "old assert": "lost",
    "address": "lost",
    "launch": "call",
}
SAYS = {
    "memory": "no memory left for it, and only this request fails.*smaller kv_pages",
    "lost": "every call of this process as failed.*restart the process.*CUDA_LAUNCH_BLOCKING",
    "call": "Only this request fails; CUDA_LAUNCH_BLOCKING",
}


class Breaks(Potential):
    """ψ = 1, but for prompts that hold the token 1: it raises there, in the method named."""

    name = "Breaks"

    def __init__(self, error, method):
        self.error, self.method, self.raised = error, method, False

    def start(self, request, n):
        bad = 1 in request.prompt_tokens
        self._raise("start", bad)
        return bad, n

    def advance(self, state, tokens_N_T, lengths_N, ended_N):
        self._raise("advance", state[0] and tokens_N_T.shape[1] > 0)
        return state, torch.zeros(state[1], dtype=torch.float64)

    def fork(self, state, ancestors_M):
        self._raise("fork", state[0])
        return state[0], len(ancestors_M)

    def _raise(self, method, bad):
        if bad and method == self.method:
            self.raised = True
            raise self.error


@pytest.mark.parametrize("kind", ERRORS)
def test_what_it_is(kind):
    assert fault_of(ERRORS[kind]) == FAULTS[kind]
    wrapped = PotentialError("p raised", potential="p")
    wrapped.__cause__ = ERRORS[kind]
    assert fault_of(wrapped) == FAULTS[kind]


def test_what_it_is_not():
    for error in (
        RuntimeError("shape '[2]' is invalid"),
        ValueError("CUDA error: no, a joke"),
        PotentialError("out of memory", potential="p"),
        None,
    ):
        assert fault_of(error) is None


PROMPTS = [[0, 0], [1, 0], [0, 1, 0], [0]]


@pytest.mark.parametrize("method", ["start", "advance", "fork"])
@pytest.mark.parametrize("kind", ERRORS)
def test_only_its_request_fails(kind, method):
    target = Target(LM) * Breaks(ERRORS[kind], method)
    settings = {"particles": 4, "max_tokens": 4, "seed": 0, "ess_threshold": 1.0}
    with pytest.raises(BatchError, match=SAYS[FAULTS[kind]]) as caught:
        target.sample(PROMPTS, **settings)
    results = caught.value.results
    alone = [Target(LM).sample(p, **settings) for p in PROMPTS]
    for i, result in enumerate(results):
        if 1 in PROMPTS[i]:
            assert isinstance(result, PotentialError)
            assert result.potential == "Breaks"
            assert str(result).startswith(f"Breaks raised {type(ERRORS[kind]).__name__}: CUDA")
            assert "Compile with" not in str(result)  # the first line only
            assert result.__cause__ is ERRORS[kind]
        else:
            assert result.tokens == alone[i].tokens


@pytest.mark.parametrize("kind", ["memory", "assert"])
def test_under_the_scheduler_too(kind):
    target = Target(LM) * Breaks(ERRORS[kind], "advance")
    with Scheduler() as scheduler:
        handles = [scheduler.submit(target, p, particles=4, max_tokens=4, seed=0) for p in PROMPTS]
        for prompt, handle in zip(PROMPTS, handles, strict=True):
            if 1 in prompt:
                with pytest.raises(PotentialError, match=SAYS[FAULTS[kind]]):
                    handle.result()
            else:
                assert handle.result().particles


def test_a_function_that_a_reward_calls():
    def score(texts):
        raise torch.AcceleratorError(ASSERT)

    with pytest.raises(PotentialError, match=SAYS["lost"]):
        (Target(LM) * Reward(score)).sample([0], particles=2, max_tokens=3, seed=0)


def test_a_model_whose_device_is_lost():
    """Every request is told so, and nothing is run again."""
    lm = tiny_llama(kv_pages=60)
    calls = []

    def broken(module, arguments):
        calls.append(module)
        if len(calls) >= 3:
            raise torch.AcceleratorError(ASSERT)

    lm.model.register_forward_pre_hook(broken)
    with pytest.raises(BatchError) as caught:
        Target(lm).sample(PROMPTS, particles=2, max_tokens=3, seed=0)
    for result in caught.value.results:
        assert isinstance(result, DeviceLostError)
        assert "device-side assert triggered on cpu" in str(result)
        assert "restart the process" in str(result)
    assert len(calls) == 3
    with Scheduler() as scheduler, pytest.raises(DeviceLostError):
        scheduler.submit(Target(lm), [0], particles=2, max_tokens=3).result()


def test_whoever_lost_it_is_named():
    """The potential's request says which one it was; the others, that the device is lost."""
    lm = tiny_llama(kv_pages=60)
    breaks = Breaks(ERRORS["assert"], "advance")

    def after(module, arguments):
        if breaks.raised:
            raise torch.AcceleratorError(ASSERT)

    lm.model.register_forward_pre_hook(after)
    with pytest.raises(BatchError) as caught:
        (Target(lm) * breaks).sample(PROMPTS, particles=2, max_tokens=6, truncate=True, seed=0)
    for prompt, result in zip(PROMPTS, caught.value.results, strict=True):
        assert isinstance(result, PotentialError if 1 in prompt else DeviceLostError)
        assert "restart the process" in str(result)
