"""Fast linear layers give what `nn.Linear` gives, and leave the user's model alone."""

from __future__ import annotations

import copy
import gc
import sys
import weakref

import pytest
import torch
from torch import nn

from smcprog.engine import LM
from smcprog.engine.linears import choice, fixed_kernels, install, make_plain, weight_count
from smcprog.engine.linears.modules import FastLinear
from smcprog.engine.linears.storage import Kernel, Packed, Plain, can_pack

PACK = [False, pytest.param(True, marks=pytest.mark.skipif(not can_pack(), reason="no oneDNN"))]
ROWS = [1, 2, 3, 4, 7, 16, 33, 70]


class Layer(nn.Module):
    """Projections that read one input, and others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj = nn.Linear(24, 40)
        self.k_proj = nn.Linear(24, 16, bias=False)
        self.v_proj = nn.Linear(24, 16)
        self.o_proj = nn.Linear(40, 24)

    def forward(self, x, other=None):
        k = self.k_proj(x if other is None else other)
        return torch.cat([self.q_proj(x), k, self.v_proj(x)], -1), self.o_proj(self.q_proj(x))


def fast(module, pack):
    twin = copy.deepcopy(module)
    install(twin, pack=pack, least=0)
    return twin


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("rows", ROWS)
@torch.inference_mode()
def test_equal_to_the_plain_layers(pack, rows):
    plain = Layer()
    twin = fast(plain, pack)
    assert all(type(m) is FastLinear for m in twin.children())
    for shape in [(rows, 24), (rows, 1, 24), (1, rows, 24)]:
        x = torch.randn(shape)
        for got, wanted in zip(twin(x), plain(x), strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
        # A sibling that is given something else takes its own product.
        other = torch.randn(shape)
        for got, wanted in zip(twin(x, other), plain(x, other), strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [None, torch.linspace(0, 1, 40)])
@pytest.mark.parametrize("kind", [Plain, Packed])
@torch.inference_mode()
def test_every_kernel_of_every_storage(kind, bias, rows):
    if kind is Packed and not can_pack():
        pytest.skip("no oneDNN")
    weight, x = torch.randn(40, 24), torch.randn(rows, 24)
    storage = kind(weight, bias)
    assert torch.equal(storage.weight, weight)
    wanted = nn.functional.linear(x, weight, bias)
    for kernel in {*storage.candidates(rows), *storage.candidates(1), Kernel("linear", 5)}:
        got = storage.multiply(kernel, x)
        assert got.shape == (rows, 40)
        assert got.is_contiguous()
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma2", "gpt2"])
def test_engine_with_fast_layers(arch, pack, model_of, vocabulary, reference, monkeypatch):
    monkeypatch.setattr(sys.modules["smcprog.engine.linears.install"], "LEAST_WEIGHTS", 0)
    model = model_of(arch)
    lm = LM.from_model(model, vocabulary, pack=pack)
    assert any(isinstance(m, FastLinear) for m in lm.model.modules())
    assert not any(isinstance(m, FastLinear) for m in model.modules())
    rows = lm.sequences([1, 2, 3], 3)
    block = torch.tensor([[4, 5], [6, 7], [8, 9]])
    logits = rows.score(block)
    for i, wanted in enumerate(reference(model, [[1, 2, 3, *b] for b in block.tolist()])):
        torch.testing.assert_close(logits[i], wanted[2:-1], atol=1e-4, rtol=0)
        torch.testing.assert_close(rows.next_logits()[i], wanted[-1], atol=1e-4, rtol=0)


def test_small_and_other_modules_stay(model_of, vocabulary):
    lm = LM.from_model(model_of("llama"), vocabulary)  # all of its weights are small
    assert not any(isinstance(m, FastLinear) for m in lm.model.modules())
    module = nn.ModuleDict({"wide": nn.Linear(8, 8).double(), "own": _Derived(8, 8)})
    install(module, pack=True, least=0)
    assert type(module["wide"]) is nn.Linear
    assert type(module["own"]) is _Derived


class _Derived(nn.Linear):
    pass


def test_state_dict_copy_and_way_back():
    plain = Layer()
    for pack in (False, can_pack()):
        twin = fast(plain, pack)
        copied = copy.deepcopy(twin)
        assert weight_count(twin) >= sum(p.numel() for n, p in plain.named_parameters() if "w" in n)
        for module in (twin, copied):
            state = module.state_dict()
            assert state.keys() == plain.state_dict().keys()
            for name, value in plain.state_dict().items():
                assert torch.equal(state[name], value), name
        make_plain(copied)
        assert all(type(m) is nn.Linear for m in copied.children())
        x = torch.randn(2, 24)
        torch.testing.assert_close(copied(x), plain(x))


@pytest.mark.skipif(not can_pack(), reason="no oneDNN")
@pytest.mark.parametrize("bias", [False, True])
def test_every_kernel_of_both_layouts_gives_the_same(bias):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(40, 24, generator=generator)
    added = torch.randn(40, generator=generator) if bias else None
    both = Packed(weight, added, keep=True)
    assert both.dense and both.weight is weight
    for rows in ROWS:
        x = torch.randn(rows, 24, generator=generator)
        for kernel in both.candidates(rows):
            got = both.multiply(kernel, x)
            assert got.is_contiguous()
            torch.testing.assert_close(got, nn.functional.linear(x, weight, added))
    assert len(both.candidates(1)) == 1 + len(Packed(weight, added).candidates(1))


def test_gradients_flow_to_the_input():
    twin, plain = fast(Layer(), can_pack()), Layer()
    x = torch.randn(3, 24, requires_grad=True)
    twin(x)[1].sum().backward()
    got, x.grad = x.grad, None
    plain(x)[1].sum().backward()
    torch.testing.assert_close(got, x.grad)


@pytest.mark.skipif(not can_pack(), reason="no oneDNN")
def test_packing_frees_the_dense_weight_and_shares_a_tied_head(model_of, monkeypatch):
    monkeypatch.setattr(sys.modules[install.__module__], "BOTH_BYTES", 0)  # as for large models
    model = model_of("llama", tie_word_embeddings=True)
    dense = weakref.ref(model.model.layers[0].mlp.down_proj.weight)
    twin = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for m in (model, twin):
        install(m, pack=True, least=0)
    gc.collect()
    assert dense() is None
    heads = [m.lm_head for m in (model, twin)]
    assert heads[0]._stack.storage is heads[1]._stack.storage
    assert heads[0].weight is model.get_input_embeddings().weight
    make_plain(twin)
    assert twin.lm_head.weight is twin.get_input_embeddings().weight


def test_fixed_kernels_do_not_depend_on_the_measurement(monkeypatch):
    """Under the context, opposite measurements give the same kernels; without it, they count."""
    weight = torch.randn(40, 24)
    kernels = []
    for last in (False, True):
        monkeypatch.setattr(choice, "_choices", {})
        monkeypatch.setattr(
            choice, "_fastest", lambda s, rows, last=last: s[0].candidates(rows)[-int(last)]
        )
        chosen = choice.choose([Plain(weight, None)])
        with fixed_kernels():
            kernels.append([chosen.kernel(r) for r in ROWS])
        assert [chosen.kernel(r) for r in ROWS] == [
            Plain(weight, None).candidates(b)[-int(last)] for b in (1, 2, 4, 4, 8, 16, 32, 32)
        ]
    assert kernels[0] == kernels[1]


def test_measurement_prefers_what_is_clearly_faster(monkeypatch):
    storage = Plain(torch.randn(40, 24), None)
    ticks = iter([0, 10, 0, 10, 0, 8, 0, 8])
    monkeypatch.setattr(choice.time, "perf_counter", lambda: next(ticks))
    assert choice._fastest([storage], 4) == storage.candidates(4)[1]
    ticks = iter([0, 10, 0, 10, 0, 9.5, 0, 9.5])
    assert choice._fastest([storage], 4) == storage.candidates(4)[0]
