"""Drafts that are fed with the target's hidden states: exact, and fed with the right ones."""

from __future__ import annotations

import pytest
import torch

from smcprog import Grammar, Reward, Scheduler, Target
from smcprog.drafts.fed import FedDraft
from smcprog.drafts.recurrent import RecurrentDraft
from smcprog.smc.fed_draft import FedDraftRows
from smcprog.smc.settings import Settings

from ..tiny import tiny_llama, tiny_model
from .test_many_particles import assert_unbiased, run_many
from .test_one_particle import assert_same, weighted_outcomes
from .test_real_engine import PATTERN, SCALE, as_toy
from .toys import gamma, in_regex

LONG = 4


def network(model, tokens=2, seed=0):
    """A network with random weights, no better than chance."""
    head = torch.nn.Linear(16, model.config.vocab_size, bias=True).double()
    draft = RecurrentDraft(model.get_input_embeddings(), head, inner=8, tokens=tokens)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in draft.named_parameters():
            if not name.startswith("embedding"):
                p.copy_(0.3 * torch.randn(p.shape, generator=rng, dtype=torch.float64))
        head.weight.mul_(2)
    return draft


def fed(lm, **options):
    return FedDraft(lm, network(lm.model, **options), "random")


@pytest.mark.parametrize(
    ("coupling", "k", "paths", "power", "masked"),
    [
        (1.0, 2, 1, 1.0, False),
        (1.0, 3, 1, 2.0, True),
        (1.0, 1, 2, 1.0, True),
        (2.0, 3, 1, 2.0, False),
        (2.0, 2, 1, 1.0, True),
        (float("inf"), 1, 1, 1.0, False),
        (float("inf"), 3, 1, 2.0, True),
    ],
)
def test_one_particle_enumerated(coupling, k, paths, power, masked):
    lm = tiny_llama(seed=k, scale=SCALE)
    toy = as_toy(lm, tiny_model(seed=k, scale=SCALE))
    target, exact = Target(lm, power=power), {"power": power}
    if masked:
        target = target * Grammar.regex(PATTERN)
        exact["accepts"] = in_regex(PATTERN)
    settings = Settings(
        particles=1, draft=fed(lm), draft_tokens=k, coupling=coupling, draft_paths=paths,
        max_tokens=LONG, draft_temperature=0.8,
    )  # fmt: skip
    got = weighted_outcomes(target, settings, True)
    assert_same(got, gamma(toy, LONG, truncate=True, **exact))
    assert lm.pages_in_use == 0


@pytest.mark.parametrize(("n", "coupling"), [(8, 2.0), (8, float("inf"))])
def test_many_particles(n, coupling):
    lm = tiny_llama(seed=5, scale=SCALE)
    toy = as_toy(lm, tiny_model(seed=5, scale=SCALE))
    settings = Settings(
        particles=n, draft=fed(lm), draft_tokens=2, coupling=coupling, max_tokens=LONG,
        ess_threshold=1.0,
    )  # fmt: skip
    target = Target(lm) * Grammar.regex(PATTERN)
    gammas = gamma(toy, LONG, truncate=True, accepts=in_regex(PATTERN))
    z, outcomes = run_many(target, settings, True)
    assert_unbiased(z, outcomes, gammas)


@pytest.fixture
def watched(monkeypatch):
    """A model whose draft checks what it is given at the beginning of each block."""
    lm = tiny_llama(vocab_size=8, eos=7, seed=2, scale=0.5)
    plain = tiny_model(vocab_size=8, eos=7, seed=2, scale=0.5)
    draft = fed(lm, tokens=40)
    state = {"fresh": None, "seen": 0}

    start_round, step = FedDraftRows.start_round, draft.step

    def starting(rows):
        state["fresh"] = rows._lead.hidden()[1] == 1
        start_round(rows)

    def checked(state_M_D, tokens_M_C):
        fresh_M, state["fresh"] = state["fresh"], None
        if fresh_M is not None:
            # A row whose last token was drafted, too, is fed with the hidden state at that one.
            for m in fresh_M.nonzero()[0]:
                begin = int(torch.nonzero(tokens_M_C[m])[0])  # prompts do not begin with id 0
                ids = tokens_M_C[m : m + 1, begin:-1]
                with torch.no_grad():
                    want_T_D = plain.model(ids, use_cache=False).last_hidden_state[0]
                assert torch.allclose(state_M_D[m], want_T_D[-1], atol=1e-9)
                state["seen"] += 1
        return step(state_M_D, tokens_M_C)

    monkeypatch.setattr(FedDraftRows, "start_round", starting)
    monkeypatch.setattr(draft, "step", checked)
    return lm, draft, state


@pytest.mark.parametrize(
    ("coupling", "k", "paths"),
    [(float("inf"), 1, 1), (float("inf"), 3, 1), (1, 1, 1), (1, 3, 1), (1, 2, 3), (3, 4, 1)],
)
def test_the_hidden_state_is_that_of_the_last_token_run(watched, coupling, k, paths):
    """Through blocks that are cut back, resampling, twins and a prompt that is known already."""
    lm, draft, state = watched
    target = Target(lm) * Reward(lambda texts: [t.count("b") for t in texts], beta=1.0)
    for seed in range(3):
        target.sample(
            [3, 1, 4, 1, 5, 2, 6, 5, 3, 5], particles=6, draft=draft, draft_tokens=k,
            coupling=coupling, draft_paths=paths, max_tokens=16, ess_threshold=1.0, seed=seed,
        )  # fmt: skip
    assert state["seen"] > 15
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_in_the_batch_of_a_scheduler(watched):
    """Requests with other prompts and settings beside it; the same outputs as alone."""
    lm, draft, state = watched
    options = {"particles": 3, "draft": draft, "max_tokens": 12}
    asked = [
        ([1, 2, 3], {"draft_tokens": 2, "coupling": 1, "seed": 1}),
        ([1, 2, 3, 4, 5, 6, 1, 2, 3], {"draft_tokens": 3, "seed": 2}),
        ([6, 5, 4], {"draft_tokens": 1, "coupling": 2, "seed": 3}),
    ]
    with Scheduler() as scheduler:
        handles = [scheduler.submit(Target(lm), p, **options, **more) for p, more in asked]
        together = [[x.tokens for x in h.result(60).particles] for h in handles]
    assert state["seen"] > 10
    alone = [
        [x.tokens for x in Target(lm).sample(p, **options, **more).particles] for p, more in asked
    ]
    assert together == alone


def test_with_k_chosen_by_the_sampler_and_with_fixed_kernels():
    lm = tiny_llama(seed=5, scale=SCALE)
    gammas = gamma(as_toy(lm, tiny_model(seed=5, scale=SCALE)), LONG, truncate=True)
    target, draft = Target(lm), fed(lm)
    for more in ({"draft_tokens": "auto"}, {"draft_tokens": 2, "deterministic": True}):
        outputs = [
            target.sample(
                [0], particles=1, draft=draft, coupling=1, max_tokens=LONG, seed=s, **more
            )
            for s in range(60)
        ]
        # Lossless and bare: every particle is a sample, and no evidence is lost.
        assert all(abs(post.log_evidence) < 1e-9 for post in outputs)
        assert {tuple(post.particles[0].tokens) for post in outputs} <= set(gammas)
