"""``smcprog bench speed`` and ``bench roofline`` on tiny models in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from smcprog.cli import app

from ..bench.conftest import folders  # noqa: F401

runner = CliRunner()

CELL_KEYS = {
    "name", "mode", "particles", "draft_tokens", "temperature", "requests", "seconds", "speed",
    "speeds", "throughput", "particle_throughput", "tokens", "tokens_per_round", "logp",
    "logp_difference", "logp_low", "logp_high", "quotable", "acceptance", "log_chi2", "ess",
    "distinct", "forward_share", "allowed_share", "predicted_over_measured",
}  # fmt: skip


def run(*args: Any) -> tuple[int, str, str]:
    result = runner.invoke(app, ["bench", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "ab"}\n{"turns": ["cde", "x"]}\n{"prompt": "f"}\n')
    return file


def test_speed(folders, prompts: Path, tmp_path: Path) -> None:  # noqa: F811
    target, draft = folders
    picture = tmp_path / "front.png"
    code, out, err = run(
        "speed", "--model", target, "--draft", draft, "--prompts", prompts, "--prompt-count", 2,
        "--modes", "generate,auto,lossless,coupled:2,smc", "-n", 3, "-k", 2,
        "--requests", "1,2", "--max-tokens", 8, "--repeats", 2, "--reference", 4,
        "--task-items", 3, "--plot", picture, "--json",
    )  # fmt: skip
    assert code == 0, err
    report = json.loads(out)
    assert report["version"] == 1 and report["prompts"] == 2
    cells = {c["name"]: c for c in report["cells"]}
    assert len(cells) == len(report["cells"]) == 5 * 2
    for cell in cells.values():
        assert set(cell) == CELL_KEYS
        assert len(cell["speeds"]) == 2 and cell["tokens"] == 8
        assert cell["throughput"] == pytest.approx(cell["requests"] * cell["speed"])
        assert cell["particle_throughput"] == pytest.approx(cell["particles"] * cell["throughput"])
        assert cell["logp_low"] <= cell["logp_difference"] <= cell["logp_high"]
        inside = cell["mode"] != "generate"
        assert (cell["allowed_share"] is not None) == inside
        assert not inside or 0 < cell["forward_share"] < 1
    assert cells["smc N=3 K=2 τ=1"]["tokens_per_round"] == pytest.approx(7 / 3)
    assert cells["auto N=3 τ=1"]["tokens_per_round"] == 1
    assert cells["lossless N=3 K=2 τ=1"]["log_chi2"] == pytest.approx(0, abs=1e-6)
    assert cells["lossless N=3 K=2 τ=1"]["acceptance"] < cells["smc N=3 K=2 τ=1"]["acceptance"]
    assert cells["lossless N=3 K=2 τ=1"]["ess"] == pytest.approx(1)
    assert cells["smc N=3 K=2 τ=1"]["ess"] < 1
    pairs = {(r["cell"], r["against"]) for r in report["ratios"]}
    assert ("auto N=3 τ=1", "generate N=3 τ=1") in pairs
    assert ("auto N=3 τ=1 R=2", "auto N=3 τ=1") in pairs
    assert {t["mode"] for t in report["task"]} == {"auto", "lossless", "coupled:2", "smc"}
    assert all(t["items"] == 3 and t["low"] <= t["score"] <= t["high"] for t in report["task"])
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_speed_table_scheduler_and_temperatures(folders, prompts: Path) -> None:  # noqa: F811
    target, draft = folders
    code, out, err = run(
        "speed", "--model", target, "--draft", draft, "--prompts", prompts, "--prompt-count", 2,
        "--modes", "generate,auto,lossless:2,smc", "-n", 2, "-k", "auto", "--requests", "1,2",
        "--temperatures", "0.5,1.2", "--max-tokens", 6, "--repeats", 1, "--reference", 2,
        "--no-roofline", "--scheduler", "--end",
    )  # fmt: skip
    assert code == 0, err
    for text in (
        "auto N=2 τ=0.5",
        "smc N=2 K=auto τ=1.2 R=2",
        "lossless:2 N=2 K=auto",
        "Ratios of medians",
        "throughput",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 160


def test_roofline(folders, prompts: Path) -> None:  # noqa: F811
    target, draft = folders
    args = (
        "roofline", "--model", target, "--draft", draft, "--prompts", prompts, "-n", "1,2",
        "-k", "3", "--modes", "auto,lossless,smc", "--requests", "1,2", "--max-tokens", 8,
        "--held-out", 3, "--repeats", 1, "--threads", 1,
    )  # fmt: skip
    code, out, err = run(*args, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert len(report["cells"]) == 3 * 2 * 2 and report["held_out"] == 3
    assert report["median_error"] > 0
    assert set(report["cores"]) == {"auto", "coupled", "smc"}
    for cell in report["cells"]:
        assert 0 < cell["allowed_ms"] <= cell["predicted_ms"]
        assert (cell["error"] is None) == (cell["measured_ms"] is None)
        if cell["error"] is not None:
            assert cell["predicted_ms"] / cell["measured_ms"] - 1 == pytest.approx(cell["error"])
    smc = next(c for c in report["cells"] if c["mode"] == "smc")
    assert smc["rounds"] == 3  # 1 token, then 4, then 3
    assert report["forwards"]["draft"]["timed"] and report["forwards"]["target"]["token_ms"] > 0
    assert report["cost_ratio"] > 0
    assert [a["coupling"] for a in report["agreement"]] == [1.0, "inf"]

    code, out, err = run(*args[:-6], "--held-out", 0, "--repeats", 1)
    assert code == 0, err
    assert "a step of the draft takes" in out
    assert "no cell was held out" in out and "sampler's work in a round, smc" in out


def test_described_accelerator(folders) -> None:  # noqa: F811
    args = ("roofline", "--accelerator", "h200", "-n", "1,64", "-k", "4", "--requests", "1")
    code, out, _ = run(*args, "--target-params", "8e9", "--draft-params", "1e9", "--json")
    assert code == 0
    report = json.loads(out)
    assert [c["particles"] for c in report["cells"]] == [1, 64]
    assert report["cells"][0]["smc_speedup"] == pytest.approx(10 / 3)
    target, draft = folders
    code, out, err = run(*args, "--model", target, "--draft", draft)
    assert code == 0, err
    assert "knee" in out and "h200" in out
    code, out, err = run(*args, "--target-params", "8e9")
    assert code == 3 and "--draft-params" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["speed", "--modes", "fast"], "unknown mode 'fast'"),
        (["speed", "--modes", "smc"], "need a draft: give --draft"),
        (["speed", "--particles", "1,many"], "--particles must be whole numbers"),
        (["speed", "--particles", "0"], "--particles must be a whole number of at least 1"),
        (["speed", "--temperatures", "warm"], "--temperatures must be numbers"),
        (["speed", "--prompts", "missing.jsonl"], "cannot read the file"),
        (["speed", "--plot", "front.txt"], "one of .png, .svg, .pdf"),
        (["speed", "--modes", "auto", "--model", "./missing"], "no model at './missing'"),
        (["roofline", "--modes", "coupled:x"], "must be numbers"),
        (["roofline", "--draft-tokens", "auto"], "needs fixed values of K"),
        (["roofline", "--target-params", "1e9"], "need --accelerator"),
        (["roofline", "--accelerator", "tpu"], "--accelerator is one of"),
    ],
)
def test_bad_input(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*args, "--json")
    assert code == 3, err
    assert said in err and "Traceback" not in err
    assert json.loads(out)["error"]["exit_code"] == 3
    assert run(args[0], "--max-tokens", "x")[0] == 2
