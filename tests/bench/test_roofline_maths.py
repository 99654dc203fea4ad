"""The roofline on timings that a known machine would give."""

from __future__ import annotations

import numpy as np
import pytest

from smcprog.bench.cells import Cell, Mode
from smcprog.bench.clock import Ran
from smcprog.bench.forwards import Forward, ForwardModel, fit_forwards
from smcprog.bench.roofline import Core, Roofline, Work, fit_core, played, simulated
from smcprog.bench.runs import Round

TRUE = ForwardModel(overhead=2e-3, weights=40e-3, token=4e-3, attention=5e-7, sharpness=3.0)
SHAPES = [
    *((r, 1, 60) for r in (1, 2, 4, 8, 16, 32)),
    *((r, 5, 60) for r in (1, 2, 4, 8, 16, 32)),
    *((r, 1, 400) for r in (1, 8, 32)),
]
LOSSLESS, SMC, AUTO = Mode("lossless", 1.0), Mode("smc", float("inf")), Mode("auto")


def timings(model: ForwardModel, noise: float, seed: int = 0) -> list[Forward]:
    rng = np.random.default_rng(seed)
    return [
        Forward(r, c, x, float(model.formula(r, c, x) * np.exp(noise * rng.normal())))
        for r, c, x in SHAPES
    ]


def test_a_known_machine_is_recovered() -> None:
    fitted = fit_forwards(timings(TRUE, 0.0))
    assert fitted.token == pytest.approx(TRUE.token, rel=0.05)
    assert fitted.overhead + fitted.weights == pytest.approx(42e-3, rel=0.05)
    assert fitted.attention == pytest.approx(TRUE.attention, rel=0.2)
    assert fitted.knee == pytest.approx(10, rel=0.25)
    assert np.abs(fitted.corrections).max() < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_held_out_shapes_are_predicted_within_the_noise(seed: int) -> None:
    fitted = fit_forwards(timings(TRUE, 0.03, seed))
    rows = np.array([3, 6, 12, 24, 3, 6, 12])
    columns = np.array([1, 1, 1, 1, 3, 3, 9])
    ratio = fitted.seconds(rows, columns, 100) / TRUE.formula(rows, columns, 100)
    assert np.abs(np.log(ratio)).max() < 0.08


def test_what_no_formula_knows_is_interpolated() -> None:
    """One shape takes half the time, as where another kernel is chosen."""
    timed = [
        Forward(f.rows, f.columns, f.context, f.seconds * (0.5 if f.rows * f.columns == 2 else 1))
        for f in timings(TRUE, 0.0)
    ]
    fitted = fit_forwards(timed)
    assert fitted.seconds(2, 1, 60) == pytest.approx(0.5 * TRUE.formula(2, 1, 60), rel=0.02)
    assert fitted.seconds(32, 1, 60) == pytest.approx(TRUE.formula(32, 1, 60), rel=0.05)


def test_one_context_leaves_no_attention_term() -> None:
    timed = [f for f in timings(TRUE, 0.0) if f.context == 60]
    assert fit_forwards(timed).attention == 0
    with pytest.raises(ValueError, match="at least 3"):
        fit_forwards(timed[:2])


def test_the_samplers_work_is_recovered() -> None:
    true = Core(2e-3, 4e-4, 1e-4)
    works = [Work(n, k, 50) for n, k in ((1, 0), (8, 0), (1, 2), (8, 2), (4, 6))]
    fitted = fit_core(works, [true.seconds(w) for w in works], [1.0] * len(works))
    assert fitted.fixed == pytest.approx(true.fixed)
    assert fitted.row == pytest.approx(true.row)
    assert fitted.drafted == pytest.approx(true.drafted)
    assert fit_core(works, [-1e-3] * len(works), [1.0] * len(works)) == Core(0, 0, 0)


def test_a_round_is_its_forwards_and_the_samplers_work() -> None:
    flat = ForwardModel(0.0, 10e-3, 0.0, 0.0, 2.0)
    roofline = Roofline(flat, ForwardModel(0.0, 1e-3, 0.0, 0.0, 2.0), {"smc": Core(2e-3, 0, 0)})
    work = Work(4, 3, 20)
    assert roofline.forwards(work) == pytest.approx(13e-3)
    assert roofline.seconds(work, "smc") == pytest.approx(15e-3)
    assert roofline.forwards(Work(4, 0, 20)) == pytest.approx(10e-3)
    assert roofline.forwards(Work(4, 0, 20, forward=False)) == 0


def test_simulated_rounds_without_chance() -> None:
    (works,) = simulated(Cell(AUTO, 2, 0, 1.0), [], 30, 5)
    assert [(w.rows, w.draft_tokens, w.forward) for w in works] == [
        (2, 0, False),
        *[(2, 0, True)] * 4,
    ]
    (works,) = simulated(Cell(SMC, 2, 3, 1.0, requests=2), [], 30, 8)
    # 1 token, then 4, then the last 3 in a block of two drafts.
    assert [(w.rows, w.draft_tokens) for w in works] == [(4, 0), (4, 3), (4, 2)]
    assert [w.context for w in works] == [30, 31, 35]


def test_simulated_rounds_keep_what_the_acceptance_says() -> None:
    accepted = [np.full(40, 0.6)]
    plays = simulated(Cell(LOSSLESS, 1, 4, 1.0), accepted, 30, 400)
    rounds = np.mean([len(p) - 1 for p in plays])
    expected = (1 - 0.6**5) / (1 - 0.6)
    assert 399 / rounds == pytest.approx(expected, rel=0.03)
    everything = simulated(Cell(LOSSLESS, 3, 4, 1.0), [np.ones(40)], 30, 21)
    assert {len(p) for p in everything} == {5}
    assert all(w.rows == 3 for p in everything for w in p)
    # With more rows, the slowest decides.
    many = simulated(Cell(LOSSLESS, 8, 4, 1.0), accepted, 30, 60)
    one = simulated(Cell(LOSSLESS, 1, 4, 1.0), accepted, 30, 60)
    assert np.mean([len(p) for p in many]) > 1.1 * np.mean([len(p) for p in one])


def test_outputs_shorter_than_a_block_go_on_with_the_mean() -> None:
    plays = simulated(Cell(LOSSLESS, 1, 6, 1.0), [np.array([1.0, 1.0])], 30, 15)
    assert {len(p) for p in plays} == {3}


def test_rounds_that_were_played() -> None:
    def ran(drafts: int, rows: int) -> tuple[Ran, ...]:
        steps = [Ran(1, rows, 1, 12, 0.5)] * drafts
        return (*steps, Ran(0, rows, drafts + 1, 12, 2.0))

    rounds = [Round(1, (), 2, 0), Round(5, ran(4, 2), 2, 1), Round(5, ran(2, 1), 1, 6)]
    assert played(rounds, 10) == [
        Work(2, 0, 10, False),
        Work(2, 4, 11, True),
        Work(1, 2, 16, True),
    ]
    assert [r.forwards for r in rounds] == [0, 4, 3]
    roofline = Roofline(
        ForwardModel(0.0, 0.0, 1.0, 0.0, 2.0), ForwardModel(0.1, 0.0, 0.0, 0.0, 2.0), {}
    )
    assert roofline.alone(rounds) == pytest.approx(6 * 0.1 + 2 * 5 + 1 * 3)
