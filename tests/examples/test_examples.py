"""Every example runs as a user runs it, and what it prints bears out its docstring."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smcprog
from smcprog import LM

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ["01_json_schema", "02_regex", "03_choice", "04_reward", "05_draft"]
NUMBER = r"(-?[0-9.]+)"


def output_of(name: str, model: Path, cwd: Path) -> str:
    """What the script prints; it must end well and say nothing else."""
    package_root = str(Path(smcprog.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error:::smcprog", FOLDER / f"{name}.py"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "SMCPROG_DEFAULT_MODEL": str(model)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def module(name: str) -> dict[str, object]:
    """Names defined by an example, without running its `main`."""
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="example")


def test_the_five_are_there_and_documented() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES
    for name in NAMES:
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        docstring = ast.get_docstring(tree) or ""
        assert "Shows:" in docstring and "Expect:" in docstring
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smcprog")
            for alias in node.names
        }
        assert imported <= set(smcprog.__all__), "examples use public names only"


def test_json_schema(default_model: Path, tmp_path: Path) -> None:
    text, facts = output_of(NAMES[0], default_model, tmp_path).split("\nPerson(")
    person = module(NAMES[0])["Person"].model_validate_json(text)  # type: ignore[attr-defined]
    assert f"born={person.born}" in facts
    log_evidence, ess = re.search(rf"log evidence {NUMBER}, ESS {NUMBER} of 8", facts).groups()  # type: ignore[union-attr]
    assert float(log_evidence) < 0
    assert 1 <= float(ess) <= 8


def test_regex(default_model: Path, tmp_path: Path) -> None:
    lines = output_of(NAMES[1], default_model, tmp_path).splitlines()
    assert re.fullmatch(f"sample {module(NAMES[1])['DATE']}", lines[0])
    shares = {year: float(mass) for year, mass in map(str.split, lines[1:-1])}
    assert sum(shares.values()) == pytest.approx(1, abs=0.001 * len(shares))
    assert next(iter(shares)) == "1969"
    assert shares["1969"] > 0.5


def spellings(text: str, lm: LM) -> list[list[int]]:
    """Every token sequence that spells `text`, each ended by EOS."""
    data = text.encode()
    ids: dict[bytes, list[int]] = {}
    for token, piece in enumerate(lm.vocab.token_bytes):
        if piece:
            ids.setdefault(piece, []).append(token)
    ways: list[list[list[int]]] = [[[]]] + [[] for _ in data]
    for end in range(1, len(data) + 1):
        for start in range(end):
            for token in ids.get(data[start:end], []):
                ways[end] += [[*way, token] for way in ways[start]]
    return [[*way, eos] for way in ways[-1] for eos in lm.vocab.eos_ids]


def log_prob(text: str, prompt: object, lm: LM, max_tokens: int = 4) -> float:
    """log p(text) under the model: the sum over its spellings of at most `max_tokens`.

    Longer spellings, letter by letter, add less than 1e-8 to the labels used here.
    """
    rows = [row for row in spellings(text, lm) if len(row) <= max_tokens]
    counts_M = torch.tensor([len(row) for row in rows])
    width = int(counts_M.max())
    tokens_M_T = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    total = torch.zeros(len(rows), dtype=torch.float64)
    for some in torch.arange(len(rows)).split(32):
        sequences = lm.sequences(lm.encode(prompt), len(some))  # type: ignore[arg-type]
        logits = sequences.score(tokens_M_T[some], counts_M[some])
        sequences.close()
        logp = torch.log_softmax(logits.double(), -1)
        logp_M_T = logp.gather(2, tokens_M_T[some].unsqueeze(2)).squeeze(2)
        real_M_T = torch.arange(width) < counts_M[some].unsqueeze(1)
        total[some] = torch.where(real_M_T, logp_M_T, 0.0).sum(1)
    return float(total.logsumexp(0))


def test_choice(default_model: Path, default_lm: LM, tmp_path: Path) -> None:
    """Shares and evidence agree with the exact values, worked out label by label."""
    printed = output_of(NAMES[2], default_model, tmp_path)
    names = module(NAMES[2])
    chat, labels, reviews = names["chat"], names["LABELS"], names["REVIEWS"]
    found = re.findall(
        rf"positive {NUMBER}, calibrated {NUMBER}, log evidence {NUMBER}: (.*)", printed
    )
    assert [line[3] for line in found] == reviews
    calibrated = [float(line[1]) for line in found]
    assert min(calibrated[:2]) > 0.5 > max(calibrated[2:4])
    assert 0.3 < calibrated[4] < 0.7

    # 64 particles of nearly equal weight: the standard error of a share is at most 1/16, and
    # four of them are passed by chance once in 16,000.
    for raw, _, log_evidence, review in found:
        exact = torch.tensor(
            [log_prob(label, chat(review), default_lm) for label in labels]  # type: ignore
        )
        assert abs(float(raw) - float(exact.softmax(0)[0])) < 4 / 16
        assert float(log_evidence) == pytest.approx(float(exact.logsumexp(0)), abs=0.1)


def test_reward(default_model: Path, tmp_path: Path) -> None:
    printed = output_of(NAMES[3], default_model, tmp_path)
    (alone, ess_alone), (tilted, ess_tilted) = re.findall(
        rf"mean score {NUMBER}, ESS {NUMBER} of 64", printed
    )
    assert float(tilted) > float(alone) + 0.2
    assert float(ess_alone) == 64
    assert float(ess_tilted) < 50


def test_draft(default_model: Path, tmp_path: Path) -> None:
    printed = output_of(NAMES[4], default_model, tmp_path)
    rounds = [int(n) for n in re.findall(r"coupling \S+: \d+ tokens in (\d+) rounds", printed)]
    ess = [float(x) for x in re.findall(rf"lowest ESS {NUMBER} of 16", printed)]
    evidence = [float(x) for x in re.findall(rf"log evidence {NUMBER}", printed)]
    assert len(rounds) == len(ess) == len(evidence) == 3
    assert rounds[2] == 9 and rounds[2] <= rounds[1] <= rounds[0] + 2
    assert ess[0] == 16 and evidence[0] == 0  # nothing is weighed without loss
    assert ess[2] < ess[0]
    # Ẑ has mean 1, but with weights as uneven as the last ones log Ẑ lies far below 0.
    assert abs(evidence[1]) < 8 and evidence[2] < 3
