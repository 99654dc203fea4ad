"""Cells, prompts, statistics, the task, described accelerators, and the forward clock."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from smcprog import LM, Target
from smcprog.bench.accelerator import ACCELERATORS, Size, parse_accelerator, predict, size_of
from smcprog.bench.cells import Cell, Mode, draft_lengths, grid, parse_modes, reals, wholes
from smcprog.bench.checked import choose_held_out
from smcprog.bench.clock import forward_clock
from smcprog.bench.forking import measure_fork
from smcprog.bench.pair import endless, load_pair
from smcprog.bench.prompts import BUILT_IN, read_prompts
from smcprog.bench.quality import Difference, by_prompt, compare, proportion
from smcprog.bench.runs import Output, run_cell
from smcprog.bench.speed import SpeedSettings, measure
from smcprog.bench.summary import best_cells, ratios
from smcprog.bench.task import items
from smcprog.drafts.named import named_draft
from smcprog.errors import InputError, PromptError, SettingError
from smcprog.plots.pareto import pareto_front, plot_pareto

from ..tiny import tiny_llama


def test_modes() -> None:
    modes = parse_modes("generate, auto,lossless,lossless:3,coupled:2.0,smc,auto")
    assert [(m.name, m.coupling, m.paths, m.kind) for m in modes] == [
        ("generate", None, 1, "auto"),
        ("auto", None, 1, "auto"),
        ("lossless", 1.0, 1, "coupled"),
        ("lossless:3", 1.0, 3, "coupled"),
        ("coupled:2", 2.0, 1, "coupled"),
        ("smc", math.inf, 1, "smc"),
    ]
    assert [m.exact for m in modes] == [True] * 4 + [False] * 2
    for text in ("", "fast", "coupled", "coupled:0.5", "coupled:inf", "auto:2", "lossless:0"):
        with pytest.raises(SettingError):
            parse_modes(text)


def test_grid() -> None:
    cells = grid(parse_modes("auto,smc"), [1, 2], [3, 4], [0.7], [1, 8])
    assert len(cells) == len({c.name for c in cells}) == 2 * (2 + 4)
    assert cells[0].name == "auto N=1 τ=0.7" and cells[-1].name == "smc N=2 K=4 τ=0.7 R=8"
    assert wholes("--particles", "1, 8,8") == [1, 8]
    assert draft_lengths("auto,4") == ["auto", 4]
    assert reals("--temperatures", "0.5,1") == [0.5, 1.0]
    for text in ("", "x", "0", "1.5"):
        with pytest.raises(SettingError, match="--particles"):
            wholes("--particles", text)


def test_prompt_files(tmp_path: Path) -> None:
    assert read_prompts(None, 2) == list(BUILT_IN[:2])
    file = tmp_path / "p.jsonl.gz"
    rows = [{"turns": ["one", "more"]}, {"prompt": [{"role": "user", "content": "two"}]}]
    file.write_bytes(gzip.compress("\n\n".join(map(json.dumps, rows)).encode()))
    assert read_prompts(file) == ["one", rows[1]["prompt"]]
    assert read_prompts(file, 1) == ["one"]
    plain = tmp_path / "p.jsonl"
    for line, error in (("{", PromptError), ('{"id": 1}', PromptError), ("", InputError)):
        plain.write_text(line)
        with pytest.raises(error, match=r"p\.jsonl"):
            read_prompts(plain)
    for name, content in (("absent.jsonl", None), ("cut.jsonl.gz", file.read_bytes()[:20])):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="cannot read"):
            read_prompts(tmp_path / name)


def test_difference_and_what_may_be_quoted() -> None:
    outputs = [
        Output(0, 10, -20, 10, 1, 1),
        Output(0, 30, -20, 30, 1, 1),
        Output(1, 5, -5, 5, 1, 1),
    ]
    assert by_prompt(outputs) == {0: -1.0, 1: -1.0}
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):  # the interval covers the truth as often as it says
        gaps = rng.normal(0.05, 0.1, 6)
        gap = compare({i: -1 + g for i, g in enumerate(gaps)}, dict.fromkeys(range(6), -1.0))
        inside += gap.low <= 0.05 <= gap.high
    assert 0.91 < inside / 300 < 0.985
    assert math.isnan(compare({0: -1.0}, {1: -1.0}).mean)
    alone = compare({0: -1.0}, {0: -1.05})
    assert alone.mean == pytest.approx(0.05) and alone.quotable() == "unsure"
    assert Difference(0.02, -0.05, 0.09).quotable() == "yes"
    assert Difference(0.02, -0.15, 0.19).quotable() == "unsure"
    assert Difference(-0.2, -0.3, -0.05).quotable() == "no"
    assert Difference(-0.2, -0.5, 0.1).quotable(exact=True) == "exact"
    assert Difference(-0.2, -0.3, -0.15).quotable(exact=True) == "no"
    low, high = proportion(90, 100)
    assert 0.82 < low < 0.9 < high < 0.95


def test_the_task_is_repeatable_and_checked_exactly() -> None:
    asked = items(120)
    assert asked == items(120) and len({i.prompt for i in asked}) > 110
    for item in asked:
        text = item.prompt.split("Text: ")[-1]
        assert item.answer in text and item.answer not in item.others
        assert item.right(f"The answer is {item.answer}.") and item.right(item.answer.upper())
        wrong = item.others[0] if item.others else "7"
        assert not item.right(wrong) and not item.right("") and not item.right("I do not know")
        assert not item.right(f"{wrong}, or {item.answer}")
        assert not item.right(f"\n{item.answer}")
    assert not next(i for i in asked if i.answer.isdigit()).right("7")


def test_accelerators() -> None:
    h200 = parse_accelerator("H200")
    assert h200 == ACCELERATORS["h200"]
    assert h200.knee == pytest.approx(989e12 / 4.8e12)  # two bytes, two operations a weight
    report = predict(h200, Size(8e9), Size(1e9), [1, 16, 256], [4], acceptance=0.8)
    one, some, many = report["cells"]
    assert report["cost_ratio"] == pytest.approx(1 / 8)
    assert report["autoregressive_speed"] == pytest.approx(4.8e12 / 16e9)
    assert one["smc_speedup"] == pytest.approx(5 / (1 + 4 / 8)) == one["memory_bound_speedup"]
    assert some["memory_bound"] and some["smc_speedup"] == pytest.approx(one["smc_speedup"])
    assert not many["memory_bound"] and many["smc_speedup"] < one["smc_speedup"]
    assert one["lossless_speedup"] == pytest.approx((1 - 0.8**5) / 0.2 / (1 + 4 / 8))
    slow = predict(parse_accelerator("bandwidth=4.8e12,flops=9.89e14,overhead=1"), Size(8e9),
                   Size(1e9), [1], [4])  # fmt: skip
    assert slow["cells"][0]["smc_speedup"] == pytest.approx(1, rel=0.01)
    keys = predict(h200, Size(8e9, 1e5), Size(1e9, 1e4), [16], [4], context=4000)
    assert keys["cells"][0]["smc_speedup"] < some["smc_speedup"]
    for text in ("tpu", "bandwidth=1e12", "bandwidth=x,flops=1", "bandwidth=0,flops=1",
                 "bandwidth=1,flops=1,dtype=int2", "bandwidth=1,flops=1,color=red"):  # fmt: skip
        with pytest.raises(SettingError, match="--accelerator"):
            parse_accelerator(text)


def test_held_out_cells_are_none_that_was_fitted_to() -> None:
    cells = grid(parse_modes("auto,smc"), [1, 2, 8], [2, 4], [1.0], [1, 2])
    chosen = [cells[i] for i in choose_held_out(cells, 9)]
    assert len(chosen) == 9 == len(set(chosen))
    fitted = {("auto", 1, 0), ("auto", 8, 0), ("smc", 1, 2), ("smc", 8, 2)}
    assert not fitted & {
        (c.mode.name, c.particles, c.draft_tokens) for c in chosen if c.requests == 1
    }
    assert choose_held_out(cells, 0) == []
    assert len(choose_held_out(cells, 99)) == len(cells) - len(fitted)


def row(name: str, mode: str, speed: float, **more) -> dict:
    return {
        "name": name, "mode": mode, "particles": 1, "draft_tokens": 0, "temperature": 1.0,
        "requests": 1, "speed": speed, "speeds": [speed], "throughput": speed, "quotable": "yes",
    } | more  # fmt: skip


def test_best_cells_and_ratios() -> None:
    rows = [
        row("generate N=1 τ=1", "generate", 10.0),
        row("auto N=1 τ=1", "auto", 20.0),
        row("smc N=1 K=4 τ=1", "smc", 90.0, draft_tokens=4, quotable="no"),
        row("smc N=4 K=4 τ=1", "smc", 50.0, draft_tokens=4, particles=4),
        row("auto N=1 τ=1 R=8", "auto", 8.0, requests=8, throughput=64.0),
    ]
    assert list(best_cells(rows).values()) == [0, 1, 3]
    found = {(r["cell"], r["against"]): r for r in ratios(rows)}
    assert found["auto N=1 τ=1", "generate N=1 τ=1"]["ratio"] == 2
    assert found["smc N=4 K=4 τ=1", "auto N=1 τ=1"]["ratio"] == 2.5
    many = found["auto N=1 τ=1 R=8", "auto N=1 τ=1"]
    assert many["of"] == "throughput" and many["ratio"] == many["low"] == pytest.approx(3.2)
    assert ("smc N=1 K=4 τ=1", "auto N=1 τ=1") not in found


@pytest.mark.parametrize("costs", [[], [0.05], [0.0, 0.02, 0.3], [0.01, 12.0]])
def test_plot(tmp_path: Path, costs: list[float]) -> None:
    cells = [
        row(f"c{i}", f"m{i}", 5.0 + i, logp_difference=-cost, logp_low=None, logp_high=None)
        if i == 1
        else row(f"c{i}", f"m{i}", 5.0 + i, logp_difference=-cost, logp_low=-cost - 0.1,
                 logp_high=-cost + 0.1)
        for i, cost in enumerate(costs)
    ]  # fmt: skip
    figure = plot_pareto({"target": "a", "draft": None, "cells": cells}, tmp_path / "a.svg")
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert low <= 0 and high > max([*costs, 0.1])
    shown = {t for c in axes.collections for t in [c.get_label()]}
    assert {c["mode"] for c in cells} <= shown
    assert axes.get_xscale() == ("symlog" if max([*costs, 0]) > 1 else "linear")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_front() -> None:
    assert pareto_front([0.3, 0.0, 0.1, 0.2], [9, 5, 8, 7]) == [1, 2, 0]
    assert pareto_front([], []) == []


def test_outputs_that_do_not_end(folders) -> None:
    lm, draft = load_pair(*map(str, folders))
    assert lm.engine.prefixes is None and draft.engine.prefixes is None
    before = lm.vocab.eos_ids
    target = Target(lm)

    def lengths() -> set[int]:
        found = set()
        for seed in range(6):
            post = target.sample("ab", particles=8, max_tokens=40, draft=draft, seed=seed)
            found |= {len(p.tokens) for p in post.particles}
        return found

    ended = lengths()
    assert min(ended) < 40
    with endless(lm, draft):
        assert lengths() == {40}
    assert lm.vocab.eos_ids == before == (256,)


def test_drafts_by_name(folders) -> None:
    lm = LM(folders[0])
    assert named_draft(lm, "layers:1").config.num_hidden_layers == 1
    assert named_draft(lm, str(folders[1])).path == str(folders[1])
    with pytest.raises(SettingError, match="layers must be indices"):
        named_draft(lm, "layers:first")
    assert size_of(lm).weights == size_of(named_draft(lm, str(folders[1]))).weights
    assert size_of(named_draft(lm, "layers:1")).weights < size_of(lm).weights
    assert size_of(lm).kv == 2 * 2 * 1 * 8


def test_the_clock_sees_forwards_and_nothing_stays(folders) -> None:
    lm, draft = load_pair(*map(str, folders))
    cell = Cell(Mode("smc", math.inf), 3, 2, 1.0, requests=2)
    asked = [(0, "ab"), (1, "cd")]
    with forward_clock(lm, draft) as clock, endless(lm, draft):
        run, posts = run_cell(cell, lm, draft, asked, max_tokens=9, seed=5, clock=clock)
    assert "extend_alone" not in vars(lm.engine)
    assert sum(one.seconds for one in clock.ran) > sum(r.forwards for r in run.rounds) > 0
    assert run.rounds[0].ran == () and run.rounds[0].rows == 6
    shapes = [(one.model, one.columns) for one in run.rounds[2].ran]
    assert shapes == [(1, 2), (1, 1), (0, 3)]  # the draft takes the bonus along
    assert all(1 <= one.rows <= 6 for r in run.rounds for one in r.ran)  # equal rows run once
    assert [r.draft_tokens for r in run.rounds] == [0, 2, 2, 1]
    assert [r.length for r in run.rounds] == [0, 1, 4, 7]
    assert all(r.forwards < r.seconds for r in run.rounds)
    assert run.seconds > run.prefill + sum(r.forwards for r in run.rounds)
    assert [o.prompt for o in run.outputs] == [0, 1] and run.tokens == 18
    for output, post in zip(run.outputs, posts, strict=True):
        expected = sum(w * sum(p.logprobs) for w, p in zip(post.weights, post, strict=True))
        assert output.logp == pytest.approx(expected)
    lm.check_pages()


def test_a_fork_is_measured_and_gives_its_pages_back(folders) -> None:
    lm = LM(folders[0], prefix_cache=False)
    free = lm.pages_free
    found = measure_fork(lm, particles=4, tokens=100, repeats=3)
    assert (
        0
        < found["share"]
        == pytest.approx((found["fork_ms"] + found["copy_ms"]) / found["round_ms"])
    )
    assert lm.pages_free == free
    lm.check_pages()
    with pytest.raises(SettingError, match="do not fit"):
        measure_fork(lm, tokens=10_000)


@pytest.mark.parametrize(("option", "said"), [("fork", "do not fit"), ("task_items", "do not fit")])
def test_what_does_not_fit_is_said_before_anything_runs(option: str, said: str) -> None:
    lm = tiny_llama(vocab_size=3, context=64)
    cells = grid(parse_modes("auto"), [1], [1], [1.0])
    lm.encode = lambda prompt: [0] * len(prompt)  # a vocabulary of letters has no tokenizer
    with pytest.raises(SettingError, match=said):
        measure(lm, None, [[0]], SpeedSettings(cells, **{option: 1}))
    with pytest.raises(SettingError, match="need --draft"):
        measure(lm, None, [[0]], SpeedSettings(grid(parse_modes("smc"), [1], [1], [1.0])))


def test_a_line_of_a_file_ends_in_a_line_feed_only(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('\n{"prompt": "one\u2028line"}\n{"prompt": "two"}\n', encoding="utf-8")
    assert read_prompts(path) == ["one\u2028line", "two"]
    assert read_prompts(path, 1) == ["one\u2028line"]
