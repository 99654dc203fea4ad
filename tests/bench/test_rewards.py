"""`bench rewards`: scores judge what they say, curves follow their definition, and SMC gains."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from smcprog import Grammar
from smcprog.bench.rewards import METHODS, measure
from smcprog.bench.rewards_curves import Cell, best_of, compare, weighted
from smcprog.bench.rewards_tasks import TASKS, Item, Task, faithful, in_order, right_steps
from smcprog.cli.app import app
from smcprog.plots import plot_rewards
from smcprog.testing import TabularLM

SOURCE = (
    "Tom Weber of Oslo sold 3 lamps to Nina Rossi from Lyon, at 20 euros each, 60 euros in total."
)
RIGHT = {
    "buyer": "Nina Rossi", "city": "Lyon", "item": "lamps", "quantity": 3, "price": 20, "total": 60,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, 0),
        ({"buyer": "Tom Weber"}, 1),  # the city is no longer the buyer's
        ({"buyer": "Nina"}, 2),
        ({"city": "Oslo"}, 1),
        ({"item": "lamp"}, 1),
        ({"quantity": 4}, 2),  # and the total no longer the product
        ({"quantity": 20, "price": 3}, 0),
        ({"total": 20}, 1),
        ({"price": "twenty"}, 2),
    ],
)
def test_an_extraction_is_judged_by_its_source(change, wrong):
    text = json.dumps({**RIGHT, **change})
    assert faithful(SOURCE, text) == pytest.approx(1 - wrong / 6)


def test_an_unfinished_extraction_is_judged_by_its_whole_keys():
    text = json.dumps(RIGHT)
    scores = [faithful(SOURCE, text[: i + 1]) for i in range(len(text))]
    assert scores == sorted(scores)
    assert [6 * faithful(SOURCE, text[: i + 1]) for i, c in enumerate(text) if c in ",}"] == (
        pytest.approx([1, 2, 3, 4, 5, 6])
    )


def test_lists_are_judged_by_kind_and_order():
    known = frozenset({"ant", "bee", "cow", "dog"})
    for text, right in [
        ("ant, bee, cow, dog", 4), ("ant, bee, cow, ", 3), ("bee, ant, cow, dog", 3),
        ("ant, ant, bee", 2), ("ant, cat, dog", 2), ("Ant, bee", 2), ("", 0),
    ]:  # fmt: skip
        assert in_order(known, 4, text) == right / 4, text


def test_steps_are_judged_by_the_sum():
    for text, right in [
        ("2 + 3 = 5\n5 + 4 = 9", 2), ("2 + 3 = 6\n6 + 4 = 10", 1), ("3 + 2 = 5\n5 + 4 = 9", 1),
        ("2 + 3 = 5\n9 + 4 = 13", 1), ("2 + 3 = 5\n", 1), ("5 + 4 = 9", 0), ("", 0), ("x", 0),
    ]:  # fmt: skip
        assert right_steps("2 + 3 + 4", text) == right / 2, text


def test_items_can_be_answered():
    """The answers that a program gives have the form and score 1; items differ."""
    for task in TASKS:
        items = task.make(24, 3)
        assert len({json.dumps(item.prompt) for item in items}) == 24
        assert [item.prompt for item in task.make(24, 3)] == [item.prompt for item in items]
        for item in items[:6]:
            answer = _answer(task.name, item)
            assert item.score(answer) == 1 and item.grammar.accepts(answer), answer
            assert item.score("") == 0


def _answer(name: str, item: Item) -> str:
    asked = item.prompt[-1]["content"]
    if name == "arithmetic":
        total, *digits = map(int, asked.split(" + "))
        lines = []
        for digit in digits:
            lines.append(f"{total} + {digit} = {total + digit}")
            total += digit
        return "\n".join(lines)
    if name == "lists in order":
        known, size = item.score.args[:2]
        return ", ".join(sorted(known)[:size])
    words = asked.replace(",", "").replace(".", "").split()
    numbers = [int(w) for w in words if w.isdigit()][-3:]
    quantity = words.index(str(numbers[0]))
    city = words.index("from")
    return json.dumps(
        {
            "buyer": " ".join(words[city - 2 : city]),
            "city": words[city + 1],
            "item": words[quantity + 1],
            **dict(zip(("quantity", "price", "total"), numbers, strict=True)),
        }
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_the_best_of_n_is_the_mean_over_subsets(n):
    scores = np.array([0.2, 1.0, 0.2, 0.7, 1.0])
    tops = [max(some) for some in itertools.combinations(scores, n)]
    mean, perfect = best_of(scores, n)
    assert mean == pytest.approx(np.mean(tops))
    assert perfect == pytest.approx(np.mean([top == 1 for top in tops]))


def test_a_weighted_choice_is_the_mean_over_subsets():
    """256 subsets: four standard errors of their mean, passed by chance once in 16,000."""
    scores, log_w = np.array([0.0, 0.5, 1.0, 0.3]), np.array([0.0, 1.0, 0.5, -math.inf])
    exact = []
    for some in itertools.combinations(range(4), 2):
        w = np.exp(log_w[list(some)])
        exact.append((w @ scores[list(some)]) / w.sum())
    mean, _ = weighted(scores, log_w, 2, np.random.default_rng(0))
    assert abs(mean - np.mean(exact)) < 4 * np.std(exact) / 16
    everything = weighted(scores, log_w, 4, np.random.default_rng(0))
    w = np.exp(log_w)
    assert everything == pytest.approx((w @ scores / w.sum(), w[2] / w.sum()))
    dead = weighted(scores, np.full(4, -math.inf), 2, np.random.default_rng(0))
    assert dead == (0.0, 0.0)


def test_methods_are_compared_at_equal_compute():
    zero = np.zeros(2)
    cells = [
        Cell("a", 1, 10, 1, np.array([0.1, 0.3]), zero),
        Cell("a", 2, 1000, 2, np.array([0.5, 0.7]), zero),
        Cell("b", 4, 100, 8, np.array([0.4, 0.8]), zero),
    ]
    (by_rows,) = compare(cells, "b", "a", "rows", 0)["points"]
    assert by_rows["more"] == pytest.approx(0.2) and not by_rows["beyond"]
    assert (by_rows["low"], by_rows["high"]) == pytest.approx((0.1, 0.3))
    (by_seconds,) = compare(cells, "b", "a", "seconds", 0)["points"]
    assert by_seconds["more"] == pytest.approx(0) and by_seconds["beyond"]


def _toy() -> tuple[Task, TabularLM]:
    """Four or five letters out of a, b, c, d, where five have the form and a is wanted."""
    letters, over = [0.25] * 4 + [0.0], [0.0] * 4 + [1.0]

    def conditional(history):
        if 4 in history or len(history) == 5:
            return over
        return [0.125] * 4 + [0.5] if len(history) == 4 else letters

    lm = TabularLM.from_conditionals([b"a", b"b", b"c", b"d", b"<eos>"], [4], conditional, 5)
    grammar = Grammar.regex("[abcd]{5}")

    def make(count: int, seed: int) -> list[Item]:
        return [Item([0], lambda text: text.count("a") / 5, grammar)] * count

    return Task("toy", make, "a", 15.0, 7), lm


def test_a_reward_at_boundaries_gains_most(tmp_path):
    """The order of the methods on a task that can be worked out. Seeds are fixed."""
    task, lm = _toy()
    report = measure(lm, [task], [8], 16)
    (toy,) = report["tasks"]
    cells = {(c["method"], c["particles"]): c for c in toy["cells"]}
    assert {method for method, _ in cells} == set(METHODS)
    # One draw under the mask is right in a quarter of its letters; 5 letters and EOS are 6 rows.
    assert cells[METHODS[1], 1]["score"] == pytest.approx(0.25, abs=0.03)
    assert cells[METHODS[1], 1]["rows"] == 6
    # The model alone stops a letter short half the time.
    assert cells[METHODS[0], 1]["score"] == pytest.approx(0.125, abs=0.03)
    of_8 = [cells[method, 8]["score"] for method in METHODS]
    free, masked, importance, end, end_best, at, at_best = of_8
    assert free < importance <= masked + 0.01 < at
    assert end <= end_best < at <= at_best
    at_equal_rows = {
        a["rival"]: a["points"][-1]
        for a in toy["against"]
        if a["by"] == "rows" and a["method"] == METHODS[-1]
    }
    assert all(point["low"] > 0 for point in at_equal_rows.values())
    path = tmp_path / "rewards.png"
    plot_rewards(report, path)
    plot_rewards(report, by="seconds")
    assert path.stat().st_size > 10_000
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tasks", "poems"], "--tasks takes extraction, lists, arithmetic, got 'poems'"),
        (["-n", "4,x"], "--particles"),
        (["--plot", "a.bmp"], "--plot"),
    ],
)
def test_bad_options(arguments, says):
    result = CliRunner().invoke(app, ["bench", "rewards", *arguments])
    assert result.exit_code == 3 and says in result.stderr
