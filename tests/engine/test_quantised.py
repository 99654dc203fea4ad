"""Checkpoints in the quantised formats of transformers, through its own quantizers."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from smcprog import ModelError, Target
from smcprog.engine import LM, quantised
from smcprog.engine.linears import install
from smcprog.engine.linears.modules import FastLinear

from .conftest import byte_level_tokenizer, make_model

BLOCK = 32


def save(folder, **config):
    """A small model, with `quantization_config` of the given contents."""
    model = make_model("llama", vocab_size=300, hidden_size=64, intermediate_size=128)
    model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    if config:
        file = folder / "config.json"
        stored = json.loads(file.read_text()) | {"quantization_config": config}
        file.write_text(json.dumps(stored))
    return model


def store_fp8(folder):
    """Replace the layers' weights by float8 ones with a scale a block; what they then mean."""
    tensors = load_file(folder / "model.safetensors")
    meant = {}
    for name, weight in list(tensors.items()):
        if not name.endswith("_proj.weight"):
            continue
        rows, columns = (n // BLOCK for n in weight.shape)
        blocks = weight.view(rows, BLOCK, columns, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        tensors[name] = small.view(weight.shape)
        tensors[name + "_scale_inv"] = scale
        meant[name] = (small.float() * scale[:, None, :, None]).view(weight.shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return meant


def test_fp8_weights(tmp_path):
    """On a machine without a GPU transformers turns them into ordinary ones."""
    model = save(tmp_path, quant_method="fp8", weight_block_size=[BLOCK, BLOCK])
    meant = store_fp8(tmp_path)
    assert len(meant) == 14
    lm = LM(tmp_path, device="cpu")
    plain = model.state_dict()
    model.load_state_dict(plain | meant)
    history = torch.arange(10)[None]
    with torch.no_grad():
        expected = model(history, use_cache=False).logits[0, 2:]
    rows = lm.sequences([0, 1, 2], 1)
    got = torch.cat([rows.next_logits()[:, None], rows.score(history[:, 3:])[:, 1:]], 1)[0]
    got = torch.cat([got, rows.next_logits()])
    # What transformers makes of them is bfloat16.
    assert (got - expected).norm() < 0.02 * expected.norm()
    assert Target(lm).sample("he", particles=2, max_tokens=4, seed=0).particles


@pytest.mark.parametrize(
    ("config", "package", "names"),
    [
        ({"quant_method": "torchao", "quant_type": "int8wo"}, "torchao", "torchao"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "optimum", "optimum gptqmodel"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "gptqmodel", "gptqmodel"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes", "bitsandbytes"),
        ({"load_in_4bit": True, "quant_method": "bitsandbytes"}, "bitsandbytes", "bitsandbytes"),
        ({"quant_method": "compressed-tensors"}, "compressed_tensors", "compressed-tensors"),
        ({"quant_method": "hqq", "quant_config": {}}, "hqq", "hqq"),
        ({"quant_method": "aqlm"}, "aqlm", "aqlm"),
    ],
)
def test_the_missing_library_is_named(tmp_path, config, package, names):
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    save(tmp_path, **config)
    method = config["quant_method"]
    with pytest.raises(ModelError, match=f"quant_method '{method}'.*pip install {names}"):
        LM(tmp_path, device="cpu")


def test_unknown_format(tmp_path):
    save(tmp_path, quant_method="of-next-year")
    with pytest.raises(ModelError, match=r"quantised \(quant_method 'of-next-year'\).*, gptq,"):
        LM(tmp_path, device="cpu")


def test_what_is_asked_of_a_config():
    class Config:
        quantization_config = None

    config = Config()
    assert quantised.quantisation(config) is None
    assert quantised.placement(config, torch.device("cpu")) == {}
    config.quantization_config = {"quant_method": "awq"}
    assert quantised.quantisation(config) == "awq"
    assert quantised.placement(config, torch.device("cuda:1")) == {
        "device_map": {"": torch.device("cuda:1")}
    }


class _Stored(torch.Tensor):
    """Stands for the tensors of quantizers, which say float32 and hold something else."""


def test_layers_with_other_weights_stay_as_they_are():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(_Stored), False)
    model[1].weight_packed = model[1].weight  # as compressed-tensors leaves them
    del model[1].weight
    model[2].forward = model[2].forward
    install(model, pack=True, least=0)
    assert [type(layer) for layer in model] == [nn.Linear] * 3 + [FastLinear]


def options_of(kind):
    """`quantization_config` of `from_pretrained`, for quantizers that run on the CPU."""
    import transformers

    if kind == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig

        return transformers.TorchAoConfig(Int8WeightOnlyConfig())
    return transformers.BitsAndBytesConfig(
        load_in_8bit=kind == "8 bits",
        load_in_4bit=kind == "4 bits",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
    )


@pytest.mark.parametrize(
    ("package", "kind", "off"),
    # Kernels of bitsandbytes round what comes in, too, and not alike for every number of rows.
    [
        ("torchao", "torchao", 1e-5),
        ("bitsandbytes", "8 bits", 0.1),
        ("bitsandbytes", "4 bits", 0.1),
    ],
)
def test_checkpoints_that_are_quantised(package, kind, off, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.setattr(sys.modules["smcprog.engine.linears.install"], "LEAST_WEIGHTS", 0)
    save(tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain",
        quantization_config=options_of(kind),
        device_map={"": "cpu"},
        dtype=torch.float32,
    )
    model.save_pretrained(tmp_path / "small")
    byte_level_tokenizer().save_pretrained(tmp_path / "small")
    lm = LM(tmp_path / "small", device="cpu")
    layer = lm.model.model.layers[0].self_attn.q_proj
    parts = [type(layer), type(layer.weight), type(layer.weight.data)]
    assert any(part.__module__.startswith(package) for part in parts)
    history = torch.arange(9)[None]
    with torch.no_grad():
        expected = model(history, use_cache=False).logits[:, 2:-1]
    rows = lm.sequences([0, 1, 2], 1)
    assert (rows.score(history[:, 3:]) - expected).norm() < off * expected.norm()
    rows.close()
    draft = lm.with_layers([0])
    post = Target(lm).sample("hello", draft=draft, particles=2, max_tokens=6, seed=0)
    assert post.particles
