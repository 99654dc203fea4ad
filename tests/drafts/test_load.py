"""A draft's folder: stored, read back, and refused where it does not belong."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from smcprog import Target
from smcprog.drafts import DistillSettings, load_draft
from smcprog.drafts.head import TrimmedHead
from smcprog.drafts.load import save_draft
from smcprog.drafts.student import build_student, trainable
from smcprog.errors import ModelError

from .conftest import SIZE, deep_model, lm_of

PROMPT = [1, 5, 2, 7]


def of_two(storage):
    return DistillSettings(layers=[0, 2], storage=storage)


def student_of(lm, trimmed=True):
    kept_M = torch.tensor([SIZE - 1, 3, 0, 5, 8]) if trimmed else None
    log_rest_V = torch.full((SIZE,), -2.0) if trimmed else None
    student = build_student(lm.model, [0, 2], kept_M, log_rest_V)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(student).values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return student


def logits_of(model):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits


@pytest.mark.parametrize("trimmed", [True, False])
@pytest.mark.parametrize(
    ("storage", "off"), [("float64", 0), ("float32", 1e-5), ("float16", 2e-2), ("int8", 0.3)]
)
def test_stored_and_read_back(tmp_path, lm, trimmed, storage, off):
    student = student_of(lm, trimmed)
    save_draft(tmp_path, lm.model, lm.name, student, of_two(storage))
    draft = load_draft(lm, tmp_path)
    torch.testing.assert_close(logits_of(draft.model), logits_of(student), atol=off, rtol=0)
    assert draft.config.num_hidden_layers == 2


def test_embeddings_are_not_stored_but_shared(tmp_path, lm):
    save_draft(tmp_path, lm.model, lm.name, student_of(lm, trimmed=False), of_two("float64"))
    names = load_file(tmp_path / "draft.safetensors")
    assert not [n for n in names if "embed" in n or "lm_head" in n]
    draft = load_draft(lm, tmp_path)
    theirs = draft.model.get_input_embeddings().weight
    assert theirs.data_ptr() == lm.model.get_input_embeddings().weight.data_ptr()


def test_a_student_is_trained_without_touching_its_target(lm):
    before = {name: p.clone() for name, p in lm.model.named_parameters()}
    student = student_of(lm)
    student.set_attn_implementation("eager")
    student(torch.tensor([PROMPT])).logits.sum().backward()
    for name, parameter in lm.model.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert parameter.grad is None, name


def test_it_drafts_for_its_target(tmp_path, lm):
    save_draft(tmp_path, lm.model, lm.name, student_of(lm), of_two("float16"))
    draft = load_draft(lm, tmp_path)
    assert isinstance(draft.model.lm_head, TrimmedHead)
    post = Target(lm).sample(PROMPT, particles=4, draft=draft, max_tokens=12, seed=0)
    assert all(0 < len(p.tokens) <= 12 for p in post.particles)
    assert lm.pages_in_use == draft.pages_in_use == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (deep_model(seed=7), "embeddings differ"),
        (deep_model(layers=3), "layers 4 there, 3 here"),
        (deep_model(hidden_size=32), "width 16 there, 32 here"),
        (deep_model(vocab_size=SIZE + 1), f"vocabulary {SIZE} there"),
    ],
    ids=["weights", "layers", "width", "vocabulary"],
)
def test_another_target_is_refused(tmp_path, lm, other, message):
    save_draft(tmp_path, lm.model, lm.name, student_of(lm), of_two("float16"))
    with pytest.raises(ModelError, match=message):
        load_draft(lm_of(other), tmp_path)


def test_the_same_target_in_another_type_is_not_refused(tmp_path, lm):
    save_draft(tmp_path, lm.model, lm.name, student_of(lm), of_two("float16"))
    twin = lm_of(deep_model().to(torch.float32))
    assert load_draft(twin, tmp_path).dtype == torch.float32


def test_what_is_no_draft_is_refused(tmp_path, lm):
    with pytest.raises(ModelError, match=r"must hold draft\.json"):
        load_draft(lm, tmp_path)
    with pytest.raises(ModelError, match="no draft for 'tiny' comes with smcprog"):
        load_draft(lm)


def test_damage_is_named(tmp_path, lm):
    save_draft(tmp_path, lm.model, lm.name, student_of(lm), of_two("float16"))
    weights, config = tmp_path / "draft.safetensors", tmp_path / "draft.json"
    whole, described = weights.read_bytes(), config.read_text()

    weights.write_bytes(whole[:200])
    with pytest.raises(ModelError, match="cannot read"):
        load_draft(lm, tmp_path)
    weights.write_bytes(whole)

    tensors = load_file(weights)
    lost = tensors.pop("model.norm.weight")
    save_file(tensors, weights)
    with pytest.raises(ModelError, match=r"'model\.norm\.weight' is missing"):
        load_draft(lm, tmp_path)
    save_file(tensors | {"model.norm.weight": lost[:3].clone()}, weights)
    with pytest.raises(ModelError, match="of another shape"):
        load_draft(lm, tmp_path)
    weights.write_bytes(whole)

    for key, value, message in (
        ("format", 9, "has format 9"),
        ("layers", [0, 9], "layer must be at most 3"),
        ("layers", [0], "damaged"),
        ("layers", None, "list of layer indices"),
    ):
        config.write_text(json.dumps(json.loads(described) | {key: value}))
        with pytest.raises((ModelError), match=message):
            load_draft(lm, tmp_path)
    config.write_text("[]")
    with pytest.raises(ModelError, match="no JSON object"):
        load_draft(lm, tmp_path)
