"""``smcprog generate`` on the default model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from smcprog.cli import app

pytestmark = pytest.mark.usefixtures("default_model")

runner = CliRunner()
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SMALL = ("--particles", "2", "--seed", "3")


def run(*args: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = runner.invoke(app, ["generate", *args], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def run_json(*args: str, stdin: str | None = None) -> dict[str, Any]:
    code, out, err = run(*args, "--json", stdin=stdin)
    assert code == 0, err
    assert err == ""
    value = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(value, dict)
    return value


def test_schema_as_json(tmp_path: Path) -> None:
    """The main job: valid for the schema, with evidence and ESS; the file form agrees."""
    args = ("Describe Ada, aged 36, as JSON.", "--max-tokens", "60", "-n", "4", "--seed", "1")
    result = run_json(*args, "--schema", json.dumps(PERSON))
    jsonschema.validate(json.loads(result["text"]), PERSON)
    assert result["log_evidence"] < 0
    assert 1 <= result["ess"] <= 4
    assert result["seed"] == 1
    assert result["model"] == "SmolLM2-135M-Instruct"
    assert result["finish_reason"] == "eos"
    assert len(result["particles"]) == 4
    for particle in result["particles"]:
        if particle["finish_reason"] == "eos":
            jsonschema.validate(json.loads(particle["text"]), PERSON)
    assert sum(p["weight"] for p in result["particles"]) == pytest.approx(1)
    assert result["timing"]["load_seconds"] > 0

    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    again = run_json(*args, "--schema", str(path))
    assert again["text"] == result["text"]
    assert again["log_evidence"] == pytest.approx(result["log_evidence"], abs=1e-3)


def test_plain_output_and_summary() -> None:
    code, out, err = run("Pick.", "--regex", "[a-c]{3}", *SMALL, "--max-tokens", "6")
    assert code == 0
    assert re.fullmatch(r"[a-c]{3}\n", out)
    assert re.fullmatch(
        r"log evidence -?[\d.]+( ± ~?[\d.e-]+)?, ESS [\d.]+ of 2, \d+ tokens, seed 3, "
        r"[\d.]+ s \(\+ [\d.]+ s to load\)\n",
        err,
    )
    assert run("Pick.", "--regex", "[a-c]{3}", *SMALL, "--max-tokens", "6", "-q") == (0, out, "")


def test_choice_lark_and_builtin(tmp_path: Path) -> None:
    question = "Is water wet? Answer yes or no."
    result = run_json(question, "--choice", "yes", "--choice", "no", *SMALL, "--max-tokens", "4")
    assert result["text"] in {"yes", "no"}

    grammar = 'start: "x" DIGIT "."\nDIGIT: /[0-9]/\n'
    path = tmp_path / "grammar.lark"
    path.write_text(grammar)
    for given in (grammar, str(path)):
        result = run_json("Go.", "--lark", given, *SMALL, "--max-tokens", "6")
        assert re.fullmatch(r"x[0-9]\.", result["text"])

    result = run_json("An empty JSON object.", "--grammar", "json", *SMALL, "--max-tokens", "24")
    json.loads(result["text"])


def test_unknown_builtin_is_named() -> None:
    code, _, err = run("x", "--grammar", "klingon")
    assert code == 3
    assert "klingon" in err and "json" in err


def test_prompt_from_stdin_is_the_same_prompt() -> None:
    args = (*SMALL, "--max-tokens", "5")
    assert run_json(*args, stdin="Say hi.\n")["text"] == run_json("Say hi.", *args)["text"]


def test_chat_template_unless_raw() -> None:
    args = ("Once upon a", *SMALL, "--max-tokens", "3")
    assert "user\nOnce upon a\nassistant\n" in run_json(*args)["prompt"]
    assert run_json(*args, "--raw")["prompt"] == "Once upon a"


def test_settings_reach_the_sampler() -> None:
    result = run_json(
        "Count: 1 2 3", "--raw", "--stop", " 6", "--max-tokens", "12", "--temperature", "0.5",
        "--top-k", "5", "--top-p", "0.9", "--min-p", "0.05", "--resampling", "multinomial",
        "--ess-threshold", "1", "--deterministic", *SMALL,
    )  # fmt: skip
    assert (result["resampling"], result["ess_threshold"]) == ("multinomial", 1)
    assert result["text"] == " 4 5"
    assert result["finish_reason"] == "stop"
    powered = run_json("Hi", "--power", "4", "--max-tokens", "3", *SMALL)
    assert powered["log_evidence"] < 0  # the powers of p do not add up to 1


def test_draft(default_model: Path) -> None:
    result = run_json(
        "Say hi.", "--draft", str(default_model), "--draft-tokens", "3", "--max-tokens", "8", *SMALL
    )
    # A draft that equals the target leaves no weight to correct.
    assert result["log_evidence"] == pytest.approx(0, abs=1e-3)
    assert result["ess"] == pytest.approx(2, abs=1e-3)


def test_plot(tmp_path: Path) -> None:
    path = tmp_path / "run.png"
    assert run("Hi", "--max-tokens", "4", "--plot", str(path), *SMALL)[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_all_dead() -> None:
    code, out, err = run("x", "--regex", "a{400}", "--max-tokens", "3", "--json", *SMALL)
    assert code == 4
    error = json.loads(out)["error"]
    assert error["type"] == "AllDeadError"
    assert error["exit_code"] == 4
    assert error["message"] in err and err.count("\n") == 1
    assert 0 <= error["position"] < 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--particles", "0"], "particles"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "0", "--regex", "a"], "greedy"),
        (["--temperature", "nan"], "temperature"),
        (["--resampling", "magic"], "magic"),
        (["--ess-threshold", "2"], "ess_threshold"),
        (["--max-tokens", "9000"], "context"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
        (["--schema", '{"type": "stsring"}'], "stsring"),
        (["--regex", "[.*"], "regex"),
        (["--lark", "start: (("], "grammar"),
    ],
)
def test_bad_input(args: list[str], said: str) -> None:
    code, out, err = run("x", *args)
    assert (code, out) == (3, ""), err
    assert said.lower() in err.lower()
    assert "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_progress_on_a_terminal() -> None:
    """Standard error is a terminal: progress is drawn there, and the output stays clean."""
    import pty

    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", "from smcprog.cli import main; main()"]
    command += ["generate", "Say hi.", "--max-tokens", "8", *SMALL]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    drawn = b""
    while True:
        try:
            chunk = os.read(controller, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        drawn += chunk
    os.close(controller)
    assert process.stdout is not None
    text = process.stdout.read().decode()
    assert process.wait() == 0
    assert "/8 tokens" in drawn.decode() and "ESS" in drawn.decode()
    assert "Loading SmolLM2-135M-Instruct" in drawn.decode()
    assert "\x1b" not in text
