"""The parts of benchmarks with a draft that is fed by its target."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from smcprog import Target
from smcprog.bench.accelerator import size_of
from smcprog.bench.agreement import fed_logp, measure_agreement
from smcprog.bench.cells import Cell, Mode
from smcprog.bench.clock import forward_clock
from smcprog.bench.forwards import ForwardTimer
from smcprog.bench.pair import endless, load_pair
from smcprog.bench.runs import run_cell
from smcprog.drafts.fed import FedDraft
from smcprog.drafts.student import build_recurrent


@pytest.fixture
def pair(folders):
    lm, _ = load_pair(str(folders[0]), None)
    network = build_recurrent(lm.model, 8, 3)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in network.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn_like(p))
    return lm, FedDraft(lm, network, "random")


def test_what_it_predicts_along_an_output(pair, folders) -> None:
    lm, draft = pair
    plain = AutoModelForCausalLM.from_pretrained(folders[0])
    prompt, tokens = [7, 8], [20, 21, 22, 23, 24]
    got_T_V = fed_logp(draft, prompt, tokens, 0.8, lm.vocab.size)
    assert got_T_V.shape == (5, lm.vocab.size)
    ids = [0, *prompt, *tokens]
    for t in range(1, 5):
        known = [*prompt, *tokens[: t - 1]]  # the target has not run token t − 1
        with torch.no_grad():
            hidden = plain.model(torch.tensor([known])).last_hidden_state[0, -1:]
        recent = torch.tensor([ids[t : t + 3]])
        assert recent[0, -1] == tokens[t - 1]
        want_V = torch.log_softmax(draft.logits(draft.step(hidden, recent))[0] / 0.8, -1)
        assert torch.allclose(got_T_V[t], want_V, atol=1e-4)
    assert fed_logp(draft, prompt, tokens[:1], 0.8, lm.vocab.size).shape == (1, lm.vocab.size)
    lm.check_pages()


def test_agreement_is_what_a_sampler_meets(pair) -> None:
    """Acceptance of the first token of a block, against how many of them were kept."""
    lm, draft = pair
    outputs, tokens, rounds = [], 0, 0
    for seed in range(12):
        post = Target(lm).sample(
            [7, 8], particles=1, draft=draft, draft_tokens=1, coupling=1, max_tokens=40, seed=seed
        )
        outputs.append(([7, 8], post.particles[0].tokens))
        tokens += len(post.particles[0].tokens)
        rounds += len(post.rounds)
    found = measure_agreement(lm, draft, outputs, 1.0, [1.0])[1.0]
    # About 400 blocks, each with one drafted token: three standard errors are below 0.08.
    assert (tokens - rounds) / rounds == pytest.approx(found.acceptance, abs=0.08)


def test_its_steps_are_counted_and_timed(pair) -> None:
    lm, draft = pair
    cell = Cell(Mode("smc", math.inf), 3, 2, 1.0)
    with forward_clock(lm, draft) as clock, endless(lm, draft):
        run, _ = run_cell(cell, lm, draft, [(0, "ab")], max_tokens=9, seed=5, clock=clock)
    shapes = [(one.model, one.columns) for one in run.rounds[2].ran]
    assert shapes == [(1, 1), (1, 1), (0, 3)]
    assert all(one.seconds > 0 for r in run.rounds for one in r.ran)
    assert not {"step", "logits"} & set(vars(draft))
    timer = ForwardTimer(draft, [(1, 1, 10), (4, 1, 10)])
    timer.step()
    assert [(f.rows, f.columns) for f in timer.result()] == [(1, 1), (4, 1)]
    assert all(f.seconds > 0 for f in timer.result())
    assert size_of(draft).kv == 0
    assert size_of(draft).weights == draft.weights > 0
