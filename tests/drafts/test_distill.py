"""Distilling a tiny model, from its own text to a stored draft."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from smcprog.drafts import distill, load_draft
from smcprog.drafts.text import Text
from smcprog.drafts.train import batches
from smcprog.errors import ModelError, PromptError, SettingError

from .conftest import deep_model, lm_of

PROMPTS = [[i, (3 * i) % 11] for i in range(11)]


def weights(folder):
    return load_file(folder / "draft.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("objective", ["forward-kl", "forward-kl+chi2"])
def test_training_helps_on_held_out_text(tmp_path, lm, settings, objective):
    settings = dataclasses.replace(settings, objective=objective)
    (untrained, _) = distill(
        lm, tmp_path / "a", dataclasses.replace(settings, tokens=1), prompts=PROMPTS
    )
    trained, cooler = distill(lm, tmp_path / "b", settings, prompts=PROMPTS)
    assert trained.kl < 0.6 * untrained.kl
    assert trained.acceptance > untrained.acceptance + 0.05
    assert trained.log_chi2_mean < untrained.log_chi2_mean
    assert (trained.temperature, cooler.temperature) == (1.0, 0.7)
    report = json.loads((tmp_path / "b" / "draft.json").read_text())["report"]
    assert report["held_out"][0]["kl"] == trained.kl
    assert report["trained_tokens"] >= settings.tokens
    assert load_draft(lm, tmp_path / "b").config.num_hidden_layers == 2
    assert lm.pages_in_use == 0


def test_resumed_equals_uninterrupted(tmp_path, lm, settings):
    distill(lm, tmp_path / "whole", settings, prompts=PROMPTS)
    said = []

    class Stop(Exception):
        pass

    def stop_in_training(stage, done, total, note):
        said.append(stage)
        if stage == "Training" and said.count("Training") == 9:
            raise Stop

    with pytest.raises(Stop):
        distill(
            lm,
            tmp_path / "parts",
            settings,
            prompts=PROMPTS,
            checkpoint_minutes=0,
            progress=stop_in_training,
        )
    distill(lm, tmp_path / "parts", settings, prompts=PROMPTS, resume=True, minutes=0)
    assert not same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    distill(lm, tmp_path / "parts", settings, prompts=PROMPTS, resume=True)
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_text_is_kept_and_drawn_again_where_it_is_missing(tmp_path, lm, settings):
    short = dataclasses.replace(settings, tokens=200)
    distill(lm, tmp_path, short, prompts=PROMPTS)
    first = weights(tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    (tmp_path / "text-0001.safetensors").unlink()
    stages = set()
    distill(
        lm,
        tmp_path,
        short,
        prompts=PROMPTS,
        resume=True,
        progress=lambda stage, *_: stages.add(stage),
    )
    assert stages >= {"Drawing held-out text", "Drawing text", "Training", "Measuring"}
    assert same(weights(tmp_path), first)


def test_held_out_prompts_are_not_trained_on(tmp_path, lm, settings):
    distill(lm, tmp_path, dataclasses.replace(settings, tokens=1), prompts=PROMPTS)

    def heads(kind):
        found = set()
        for file in tmp_path.glob(f"{kind}-*.safetensors"):
            parts = load_file(file)
            for row in parts["tokens"].split(parts["lengths"].tolist()):
                found.add(tuple(row[:2].tolist()))
        return found

    assert heads("held") == {tuple(PROMPTS[7])}
    assert heads("text") == {tuple(p) for p in PROMPTS} - {tuple(PROMPTS[7])}


def test_each_epoch_holds_every_text_once():
    new = [5, 1, 9, 30, 2, 4, 4, 8, 1, 7]
    text = Text([torch.zeros(n + 2) for n in new], [2] * len(new), [torch.zeros(n, 1) for n in new])
    source = batches(text, 12, seed=3)
    for _ in range(3):
        seen: list[int] = []
        while len(seen) < len(new):
            batch = next(source)
            assert len(batch) == 1 or sum(new[i] for i in batch) <= 12
            seen += batch
        assert sorted(seen) == list(range(len(new)))


def test_a_folder_in_use_is_not_overwritten(tmp_path, lm, settings):
    with pytest.raises(SettingError, match="no run to resume"):
        distill(lm, tmp_path / "new", settings, prompts=PROMPTS, resume=True)
    short = dataclasses.replace(settings, tokens=1)
    distill(lm, tmp_path / "run", short, prompts=PROMPTS)
    with pytest.raises(SettingError, match="holds a run already"):
        distill(lm, tmp_path / "run", short, prompts=PROMPTS)
    other = dataclasses.replace(short, layers=[0, 1])
    with pytest.raises(SettingError, match=r"has layers=\[0, 3\], not \[0, 1\]"):
        distill(lm, tmp_path / "run", other, prompts=PROMPTS, resume=True)
    with pytest.raises(SettingError, match="other prompts"):
        distill(lm, tmp_path / "run", short, prompts=PROMPTS[:5], resume=True)
    with pytest.raises(ModelError, match="embeddings differ"):
        distill(lm_of(deep_model(seed=5)), tmp_path / "run", short, prompts=PROMPTS, resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(SettingError, match="not empty"):
        distill(lm, tmp_path / "full", settings, prompts=PROMPTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [0, 4]}, "layer must be at most 3"),
        ({"objective": "reverse-kl"}, "objective must be one of"),
        ({"storage": "int4"}, "storage must be one of"),
        ({"tokens": 0}, "tokens must be a whole number of at least 1"),
        ({"rate": 0}, "rate must be a number"),
        ({"chi2": float("nan")}, "chi2 must be a number"),
        ({"vocabulary": -1}, "vocabulary must be"),
    ],
)
def test_bad_settings_are_named(tmp_path, lm, settings, change, message):
    with pytest.raises(SettingError, match=message):
        distill(lm, tmp_path, dataclasses.replace(settings, **change), prompts=PROMPTS)
    assert list(tmp_path.iterdir()) == []


def test_bad_prompts_are_named(tmp_path, lm, settings):
    with pytest.raises(PromptError, match="at least two"):
        distill(lm, tmp_path, settings, prompts=[[1]])
    with pytest.raises(PromptError):
        distill(lm, tmp_path, settings, prompts=[[1], [99]])


def test_a_full_disk_is_told_before_anything_runs(tmp_path, lm, settings, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    with pytest.raises(ModelError, match="not enough disk space"):
        distill(lm, tmp_path / "run", settings, prompts=PROMPTS)


def test_a_capped_head_is_refused(tmp_path, lm, settings):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=12,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=32,
        final_logit_softcapping=0.5,
        query_pre_attn_scalar=8,
        eos_token_id=11,
        bos_token_id=None,
        pad_token_id=None,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    with pytest.raises(ModelError, match="more than a linear head"):
        distill(lm_of(Gemma2ForCausalLM(config).eval()), tmp_path, settings, prompts=PROMPTS)
