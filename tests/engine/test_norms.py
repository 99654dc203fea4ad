"""Fused norms stand only where they compute the same."""

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from smcprog.engine.norms import FusedRMSNorm, fuse_norms


def holder(norm):
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
    return torch.nn.Sequential(norm, torch.nn.Identity())


def test_the_fused_norm_is_the_same_function_of_the_same_weight():
    norm = LlamaRMSNorm(24, eps=1e-5)
    model = holder(norm)
    assert fuse_norms(model) == 1
    assert isinstance(model[0], FusedRMSNorm) and model[0].weight is norm.weight
    x = torch.randn(3, 5, 24, generator=torch.Generator().manual_seed(1)) * 10
    torch.testing.assert_close(model[0](x), norm(x))


@pytest.mark.parametrize(
    "norm", [Gemma2RMSNorm(24), LlamaRMSNorm(24).double(), LlamaRMSNorm(24).bfloat16()]
)
def test_others_stay(norm):
    model = holder(norm)
    assert fuse_norms(model) == 0
    assert model[0] is norm
