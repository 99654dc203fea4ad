"""Which attention a model gets, and what is said about it."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers

from smcprog.attention import TorchPagedAttention, choose
from smcprog.attention.choose import default_page_size, make_attention
from smcprog.attention.flashinfer import FlashInferAttention, support, trial
from smcprog.engine import LM
from smcprog.errors import SettingError, SlowAttentionWarning

from ..engine.conftest import make_model, toy_vocabulary
from . import flashinfer_reference as library

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
LLAMA = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture
def machine(monkeypatch):
    """A CUDA device as far as questions go: its capability, and what is installed."""
    facts = {"capability": (9, 0), "installed": True, "version": "0.6.13", "trial": None}

    def version(name):
        return facts["version"]

    monkeypatch.setattr(choose, "_warned", set())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: facts["capability"])
    find = support.importlib.util.find_spec
    monkeypatch.setattr(
        support.importlib.util,
        "find_spec",
        lambda name, *a: (facts["installed"] or None) if name == "flashinfer" else find(name, *a),
    )
    monkeypatch.setattr(support.importlib.metadata, "version", version)
    monkeypatch.setattr(trial, "try_out", lambda *a, **k: facts["trial"])
    monkeypatch.setattr("smcprog.attention.flashinfer.paged.load_library", lambda: library)
    monkeypatch.setattr("smcprog.attention.flashinfer.cost.Machine.of", lambda device: None)
    return facts


def make(config=LLAMA, device=CUDA, dtype=torch.bfloat16, **options):
    return make_attention(config, 10, 16, device, dtype, name="toy", **options)


def test_flashinfer_where_it_can(machine):
    for kind in ("auto", "flashinfer"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attention = make(kind=kind, kv_dtype="float8_e4m3fn")
        assert isinstance(attention, FlashInferAttention)
        assert attention.kv_dtype == torch.float8_e4m3fn and attention.num_pages == 10
        assert attention._together == LLAMA.num_hidden_layers


def odd_heads(size):
    return transformers.LlamaConfig(hidden_size=4 * size, num_attention_heads=4)


@pytest.mark.parametrize(
    ("facts", "options", "reason"),
    [
        ({"installed": False}, {}, r'not installed; pip install "smcprog\[flashinfer\]"'),
        ({"version": "0.6.9"}, {}, r"0\.6\.13 or newer, and 0\.6\.9 is installed; pip install"),
        ({"version": "0.5.0+cu12"}, {}, "0.6.13 or newer"),
        ({"capability": (7, 5)}, {}, r"compute capability 8\.0, and cuda:0 has 7\.5"),
        ({"trial": "its kernels do not run here: X"}, {}, "its kernels do not run here"),
        ({}, {"dtype": torch.float32}, "float16 or bfloat16, and the model in float32"),
        ({}, {"kv_dtype": "float32"}, "in 8 bits, and kv_dtype is float32"),
        ({}, {"config": odd_heads(96)}, "64, 128, 256, and those of the model have size 96"),
        ({}, {"config": odd_heads(80)}, "size 80"),
    ],
)
def test_pytorch_otherwise_and_one_warning(machine, facts, options, reason):
    machine.update(facts)
    with pytest.warns(SlowAttentionWarning, match=reason) as caught:
        attention = make(**options)
    assert isinstance(attention, TorchPagedAttention) and len(caught) == 1
    assert "toy on cuda:0" in str(caught[0].message) and "slower" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(make(**options), TorchPagedAttention)  # the reason was told
        assert isinstance(make(**options, kind="torch"), TorchPagedAttention)
    with pytest.raises(SettingError, match=reason) as error:
        make(**options, kind="flashinfer")
    assert "attention='flashinfer' is not possible for toy" in str(error.value)


def test_another_reason_is_told_too(machine):
    machine["installed"] = False
    with pytest.warns(SlowAttentionWarning, match="not installed"):
        make()
    with pytest.warns(SlowAttentionWarning, match="float32"):
        make(dtype=torch.float32)


@pytest.mark.parametrize("version", ["0.6.13", "0.6.13+cu130", "0.7.0", "1.0"])
def test_versions_that_do(machine, version):
    machine["version"] = version
    assert support.why_not_here(CUDA) is None


@pytest.mark.parametrize(
    ("device", "hip"),
    [(CPU, None), (torch.device("mps"), None), (CUDA, "6.4"), (torch.device("meta"), None)],
)
def test_elsewhere_pytorch_without_a_word(monkeypatch, device, hip):
    monkeypatch.setattr(torch.version, "hip", hip)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention = make(device=device, kv_dtype="float8_e5m2")
    assert isinstance(attention, TorchPagedAttention) and attention.kv_dtype == torch.float8_e5m2
    reason = "ROCm" if hip else "needs a CUDA device"
    with pytest.raises(SettingError, match=reason):
        make(device=device, kind="flashinfer")


def test_keys_and_values_of_two_sizes():
    config = transformers.LlamaConfig(hidden_size=256, num_attention_heads=4, v_head_dim=32)
    assert "differ in size" in support.why_not_model(config, torch.bfloat16, None)


def test_more_heads_than_a_block_holds():
    config = transformers.LlamaConfig(hidden_size=256 * 48, num_attention_heads=48, head_dim=256)
    assert "48 key heads" in support.why_not_model(config, torch.bfloat16, None)
    assert support.fits_block(64, 128, 2) and not support.fits_block(96, 128, 2)


def test_page_sizes():
    assert default_page_size(CUDA) == 16
    assert default_page_size(CPU) == default_page_size(torch.device("mps")) == 8


def test_lm_takes_it_and_says_what_is_wrong():
    model, vocabulary = make_model("llama"), toy_vocabulary()
    lm = LM.from_model(model, vocabulary, kv_pages=20)
    assert lm.attention == "auto" and lm.page_size == 8
    assert isinstance(lm.engine.attention, TorchPagedAttention)
    assert LM.from_model(model, vocabulary, kv_pages=20, attention="torch").attention == "torch"
    with pytest.raises(SettingError, match=r"needs a CUDA device.*attention='torch'"):
        LM.from_model(model, vocabulary, kv_pages=20, attention="flashinfer")
    with pytest.raises(SettingError, match="'auto', 'flashinfer', 'torch', got 'flash'"):
        LM.from_model(model, vocabulary, kv_pages=20, attention="flash")
