"""Loading from a folder, and every kind of model that is refused."""

from __future__ import annotations

import json
import socket

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from smcprog.engine import LM
from smcprog.errors import ModelError

ARCHS = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2"]


@pytest.fixture
def folder(tmp_path, model_of, byte_tokenizer):
    def save(arch="llama", **changes):
        tokenizer = byte_tokenizer()
        model = model_of(arch, vocab_size=len(tokenizer), **changes)
        model.config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, 5]
        model.save_pretrained(tmp_path / arch)
        tokenizer.save_pretrained(tmp_path / arch)
        return tmp_path / arch

    return save


@pytest.mark.parametrize("arch", ARCHS)
def test_from_a_folder(folder, arch):
    path = folder(arch)
    lm = LM(path)
    assert lm.path == str(path)
    assert lm.name == arch
    assert lm.dtype == torch.float32
    assert lm.max_context == 128
    assert lm.config.model_type in arch or arch in lm.config.model_type
    assert set(lm.vocab.eos_ids) == {lm.tokenizer.eos_token_id, 5}
    prompt = lm.encode("hello")
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    expected = plain(torch.tensor([prompt])).logits[0, -1]
    actual = lm.sequences(prompt, 1).next_logits()[0]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float64", torch.float64, "bfloat16"])
def test_dtype(folder, dtype):
    lm = LM(folder(), dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert lm.dtype == wanted
    assert lm.sequences([1, 2], 2).next_logits().dtype == wanted


def test_local_folder_needs_no_network(folder, monkeypatch):
    path = folder()

    def refuse(*args, **kwargs):
        raise AssertionError("a network connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    LM(path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/no/such/folder", "does not exist"),
        ("./no-such-folder", "does not exist"),
        ("no-such-owner/no-such-model", "not a local folder"),
        ("", "empty"),
    ],
)
def test_path_that_does_not_exist(path, says, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=says):
        LM(path)


def test_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        LM(tmp_path)
    (tmp_path / "config.json").write_text("not json")
    with pytest.raises(ModelError):
        LM(tmp_path)
    with pytest.raises(ModelError, match="is a file"):
        LM(tmp_path / "config.json")


def test_weights_that_are_not_safetensors(folder):
    path = folder()
    weights = {k: v.clone() for k, v in load_file(path / "model.safetensors").items()}
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="it has no weights"):
        LM(path)
    torch.save(weights, path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"safetensors.*pytorch_model\.bin"):
        LM(path)


def test_damaged_weights(folder):
    path = folder()
    weights = {k: v.clone() for k, v in load_file(path / "model.safetensors").items()}
    (path / "model.safetensors").write_bytes(b"\x10" * 100)
    with pytest.raises(ModelError, match="cannot load"):
        LM(path)
    name = next(n for n in weights if "q_proj" in n)
    del weights[name]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"incomplete.*q_proj"):
        LM(path)


def test_code_in_the_folder_is_not_run(folder):
    path = folder()
    config = json.loads((path / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {
        "AutoConfig": "own.OwnConfig",
        "AutoModelForCausalLM": "own.OwnModel",
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "own.py").write_text("raise SystemExit('this code was run')")
    with pytest.raises(ModelError):
        LM(path)


def test_no_tokenizer(folder):
    path = folder()
    for file in path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError):
        LM(path)


def test_unknown_device_and_dtype(folder):
    path = folder()
    with pytest.raises(ModelError, match="device"):
        LM(path, device="toaster")
    for dtype in ("int8", "float31", 7):
        with pytest.raises(ModelError, match="floating-point"):
            LM(path, dtype=dtype)


SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("name", "sizes", "says"),
    [
        ("BloomConfig", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "bloom"),
        ("MambaConfig", SMALL, "mamba"),
        ("BertConfig", {**SMALL, "intermediate_size": 32, "num_attention_heads": 4}, "bert"),
    ],
)
def test_architectures_that_cannot_run(tmp_path, name, sizes, says, vocabulary, byte_tokenizer):
    config = getattr(transformers, name)(**sizes)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match=says):
        LM.from_model(model, vocabulary)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=says):
        LM(tmp_path)


def test_layers_that_keep_other_state(vocabulary):
    config = transformers.Qwen3NextConfig(
        **SMALL,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        layer_types=["linear_attention", "full_attention"],
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="linear_attention"):
        LM.from_model(model, vocabulary)


def test_attention_the_engine_does_not_represent(vocabulary):
    config = transformers.GptOssConfig(
        **SMALL,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ModelError, match="sinks"):
        LM.from_model(model, vocabulary)


def test_a_model_whose_attention_does_more_is_found_by_its_logits(model_of, vocabulary):
    class Odd(transformers.LlamaForCausalLM):
        """Remembers the previous call: state that no attention holds."""

        before = 0.0

        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits + self.before
            self.before = out.logits[..., -1:, :].detach()
            return out

    model = Odd(model_of("llama").config).eval()
    with pytest.raises(ModelError, match=r"(logits differ|does not run)"):
        LM.from_model(model, vocabulary)


def test_vocabulary_of_another_width(model_of, byte_tokenizer, vocabulary):
    with pytest.raises(ModelError, match="50 ids"):
        LM.from_model(model_of("llama", vocab_size=60), vocabulary)


def test_model_of_an_lm_cannot_be_run_on_its_own(lm_of):
    with pytest.raises(ModelError, match="belongs to an LM"):
        lm_of().model(torch.tensor([[1, 2]]))
