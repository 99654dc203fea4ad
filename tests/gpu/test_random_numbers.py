"""Uniforms and ancestors are the same on every device, to the last bit."""

from __future__ import annotations

import pytest
import torch

from smcprog.resampling import SCHEMES
from smcprog.rng import STREAM_TOKEN, philox4x32, uniforms
from smcprog.smc.draws import categorical, pick

from ..smc.test_resampling import ALL, exact_w, random_case
from ..smc.test_rng import KNOWN


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer, device):
    out = philox4x32(torch.tensor(counter, device=device), torch.tensor(key, device=device))
    assert out.tolist() == answer


def test_uniforms(device):
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**62), 2**62, (37,), generator=generator)
    particles = torch.randint(0, 64, (37,), generator=generator)
    rounds = torch.randint(0, 500, (37,), generator=generator)
    positions = torch.arange(9)
    here = (seeds.to(device), particles.to(device), rounds.to(device), positions.to(device))
    found = uniforms(*here, STREAM_TOKEN)
    assert found.device.type == device.type
    assert torch.equal(found.cpu(), uniforms(seeds, particles, rounds, positions, STREAM_TOKEN))
    row = slice(5, 6)
    alone = uniforms(here[0][row], here[1][row], here[2][row], here[3][:3], STREAM_TOKEN)
    assert torch.equal(alone, found[row, :3])


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_tokens_have_weight(rows, device):
    """Even where the uniform lies on the edge between two tokens, most of which have no weight."""
    generator = torch.Generator().manual_seed(0)
    weights_M_V = torch.rand((rows, 40_000), generator=generator)
    weights_M_V = weights_M_V * (torch.rand(weights_M_V.shape, generator=generator) < 0.1)
    cdf_M_V = weights_M_V.double().cumsum(1)
    here_M_V = weights_M_V.to(device)
    for at in range(0, 40_000, 397):
        u_M = (cdf_M_V[:, at] / cdf_M_V[:, -1]).clamp(1e-15, 1 - 1e-15)
        token_M = categorical(here_M_V, u_M.to(device)).cpu()
        assert (pick(weights_M_V, token_M) > 0).all()
        off_M = pick(cdf_M_V, token_M) / cdf_M_V[:, -1] - u_M
        assert (off_M > -1e-12).all() and (off_M < 1e-3).all()


@pytest.mark.parametrize("scheme", ALL)
def test_ancestors(scheme, device):
    """Sums of weights may differ in their last digits, which moves no boundary past these draws."""
    log_w, u = random_case(8, 100, 33)
    w = exact_w(log_w)
    found = SCHEMES[scheme](w.to(device), u.to(device))
    assert found.device.type == device.type
    assert torch.equal(found.cpu(), SCHEMES[scheme](w, u))
