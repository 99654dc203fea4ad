"""Unbiased resampling: five ways to draw N ancestors in proportion to N weights.

Every scheme gives particle i an expected N·w̄_i offspring; they differ in how much the counts
scatter around that. Each works on R populations at once and returns ancestors only, knowing
nothing of what a particle is.

Weights are first counted in integer units of about 2⁻⁵², C units in all. From there on the
arithmetic is exact: a cumulative sum does not depend on the order of addition, so that a
population gets the same ancestors in any batch and on any device; a dead particle spans no unit
and cannot be hit; and no point can round past the last living particle. A normalised weight below
half a unit counts as zero.

Sources: Douc, Cappé and Moulines, "Comparison of resampling schemes for particle filtering",
ISPA 2005 (multinomial, stratified, systematic, residual); Gerber, Chopin and Whiteley, "Negative
association, ordering and convergence of resampling methods", Annals of Statistics 47, 2019 (SSP).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from smcprog.errors import InputError, SettingError
from smcprog.particles import normalized

__all__ = ["SCHEMES", "resample"]

Scheme = Callable[[Tensor, Tensor], Tensor]


def _units(w_R_N: Tensor) -> Tensor:
    """Normalised weights as int64 units [R, N]; N times their sum stays below 2**63."""
    n = w_R_N.shape[-1]
    return (w_R_N * 2.0 ** min(52, 62 - n.bit_length())).round().to(torch.int64)


def _points(u: Tensor, total: Tensor) -> Tensor:
    """Uniforms as integers in [0, total), even where u · total rounds up to total."""
    return torch.minimum((u * total).to(torch.int64), total - 1)


def _inverse_cdf(c_R_N: Tensor, points_R_M: Tensor) -> Tensor:
    """First i with c_0 + … + c_i > point [R, M]: the index whose span of units holds the point."""
    return torch.searchsorted(c_R_N.cumsum(dim=-1), points_R_M.contiguous(), right=True)


def _slots(c_R_N: Tensor) -> Tensor:
    """0, 1, …, N-1 as one row [1, N]."""
    return torch.arange(c_R_N.shape[-1], device=c_R_N.device).unsqueeze(0)


def _scheme(rule: Scheme) -> Scheme:
    """Make a function of weights from a rule on units; all-dead rows keep their particles."""

    @functools.wraps(rule)
    def ancestors(w_R_N: Tensor, u_R_N: Tensor) -> Tensor:
        c_R_N = _units(w_R_N)
        dead_R_1 = ~(c_R_N > 0).any(dim=-1, keepdim=True)
        # Equal weights stand in, so that the rule needs no case for them.
        found_R_N = rule(c_R_N.masked_fill(dead_R_1, 1), u_R_N)
        return torch.where(dead_R_1, _slots(c_R_N), found_R_N)

    return ancestors


@_scheme
def _multinomial(c_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """N independent draws; slot j uses uniform j."""
    return _inverse_cdf(c_R_N, _points(u_R_N, c_R_N.sum(dim=-1, keepdim=True)))


@_scheme
def _stratified(c_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """One draw in each of N equal strata of [0, 1); slot j uses uniform j."""
    total_R_1 = c_R_N.sum(dim=-1, keepdim=True)
    # N·C units, so that a stratum is C of them.
    points_R_N = _slots(c_R_N) * total_R_1 + _points(u_R_N, total_R_1)
    return _inverse_cdf(c_R_N * c_R_N.shape[-1], points_R_N)


@_scheme
def _systematic(c_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """One draw for all strata, the uniform of particle 0.

    The counts are floor(N w̄) or ceil(N w̄).
    """
    total_R_1 = c_R_N.sum(dim=-1, keepdim=True)
    points_R_N = _slots(c_R_N) * total_R_1 + _points(u_R_N[:, :1], total_R_1)
    return _inverse_cdf(c_R_N * c_R_N.shape[-1], points_R_N)


def _whole_and_rest(c_R_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """floor(N w̄) [R, N], what is left of N·c in units [R, N], and C [R, 1]."""
    total_R_1 = c_R_N.sum(dim=-1, keepdim=True)
    share_R_N = c_R_N * c_R_N.shape[-1]
    whole_R_N = torch.div(share_R_N, total_R_1, rounding_mode="floor")
    return whole_R_N, share_R_N - whole_R_N * total_R_1, total_R_1


@_scheme
def _residual(c_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """Sure copies, floor(N w̄) each, in the first slots; the others draw from the rests.

    Drawn slot j uses uniform j.
    """
    whole_R_N, rest_R_N, _ = _whole_and_rest(c_R_N)
    slots_1_N = _slots(c_R_N)
    sure_R_N = _inverse_cdf(whole_R_N, slots_1_N.expand_as(whole_R_N))
    drawn_R_N = _inverse_cdf(rest_R_N, _points(u_R_N, rest_R_N.sum(dim=-1, keepdim=True)))
    return torch.where(slots_1_N < whole_R_N.sum(dim=-1, keepdim=True), sure_R_N, drawn_R_N)


@_scheme
def _ssp(c_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """Srinivasan sampling process.

    The counts are floor(N w̄) or ceil(N w̄), and negatively associated. A holder with
    rest a meets each later particle, with rest b, in turn, by that particle's uniform (that of
    particle 0 is not used). One of the two is rounded to 0 or up to C units; the other holds what
    remains, a + b or a + b - C, with the chance that keeps both means.
    """
    whole_R_N, rest_R_N, total_R_1 = _whole_and_rest(c_R_N)
    total_R = total_R_1.squeeze(-1)
    a_R, holder_R = rest_R_N[:, 0], torch.zeros_like(total_R)
    rounded, up = [], []
    for i in range(1, c_R_N.shape[-1]):
        b_R = rest_R_N[:, i]
        sum_R = a_R + b_R
        over_R = sum_R >= total_R
        # The holder gets the larger outcome with chance a / (a + b), or (C - b) / (2C - a - b).
        chances_R = torch.where(over_R, 2 * total_R - sum_R, sum_R)
        first_R = _points(u_R_N[:, i], chances_R) < torch.where(over_R, total_R - b_R, a_R)
        # With both rests 0 the point is -1 and the holder stays, which is as good.
        passed_R = first_R == over_R
        rounded.append(torch.where(passed_R, holder_R, i))
        up.append(over_R)
        holder_R = torch.where(passed_R, i, holder_R)
        a_R = torch.where(over_R, sum_R - total_R, sum_R)
    # The rests are a whole number of copies together, so the last holder is left with 0.
    if rounded:
        done_R, up_R = torch.stack(rounded, dim=-1), torch.stack(up, dim=-1).to(torch.int64)
        whole_R_N = whole_R_N.scatter_add(-1, done_R, up_R)
    return _inverse_cdf(whole_R_N, _slots(c_R_N).expand_as(whole_R_N))


SCHEMES: dict[str, Scheme] = {
    "multinomial": _multinomial,
    "stratified": _stratified,
    "systematic": _systematic,
    "residual": _residual,
    "ssp": _ssp,
}
"""Name → function of normalised weights [R, N] (zeros where all are dead) and uniforms [R, N]."""


def resample(scheme: str, log_w_R_N: Tensor, u_R_N: Tensor) -> Tensor:
    """Draw N ancestors for each of R populations.

    Parameters
    ----------
    scheme : str
        "multinomial", "stratified", "systematic", "residual" or "ssp".
    log_w_R_N : Tensor of float64, [R, N]
        Log-weights, unnormalised, without NaN and +inf.
    u_R_N : Tensor of float64, [R, N]
        Uniforms in [0, 1), one a particle. "systematic" uses only that of particle 0, "ssp" all
        but that one, "residual" those of the slots that are not sure copies.

    Returns
    -------
    Tensor of int64, [R, N]
        ``ancestors[r, j]`` is the particle whose state slot j takes over. Particle i is expected
        N·w̄_i times; a dead one never occurs. A population with no living particle keeps every
        particle in its place.

    Raises
    ------
    SettingError
        If the scheme is unknown.
    InputError
        If the two tensors are not both [R, N] with N ≥ 1.
    """
    if scheme not in SCHEMES:
        known = ", ".join(f'"{name}"' for name in SCHEMES)
        raise SettingError(f"unknown resampling scheme {scheme!r}; choose one of {known}")
    if log_w_R_N.ndim != 2 or log_w_R_N.shape[1] < 1 or u_R_N.shape != log_w_R_N.shape:
        raise InputError(
            "log-weights and uniforms must both be [R, N] with N >= 1, got "
            f"{list(log_w_R_N.shape)} and {list(u_R_N.shape)}"
        )
    return SCHEMES[scheme](normalized(log_w_R_N), u_R_N.to(torch.float64))
