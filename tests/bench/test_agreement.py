"""Acceptance and χ² of coupled draws, against sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smcprog import LM, Target
from smcprog.bench.agreement import (
    coupled_figures,
    expected_block,
    local_logp,
    measure_agreement,
    output_logps,
)
from smcprog.bench.cells import Cell, Mode
from smcprog.bench.outside import Generate

P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.7, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)


@pytest.mark.parametrize("coupling", [1.0, 1.25, 2.0, 8.0])
def test_the_density_of_a_coupled_draw(coupling: float) -> None:
    accepted, log_chi2 = coupled_figures(P.log(), Q.log(), coupling)
    for t in range(2):
        p, q = P[t].tolist(), Q[t].tolist()
        kept = [min(b, coupling * a) for a, b in zip(p, q, strict=True)]
        rest = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
        left = 1 - sum(kept)
        kappa = [k + left * r / sum(rest) for k, r in zip(kept, rest, strict=True)]
        assert sum(kappa) == pytest.approx(1)
        assert float(accepted[t]) == pytest.approx(sum(kept))
        second = sum(a * a / k for a, k in zip(p, kappa, strict=True))
        assert math.exp(log_chi2[t]) == pytest.approx(second)
    if coupling == 1:
        assert log_chi2.abs().max() < 1e-12


def test_without_coupling_everything_is_kept() -> None:
    accepted, log_chi2 = coupled_figures(P.log(), Q.log(), math.inf)
    assert accepted.tolist() == [1, 1]
    assert log_chi2.exp().tolist() == pytest.approx((P * P / Q).sum(1).tolist())
    same = coupled_figures(P.log(), P.log(), 2.0)
    assert same[0].tolist() == pytest.approx([1, 1]) and same[1].abs().max() < 1e-12


def test_expected_block() -> None:
    assert expected_block([np.full(30, 0.5)], 3) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    # Acceptance that comes in stretches makes shorter blocks than its mean would.
    mixed = expected_block([np.tile([1.0, 0.0], 20)], 4)
    assert mixed < expected_block([np.full(40, 0.5)], 4)


def test_a_pair_of_models(folders) -> None:
    target, draft = (LM(folder, prefix_cache=False) for folder in folders)
    post = Target(target, temperature=0.8).sample("ab", particles=3, max_tokens=20, seed=0)
    prompt = target.encode("ab")
    for particle in post.particles:
        logp_T_V = local_logp(target, prompt, particle.tokens, 0.8, target.vocab.size)
        own = logp_T_V.gather(1, torch.tensor(particle.tokens)[:, None])[:, 0]
        assert own.tolist() == pytest.approx(particle.logprobs, abs=1e-4)
    totals = output_logps(target, prompt, [p.tokens for p in post.particles], 0.8)
    assert totals == pytest.approx([sum(p.logprobs) for p in post.particles], abs=1e-3)
    outputs = [(prompt, p.tokens) for p in post.particles]
    found = measure_agreement(target, draft, outputs, 0.8, [1.0, 2.0, math.inf])
    assert [len(a) for a in found[1.0].accepted] == [len(t) for _, t in outputs]
    assert 0 < found[1.0].acceptance < found[2.0].acceptance < found[math.inf].acceptance == 1
    assert abs(found[1.0].log_chi2) < 1e-6 < found[2.0].log_chi2 < found[math.inf].log_chi2
    itself = measure_agreement(target, target, outputs, 0.8, [1.0, math.inf])
    assert itself[1.0].acceptance == pytest.approx(1)
    assert itself[math.inf].log_chi2 == pytest.approx(0, abs=1e-6)


def test_generate_draws_from_the_same_distribution(folders) -> None:
    """The baseline is comparable: mean log p of its outputs is that of the model's own samples.

    Two requests of different lengths are one padded batch, and outputs end at EOS or not.
    """
    target = LM(folders[0], prefix_cache=False)
    baseline = Generate(target)
    cell = Cell(Mode("generate"), 400, 0, 0.7, requests=2)
    asked = [(0, "a"), (1, "a longer prompt")]
    run, texts = baseline.run(cell, asked, max_tokens=6, seed=0)
    posts = Target(target, temperature=0.7).sample(
        [p for _, p in asked], particles=400, max_tokens=6, seed=[1, 2]
    )
    for output, post, rows in zip(run.outputs, posts, texts, strict=True):
        assert all(len(r) == 6 or r[-1] == 256 for r in rows)
        own = np.array([sum(p.logprobs) for p in post.particles])
        assert abs(output.logp - own.mean()) < 4 * np.sqrt(2) * own.std() / 20
        length = np.array([len(p.tokens) for p in post.particles])
        assert abs(output.tokens - length.mean()) < 4 * np.sqrt(2) * length.std() / 20 + 1e-9
