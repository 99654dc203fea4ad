"""Categorical draws by inverse CDF, one counter-based uniform a draw.

`Draws` is the one place where randomness enters a round, so that a test can put an
enumeration of every choice in its place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from smcprog.rng import (
    STREAM_ACCEPT,
    STREAM_CANDIDATE,
    STREAM_REDRAW,
    STREAM_TOKEN,
    uniforms,
)
from smcprog.smc.strata import extend_keys, spread
from smcprog.smc.urn import Urn

__all__ = ["Draw", "Draws", "categorical", "drawn", "log_total", "pick"]

FIRST_CANDIDATES = 16  # uniforms made at once for the candidates of one draw


@dataclasses.dataclass(frozen=True)
class Draw:
    """Tokens drawn, the log-density of each draw, and the log-normaliser of its row.

    Attributes
    ----------
    tokens_M : Tensor, int64
    log_density_M : Tensor, float64
        log q of the token under the row's *normalised* weights; −∞ in an empty row.
    log_total_M : Tensor, float64
        log Σ_v exp(logw_v); −∞ in an empty row (nothing can be drawn there).
    refused_by_M : Tensor, int64, optional
        Number of the factor that refused every candidate of a row, else −1.
    """

    tokens_M: Tensor
    log_density_M: Tensor
    log_total_M: Tensor
    refused_by_M: Tensor | None = None


def categorical(weights_M_V: Tensor, u_M: Tensor) -> Tensor:
    """Token v with probability weight_v / Σ weights, by inverse CDF in float64.

    A token of weight zero is never returned, whatever rounding does to ``u · Σ``;
    an empty row returns 0.
    """
    rows = len(weights_M_V)
    if rows == 1 and weights_M_V.is_cuda:
        # There, sums along a single row are made in another way, in which they may fall.
        weights_M_V = weights_M_V.expand(2, -1)
    cdf_M_V = weights_M_V.cumsum(dim=1, dtype=torch.float64)[:rows]
    total_M = cdf_M_V[:, -1]
    below_total_M = torch.nextafter(total_M, torch.zeros_like(total_M))
    point_M = torch.minimum(u_M * total_M, below_total_M)
    token_M = torch.searchsorted(cdf_M_V, point_M.unsqueeze(1), right=True).squeeze(1)
    return torch.where(total_M > 0, token_M, 0)


def pick(values_M_V: Tensor, tokens_M: Tensor) -> Tensor:
    """The value of one token a row, [M]."""
    return values_M_V.gather(1, tokens_M.unsqueeze(1)).squeeze(1)


def log_total(logw_M_V: Tensor) -> Tensor:
    """log Σ_v exp(logw_v) of each row, summed in float64; −∞ in an empty row."""
    peak_M = logw_M_V.amax(dim=1)
    floor_M = torch.where(peak_M == -math.inf, torch.zeros_like(peak_M), peak_M)
    weights_M_V = (logw_M_V - floor_M.unsqueeze(1)).exp()
    return floor_M.double() + weights_M_V.sum(dim=1, dtype=torch.float64).log()


def drawn(logw_M_V: Tensor, choose: Callable[[Tensor], Tensor]) -> Draw:
    """One token a row in proportion to exp(logw), as `choose` finds it among the weights."""
    peak_M = logw_M_V.amax(dim=1)
    floor_M = torch.where(peak_M == -math.inf, torch.zeros_like(peak_M), peak_M)
    weights_M_V = (logw_M_V - floor_M.unsqueeze(1)).exp()
    tokens_M = choose(weights_M_V)
    log_total_M = floor_M.double() + weights_M_V.sum(dim=1, dtype=torch.float64).log()
    logw_M = pick(logw_M_V, tokens_M).double()
    log_density_M = torch.where(log_total_M == -math.inf, -math.inf, logw_M - log_total_M)
    return Draw(tokens_M, log_density_M, log_total_M)


class Draws:
    """The draws of some rows in one round: uniforms f(seed, particle, round, position, stream).

    Parameters
    ----------
    seeds_M, particles_M : Tensor, int64
        Seed of the row's request, and the particle's number in its population.
    round_index : int
    positions : int
        How many tokens the block may draw.
    keys_M : Tensor, int64, optional
        What the row has generated so far, as one number (`strata.extend_keys`): rows of
        equal keys draw their tokens jointly. None: every row for itself.
    paths : int
        Rows drawn per particle, neighbours, and independent of each other.
    """

    #: Whether tokens may be drawn by rejection against factors that can tell them one by one.
    by_rejection = True

    def __init__(
        self,
        seeds_M: Tensor,
        particles_M: Tensor,
        round_index: int,
        positions: int,
        keys_M: Tensor | None = None,
        paths: int = 1,
    ) -> None:
        self._of = (seeds_M, particles_M, round_index, positions, keys_M)
        path_P = torch.arange(paths, device=seeds_M.device).repeat(len(seeds_M))
        self._seeds = seeds_M.repeat_interleave(paths)
        self._particles = particles_M.repeat_interleave(paths)
        self._round = round_index
        at = torch.arange(positions, device=seeds_M.device)
        self._at_P_B = at + path_P.unsqueeze(1) * positions
        self._keys_P = keys_M
        if keys_M is not None and paths > 1:
            self._keys_P = extend_keys(keys_M.repeat_interleave(paths), path_P)
        self._uniforms: dict[int, Tensor] = {}

    def paths(self, count: int) -> Draws:
        """Draws for `count` independent rows per row of these."""
        return type(self)(*self._of, paths=count)

    def draw(self, logw_M_V: Tensor, position: int, rows: Tensor | None = None) -> Draw:
        """One token a row, in proportion to exp(logw); `rows` says which, if not all."""
        return drawn(logw_M_V, lambda weights_M_V: self.choose(weights_M_V, position, rows))

    def choose(self, weights_M_V: Tensor, position: int, rows: Tensor | None = None) -> Tensor:
        """Which token each row takes, given unnormalised weights."""
        u_M = self._uniform(STREAM_TOKEN, position, rows)
        if self._keys_P is not None:
            u_M = spread(u_M, self._keys_P if rows is None else self._keys_P[rows])
        return categorical(weights_M_V, u_M.to(weights_M_V.device))

    def took(self, tokens_M: Tensor, rows: Tensor | None = None) -> None:
        """Rows have taken a token: those that draw jointly from now on must have it too."""
        if self._keys_P is None:
            return
        if rows is None:
            self._keys_P = extend_keys(self._keys_P, tokens_M)
        else:
            keys_P = self._keys_P.clone()
            keys_P[rows] = extend_keys(keys_P[rows], tokens_M)
            self._keys_P = keys_P

    def accept(self, log_chance_M: Tensor, position: int, rows: Tensor) -> Tensor:
        """Whether each row keeps its drafted token, true with the given log-probability."""
        return self._uniform(STREAM_ACCEPT, position, rows).log() < log_chance_M

    def redraw(self, weights_M_V: Tensor, position: int, rows: Tensor) -> Tensor:
        """A token in place of one that was not kept, given unnormalised weights."""
        return categorical(weights_M_V, self._uniform(STREAM_REDRAW, position, rows))

    def urns(self, weights_S_V: Tensor, position: int, rows: Tensor) -> list[Urn]:
        """Draws without replacement in place of a row's token, given unnormalised weights."""
        seeds, particles = self._seeds[rows], self._particles[rows]
        at_S_1 = self._at_P_B[rows, position].unsqueeze(1)

        def chunk(row: slice, first: int, count: int) -> list[list[float]]:
            index = torch.arange(first, first + count, device=seeds.device)
            return uniforms(
                seeds[row], particles[row], self._round, at_S_1[row], STREAM_CANDIDATE + 256 * index
            ).tolist()

        known = chunk(slice(None), 0, FIRST_CANDIDATES)

        def source(i: int) -> Callable[[int], float]:
            drawn = known[i]

            def uniform(index: int) -> float:
                if index >= len(drawn):
                    drawn.extend(chunk(slice(i, i + 1), len(drawn), len(drawn))[0])
                return drawn[index]

            return uniform

        weights = weights_S_V.double().cpu().numpy()
        return [Urn(weights[i], source(i)) for i in range(len(rows))]

    def _uniform(self, stream: int, position: int, rows: Tensor | None) -> Tensor:
        if stream not in self._uniforms:
            self._uniforms[stream] = uniforms(
                self._seeds, self._particles, self._round, self._at_P_B, stream
            )
        u_P = self._uniforms[stream][:, position]
        return u_P if rows is None else u_P[rows]
