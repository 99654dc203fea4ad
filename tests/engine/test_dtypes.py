"""Models in bfloat16, float16 and float32: their own logits, and weights finer than those."""

from __future__ import annotations

import math

import pytest
import torch

from smcprog import Grammar, Guidance, Mixture, Target
from smcprog.engine import LM
from smcprog.potentials.base import Request

from .conftest import make_model, toy_vocabulary

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 1e-2}
"""Of logits, relative to their spread: some steps of the type (2⁻²⁴, 2⁻⁹ and 2⁻¹²)."""
DTYPES = list(TOLERANCE)


def lm_of(dtype, arch="llama", seed=0):
    return LM.from_model(make_model(arch, seed).to(dtype), toy_vocabulary(), kv_pages=100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3", "gpt2"])
def test_logits_are_those_of_transformers(arch, dtype):
    model = make_model(arch).to(dtype)
    lm = LM.from_model(model, toy_vocabulary(), kv_pages=100)
    history = torch.arange(3, 27).view(2, 12)
    rows = lm.sequences([1, 2, 5], 2)
    logits = torch.cat([rows.score(piece) for piece in history.split(5, dim=1)], dim=1)
    assert logits.dtype == lm.dtype == dtype
    tokens = torch.cat([torch.tensor([[1, 2, 5]] * 2), history], dim=1)
    with torch.no_grad():
        own = model(tokens, use_cache=False).logits[:, 2:-1].double()
        exact = model.double()(tokens, use_cache=False).logits[:, 2:-1]
    spread = exact.std()
    assert (logits - own).abs().max() / spread < TOLERANCE[dtype]
    # Neither is the truth: the engine is as near to it as transformers is.
    assert (logits - exact).norm() < 1.5 * (own - exact).norm() + 1e-6 * exact.norm()


def rows_of(lm, tokens_N_T):
    rows = lm.sequences([1, 2, 5], len(tokens_N_T))
    logits_N_T_V = rows.score(tokens_N_T)
    rows.close()
    return logits_N_T_V


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_float32_of_the_logits_and_sums_float64(dtype, temperature):
    lm = lm_of(dtype)
    target = Target(lm, temperature=temperature, power=1.5)
    tokens_N_T = torch.arange(2, 42).view(2, 20)
    logp_N_T_V = (rows_of(lm, tokens_N_T).float() / temperature).log_softmax(-1)
    expected_N_T = logp_N_T_V.gather(2, tokens_N_T[:, :, None])[..., 0].double()

    request = call_request(lm)
    state = target.start(request, 2)
    state, log_psi_N = target.advance(
        state, tokens_N_T, torch.full((2,), 20), torch.zeros(2, dtype=torch.bool)
    )
    assert log_psi_N.dtype == torch.float64
    torch.testing.assert_close(target.token_logprobs(state), expected_N_T, atol=3e-6, rtol=0)
    torch.testing.assert_close(log_psi_N, 1.5 * expected_N_T.sum(1), atol=4e-5, rtol=0)
    assert target.next_logw(state).dtype == torch.float32
    target.release(state)


def call_request(lm):
    return Request([1, 2, 5], (1, 2, 5), lm.vocab, 20, True, ())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["mixture", "guidance"])
def test_models_combined(dtype, kind):
    """Log-probabilities in float32, not logits in half precision, are what is combined."""
    lm, other = lm_of(dtype), lm_of(dtype, seed=1)
    a = rows_of(lm, torch.tensor([[7]]))[0, 0].float().log_softmax(-1)
    if kind == "mixture":
        factor = Mixture([Target(lm), Target(other)])
        b = rows_of(other, torch.tensor([[7]]))[0, 0].float().log_softmax(-1)
        expected = torch.stack([a, b]).logsumexp(0) - math.log(2)
    else:
        factor = Guidance(lm, 1.5, negative_prompt=[9])
        with lm.sequences([9], 1) as rows:
            b = rows.next_logits()[0].float().log_softmax(-1)
        expected = (1.5 * a - 0.5 * b).log_softmax(-1)
    state = factor.start(call_request(lm), 1)
    logw = factor.next_logw(state)[0]
    assert logw.dtype in (torch.float32, torch.float64)
    atol = 1e-5 if dtype == torch.float32 or kind == "mixture" else 0.3  # rows of one batch
    torch.testing.assert_close(logw.float(), expected, atol=atol, rtol=1e-5)
    factor.release(state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", [{}, {"coupling": 1.0}, {"coupling": 2.0}])
def test_weights_are_of_the_density_drawn(dtype, settings):
    """The model drafts for itself: whatever its type, what is left is the rounding of logits
    in passes of other shapes; without a draft, nothing is."""
    lm = lm_of(dtype)
    run = {"particles": 4, "max_tokens": 12, "seed": 3, "ess_threshold": 0.0}
    alone = Target(lm).sample([1, 2, 5], **run)
    assert max(abs(p.log_weight) for p in alone.particles) < 1e-5
    drafted = Target(lm).sample([1, 2, 5], draft=lm, draft_tokens=3, **run, **settings)
    limit = 1e-4 if dtype == torch.float32 else 30 * TOLERANCE[dtype]
    assert max(abs(p.log_weight) for p in drafted.particles) < limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_a_grammar(dtype):
    """log Z̃ under a mask is that of float32 log-probabilities of the model's logits."""
    lm = lm_of(dtype)
    first = rows_of(lm, torch.tensor([[7]]))[0, 0].float().log_softmax(-1)
    masked = Target(lm) * Grammar.regex("[!-%]+")
    post = masked.sample([1, 2, 5], particles=64, max_tokens=1, seed=0, truncate=True)
    allowed = [lm.vocab.token_bytes[i] in (b"!", b'"', b"#", b"$", b"%") for i in range(50)]
    expected = first[torch.tensor(allowed)].logsumexp(0)
    assert post.log_evidence == pytest.approx(float(expected), abs=1e-5)
