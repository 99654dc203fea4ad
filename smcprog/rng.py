"""Counter-based uniforms: the same number for the same (seed, particle, round, position, stream).

A generator with a hidden state would make what a request draws depend on what else is in the
batch. Here every uniform is a pure function of its coordinates, so a request draws the same
numbers alone, among others, on the CPU and on a GPU, bit for bit.

The function is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011): the seed is the key, the four other coordinates are the counter.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import SupportsIndex

import torch
from torch import Tensor

from smcprog.errors import InputError, SettingError

__all__ = [
    "STREAM_ACCEPT",
    "STREAM_CANDIDATE",
    "STREAM_CHOICE",
    "STREAM_MOVE",
    "STREAM_REDRAW",
    "STREAM_RESAMPLE",
    "STREAM_TOKEN",
    "philox4x32",
    "seed_word",
    "uniforms",
]

STREAM_TOKEN = 0
"""Uniforms that draw tokens."""
STREAM_RESAMPLE = 1
"""Uniforms that draw ancestors."""
STREAM_CHOICE = 2
"""Uniforms that pick the returned sample among the particles."""
STREAM_ACCEPT = 3
"""Uniforms that keep drafted tokens or not."""
STREAM_REDRAW = 4
"""Uniforms that draw tokens in place of those that were not kept."""
STREAM_CANDIDATE = 5
"""Uniforms that draw candidates for a check: the i-th of a draw is in stream 5 + 256 i."""
STREAM_MOVE = 6
"""Uniforms that accept moves, and place the chains of waste-free SMC."""

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def seed_word(seed: SupportsIndex) -> int:
    """A seed as the signed 64-bit integer that an int64 tensor can hold.

    Parameters
    ----------
    seed : int
        Any integer in [-2**63, 2**64). As for ``torch.manual_seed`` negative seeds are allowed:
        only the 64 bits count, so that -1 and 2**64 - 1 are the same seed.

    Returns
    -------
    int
        The same 64 bits, in [-2**63, 2**63).

    Raises
    ------
    SettingError
        If `seed` is not an integer, or is outside that range.
    """
    try:
        if isinstance(seed, bool):
            raise TypeError
        value = operator.index(seed)
    except TypeError:
        raise SettingError(
            f"seed must be an integer, got {seed!r} of type {type(seed).__name__}"
        ) from None
    if not -(2**63) <= value < 2**64:
        raise SettingError(f"seed must fit in 64 bits, from -2**63 to 2**64 - 1, got {value}")
    return value - 2**64 if value >= 2**63 else value


@lru_cache(maxsize=64)
def _constants(device: torch.device, dims: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Multipliers [2, 1...], Weyl offsets of the ten keys [10, 2, 1...], word size and mask []."""
    # Cached tensors, since copying constants to a GPU each time would wait for it; the two
    # scalars are tensors too, since wrapping a Python number costs as much as the operation.
    ones = (1,) * dims
    multipliers = torch.tensor(_MULTIPLIERS, dtype=torch.int64, device=device)
    weyl = [[r * w for w in _WEYL] for r in range(_ROUNDS)]
    offsets = torch.tensor(weyl, dtype=torch.int64, device=device)
    size = torch.tensor(32, device=device)
    mask = torch.tensor(_MASK, device=device)
    return multipliers.view(2, *ones), offsets.view(_ROUNDS, 2, *ones), size, mask


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """The ten-round Philox4x32 bijection, elementwise.

    Parameters
    ----------
    counter : Tensor of int64, [4, ...]
        Four 32-bit words an element; only their low 32 bits count.
    key : Tensor of int64, [2, ...]
        Two 32-bit words an element; the trailing shape broadcasts against that of `counter`,
        with the same number of dimensions.

    Returns
    -------
    Tensor of int64, [4, ...]
        Four words in [0, 2**32) an element.

    Notes
    -----
    Salmon et al. 2011, section 3.3. A product of two 32-bit words needs 64 unsigned bits; int64
    wraps around and keeps exactly these bits, so the high word is an arithmetic shift and a mask.
    """
    multipliers, offsets, size, mask = _constants(counter.device, counter.ndim - 1)
    # Both multiplications of a round run as one: `even` is words 0 and 2, `odd` words 1 and 3.
    # High bits beyond the 32 are dropped once a round, by the mask on `even`; elsewhere they are
    # harmless, since only xor and addition touch them.
    even, odd = counter[0::2] & mask, counter[1::2]
    for round_key in (key + offsets).unbind(0):
        product = (even * multipliers).flip(0)
        high = torch.bitwise_right_shift(product, size)
        even = high.bitwise_xor_(odd).bitwise_xor_(round_key).bitwise_and_(mask)
        odd = product
    return torch.stack((even, odd & mask), dim=1).flatten(0, 1)


def _word(value: Tensor | int, name: str, seeds: Tensor, spread: bool) -> Tensor:
    """Check one coordinate; with `spread`, add the axis along which positions lie."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            raise InputError(f"{name} must be a tensor of integers, got {value.dtype}")
        return value.unsqueeze(-1) if spread else value
    if not 0 <= value <= _MASK:
        raise SettingError(f"{name} must be in [0, 2**32), got {value}")
    return seeds.new_full((), value)


def uniforms(
    seeds_M: Tensor,
    particles_M: Tensor | int,
    rounds_M: Tensor | int,
    positions: Tensor | int,
    stream: Tensor | int,
) -> Tensor:
    """Uniforms at the given coordinates.

    Parameters
    ----------
    seeds_M : Tensor of int64, [M]
        Seeds, as `seed_word` gives them. Its device is the device of the result.
    particles_M : Tensor of integers, [M], or int
        Index of each particle within its own population.
    rounds_M : Tensor of integers, [M], or int
        Round of each particle's request.
    positions : Tensor of integers, [P], or int
        Positions within the round, the same for all M; or [M, P], each row its own.
    stream : int
        What the uniforms are for: `STREAM_TOKEN` or another of these constants. A tensor
        broadcasts against `positions`.

    Returns
    -------
    Tensor of float64, [M, P]
        Values (x + 1/2) / 2**52 with x a 52-bit integer, so strictly inside (0, 1). [M] if
        `positions` is an int. In general the first three arguments broadcast to one shape,
        which gets a last axis of size 1 and then broadcasts against `positions`.

    Raises
    ------
    InputError
        If the seeds are not int64, or another coordinate is a tensor of floats.
    SettingError
        If a coordinate given as an int is outside [0, 2**32).

    Notes
    -----
    The counter is (particle, round, position, stream), each word taken modulo 2**32. The first two
    output words make the 52 bits. Nothing here waits for the device.
    """
    if seeds_M.dtype != torch.int64:
        raise InputError(f"seeds must be a tensor of int64, got {seeds_M.dtype}")
    spread = isinstance(positions, Tensor) and positions.ndim > 0
    seeds = seeds_M.unsqueeze(-1) if spread else seeds_M
    words = (
        _word(particles_M, "particles", seeds, spread),
        _word(rounds_M, "rounds", seeds, spread),
        _word(positions, "positions", seeds, False),
        _word(stream, "stream", seeds, False),
    )
    seeds, *words = torch.broadcast_tensors(seeds, *words)
    bits = philox4x32(torch.stack(words), torch.stack((seeds, seeds >> 32)))
    return ((bits[0] << 20) | (bits[1] >> 12)).double().add_(0.5).mul_(2.0**-52)
