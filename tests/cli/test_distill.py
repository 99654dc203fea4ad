"""``smcprog distill`` on a model of a few thousand weights in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from smcprog import LM, Target
from smcprog.cli import app

runner = CliRunner()
FEW = ("--text-tokens", "300", "--held-tokens", "100", "--text-length", "12", "--batch", "64")


def save_model(folder: Path, seed: int = 0) -> Path:
    """A Llama of three layers over bytes, with a tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)} | {"<eos>": 256}
    core = Tokenizer(models.BPE(vocab, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>").save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        eos_token_id=256,
        bos_token_id=None,
        pad_token_id=None,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_model(tmp_path / "target")


def run(*args: Any) -> tuple[int, str, str]:
    result = runner.invoke(app, ["distill", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_a_draft_is_made_resumed_and_used(tmp_path: Path, target: Path) -> None:
    out = tmp_path / "draft"
    args = (target, "--out", out, "--layers", "0,2", "--vocabulary", "100", *FEW)
    code, said, err = run(*args, "--tokens", "3000", "--minutes", "0")
    assert code == 0, err
    assert "acceptance" in said
    assert str(out) in said
    first = json.loads((out / "draft.json").read_text())["report"]["trained_tokens"]
    assert 0 < first < 3000

    code, said, err = run(*args, "--tokens", "3000", "--resume", "--json")
    assert code == 0, err
    report = json.loads(said)
    assert [f["temperature"] for f in report["held_out"]] == [1.0, 0.7]
    described = json.loads((out / "draft.json").read_text())
    assert described["report"]["held_out"] == report["held_out"]
    assert described["report"]["trained_tokens"] >= 3000
    assert described["layers"] == [0, 2]

    lm = LM(target)
    post = Target(lm).sample("ab", draft=lm.draft(out), particles=2, max_tokens=8, seed=0)
    assert len(post.tokens) <= 8


def test_a_recurrent_draft(tmp_path: Path, target: Path) -> None:
    out = tmp_path / "draft"
    args = ("--design", "recurrent", "--inner", "8", "--context", "2", "--unroll", "1")
    code, said, err = run(target, "--out", out, *args, "--vocabulary", "100", *FEW, "--tokens", 300)
    assert code == 0, err
    assert [line.split()[:2] for line in said.splitlines()[-6:]] == [
        [k, tau] for k in ("1", "2", "3") for tau in ("1", "0.7")
    ]
    described = json.loads((out / "draft.json").read_text())
    assert (described["inner"], described["tokens"], described["format"]) == (8, 2, 2)
    lm = LM(target)
    post = Target(lm).sample("ab", draft=lm.draft(out), particles=2, max_tokens=8, seed=0)
    assert len(post.tokens) <= 8
    code, _, err = run(target, "--out", out, *args, "--layers", "0", *FEW)
    assert code == 3 and "a recurrent draft has none" in err


def test_prompts_from_a_file(tmp_path: Path, target: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n\n{"prompt": [1, 2]}\n')
    args = (target, "--out", tmp_path / "draft", "--prompts", prompts, "--layers", "1", *FEW)
    code, _, err = run(*args, "--tokens", "64")
    assert code == 0, err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layers", "0,3"), "layer must be at most 2, got 3"),
        (("--layers", "first"), "--layers must be indices"),
        (("--objective", "kl"), "objective must be one of forward-kl"),
        (("--storage", "int2"), "storage must be one of"),
        (("--resume",), "no run to resume"),
        (("--prompts", "missing.jsonl"), "cannot read the file"),
    ],
)
def test_bad_options(tmp_path: Path, target: Path, options: tuple[str, ...], message: str) -> None:
    code, _, err = run(target, "--out", tmp_path / "draft", *FEW, *options)
    assert code == 3
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 1: not JSON"), ("[]", 'an object with "prompt"'), ('{"prompt": ""}', "empty")],
)
def test_bad_prompt_files(tmp_path: Path, target: Path, line: str, message: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(f'{line}\n{{"prompt": "two"}}\n')
    code, _, err = run(target, "--out", tmp_path / "draft", "--prompts", prompts, *FEW)
    assert code == 3
    assert message in err


def test_the_folder_of_another_target(tmp_path: Path, target: Path) -> None:
    args = ("--out", tmp_path / "draft", "--layers", "1", "--tokens", "64", *FEW)
    assert run(target, *args)[0] == 0
    code, _, err = run(save_model(tmp_path / "other", seed=1), *args, "--resume")
    assert code == 3
    assert "has the target 'target', not 'other': the embeddings differ" in err
