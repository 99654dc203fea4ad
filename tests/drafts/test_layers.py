"""A target with layers left out."""

from __future__ import annotations

import copy

import pytest
import torch

from smcprog.drafts import with_layers, without_layers
from smcprog.errors import SettingError

from .conftest import deep_model, lm_of

PROMPT = [1, 5, 2, 7]


def next_logits(lm):
    with lm.sequences(PROMPT, 1) as rows:
        return rows.next_logits()[0].clone()


def truncated(model, layers):
    """The same by hand: a model of fewer layers, filled with the weights of the chosen ones."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(layers)
    small = type(model)(config).to(model.dtype).eval()
    small.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    small.model.norm.load_state_dict(model.model.norm.state_dict())
    for new, old in enumerate(layers):
        small.model.layers[new].load_state_dict(model.model.layers[old].state_dict())
    return small


@pytest.mark.parametrize("layers", [[0], [3, 1], range(4), (0, 2, 3)])
def test_kept_layers_run_in_their_order(layers):
    model = deep_model()
    draft = with_layers(lm_of(model), layers)
    expected = truncated(model, sorted(layers))(torch.tensor([PROMPT])).logits[0, -1]
    torch.testing.assert_close(next_logits(draft), expected, atol=1e-6, rtol=0)


def test_left_out_is_the_complement(lm):
    expected = next_logits(with_layers(lm, [0, 3]))
    assert torch.equal(next_logits(without_layers(lm, [2, 1])), expected)


def test_the_target_stays_as_it_is_and_shares_its_weights(lm):
    before = next_logits(lm)
    draft = without_layers(lm, [1])
    assert not torch.equal(next_logits(draft), before)
    assert torch.equal(next_logits(lm), before)
    assert lm.config.num_hidden_layers == 4
    ours = {p.data_ptr() for p in lm.model.parameters()}
    assert {p.data_ptr() for p in draft.model.parameters()} < ours
    with draft.sequences(PROMPT, 2):
        assert draft.pages_in_use > 0
        assert lm.pages_in_use == 0


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0, 4], "layer must be at most 3, got 4"),
        ([-1], "at least 0, got -1"),
        ([1, 1], "names layer 1 twice"),
        ([], "is empty"),
        ("01", "list of layer indices"),
        ([0.5], "whole number"),
        (3, "list of layer indices"),
    ],
)
def test_bad_layers_are_refused_by_name(lm, layers, message):
    with pytest.raises(SettingError, match=message):
        with_layers(lm, layers)


def test_one_layer_must_stay(lm):
    with pytest.raises(SettingError, match="at least one"):
        without_layers(lm, [0, 1, 2, 3])
