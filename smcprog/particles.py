"""Sums over the log-weights of populations: R rows of N particles each.

Log-weights are natural, unnormalised, float64; -inf is a dead particle. NaN and +inf are errors
that whoever makes weights must refuse; here a row that holds one gives NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ess", "logmeanexp", "normalized"]


def _scaled(log_w_R_N: Tensor) -> tuple[Tensor, Tensor]:
    """Weights over the largest of their row [R, N], and the log of that largest [R, 1]."""
    log_w_R_N = log_w_R_N.to(torch.float64)
    top_R_1 = log_w_R_N.amax(dim=-1, keepdim=True)
    # A row without a living particle is shifted by 0, since -inf - (-inf) is NaN.
    shift_R_1 = top_R_1.masked_fill(top_R_1 == -torch.inf, 0.0)
    return (log_w_R_N - shift_R_1).exp(), shift_R_1


def logmeanexp(log_w_R_N: Tensor) -> Tensor:
    """Log of the mean weight, what a population adds to the log-evidence.

    Parameters
    ----------
    log_w_R_N : Tensor of float64, [R, N]
        Log-weights. Any leading shape will do.

    Returns
    -------
    Tensor of float64, [R]
        log((1/N) Σ exp(log_w)); exactly the common value where all are equal, -inf where all
        are dead.
    """
    w_R_N, shift_R_1 = _scaled(log_w_R_N)
    return w_R_N.mean(dim=-1).log() + shift_R_1.squeeze(-1)


def normalized(log_w_R_N: Tensor) -> Tensor:
    """Weights that add up to one.

    Parameters
    ----------
    log_w_R_N : Tensor of float64, [R, N]
        Log-weights. Any leading shape will do.

    Returns
    -------
    Tensor of float64, [R, N]
        w̄ = w / Σ w; zeros where all are dead.
    """
    w_R_N, _ = _scaled(log_w_R_N)
    # The largest scaled weight is 1, so the sum is at least 1, or 0 where all are dead.
    return w_R_N / w_R_N.sum(dim=-1, keepdim=True).clamp(min=1.0)


def ess(log_w_R_N: Tensor) -> Tensor:
    """Effective sample size, 1/Σ w̄² (Kong, Liu and Wong 1994).

    Parameters
    ----------
    log_w_R_N : Tensor of float64, [R, N]
        Log-weights. Any leading shape will do.

    Returns
    -------
    Tensor of float64, [R]
        In [1, N]; exactly N where all are equal, 0 where all are dead.
    """
    w_R_N, _ = _scaled(log_w_R_N)
    size_R = w_R_N.sum(dim=-1).square() / w_R_N.square().sum(dim=-1).clamp(min=1.0)
    # Nearly equal weights can round past N.
    return size_R.clamp(max=w_R_N.shape[-1])
