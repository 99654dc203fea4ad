"""``smcprog bench gpu`` on tiny models and the CPU, and its arithmetic by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from smcprog.bench.accelerator import ACCELERATORS, Accelerator, Size, size_of
from smcprog.bench.gpu import measure as gpu
from smcprog.bench.gpu.bars import bars
from smcprog.bench.gpu.bounds import Rows, round_bound
from smcprog.bench.gpu.cells import ForwardShape, GpuCell, Grid, plan
from smcprog.bench.gpu.launches import LaunchClock, forget_programs, idle_share
from smcprog.bench.gpu.machine import find_machine, sheet_of, timed
from smcprog.bench.gpu.pair import LoadedPair, pool_pages
from smcprog.bench.gpu.shapes import PAIRS, build_pair, check_fits, letters
from smcprog.bench.pair import endless
from smcprog.cli import app
from smcprog.errors import SettingError
from smcprog.potentials import Target

from ..tiny import tiny_llama

runner = CliRunner()
CPU = torch.device("cpu")
SMALL = Grid(particles=(2, 3), draft_tokens=(2,), prompts=(16,), requests=(1, 2))
ARGUMENTS = (
    "gpu", "--shapes", "tiny", "--device", "cpu", "-n", "2,3", "-k", "2", "--prompt-tokens",
    "16", "--requests", "1,2", "--rounds", "3", "--repeats", "1",
)  # fmt: skip


def run(*args: Any) -> tuple[int, str, str]:
    result = runner.invoke(app, ["bench", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is printed with ``--json``, and what lies in the file."""
    file = tmp_path_factory.mktemp("gpu") / "report.json"
    code, out, err = run(*ARGUMENTS, "--json", "--out", file)
    assert code == 0, err + out
    assert not list(file.parent.glob("*.part"))
    return json.loads(out), json.loads(file.read_text())


def test_every_step_of_the_plan_is_measured(report) -> None:
    printed, saved = report
    assert printed == saved
    (pair,) = printed["pairs"]
    assert pair["failed"] == [] and pair["left_out"] == []
    assert [r["name"] for r in pair["rows"]] == [step.name for step in plan(SMALL)]
    assert [m["name"] for m in pair["models"]] == ["tiny-4", "tiny-1"]


def test_rows_of_rounds_add_up(report) -> None:
    (pair,) = report[0]["pairs"]
    rows = [r for r in pair["rows"] if r["kind"] == "rounds"]
    assert {r["mode"] for r in rows} == {"smc", "auto", "lossless", "generate", "assisted"}
    for r in rows:
        outside = r["mode"] in ("generate", "assisted")
        assert r["round_ms"] > 0 and r["prompt_ms"] > 0 and r["roofline_ms"] > 0
        assert r["bandwidth_ms"] <= r["roofline_ms"]
        assert r["share"] == pytest.approx(r["roofline_ms"] / r["round_ms"])
        assert r["throughput"] == pytest.approx(r["requests"] * r["speed"])
        assert r["particle_throughput"] == pytest.approx(r["particles"] * r["throughput"])
        assert r["tokens_per_round"] * r["rounds"] == pytest.approx(r["tokens"] - 1)
        assert r["waves"] == 1
        if r["mode"] == "smc":  # all drafts are kept: 1 + 3 rounds of K + 1
            assert (r["tokens"], r["rounds"], r["tokens_per_round"]) == (10, 3, 3)
        if not outside:
            assert r["launched"] == r["graphs"], r["name"]
        assert r["captured"] is None  # the CPU has no graphs
        assert (r["idle"] is not None) == bool(r["launched"])
        assert r["idle"] is None or 0 <= r["idle"] < 1


def test_rows_of_forwards(report) -> None:
    (pair,) = report[0]["pairs"]
    rows = [r for r in pair["rows"] if r["kind"] == "forward"]
    assert {(r["model"], r["columns"]) for r in rows} == {
        ("target", 1), ("draft", 1), ("target", 3),
    }  # fmt: skip
    for r in rows:
        assert r["eager_ms"] > 0 and r["launch_ms"] > 0
        assert r["share"] == pytest.approx(r["roofline_ms"] / r["launch_ms"])


def test_the_table_says_what_is_there(tmp_path: Path) -> None:
    code, out, err = run(*ARGUMENTS, "--budget", "0.5")
    assert code == 0, err
    assert "CPU (measured)" in out and "left out, for time:" in out
    assert "device idle between rounds" in out and "tiny-4 with tiny-1" in out
    # The most important cell is measured whatever the budget is.
    assert "smc N=2 K=2 R=1 P=16" in out


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        code, out, err = run("gpu", "--json")
        assert code == 3 and "needs a CUDA device" in err and "--device cpu --shapes tiny" in err
        assert json.loads(out)["error"]["type"] == "SettingError"
    for arguments, words in [
        (("--shapes", "llama,big"), "--shapes must be of llama, qwen3, tiny"),
        (("--device", "tpu0"), "--device must be cuda"),
        (("--device", "meta"), "--device must be cuda"),
        (("--dtype", "float8"), "--dtype must be one of"),
        (("--attention", "fast"), "attention must be one of"),
        (("-n", "0"), "--particles"),
        (("--budget", "nan"), "--budget"),
        (("--prompt-tokens", "20000"), "context of tiny-4 is 16384"),
        (("--out", tmp_path / "no" / "where.json"), "cannot write it"),
    ]:
        code, _, err = run(*ARGUMENTS, *arguments)
        assert code == 3 and words in err, (arguments, code, err)


def test_a_run_that_fails_or_is_cut_off_leaves_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ran = gpu._step, []

    def step(*args: Any) -> dict[str, Any]:
        ran.append(args[0].name)
        if len(ran) == 2:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if len(ran) == 4:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(gpu, "_step", step)
    file = tmp_path / "report.json"
    code, out, err = run(*ARGUMENTS, "--out", file)
    assert code == 130 and "interrupted" in err
    (pair,) = json.loads(file.read_text())["pairs"]
    assert [r["name"] for r in pair["rows"]] == [ran[0], ran[2]]
    assert [f["name"] for f in pair["failed"]] == [ran[1]]
    assert "RuntimeError: CUDA error" in out and "smc N=2" in out

    def unbuilt(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as inner:
        inner.setattr(gpu, "LoadedPair", unbuilt)
        code, out, _ = run(*ARGUMENTS)
    assert code == 1 and "failed: models: OutOfMemoryError" in out
    ran.clear()
    code, _, _ = run(*ARGUMENTS, "--budget", "0")
    assert code == 0 and len(ran) == 1  # one step is run whatever the budget is


# -------------------------------------------------------------------------- arithmetic


def test_a_round_by_hand() -> None:
    """An H200, 8 G and 1 G weights in two bytes: worked out with pencil and paper."""
    h200 = ACCELERATORS["h200"]
    target, draft = Size(8e9, kv=65_536), Size(1e9, kv=8_192)
    # Weights alone, 8 rows of K + 1 = 9: 16 GB/4.8 TB/s + 8 · 2 GB/4.8 TB/s.
    bound = round_bound(h200, target, draft, Rows(8, 0, 0, 1), 8)
    assert bound.seconds == pytest.approx(32e9 / 4.8e12)
    assert bound.memory == bound.seconds and bound.limited_by == "memory"
    # 256 tokens of a prompt once, and 100 tokens of each of 8 rows.
    bound = round_bound(h200, target, draft, Rows(8, 100, 256, 1), 8)
    kv = 2 * (256 + 8 * 100) * (65_536 + 8 * 8_192)
    assert bound.seconds == pytest.approx((32e9 + kv) / 4.8e12)
    # Four requests have four prompts.
    bound = round_bound(h200, target, draft, Rows(32, 100, 256, 4), 8)
    kv = 2 * (4 * 256 + 32 * 100) * (65_536 + 8 * 8_192)
    assert bound.memory == pytest.approx((32e9 + kv) / 4.8e12)
    # 32 rows score 288 tokens, more than the knee at 206: arithmetic sets the pace of that pass.
    bound = round_bound(h200, target, draft, Rows(32, 0, 0, 1), 8)
    assert bound.seconds == pytest.approx(16e9 / 4.8e12 + 2 * 8e9 * 288 / 9.89e14)
    assert bound.memory == pytest.approx(32e9 / 4.8e12) and bound.limited_by == "arithmetic"
    # Without a draft, one pass of one column.
    bound = round_bound(h200, target, draft, Rows(1, 0, 0, 1), 0)
    assert bound.seconds == pytest.approx(16e9 / 4.8e12)


def test_arithmetic_of_attention_by_hand() -> None:
    """4,096 query numbers times 1,000 tokens before, a product and a sum each, keys and values."""
    machine = Accelerator("slow", bandwidth=1e30, flops=1e12)
    seconds = machine.seconds(Size(0, 0, attention=4096), 2, 3, context=200, shared=800)
    assert seconds == pytest.approx(2 * 3 * 4 * 4096 * 1000 / 1e12)


@pytest.mark.parametrize(
    ("pair", "weights", "kv"),
    [
        # Embeddings are not read, heads are; a pair of norms a layer and one at the end.
        (
            "llama",
            (7_504_924_672, 1_235_814_400),
            (2 * 32 * 8 * 128, 2 * 16 * 8 * 64),
        ),
        ("qwen3", (7_568_405_504, 596_049_920), (2 * 36 * 8 * 128, 2 * 28 * 8 * 128)),
    ],
)
def test_shapes_are_those_of_the_published_models(pair, weights, kv) -> None:
    """Parameters as on the model cards, less an embedding that only looks rows up."""
    from transformers import AutoModelForCausalLM

    for shape, count, numbers in zip(PAIRS[pair], weights, kv, strict=True):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape.config())
        tied = shape.sizes["tie_word_embeddings"]
        every = sum(p.numel() for p in model.parameters())
        embedding = model.get_input_embeddings().weight.numel()
        assert every - (0 if tied else embedding) == count
        s = shape.sizes
        assert 2 * s["num_hidden_layers"] * s["num_key_value_heads"] * s["head_dim"] == numbers


def test_bars_by_hand() -> None:
    def row(mode, n, k, **values):
        where = {"mode": mode, "particles": n, "draft_tokens": k, "requests": 1,
                 "prompt_tokens": 256, "cascade": True, "graphs": True}  # fmt: skip
        return where | values

    base = row("smc", 8, 8, speed=900.0, tokens_per_round=9.0, roofline_ms=6.0,
               bandwidth_share=0.6, idle=0.06)  # fmt: skip
    single = row("auto", 1, 0, speed=250.0, tokens_per_round=1.0, roofline_ms=3.0,
                 bandwidth_share=0.75, idle=0.01)  # fmt: skip
    elsewhere = base | {"graphs": False, "bandwidth_share": 0.1}
    found = bars([elsewhere, base, single], 8, 8)
    # Measured 900/250 = 3.6 times; the roofline allows 9 · 3/6 = 4.5 times.
    assert [b["value"] for b in found] == [0.6, pytest.approx(3.6 / 4.5), 0.06]
    assert [b["met"] for b in found] == [True, True, False]
    assert [b["met"] for b in bars([elsewhere], 8, 8)] == [None, None, None]


def test_idle_share() -> None:
    assert idle_share([(0, 4), (5, 9), (10, 10)]) == pytest.approx(0.2)
    assert idle_share([(0, 4), (4, 9)]) == 0
    assert idle_share([(0, 4)]) is None and idle_share([]) is None


def test_data_sheets_are_told_by_name() -> None:
    assert sheet_of("NVIDIA H200") is ACCELERATORS["h200"]
    assert sheet_of("NVIDIA H100 80GB HBM3") is ACCELERATORS["h100"]
    assert sheet_of("NVIDIA H100 PCIe") is None  # has less bandwidth
    assert sheet_of("NVIDIA GeForce RTX 4090") is None
    machine = find_machine(CPU, torch.float32)
    assert machine.source == "measured" and machine.accelerator.bandwidth == machine.copy
    given = find_machine(CPU, torch.float32, "bandwidth=1e12,flops=1e14")
    assert (given.source, given.accelerator.flops) == ("given", 1e14)
    assert len(timed(CPU, lambda: None, 3)) == 3


# -------------------------------------------------------------------------- plan and models


def test_the_plan_puts_first_things_first() -> None:
    steps = plan(Grid())
    names = [s.name for s in steps]
    assert len(set(names)) == len(names)
    assert names[:3] == ["smc N=8 K=8 R=1 P=256", "auto N=1 R=1 P=256", "auto N=8 R=1 P=256"]
    cells = [s for s in steps if isinstance(s, GpuCell)]
    full = {(n, k, r, p) for n in (4, 8, 16, 32) for k in (4, 8, 16) for r in (1, 8)
            for p in (256, 1024, 4096, 8192)}  # fmt: skip
    smc = {
        (c.cell.particles, c.cell.draft_tokens, c.cell.requests, c.prompt_tokens)
        for c in cells
        if c.mode == "smc"
    }
    assert smc == full
    rows = {s.rows for s in steps if isinstance(s, ForwardShape) and s.columns == 1}
    assert min(rows) == 1 and max(rows) == 288
    assert {c.cascade for c in cells} == {c.graphs for c in cells} == {True, False}
    with pytest.raises(SettingError, match="particles"):
        Grid(particles=())


def test_models_have_the_spread_of_real_pairs() -> None:
    """So that drafts are refused now and then, and populations are resampled."""
    pair = build_pair("tiny", CPU, torch.float32)
    assert pair.vocab.eos_ids == ()
    assert pair.target.dtype == torch.float32
    tokens = torch.arange(60)[None]
    with torch.no_grad():
        p, q = (m(tokens).logits.softmax(-1) for m in (pair.target, pair.draft))
    assert 0.8 < float(torch.minimum(p, q).sum(-1).mean()) < 0.93
    assert len(set(letters(1000))) == 1000 and {len(w) for w in letters(676)} == {2}


def test_pools_hold_the_largest_cell() -> None:
    rounds = 3
    pair = LoadedPair("tiny", CPU, torch.float32, SMALL, rounds)
    assert pair.lm.kv_pages >= pool_pages(SMALL, rounds, pair.lm.page_size)
    prompts = [[i] * 16 for i in range(2)]
    posts = Target(pair.lm).sample(
        prompts, particles=3, draft=pair.draft, draft_tokens=2, max_tokens=10, seed=[0, 1]
    )
    assert len({tuple(p.timing.items()) for p in posts}) == 1  # one wave
    assert pair.sizes[0] == size_of(pair.lm)
    with pytest.raises(SettingError, match="context of tiny-4 is 16384"):
        check_fits("tiny", Grid(prompts=(17_000,)), 16)


def test_the_clock_marks_launches_and_leaves_no_trace() -> None:
    pair = LoadedPair("tiny", CPU, torch.float32, SMALL, 3)

    def play() -> None:
        Target(pair.lm).sample(
            [1, 2, 3], particles=2, draft=pair.draft, draft_tokens=2, max_tokens=10, seed=0
        )

    with pair.variant(cascade=True, graphs=True):
        play()
        (launcher,) = pair.lm.engine.kept.values()
        before = launcher.groups
        with LaunchClock(pair.lm) as clock:
            play()
        assert clock.launches == 3 and math.isfinite(clock.idle())
        assert launcher.groups is before
        forget_programs(pair.lm)
        assert not pair.lm.engine.kept
    assert pair.lm.graphs == "auto"


def test_programs_know_what_ends_an_output() -> None:
    """Rounds that were made while nothing ended outputs are not played where EOS does."""
    lm = tiny_llama(vocab_size=4, eos=3, seed=1, graphs=True)

    def lengths() -> set[int]:
        post = Target(lm).sample([0], particles=16, max_tokens=12, seed=0)
        return {len(p.tokens) for p in post.particles}

    with endless(lm):
        assert lengths() == {12}
    assert min(lengths()) < 12
