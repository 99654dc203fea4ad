"""Counter-based uniforms: known answers, independence of the batch, distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smcprog.errors import InputError, SettingError
from smcprog.rng import (
    STREAM_CHOICE,
    STREAM_RESAMPLE,
    STREAM_TOKEN,
    philox4x32,
    seed_word,
    uniforms,
)

stats = pytest.importorskip("scipy.stats")

MASK = 0xFFFFFFFF
# The philox4x32 10 lines of kat_vectors in Random123: counter, key, answer.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def ints(*values: int, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in Python integers, as in the paper."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def plain_uniform(seed: int, particle: int, round_: int, position: int, stream: int) -> float:
    words = plain_philox([particle, round_, position, stream], [seed & MASK, seed >> 32 & MASK])
    return ((words[0] << 32 | words[1]) // 2**12 + 0.5) / 2**52


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    out = philox4x32(ints(*counter), ints(*key))
    assert out.tolist() == answer
    assert plain_philox(counter, key) == answer  # the reference of the next test


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    words=st.tuples(*[st.integers(0, MASK)] * 4),
)
def test_equals_plain_integers(seed, words):
    particle, round_, position, stream = words
    got = uniforms(ints(seed_word(seed)), ints(particle), round_, position, stream)
    assert got.tolist() == [plain_uniform(seed, particle, round_, position, stream)]


def test_shapes_and_broadcasting():
    seeds, particles, rounds = ints(1, 2, 3), ints(0, 1, 0), ints(4, 5, 6)
    positions = torch.arange(5)
    full = uniforms(seeds, particles, rounds, positions, STREAM_TOKEN)
    assert full.shape == (3, 5)
    assert full.dtype == torch.float64
    for p in range(5):
        assert torch.equal(full[:, p], uniforms(seeds, particles, rounds, p, STREAM_TOKEN))
    # One row of positions for each particle.
    own = torch.stack((positions, positions + 1, positions + 2))
    assert torch.equal(
        uniforms(seeds, particles, rounds, own, STREAM_TOKEN)[:, 0],
        full.diagonal()[:3],
    )
    # One seed and one round for many particles, and narrow integers.
    many = uniforms(ints(7), torch.arange(4, dtype=torch.int32), 2, positions, STREAM_TOKEN)
    assert many.shape == (4, 5)
    assert many[3, 4].item() == plain_uniform(7, 3, 2, 4, STREAM_TOKEN)
    # A scalar seed.
    assert uniforms(torch.tensor(7), ints(0, 1), 2, positions, 0).shape == (2, 5)
    assert uniforms(torch.tensor(7), 3, 2, 4, 0).item() == plain_uniform(7, 3, 2, 4, 0)
    assert uniforms(ints(), ints(), ints(), positions, 0).shape == (0, 5)


def test_independent_of_the_batch():
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(-(2**62), 2**62, (37,), generator=generator)
    particles = torch.randint(0, 64, (37,), generator=generator)
    rounds = torch.randint(0, 500, (37,), generator=generator)
    positions = torch.arange(9)
    together = uniforms(seeds, particles, rounds, positions, STREAM_TOKEN)
    for m in range(37):
        row = slice(m, m + 1)
        alone = uniforms(seeds[row], particles[row], rounds[row], positions, STREAM_TOKEN)
        assert torch.equal(alone, together[row])
    shorter = uniforms(seeds, particles, rounds, positions[:3], STREAM_TOKEN)
    assert torch.equal(shorter, together[:, :3])


def test_arguments_are_left_alone():
    seeds, particles, positions = ints(5, -6), ints(0, 1), torch.arange(3)
    uniforms(seeds, particles, 0, positions, STREAM_TOKEN)
    assert seeds.tolist() == [5, -6]
    assert particles.tolist() == [0, 1]
    assert positions.tolist() == [0, 1, 2]


def test_every_coordinate_counts():
    base = (3, 1, 4, 1, STREAM_TOKEN)
    seen = set()
    for axis in range(5):
        for step in (0, 1, 2**31):
            at = list(base)
            at[axis] += step
            seen.add(uniforms(ints(at[0]), ints(at[1]), *at[2:]).item())
    seen.add(uniforms(ints(3 + 2**32), ints(1), 4, 1, STREAM_TOKEN).item())
    assert len(seen) == 1 + 5 * 2 + 1
    assert len({STREAM_TOKEN, STREAM_RESAMPLE, STREAM_CHOICE}) == 3


def test_strictly_inside_the_unit_interval():
    # The smallest and largest of the 52-bit grid, by the same last step.
    for bits, want in ((0, 2.0**-53), (2**52 - 1, 1 - 2.0**-53)):
        value = torch.tensor(bits).double().add_(0.5).mul_(2.0**-52).item()
        assert value == want
        assert 0 < value < 1
    u = uniforms(ints(0), torch.arange(1000), 0, torch.arange(1000), STREAM_TOKEN)
    assert 0 < u.min().item() < 1e-4
    assert 1 - 1e-4 < u.max().item() < 1
    # Each value is an odd multiple of 2**-53.
    assert torch.all((u * 2.0**53) % 2 == 1)


def test_uniform_along_every_coordinate():
    # Seven Kolmogorov-Smirnov tests of 20,000 values each at 1e-4 / 7: a correct generator
    # would fail here for one base seed in 10,000.
    n = 20_000
    counting = torch.arange(n)
    zero = torch.zeros(n, dtype=torch.int64)
    samples = [
        uniforms(counting, zero, 0, 0, STREAM_TOKEN),
        uniforms(counting << 32, zero, 0, 0, STREAM_TOKEN),
        uniforms(-counting, zero, 0, 0, STREAM_TOKEN),
        uniforms(zero, counting, 0, 0, STREAM_TOKEN),
        uniforms(zero, zero, counting, 0, STREAM_TOKEN),
        uniforms(ints(0), ints(0), 0, counting, STREAM_TOKEN)[0],
        uniforms(zero, counting, 0, 0, STREAM_RESAMPLE),
    ]
    for sample in samples:
        assert stats.kstest(sample.numpy(), "uniform").pvalue > 1e-4 / 7


def test_low_bits_and_neighbours_are_independent():
    # Eight tests at 1e-4 / 8: a false alarm for one base seed in 10,000.
    u = uniforms(ints(11), torch.arange(300), 0, torch.arange(300), STREAM_TOKEN)
    low = (u * 2.0**52).long() % 64  # the low six bits
    pvalues = [stats.chisquare(np.bincount(low.flatten().numpy(), minlength=64)).pvalue]
    other_stream = uniforms(ints(11), torch.arange(300), 0, torch.arange(300), STREAM_RESAMPLE)
    other_round = uniforms(ints(11), torch.arange(300), 1, torch.arange(300), STREAM_TOKEN)
    other_seed = uniforms(ints(12), torch.arange(300), 0, torch.arange(300), STREAM_TOKEN)
    pairs = [
        (u[1:], u[:-1]),
        (u[:, 1:], u[:, :-1]),
        (u, other_stream),
        (u, other_round),
        (u, other_seed),
    ]
    for x, y in pairs:
        cell = (x * 16).long() * 16 + (y * 16).long()
        counts = np.bincount(cell.flatten().numpy(), minlength=256)
        pvalues.append(stats.chisquare(counts).pvalue)
    blocks = u.reshape(-1, 5)  # position-wise blocks: the largest of five has cdf x**5
    pvalues.append(stats.kstest(blocks.amax(1).numpy() ** 5, "uniform").pvalue)
    pvalues.append(stats.kstest((blocks.sum(1) % 1).numpy(), "uniform").pvalue)
    assert len(pvalues) == 8
    assert min(pvalues) > 1e-4 / 8


def test_seed_word():
    assert seed_word(0) == 0
    assert seed_word(np.int32(5)) == 5
    assert seed_word(-1) == seed_word(2**64 - 1) == -1
    assert seed_word(2**63) == -(2**63)
    assert seed_word(2**63 - 1) == 2**63 - 1
    torch.tensor(seed_word(2**64 - 1), dtype=torch.int64)  # what it is for


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seed_too_large(seed):
    with pytest.raises(SettingError, match="64 bits"):
        seed_word(seed)


@pytest.mark.parametrize("seed", [1.0, "1", True, [1]])
def test_seed_of_a_wrong_type(seed):
    with pytest.raises(SettingError, match="must be an integer"):
        seed_word(seed)


def test_bad_coordinates():
    with pytest.raises(InputError, match="int64"):
        uniforms(torch.tensor([1], dtype=torch.int32), ints(0), 0, 0, STREAM_TOKEN)
    with pytest.raises(InputError, match="particles"):
        uniforms(ints(1), torch.tensor([0.0]), 0, 0, STREAM_TOKEN)
    with pytest.raises(SettingError, match="rounds"):
        uniforms(ints(1), ints(0), -1, 0, STREAM_TOKEN)
    with pytest.raises(SettingError, match="positions"):
        uniforms(ints(1), ints(0), 0, 2**32, STREAM_TOKEN)
    with pytest.raises(SettingError, match="stream"):
        uniforms(ints(1), ints(0), 0, 0, -1)
