"""Every example runs as a user runs it, and what it prints bears out its docstring."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smcprog
import smcprog.grammars
from smcprog import LM

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = [
    "01_json_schema", "02_regex", "03_choice", "04_reward", "05_draft", "06_infill", "07_haiku",
    "08_two_prompts", "09_sentiment", "10_json_check", "11_text_to_sql", "12_self_consistency",
    "13_particle_gibbs", "14_calculator",
]  # fmt: skip
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


@pytest.fixture
def printed(default_lm: LM, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What example number n prints, some of its constants being others.

    It runs in this process, on the model that is loaded already. The first and the fifth run as
    a user runs them.
    """

    def run(number: int, **constants: int) -> str:
        path = FOLDER / f"{NAMES[number - 1]}.py"
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        for name, value in {**constants, "LM": lambda: default_lm}.items():
            assert hasattr(example, name)
            setattr(example, name, value)
        example.main()
        return capsys.readouterr().out

    return run


def test_all_are_there_and_documented() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES
    listed = (FOLDER.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    for name in NAMES:
        tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        docstring = ast.get_docstring(tree) or ""
        assert "Shows:" in docstring and "Expect:" in docstring
        assert f"`{name}.py`" in listed
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("smcprog")
            for alias in node.names
        }
        public = {*smcprog.__all__, *smcprog.grammars.__all__}
        assert imported <= public, "examples use public names only"


def test_json_schema(default_model: Path, tmp_path: Path) -> None:
    text, facts = output_of(NAMES[0], default_model, tmp_path).split("\nPerson(")
    person = module(NAMES[0])["Person"].model_validate_json(text)  # type: ignore[attr-defined]
    assert f"born={person.born}" in facts
    log_evidence, ess = re.search(rf"log evidence {NUMBER}, ESS {NUMBER} of 8", facts).groups()  # type: ignore[union-attr]
    assert float(log_evidence) < 0
    assert 1 <= float(ess) <= 8


def test_regex(printed: Callable[..., str]) -> None:
    lines = printed(2).splitlines()
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


def test_choice(printed: Callable[..., str], default_lm: LM) -> None:
    """Shares and evidence agree with the exact values, worked out label by label."""
    text = printed(3)
    names = module(NAMES[2])
    chat, labels, reviews = names["chat"], names["LABELS"], names["REVIEWS"]
    found = re.findall(
        rf"positive {NUMBER}, calibrated {NUMBER}, log evidence {NUMBER}: (.*)", text
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


def test_reward(printed: Callable[..., str]) -> None:
    (alone, ess_alone), (tilted, ess_tilted) = re.findall(
        rf"mean score {NUMBER}, ESS {NUMBER} of 64", printed(4)
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


def test_infill(printed: Callable[..., str]) -> None:
    blocks = printed(6).split("… in ")[1:]
    shares = [
        {
            dish: (float(d), float(w))
            for dish, d, w in re.findall(rf"(\w+) +drawn {NUMBER}, weighted {NUMBER}", block)
        }
        for block in blocks
    ]
    japan, italy = shares
    assert japan.keys() == italy.keys() and len(japan) == 4
    for dish in japan:
        assert japan[dish][0] == italy[dish][0]  # nobody knows the country yet
    assert japan["sushi"][1] > 0.5 > japan["sushi"][0]
    assert italy["pizza"][1] > 0.5 > italy["sushi"][1]


def test_haiku(printed: Callable[..., str]) -> None:
    text = printed(7)
    alone, rewarded = map(float, re.findall(rf"mean distance {NUMBER}", text))
    assert rewarded < alone - 2
    assert len(text.splitlines()) == 8
    pattern = module(NAMES[6])["pattern"]
    poem = "Cold moon in the sky\nsilver light on frozen fields\na fox stops and stares."
    assert pattern(poem) == [5, 7, 5]  # type: ignore[operator]
    assert pattern("whole waves\nlittle houses\nwanted, changed") == [2, 4, 3]  # type: ignore[operator]


def test_two_prompts(printed: Callable[..., str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in printed(8).splitlines())
    assert lines.keys() == {"street", "children", "both"}
    word, share = lines["both"].split(",")[0].split()
    assert word == "raining" and float(share) > 0.7


def test_sentiment(printed: Callable[..., str]) -> None:
    text = printed(9)
    right = re.match("([0-9]+)% of 8 held-out", text)
    assert right is not None and int(right[1]) >= 75
    alone, good, bad = map(float, re.findall(rf"P\(good\) {NUMBER}", text))
    assert bad < 0.4 and bad < alone and good > 0.8


def test_json_check(printed: Callable[..., str]) -> None:
    text = printed(10)
    (share, before), (all_of_them, after) = re.findall(
        rf": ([0-9]+)% add up, log evidence {NUMBER}", text
    )
    assert int(share) < 50 and int(all_of_them) == 100
    assert float(after) < float(before) < 0.1
    for line in text.split("with check")[1].splitlines()[1:]:
        sale = json.loads(line[line.index("{") :])
        assert sale["total"] == sale["quantity"] * sale["price"]


def test_text_to_sql(printed: Callable[..., str]) -> None:
    lines = printed(11).splitlines()
    assert len(lines) == 6
    for question, query, rows in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert re.search(r"unless executed: [0-9]+%", question)
        assert re.search("select", query, re.IGNORECASE)
        assert len(ast.literal_eval(rows.strip())) > 0


def test_self_consistency(printed: Callable[..., str]) -> None:
    chain, first, *rest = printed(12).splitlines()
    assert re.fullmatch(module(NAMES[11])["CHAIN"], chain)  # type: ignore[arg-type]
    number, share = first.split()
    assert number == "10" and float(share) > 0.3
    assert len(rest) >= 2


def test_particle_gibbs(printed: Callable[..., str]) -> None:
    text = printed(13, SWEEPS=25)
    runs, chain = map(float, re.findall(rf"total variation {NUMBER}", text))
    # With 60 sweeps about 0.2 and 0.1; a point mass on the likeliest answer is 0.56 away.
    assert 0 < runs < 0.4 and 0 < chain < 0.4
    truth = [float(line.split()[-3]) for line in text.splitlines()[1:6]]
    assert truth == sorted(truth, reverse=True) and 0.9 < sum(truth) <= 1.01


def test_calculator(printed: Callable[..., str]) -> None:
    alone, tool = printed(14).split("with a calculator: ")
    found = [
        dict(map(reversed, re.findall(rf"^    {NUMBER} (\S+)$", part, re.MULTILINE)))
        for part in (alone, tool)
    ]
    assert next(iter(found[1])) == "1204" and float(found[1]["1204"]) > 0.5
    assert float(found[0].get("1204", 0)) < 0.3
