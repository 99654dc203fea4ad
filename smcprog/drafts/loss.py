"""How far a student is from its target, token by token: KL, χ² and acceptance."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["acceptance", "forward_kl", "log_chi2"]


def forward_kl(log_p_N_C: Tensor, log_q_N_C: Tensor) -> Tensor:
    """KL(p‖q) = Σ p (log p − log q) over C classes, in nats, [N]."""
    gap = (log_p_N_C - log_q_N_C).masked_fill(log_p_N_C == -torch.inf, 0.0)
    return (log_p_N_C.exp() * gap).sum(-1)


def log_chi2(log_p_N_C: Tensor, log_q_N_C: Tensor) -> Tensor:
    """log(1 + χ²) = log Σ p²/q, [N]: log of the second moment of the weight p/q under q."""
    return torch.logsumexp(2 * log_p_N_C - log_q_N_C, -1)


def acceptance(log_p_N_C: Tensor, log_q_N_C: Tensor) -> Tensor:
    """Σ min(p, q), [N]: how often speculative decoding would keep a draft token."""
    return torch.minimum(log_p_N_C, log_q_N_C).exp().sum(-1)
