"""Models with prompts of their own: what they continue, and what is checked and shared."""

from __future__ import annotations

import re

import pytest
import torch

from smcprog import Guidance, Mixture, Scheduler, Target
from smcprog.errors import BatchError, PagesExhaustedError, PromptError, SettingError
from smcprog.potentials import Request
from smcprog.smc.call import Call

from ..tiny import tiny_llama, tiny_model

SCALE = 0.3
A, B, C = [0, 1, 1, 0, 0], [1], [0, 0, 1]


def lm_and_plain(seed=3, **options):
    return tiny_llama(seed=seed, scale=SCALE, **options), tiny_model(seed=seed, scale=SCALE)


def log_p(plain, prompt, tokens):
    """Σ log p of the plain `transformers` model, from one forward."""
    with torch.no_grad():
        logits = plain(torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0]
    logp = torch.log_softmax(logits.double(), -1)
    return sum(float(logp[len(prompt) - 1 + t, v]) for t, v in enumerate(tokens))


@pytest.mark.parametrize("k", [0, 3])
def test_prompt_intersection_against_the_plain_model(k):
    lm, plain = lm_and_plain()
    target = Target(lm, prompt=A) * Target(lm, prompt=lambda p: [*p, *B]) / Target(lm) ** 0.5
    draft = tiny_llama(seed=8, scale=SCALE) if k else None
    post = target.sample(C, particles=6, draft=draft, draft_tokens=k, max_tokens=9, seed=0)
    for p in post.particles:
        want = log_p(plain, A, p.tokens) + log_p(plain, C + B, p.tokens)
        assert p.log_target == pytest.approx(want - 0.5 * log_p(plain, C, p.tokens), abs=1e-9)
        assert sum(p.logprobs) == pytest.approx(log_p(plain, A, p.tokens), abs=1e-9)
    assert lm.pages_in_use == 0
    lm.check_pages()


def test_without_a_prompt_the_others_share_the_leads():
    lm, plain = lm_and_plain()
    post = (Target(lm, prompt=A) * Target(lm) * Target(lm, prompt=B)).sample(max_tokens=6, seed=0)
    for p in post.particles:
        want = 2 * log_p(plain, A, p.tokens) + log_p(plain, B, p.tokens)
        assert p.log_target == pytest.approx(want, abs=1e-9)
    same = Target(lm, prompt=A).sample(max_tokens=6, seed=0)
    assert same.tokens == Target(lm).sample(A, max_tokens=6, seed=0).tokens
    with Scheduler() as scheduler:
        queued = scheduler.submit(Target(lm, prompt=A), max_tokens=6, seed=0).result()
    assert queued.tokens == same.tokens


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda lm: Target(lm), "has no prompt"),
        (lambda lm: Target(lm) * Target(lm, prompt=A), "has no prompt"),
        (lambda lm: Target(lm, prompt=lambda p: p), "makes its prompt from the request's"),
    ],
)
def test_somebody_must_have_a_prompt(make, says):
    lm, _ = lm_and_plain()
    with pytest.raises(PromptError, match=f"sample\\(\\) without a prompt: .*{says}"):
        make(lm).sample(max_tokens=4)


def test_prompts_are_checked_where_they_are_written():
    lm, _ = lm_and_plain()
    for prompt, says in [([], "empty"), ([7], "no token"), (3, "not int"), ([0] * 65, "context")]:
        with pytest.raises(PromptError, match=says):
            Target(lm, prompt=prompt)
        with pytest.raises(PromptError, match=says):
            Guidance(lm, 2, negative_prompt=prompt)
    assert Target(lm, prompt=torch.tensor(A)).prompt == A


def test_the_context_holds_the_longest_prompt_of_all():
    lm, _ = lm_and_plain()  # a context of 64
    target = Target(lm) * Target(lm, prompt=[0] * 60)
    with pytest.raises(SettingError, match=re.escape("a prompt of 60 tokens and max_tokens=5")):
        target.sample([0], max_tokens=5)
    target.sample([0], max_tokens=4, particles=2)
    kind = Guidance(lm, 2, negative_prompt=lambda p: p * 60)
    with pytest.raises(SettingError, match="a prompt of 60 tokens"):
        kind.sample([0], max_tokens=5)


def test_pages_of_every_prompt_are_counted():
    lm, _ = lm_and_plain(kv_pages=14)
    target = Target(lm) * Target(lm, prompt=[0] * 40)
    call = Call.of(target, None, particles=2, max_tokens=8)
    pages = call.pages(call.request([0]))
    assert pages == {lm: lm.pages_needed(1, 2, 8) + lm.pages_needed(40, 2, 8)}
    with Scheduler() as scheduler:
        with pytest.raises(PagesExhaustedError, match="may need"):
            scheduler.submit(target * Target(lm), [0], particles=4, max_tokens=16)
        scheduler.submit(target, [0], particles=2, max_tokens=8).result()


def test_a_prompt_function_runs_once_a_request_and_fails_alone():
    lm, _ = lm_and_plain()
    calls = []

    def twice(prompt):
        calls.append(prompt)
        if prompt == [1]:
            raise KeyError("no such thing")
        return prompt * (40 if prompt == [0, 0] else 2)

    target = Target(lm) * Target(lm, prompt=twice)
    with pytest.raises(BatchError) as caught:
        target.sample([[0], [1], [0, 0], [0, 1]], particles=2, max_tokens=3, seed=0)
    ok, raised, long, also = caught.value.results
    assert isinstance(raised, PromptError)
    assert "prompt function twice raised KeyError: 'no such thing'" in str(raised)
    assert isinstance(long, PromptError) and "80 tokens" in str(long)
    assert len(ok.particles) == len(also.particles) == 2
    assert sorted(calls) == [[0], [0, 0], [0, 1], [1]]


def test_a_request_makes_each_prompt_once():
    lm, _ = lm_and_plain()
    made = []
    request = Request(A, tuple(A), lm.vocab, 4)
    grow = lambda p: made.append(1) or [*p, 1]  # noqa: E731
    assert request.prompt_for() == A and request.prompt_for(B) == B
    assert request.prompt_for(grow) == request.prompt_for(grow) == [*A, 1]
    assert len(made) == 1


def test_a_prompt_function_may_change_what_it_is_given():
    lm, _ = lm_and_plain()
    prompt = [0, 1]

    def changes(given):
        given.append(1)
        return given

    options = {"particles": 3, "max_tokens": 6, "seed": 0}
    post = (Target(lm) * Target(lm, prompt=changes)).sample(prompt, **options)
    want = (Target(lm) * Target(lm, prompt=[0, 1, 1])).sample([0, 1], **options)
    assert prompt == [0, 1]
    assert [p.tokens for p in post] == [p.tokens for p in want]
    assert post.log_evidence == pytest.approx(want.log_evidence)


class Forwards:
    """Counts what an LM's engine runs: forwards and tokens."""

    def __init__(self, lm, monkeypatch):
        self.passes, self.tokens = 0, 0
        engine, extend = lm.engine, lm.engine.extend

        def counted(tables, stored, block, counts, columns):
            self.passes += 1
            self.tokens += int(counts.sum())
            return extend(tables, stored, block, counts, columns)

        monkeypatch.setattr(engine, "extend", counted)


def test_a_prompt_that_was_run_is_not_run_again(monkeypatch):
    lm, _ = lm_and_plain()
    seen = Forwards(lm, monkeypatch)
    long = [0] * 33
    target = Target(lm, prompt=long) * Target(lm, prompt=[*long, 1, 1])
    target.sample(particles=2, max_tokens=1, seed=0)
    assert seen.tokens == 33 + 35 - 32  # the second begins with four full pages of the first
    target.sample(particles=2, max_tokens=1, seed=1)
    assert seen.tokens == 36 + 1 + 3


@pytest.mark.parametrize(
    "make",
    [
        lambda lm: Mixture([Target(lm, prompt=A), Target(lm, prompt=B), Target(lm)]),
        lambda lm: Mixture([Target(lm, prompt=A), Target(lm, prompt=B)], of="tokens"),
        lambda lm: Guidance(lm, 1.5, negative_prompt=B),
    ],
)
def test_prompts_of_one_model_take_one_forward_together(make, monkeypatch):
    lm, _ = lm_and_plain()
    target = make(lm)
    wave = Call.of(target, None, particles=3, max_tokens=6)
    seen = Forwards(lm, monkeypatch)
    post = target.sample(A, particles=3, max_tokens=6, seed=0)
    assert seen.passes == len(target.models) + len(post.rounds) - 1
    assert wave.lm is lm and lm.pages_in_use == 0
    lm.check_pages()


@pytest.mark.parametrize("coupling", [float("inf"), 2.0])
def test_composites_with_many_requests_and_a_draft(coupling):
    """Joined states, forks and looks ahead give what each request gives alone."""
    lm, plain = lm_and_plain()
    draft = tiny_llama(seed=8, scale=SCALE)
    kind = Mixture([Target(lm, prompt=A), Guidance(lm, 1.4, negative_prompt=C)], of="tokens")
    target = kind * Mixture([Target(lm) ** 2, Target(lm, prompt=B)])
    settings = {
        "particles": 4, "draft": draft, "draft_tokens": 2, "coupling": coupling, "max_tokens": 7,
        "ess_threshold": 0.9,
    }  # fmt: skip
    prompts = [[0], [1], [0], [1, 0]]
    together = target.sample(prompts, seed=[1, 2, 3, 4], **settings)
    for seed, prompt, post in zip([1, 2, 3, 4], prompts, together, strict=True):
        alone = target.sample(prompt, seed=seed, **settings)
        assert [p.tokens for p in alone.particles] == [p.tokens for p in post.particles]
        assert alone.log_evidence == pytest.approx(post.log_evidence)
        for p in post.particles:
            two = 2 * log_p(plain, prompt, p.tokens), log_p(plain, B, p.tokens)
            mixed = float(torch.tensor(two, dtype=torch.float64).logsumexp(0)) - 0.6931471805599453
            assert p.log_target - mixed == pytest.approx(sum(p.logprobs), abs=1e-8)
    for model in (lm, draft):
        assert model.pages_in_use == 0
        model.check_pages()


def test_composites_under_a_scheduler():
    lm, _ = lm_and_plain()
    kinds = [
        Mixture([Target(lm, prompt=A), Target(lm)]),
        Guidance(lm, 1.5, negative_prompt=B, temperature=0.8),
        Target(lm) ** 1.5 / Target(lm, prompt=C) ** 0.5,
    ]
    settings = {"particles": 3, "max_tokens": 8}
    with Scheduler() as scheduler:
        handles = [scheduler.submit(k, [0], seed=i, **settings) for i, k in enumerate(kinds * 2)]
        queued = [handle.result() for handle in handles]
    for i, kind in enumerate(kinds * 2):
        alone = kind.sample([0], seed=i, **settings)
        assert [p.tokens for p in alone.particles] == [p.tokens for p in queued[i].particles]
        assert alone.log_evidence == pytest.approx(queued[i].log_evidence)
    assert lm.pages_in_use == 0


def test_greedy_guidance_takes_the_arg_max():
    lm, plain = lm_and_plain()
    kind = Guidance(lm, 2.0, prompt=A, negative_prompt=B, temperature=0)
    for options in (
        {},
        {"draft": tiny_llama(seed=8, scale=SCALE), "draft_tokens": 2, "coupling": 1},
    ):
        tokens = kind.sample(particles=2, max_tokens=8, **options).tokens
        for t, v in enumerate(tokens):
            one, two = (
                plain(torch.tensor([[*q, *tokens[:t]]]), use_cache=False)
                .logits[0, -1]
                .log_softmax(-1)
                for q in (A, B)
            )
            assert v == int((2 * one - two).argmax())
    with pytest.raises(SettingError, match="greedy"):
        (kind * Target(lm)).sample(max_tokens=2)


def test_a_fed_draft_needs_one_row_a_particle():
    lm, _ = lm_and_plain()

    class Fed:
        fed_by, vocab, name, tokens = lm, lm.vocab, "fed", 1

    with pytest.raises(SettingError, match="keeps 2: use a draft that is an LM"):
        Guidance(lm, 2, negative_prompt=B).sample(A, draft=Fed(), max_tokens=2, particles=2)
