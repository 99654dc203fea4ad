"""The reference values of the four cases, without a length limit, from their definitions."""

from __future__ import annotations

from collections import defaultdict

import pytest

from .toys import (
    CASE_A,
    CASE_B,
    CASE_C,
    CASE_D,
    REGEX_A,
    REGEX_B,
    gamma,
    in_regex,
    is_dyck,
)  # fmt: skip


def limit_sums(toy, step, accepting, start, longest):
    """Z, P(first token = 0) and E[length without EOS] by a forward pass over an automaton."""
    layer = {((), start, None): 1.0}
    z = first = length = 0.0
    for t in range(longest + 1):
        after = defaultdict(float)
        for (history, state, head), mass in layer.items():
            probs = toy.conditional(history)
            if accepting(state):
                ended = mass * probs[toy.eos]
                z, length = z + ended, length + t * ended
                first += ended * (head == 0)
            for v in range(len(probs)):
                moved = None if v == toy.eos else step(state, v)
                if moved is not None and probs[v]:
                    key = ((*history, v)[-toy.order :], moved, v if head is None else head)
                    after[key] += mass * probs[v]
        layer = after
    return z, first / z, length / z


def step_a(state, bit):
    """Automaton of 11[01]+|0[01]*."""
    table = {"": ("0", "1"), "0": ("0", "0"), "1": (None, "11"), "11": ("in", "in")}
    return table.get(state, ("in", "in"))[bit]


def test_case_a():
    ends = {"0", "in"}
    z, first, length = limit_sums(CASE_A, step_a, ends.__contains__, "", 400)
    assert (z, first, length) == pytest.approx((0.368, 0.5435, 4.246), abs=5e-4)
    z, _, length = limit_sums(CASE_A, step_a, ends.__contains__, "", 19)
    assert (z, length) == pytest.approx((0.3674, 4.22), abs=5e-3)
    # The automaton and the regex say the same.
    z, _, _ = limit_sums(CASE_A, step_a, ends.__contains__, "", 9)
    brute = gamma(CASE_A, 10, truncate=False, accepts=in_regex(REGEX_A))
    assert sum(brute.values()) == pytest.approx(z)


def test_case_b():
    g = gamma(CASE_B, 6, truncate=False, accepts=in_regex(REGEX_B))
    assert sum(g.values()) == pytest.approx(17 / 32)
    assert g[0, 0, 0, 0, 0, 2] / sum(g.values()) == pytest.approx(1 / 17)


def test_case_c():
    def step(depth, token):
        return depth + 1 if token == 0 else (depth - 1 if depth else None)

    z, _, length = limit_sums(CASE_C, step, lambda depth: depth == 0, 0, 400)
    assert (z, length / 2) == pytest.approx((0.24503, 0.2906), abs=5e-5)
    assert 0.2 / z == pytest.approx(0.8162, abs=5e-5)
    z, _, _ = limit_sums(CASE_C, step, lambda depth: depth == 0, 0, 8)
    brute = gamma(CASE_C, 9, truncate=False, accepts=is_dyck)
    assert sum(brute.values()) == pytest.approx(z)


def test_case_d():
    g = gamma(CASE_D, 3, truncate=False, accepts=lambda text: text == "ab")
    assert g == pytest.approx({(2, 3): 0.1, (0, 1, 3): 0.06})
