"""What is captured touches nothing but the device: played on tensors without contents, which no
host could read, and with every operation watched for tensors of the host.

A copy from the host, or a constant made there, would run once at the capture and never again.
"""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smcprog import LM
from smcprog.attention.flashinfer import FlashInferAttention
from smcprog.engine import lm as lm_module
from smcprog.potentials.models.local import LocalDistribution
from smcprog.smc.device.program import RoundProgram

from ..device.test_whole_rounds import form
from ..engine.conftest import toy_vocabulary
from .models import random_model

META = torch.device("meta")
PROMPT = [(5 * i) % 49 for i in range(10)]
SIZE = 4  # tokens a page, as in the forms


class Watch(TorchDispatchMode):
    """Notes operations that take or make a tensor of the host."""

    def __init__(self):
        super().__init__()
        self.seen: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        if any(t.device.type == "cpu" for t in tensors([args, kwargs or {}, out])):
            self.seen.append(str(func))
        return out


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


class Wrapper:
    """Stands for a wrapper of FlashInfer, whose kernels see pointers only."""

    def __init__(self, **options):
        self.options = options

    def plan(self, **options):
        pass

    def run(self, *, out, **options):
        out.zero_()

    def reset_workspace_buffer(self, **buffers):
        pass


STUB = types.SimpleNamespace(
    BatchDecodeWithPagedKVCacheWrapper=Wrapper,
    BatchPrefillWithPagedKVCacheWrapper=Wrapper,
    append_paged_kv_cache=lambda **arrays: None,
    merge_state_in_place=lambda **states: None,
)


def models(arch, kernels, monkeypatch):
    # There is nothing to compare where there are no numbers.
    monkeypatch.setattr(lm_module, "check_logits", lambda model, *sizes: (50, 4096))
    found = []
    for layers in (2, 1):
        sizes = {"n_layer": layers} if arch == "gpt2" else {"num_hidden_layers": layers}
        model = random_model(arch, META, torch.bfloat16, **sizes)
        lm = LM.from_model(
            model, toy_vocabulary(), attention="torch", page_size=SIZE, kv_pages=200,
            prefix_cache=False,
        )  # fmt: skip
        if kernels == "flashinfer":
            plain = lm.engine.attention
            lm.engine.attention = FlashInferAttention(
                plain.num_pages, SIZE, META, layers=layers, library=STUB
            )
        lm.sequences(PROMPT, 1).close()  # pages of all layers are there
        found.append(lm)
    return found


FORMS = {
    "no draft": form(draft_tokens=0),
    "draft": form(),
    "lossless": form(coupling=1.0),
    "coupled": form(coupling=2.0),
    "masked": form(masked=True, weighed=True),
    "masked, coupled": form(coupling=2.0, masked=True, weighed=True),
    "truncated": form(local=LocalDistribution(0.8, top_k=9, top_p=0.9, min_p=0.01)),
    "shared": form(shared=True),
}
SCHEMES = ["multinomial", "stratified", "residual", "ssp"]


def watched(lms, shape):
    with torch.inference_mode():
        program = RoundProgram(lms[0], lms[1] if shape.draft_tokens else None, shape)
        program.schedule(np.full(shape.rows, 2, dtype=np.int64))
        with Watch() as watch:
            program.play()
    assert watch.operations > 100
    return watch.seen


KERNELS = [("torch", name) for name in FORMS if name != "shared"]
KERNELS += [("flashinfer", name) for name in ("no draft", "draft", "shared")]


@pytest.mark.parametrize(("kernels", "name"), KERNELS)
def test_rounds_of_every_form(kernels, name, monkeypatch):
    assert watched(models("llama", kernels, monkeypatch), FORMS[name]) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_resampling_scheme(scheme, monkeypatch):
    shape = dataclasses.replace(FORMS["no draft"], resampling=scheme)
    assert watched(models("llama", "torch", monkeypatch), shape) == []


@pytest.mark.parametrize(
    ("arch", "kernels"),
    [("qwen3", "torch"), ("gemma2", "flashinfer"), ("gemma3", "torch"), ("gpt2", "flashinfer")],
)
def test_architectures(arch, kernels, monkeypatch):
    assert watched(models(arch, kernels, monkeypatch), FORMS["draft"]) == []


def test_the_net_holds(monkeypatch):
    """A constant of the host in a round is seen."""
    lms = models("llama", "torch", monkeypatch)
    play = RoundProgram.play

    def with_a_constant(self):
        self.extra_M.copy_(torch.tensor(0.5))
        play(self)

    monkeypatch.setattr(RoundProgram, "play", with_a_constant)
    assert watched(lms, FORMS["draft"])
