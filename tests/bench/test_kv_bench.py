"""``smcprog bench kv``: differences of logits, and the command on a tiny model."""

from __future__ import annotations

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from smcprog.bench.kv import compare
from smcprog.cli import app


def test_differences_by_hand():
    expected = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]])
    got = torch.tensor([[math.log(3), 0.0], [6.0, 6.0]])  # the second differs by a constant
    row = compare(expected, got)
    kl = 0.75 * math.log(3) - 0.25 * math.log(3)
    assert row["mean_kl"] == pytest.approx(kl / 2)
    assert row["max_kl"] == pytest.approx(kl)
    assert row["max_logit"] == pytest.approx(math.log(3))
    assert row["mean_logit"] == pytest.approx((2 * math.log(3) + 2) / 4)
    assert row["top1"] == 0.5


def test_the_command(folders):
    arguments = ["bench", "kv", "--model", str(folders[0]), "--tokens", "20", "--device", "cpu"]
    kinds = ["--kv-dtype", "float32,float16,float8_e4m3fn, float8_e5m2"]
    result = CliRunner().invoke(app, [*arguments, *kinds, "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    rows = {row["kv_dtype"]: row for row in report["rows"]}
    assert 0 < report["tokens"] <= 4 * 20
    assert report["bytes_per_token"] == 2 * 2 * 8 * 4  # layers, keys and values, numbers, bytes
    assert rows["float32"]["max_logit"] == rows["float32"]["max_kl"] == 0
    assert rows["float8_e5m2"]["bytes_per_token"] * 4 == report["bytes_per_token"]
    errors = [row["mean_kl"] for row in rows.values()]
    assert errors == sorted(errors)
    assert errors[1] > 0

    result = CliRunner().invoke(app, arguments[:-4])
    assert result.exit_code == 0, result.stderr
    assert "float8_e4m3fn" in result.stdout
    assert "float32 pages: 128 bytes a token" in result.stdout


def test_unknown_type(folders):
    result = CliRunner().invoke(
        app, ["bench", "kv", "--model", str(folders[0]), "--kv-dtype", "float8"]
    )
    assert result.exit_code == 3
    assert "'float8_e4m3fn'" in result.stderr
