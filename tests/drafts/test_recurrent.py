"""Drafts that are fed with the target's hidden states: training, storage and use."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from smcprog import LM, SettingError, Target
from smcprog.drafts import DistillSettings, distill, load_draft
from smcprog.drafts.fed import FedDraft
from smcprog.drafts.recurrent import text_states
from smcprog.drafts.report import measure
from smcprog.drafts.student import build_recurrent, plain_twin
from smcprog.drafts.text import Text
from smcprog.errors import ModelError, SlowDraftWarning

from .conftest import deep_model, lm_of
from .test_distill import PROMPTS, same, weights

SETTINGS = DistillSettings(
    design="recurrent",
    inner=24,
    context=3,
    vocabulary=8,
    text_tokens=400,
    held_tokens=150,
    text_length=16,
    text_batch=16,
    tokens=5000,
    batch=128,
    rate=1e-2,
    storage="float64",
)


def recurrent(model, tokens=3, seed=0):
    draft = build_recurrent(model, 8, tokens)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in draft.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn(p.shape, generator=rng, dtype=p.dtype))
    return draft


def test_training_brings_it_closer_to_the_target(tmp_path, lm):
    one = dataclasses.replace(SETTINGS, tokens=1)
    untrained = distill(lm, tmp_path / "a", one, prompts=PROMPTS)
    trained = distill(lm, tmp_path / "b", SETTINGS, prompts=PROMPTS)
    assert [(f.ahead, f.temperature) for f in trained] == [
        (k, tau) for k in (1, 2, 3) for tau in (1.0, 0.7)
    ]
    for before, after in zip(untrained, trained, strict=True):
        assert after.kl < 0.9 * before.kl
        assert after.acceptance > before.acceptance
    # The further ahead, the less is known.
    assert trained[0].tokens > trained[2].tokens > trained[4].tokens
    report = json.loads((tmp_path / "b" / "draft.json").read_text())["report"]
    assert report["held_out"][0]["kl"] == trained[0].kl
    assert isinstance(lm.draft(tmp_path / "b"), FedDraft)
    assert lm.pages_in_use == 0


def test_it_starts_from_the_best_linear_prediction():
    """Where the next hidden state is linear in state and tokens, training has little to do."""
    draft = build_recurrent(deep_model(), 8, 2)
    rng = torch.Generator().manual_seed(4)
    a, b, c = (torch.randn(16, 16, generator=rng, dtype=torch.float64) for _ in range(3))
    text = Text([], [], [])
    for _ in range(40):
        tokens = torch.randint(12, (22,), generator=rng)
        near = draft.embed(tokens)
        hidden = [torch.randn(16, generator=rng, dtype=torch.float64)]
        for t in range(19):  # the token after position t is t + 2 of the text
            known = hidden[t] / hidden[t].square().mean().sqrt()
            hidden.append(a @ known + b @ near[t + 2] + c @ near[t + 1])
        text.tokens.append(tokens)
        text.prompts.append(2)
        text.hidden.append(torch.stack(hidden))
    with torch.no_grad():
        draft.start(text, 0)
        (states,) = text_states(draft, text, range(40), 1)
    wanted = torch.cat([h[1:] for h in text.hidden])
    assert torch.cosine_similarity(torch.cat(states), wanted, dim=1).mean() > 0.95


def test_resumed_equals_uninterrupted(tmp_path, lm):
    short = dataclasses.replace(SETTINGS, tokens=2500)
    distill(lm, tmp_path / "whole", short, prompts=PROMPTS)
    said = []

    class Stop(Exception):
        pass

    def stop_in_training(stage, done, total, note):
        said.append(stage)
        if said.count("Training") == 9:
            raise Stop

    with pytest.raises(Stop):
        distill(
            lm, tmp_path / "parts", short, prompts=PROMPTS, checkpoint_minutes=0,
            progress=stop_in_training,
        )  # fmt: skip
    distill(lm, tmp_path / "parts", short, prompts=PROMPTS, resume=True)
    assert same(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_states_are_made_of_the_right_past():
    """Whole texts at once against one token after the other."""
    draft = recurrent(deep_model())
    rng = torch.Generator().manual_seed(1)
    text = Text([], [], [])
    for prompt, new in ((1, 5), (4, 1), (2, 3)):
        text.tokens.append(torch.randint(12, (prompt + new,), generator=rng, dtype=torch.int32))
        text.prompts.append(prompt)
        text.hidden.append(torch.randn(new, 16, generator=rng, dtype=torch.float64))
    got = text_states(draft, text, range(3), 3)
    for b, (tokens, prompt, hidden) in enumerate(
        zip(text.tokens, text.prompts, text.hidden, strict=True)
    ):
        ids = torch.cat([torch.zeros(2, dtype=torch.int64), tokens.long()])
        for k in (1, 2, 3):
            assert len(got[k - 1][b]) == max(0, len(hidden) - k)
            for t in range(len(got[k - 1][b])):
                state = hidden[t]
                for j in range(k):  # the token after position t + j is prompt + t + j of the text
                    newest = 2 + prompt + t + j
                    near = [draft.embed(ids[newest - i]) for i in range(3)]
                    state = draft.step(state, near)
                assert torch.allclose(got[k - 1][b][t], state, atol=1e-12)


def test_rows_depend_on_their_own_past_only(lm):
    draft = FedDraft(lm, recurrent(lm.model), "random")
    state = torch.randn(5, 16, dtype=torch.float64)
    tokens = torch.randint(12, (5, 3))
    together = draft.logits(draft.step(state, tokens))
    alone = [draft.logits(draft.step(state[i : i + 1], tokens[i : i + 1])) for i in range(5)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-12)


@pytest.mark.parametrize("storage", ["float64", "int8"])
def test_what_is_stored_is_loaded(tmp_path, lm, storage):
    run = dataclasses.replace(SETTINGS, tokens=300, storage=storage)
    figures = distill(lm, tmp_path, run, prompts=PROMPTS)
    other = lm_of(deep_model())
    a, b = lm.draft(tmp_path), load_draft(other, tmp_path)
    state = torch.randn(4, 16, dtype=torch.float64)
    tokens = torch.randint(12, (4, 3))
    assert torch.equal(a.logits(a.step(state, tokens)), b.logits(b.step(state, tokens)))
    assert figures[0].kl > 0
    names = set(load_file(tmp_path / "draft.safetensors"))
    assert not any("embedding" in name for name in names)  # the target's own


def test_it_drafts_for_its_own_target_only(tmp_path, lm):
    distill(lm, tmp_path, dataclasses.replace(SETTINGS, tokens=1), prompts=PROMPTS)
    with pytest.raises(ModelError, match="embeddings differ"):
        lm_of(deep_model(seed=5)).draft(tmp_path)
    twin = lm_of(deep_model())
    with pytest.raises(SettingError, match="fed by another model"):
        Target(twin).sample([1, 2], particles=2, draft=lm.draft(tmp_path), max_tokens=4)


def test_a_draft_that_is_no_cheaper_is_told(lm, monkeypatch):
    draft = FedDraft(lm, recurrent(lm.model), "lead")
    monkeypatch.setattr(draft, "time_step", lambda rows: 10.0)
    with pytest.warns(SlowDraftWarning, match="lead is no faster"):
        Target(lm).sample([1, 2], particles=8, draft=draft, max_tokens=8, seed=0)


def test_damaged_files_are_named(tmp_path, lm):
    distill(lm, tmp_path, dataclasses.replace(SETTINGS, tokens=1), prompts=PROMPTS)
    config = json.loads((tmp_path / "draft.json").read_text())
    for change, message in (
        ({"inner": 0}, "inner must be"),
        ({"tokens": "3"}, "tokens must be"),
        ({"inner": 9}, "missing, unknown or"),
        ({"format": 3}, "this version reads 1 and 2"),
    ):
        (tmp_path / "draft.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=message):
            lm.draft(tmp_path)
    (tmp_path / "draft.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "draft.safetensors")
    del tensors["fuse.weight"]
    save_file(tensors, tmp_path / "draft.safetensors")
    with pytest.raises(ModelError, match=r"fuse\.weight"):
        lm.draft(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": [0, 1]}, "a setting of design"),
        ({"design": "tree"}, "design must be one of"),
        ({"context": 0}, "context must be"),
        ({"unroll": 0}, "unroll must be"),
        ({"inner": -1}, "inner must be"),
    ],
)
def test_bad_settings_are_named(tmp_path, lm, change, message):
    with pytest.raises(SettingError, match=message):
        distill(lm, tmp_path, dataclasses.replace(SETTINGS, **change), prompts=PROMPTS)


def test_untied_heads_with_a_bias(tmp_path):
    model = deep_model(tie_word_embeddings=False)
    model.lm_head = torch.nn.Linear(16, 12, bias=True).double()
    lm: LM = lm_of(model)
    for vocabulary in (0, 8):
        draft = build_recurrent(lm.model, 8, 2, *_classes(vocabulary))
        wanted = plain_twin(lm.model).lm_head.bias
        bias = draft.head.bias if vocabulary == 0 else draft.head.kept.bias
        assert torch.equal(bias, wanted[: len(bias)])
        text = Text([torch.arange(6)], [2], [torch.randn(4, 16, dtype=torch.float64)])
        with torch.no_grad():
            draft.start(text, 0)
        (figures,) = measure(plain_twin(lm.model), draft, text, [1.0], [1])
        assert figures.tokens == 3


def _classes(count):
    if not count:
        return None, None
    log_rest = torch.full((12,), -torch.inf)
    log_rest[count:] = -torch.log(torch.tensor(12.0 - count))
    return torch.arange(count), log_rest
