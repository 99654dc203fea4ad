"""Programs on the real engine: rows hold what the particles say, and all pages come back."""

from __future__ import annotations

import math
import re

import pytest
import torch

from smcprog import Grammar, Guidance, PotentialError, Reward, SettingError, Target
from smcprog.programs import program
from smcprog.testing import TabularLM

from ..tiny import tiny_llama

PROMPT = [0, 1, 2, 3, 4, 5, 6, 1, 2, 3]
SETTINGS = {"ess_threshold": 1.0, "max_tokens": 60}
DRAFTS = [{}, {"draft_tokens": 3}, {"draft_tokens": 3, "coupling": 1.0, "draft_paths": 2}]


@pytest.fixture(scope="module")
def lms():
    """A target, and a draft of the same vocabulary."""
    return tuple(tiny_llama(8, eos=7, seed=s, scale=0.3, context=128, kv_pages=600) for s in (0, 1))


@pytest.fixture(autouse=True)
def _all_pages_come_back(lms):
    yield
    for lm in lms:
        lm.check_pages()
        assert lm.pages_in_use == 0


def all_logp(lm, prompt, tokens):
    """log p of every token at each place, from one plain pass, [T, V]."""
    with lm.sequences(prompt, 1) as rows:
        return rows.score(torch.tensor([tokens]))[0].log_softmax(-1)


def truth(lm, prompt, tokens):
    """log p of each token."""
    index = torch.tensor(tokens)[:, None]
    return all_logp(lm, prompt, tokens).gather(1, index)[:, 0].tolist()


def assert_rows_were_right(lm, prompt, post):
    for particle in post:
        want = truth(lm, prompt, particle.tokens)
        for got, expected in zip(particle.logprobs, want, strict=True):
            assert math.isnan(got) or got == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("options", DRAFTS)
@pytest.mark.parametrize("prompt", [PROMPT, [3]])
def test_every_token_is_scored_after_what_stands_before_it(lms, options, prompt):
    """EOS, `until` and the length end extensions; branches, forks and copies go on from them."""
    lm, draft = lms
    options = {"draft": draft, **options} if options else {}
    uneven = Reward(lambda texts: [1.5 * t.count("c") - t.count("d") for t in texts], at="round")

    @program
    def inner(p, text):
        p.observe(text)
        p.extend(Target(lm), max_tokens=5, **options)

    @program
    def outer(p):
        p.prompt(prompt)
        p.extend(Target(lm) * uneven, max_tokens=6, until="b", **options)
        assert len(set(p.eve_N)) < p.n  # some were copied
        p.branch(lambda text: len(text) % 2 == 0, lambda q: inner(q, "cde"), lambda q: q.fork(2))
        p.choose(["ab", "c", "fedc"], Target(lm))
        p.resample()
        p.map(lambda texts: ["g" * (len(t) % 3) for t in texts])
        p.extend(Target(lm) * Grammar.regex("[a-e]*"), max_tokens=4, **options)
        p.branch(lambda text: text.endswith("a"), lambda q: q.finish())
        p.extend(Target(lm), max_tokens=4, **options)

    post = outer(particles=8, seed=0, resampling="multinomial", **SETTINGS)
    assert len(post) >= 8
    assert_rows_were_right(lm, prompt, post)


def test_copies_of_what_is_finished_keep_their_rows(lms):
    """Parked rows are copied as their particles are, and stand in order beside the others."""
    lm, _ = lms
    uneven = Reward(lambda texts: [1.5 * t.count("c") - t.count("d") for t in texts], at="round")

    @program
    def p(p):
        p.prompt(PROMPT)
        p.extend(Target(lm) * uneven, max_tokens=6, until="b")
        p.observe("cde", Target(lm))
        p.branch([i % 3 == 1 for i in range(8)], lambda q: q.finish())
        for _ in range(2):
            p.extend(Target(lm) * uneven, max_tokens=4, until="b")
            p.observe("f", Target(lm))

    for seed in range(5):
        post = p(particles=8, seed=seed, resampling="multinomial", **SETTINGS)
        assert_rows_were_right(lm, PROMPT, post)


def test_two_models_take_turns(lms):
    """Each goes on from its own rows, which catch up with what the other has said."""
    one, two = lms
    product = Target(one) * Target(two, prompt=[5, 5])

    @program
    def p(p):
        p.prompt(PROMPT)
        p.extend(Target(one), max_tokens=4)
        p.extend(Target(two), max_tokens=4)
        p.extend(product, max_tokens=4, draft=two, draft_tokens=2)
        p.observe("abc", Target(two))

    post = p(particles=4, seed=0, ess_threshold=1.0, max_tokens=60)
    for particle in post:
        cut = len(particle.tokens) - 3
        want = truth(two, PROMPT, particle.tokens)
        assert particle.logprobs[cut:] == pytest.approx(want[cut:], abs=1e-9)


def test_an_eos_of_another_vocabulary_is_weighed_as_ones_own(lms):
    """Its id, 20, is none of the other model's."""
    one, _ = lms
    letters = [bytes([ord("A") + i]) for i in range(20)]
    letters[:8] = [one.vocab.token_bytes[i] or b"!" for i in range(8)]
    table = TabularLM.from_conditionals(
        [*letters, b"<eos>"], [20], lambda h: [0.6] + [0.0] * 19 + [0.4], 1
    )

    @program
    def p(p):
        p.prompt("abc")
        p.extend(Target(table), max_tokens=4)
        p.weigh(Target(one))

    post = p(particles=8, seed=0, max_tokens=60)
    prompt = one.encode("abc")
    assert any(particle.finish_reason == "eos" for particle in post)
    for particle in post:
        tokens = [{20: 7}.get(token, token) for token in particle.tokens]
        assert particle.log_weight == pytest.approx(sum(truth(one, prompt, tokens)), abs=1e-9)


@pytest.mark.parametrize("options", DRAFTS[:2])
def test_a_factor_with_several_rows_a_particle(lms, options):
    """Its rows are two lines of one model, joined; both go on from verb to verb."""
    lm, draft = lms
    options = {"draft": draft, **options} if options else {}
    guided = Guidance(lm, 1.5, negative_prompt=[1, 1])

    @program
    def p(p):
        p.prompt(PROMPT)
        for _ in range(3):
            p.extend(guided, max_tokens=5, until="b", **options)
            p.observe("cd")
            p.choose(["a", "ef"])

    post = p(particles=4, seed=0, max_tokens=60, ess_threshold=0.9)
    for particle in post:
        logp_T_V = 1.5 * all_logp(lm, PROMPT, particle.tokens)
        logp_T_V = (logp_T_V - 0.5 * all_logp(lm, [1, 1], particle.tokens)).log_softmax(-1)
        index = torch.tensor(particle.tokens)[:, None]
        want = logp_T_V.gather(1, index)[:, 0].tolist()
        assert particle.logprobs == pytest.approx(want, abs=1e-9)


def test_no_token_is_run_twice(lms, monkeypatch):
    """Verbs go on from where the last one was; at most a last token is run again."""
    lm, _ = lms
    ran = []
    extend = lm.engine.extend

    def counted(tables, stored, tokens, counts, keep):
        ran.append(int(counts.sum()))
        return extend(tables, stored, tokens, counts, keep)

    monkeypatch.setattr(lm.engine, "extend", counted)

    @program
    def p(p):
        p.prompt(PROMPT)
        for _ in range(6):
            p.extend(Target(lm), max_tokens=5, until="c")
            p.observe("d")

    post = p(particles=1, seed=1, max_tokens=99)
    assert len(post[0].tokens) > 10
    assert sum(ran) <= len(PROMPT) + len(post[0].tokens) + 6


def test_errors_free_everything(lms):
    lm, draft = lms

    @program
    def p(p, what):
        p.prompt(PROMPT)
        p.extend(Target(lm), max_tokens=4, draft=draft)
        p.branch(lambda t: len(t) > 1, lambda q: what(q), what)

    def python(q):
        q.extend(Target(lm), max_tokens=2)
        raise KeyError("mine")

    def potential(q):
        q.extend(Target(lm) * Reward(lambda texts: 1 / 0), max_tokens=3)

    with pytest.raises(KeyError, match="mine"):
        p(python, particles=5, seed=0, max_tokens=60)
    with pytest.raises(PotentialError, match="ZeroDivisionError"):
        p(potential, particles=5, seed=0, max_tokens=60)
    with pytest.raises(SettingError, match="exceed the context"):
        p(python, particles=5, seed=0, max_tokens=120)


def test_default_model_keeps_its_rows(default_lm):
    """The embedded model, a grammar, a tool and a second question; all pages come back."""
    target = Target(default_lm)
    question = [{"role": "user", "content": "Name a colour and a number."}]
    prompt = default_lm.encode(question)

    @program
    def p(p):
        p.prompt(question)
        p.extend(target * Grammar.regex("(red|green|blue)"), draft=default_lm, draft_tokens=2)
        p.map(lambda texts: [f" has {len(t)} letters<|im_end|>. " for t in texts])
        p.extend(target, until=re.compile(r"\d"), max_tokens=8)
        p.observe(" is my number.")

    post = p(particles=2, seed=0)
    for particle in post:
        assert particle.text.split()[0] in {"red", "green", "blue"}
        assert "<|im_end|>" in particle.text  # a tool's answer is text, whatever it says
        assert not set(particle.tokens) & set(default_lm.vocab.eos_ids)
        want = truth(default_lm, prompt, particle.tokens)
        for got, expected in zip(particle.logprobs[-5:], want[-5:], strict=True):
            assert got == pytest.approx(expected, abs=2e-3)
    default_lm.check_pages()
    assert default_lm.pages_in_use == 0
