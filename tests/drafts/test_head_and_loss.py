"""A trimmed head, and the classes it is trained on, against the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog.drafts.head import TrimmedHead
from smcprog.drafts.loss import acceptance, forward_kl, log_chi2
from smcprog.drafts.targets import TargetHead, choose_kept

V, D, N, M = 20, 6, 40, 7


@pytest.fixture
def case():
    torch.manual_seed(0)
    weight_V_D = torch.randn(V, D, dtype=torch.float64)
    bias_V = torch.randn(V, dtype=torch.float64)
    hidden_N_D = torch.randn(N, D, dtype=torch.float64)
    classes = choose_kept(iter([hidden_N_D[:30], hidden_N_D[30:]]), weight_V_D, bias_V, M)
    head = TrimmedHead(weight_V_D[classes.kept_M], classes.kept_M, classes.log_rest_V)
    with torch.no_grad():
        for parameter in (head.kept.bias, head.rest.weight, head.rest.bias):
            parameter.normal_()
    return weight_V_D, bias_V, hidden_N_D, classes, head


def test_kept_tokens_are_the_most_probable(case):
    weight_V_D, bias_V, hidden_N_D, classes, _ = case
    mean_V = torch.softmax(hidden_N_D @ weight_V_D.T + bias_V, -1).mean(0)
    others = sorted(set(range(V)) - set(classes.kept_M.tolist()))
    assert len(others) == V - M
    assert mean_V[classes.kept_M].min() > mean_V[others].max()
    assert float(classes.log_rest_V[others].exp().sum()) == pytest.approx(1, abs=1e-6)


def test_rest_is_spread_by_the_static_distribution(case):
    *_, hidden_N_D, classes, head = case
    q_N_V = torch.softmax(head(hidden_N_D), -1)
    q_N_C = torch.softmax(head.short(hidden_N_D), -1)
    torch.testing.assert_close(q_N_V[:, classes.kept_M], q_N_C[:, :-1], atol=1e-6, rtol=0)
    expected = q_N_C[:, -1:] * classes.log_rest_V.double().exp()
    others = sorted(set(range(V)) - set(classes.kept_M.tolist()))
    torch.testing.assert_close(q_N_V[:, others], expected[:, others], atol=1e-6, rtol=0)
    assert (q_N_V > 0).all()


def test_classes_give_the_divergences_of_the_whole_vocabulary(case):
    """KL up to what no student can change; χ² exactly."""
    weight_V_D, bias_V, hidden_N_D, classes, head = case
    log_p_N_V = torch.log_softmax(hidden_N_D @ weight_V_D.T + bias_V, -1)
    log_q_N_V = torch.log_softmax(head(hidden_N_D), -1)
    target = TargetHead(weight_V_D, bias_V, classes, bfloat16=False)
    summary_N_3 = target.summaries(hidden_N_D)
    log_p_N_C = target.log_probs(hidden_N_D, summary_N_3)
    log_q_N_C = torch.log_softmax(head.short(hidden_N_D), -1)
    torch.testing.assert_close(log_p_N_C.exp().sum(-1), torch.ones(N).double())
    square = torch.logaddexp(
        log_chi2(log_p_N_C[:, :-1], log_q_N_C[:, :-1]), summary_N_3[:, 2] - log_q_N_C[:, -1]
    )
    torch.testing.assert_close(square, log_chi2(log_p_N_V, log_q_N_V), atol=1e-6, rtol=0)

    others = sorted(set(range(V)) - set(classes.kept_M.tolist()))
    inside = log_p_N_V[:, others] - log_p_N_C[:, -1:]
    within = inside.exp() * (inside - classes.log_rest_V[others])
    constant = log_p_N_C[:, -1].exp() * within.sum(-1)
    torch.testing.assert_close(
        forward_kl(log_p_N_C, log_q_N_C) + constant,
        forward_kl(log_p_N_V, log_q_N_V),
        atol=1e-6,
        rtol=0,
    )


def test_figures_by_their_definitions():
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.6, 0.2, 0.1])
    log_p, log_q = torch.tensor(p).log()[None], torch.tensor(q).log()[None]
    assert float(acceptance(log_p, log_q)) == pytest.approx(0.1 + 0.3 + 0.2)
    kl = 0.5 * np.log(5) + 0.3 * np.log(0.5)
    assert float(forward_kl(log_p, log_q)) == pytest.approx(kl)
    assert float(log_chi2(log_p, log_q)) == pytest.approx(np.log(0.25 / 0.1 + 0.09 / 0.6 + 0.2))
