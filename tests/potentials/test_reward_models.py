"""Reward models: what the engine says of rows that fork is what transformers says of each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    Gemma2Config,
    Gemma2ForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from smcprog import (
    LM,
    Grammar,
    ModelError,
    PotentialError,
    Reward,
    Scheduler,
    SettingError,
    Target,
)
from smcprog.engine.vocab import Vocabulary
from smcprog.potentials import Request
from smcprog.potentials.rewards.kept import Kept
from smcprog.smc.settings import Settings
from smcprog.testing import TabularLM, check_potential

from ..exactness.test_one_particle import assert_same, weighted_outcomes
from ..exactness.toys import gamma, random_toy
from ..small_tokenizers import byte_level
from ..tiny import tiny_llama, tiny_model
from .tiny_classifiers import plain_logits, tiny_bert, tiny_classifier

TOKENS = [b"a", b"b", b"\n", b"ab", "é".encode()[:1], "é".encode()[1:], b"<eos>"]
VOCAB = Vocabulary.from_tokens(TOKENS, [6])
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def table(tokens=TOKENS, eos=6):
    size = len(tokens)
    return TabularLM(tokens, [eos], np.zeros((1, size)), np.zeros((1, size), dtype=int))


def request_for(lm, prompt=(0, 1), **options):
    options = {"max_tokens": 12, **options}
    return Request(list(prompt), tuple(prompt), lm.vocab, **options)


@pytest.fixture(scope="module")
def model():
    return tiny_classifier(7, double=True)


# ------------------------------------------------------------- rows in the engine


@pytest.mark.parametrize("labels", [1, 3])
def test_default_tokenizer_random_histories_with_forks(default_model, labels):
    """hidden 32, two layers, float32: within 1e-4 of the plain forward, whatever was forked."""
    tokenizer = AutoTokenizer.from_pretrained(default_model)
    size = len(tokenizer)
    plain = tiny_classifier(size, labels, context=256)
    label = None if labels == 1 else 2
    reward = Reward.model(plain, tokenizer, label=label, at="round", kv_pages=500)
    vocab = Vocabulary.from_tokenizer(tokenizer, size, [tokenizer.eos_token_id])
    prompt = tuple(tokenizer("The answer is")["input_ids"])
    request = Request(list(prompt), prompt, vocab, max_tokens=64)
    rng = np.random.default_rng(0)
    rows = [()] * 4
    state = reward.start(request, 4)
    checked = 0
    for _ in range(6):
        counts = rng.integers(0, 4, size=len(rows))
        counts[0] = 2
        new = rng.integers(1000, 20000, size=(len(rows), 3))
        state, values = reward.advance(
            state,
            torch.from_numpy(new),
            torch.from_numpy(counts),
            torch.zeros(len(rows), dtype=torch.bool),
        )
        rows = [(*r, *t[:n]) for r, t, n in zip(rows, new.tolist(), counts, strict=True)]
        for row, value in zip(rows, values.tolist(), strict=True):
            shown = reward._ids(
                state.rows[rows.index(row)], state.frames[0], vocab.decode(row)
            )  # a last half character is not shown
            if row and "\ufffd" not in vocab.decode(row):
                assert shown == (*prompt, *row)
                logits = plain_logits(plain, shown)
                want = logits[0] if labels == 1 else logits.log_softmax(0)[2]
                assert value == pytest.approx(float(want), abs=1e-4)
                checked += 1
        ancestors = rng.integers(0, len(rows), size=len(rows) + 1)
        old, state = state, reward.fork(state, torch.from_numpy(ancestors))
        reward.release(old)
        rows = [rows[a] for a in ancestors]
    assert checked > 15
    reward.release(state)
    reward.lm.check_pages()
    assert reward.lm.pages_in_use == 0


@pytest.fixture
def nothing_kept(monkeypatch):
    """Every score is computed from the rows as they are."""
    monkeypatch.setattr(Kept, "get", lambda self, key: None)


LAWFUL = {
    "end": {},
    "round": {"at": "round"},
    "line": {"at": "\n"},
    "sum": {"at": "\n", "kind": "sum"},
    "output only": {"at": "round", "prompt": False},
    "template": {"at": "round", "template": lambda prompt, text: f"b{text}a{prompt}"},
}


@pytest.mark.parametrize("options", LAWFUL.values(), ids=LAWFUL)
def test_laws_by_tokens(model, options, nothing_kept):
    reward = Reward.model(model, VOCAB, kv_pages=3000, **options)
    check_potential(reward, request_for(table(), stop=("bb",)), samples=8, max_length=5)
    reward.lm.check_pages()
    assert reward.lm.pages_in_use == 0


@pytest.mark.parametrize(("at", "chat"), [("round", False), ("\n", True)])
def test_laws_by_text(at, chat, nothing_kept):
    """The reward model has another tokenizer: each text is encoded anew."""
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT
    plain = tiny_classifier(len(tokenizer), double=True, context=256)
    reward = Reward.model(plain, tokenizer, at=at, chat=chat, kv_pages=6000)
    lm = table([b"he", b"l", b"hell", b"\n", "é".encode()[:1], "é".encode()[1:], b"<eos>"])
    check_potential(reward, request_for(lm), samples=8, max_length=5)
    assert reward.lm.pages_in_use == 0
    # "he" + "l" + "l" is one token there, and so its last token changes under way.
    state, value = reward.start(request_for(lm), 1), None
    for token, end in ((0, False), (1, False), (1, True)):
        state, value = reward.advance(
            state, torch.tensor([[token]]), torch.tensor([1]), torch.tensor([end])
        )
    text = "hell"
    judged = f"hel{text}"
    if chat:
        judged = f"<|im_start|>user\nhel<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
    ids = tokenizer(judged, add_special_tokens=False)["input_ids"]
    assert float(value) == pytest.approx(float(plain_logits(plain, ids)[0]), abs=1e-9)
    reward.release(state)


@pytest.mark.parametrize("options", [{}, {"at": "round"}, {"at": "b", "kind": "sum"}])
@pytest.mark.parametrize(("k", "coupling"), [(0, math.inf), (2, math.inf), (2, 2.0)])
def test_exact_by_enumeration(options, k, coupling):
    rng = np.random.default_rng(3)
    toy, other = random_toy(rng), random_toy(rng)
    lm = toy.lm()
    plain = tiny_classifier(3, labels=2, double=True, id2label={0: "no", 1: "yes"})
    reward = Reward.model(plain, lm.vocab, label="yes", beta=1.5, kv_pages=4000, **options)

    def score(text):
        return float(plain_logits(plain, [0, *("ab".index(c) for c in text)]).log_softmax(0)[1])

    def log_reward(text):
        if "kind" not in options:
            return 1.5 * score(text)
        places = {i + 1 for i, c in enumerate(text) if c == "b"} | {len(text)} - {0}
        return 1.5 * sum(score(text[:p]) for p in places if p)

    settings = Settings(
        particles=1, draft=other.lm("draft") if k else None, draft_tokens=k, coupling=coupling,
        max_tokens=3,
    )  # fmt: skip
    got = weighted_outcomes(Target(lm) * reward, settings, True)
    assert_same(got, gamma(toy, 3, truncate=True, log_reward=log_reward))
    assert reward.lm.pages_in_use == 0
    reward.lm.check_pages()


def test_only_new_tokens_are_run(model, monkeypatch):
    """A round's block for each particle, not its whole history; the prompt once for all."""
    lm = tiny_llama(7, eos=6, context=64)
    reward = Reward.model(model, lm.vocab, at="round", kv_pages=2000)
    ran = []
    call = reward.lm.engine.call_model

    def watched(ids, *arguments):
        ran.append(ids.numel())
        return call(ids, *arguments)

    monkeypatch.setattr(reward.lm.engine, "call_model", watched)
    target = Target(lm) * Grammar.regex("[a-f]{20}") * reward
    post = target.sample([0, 1, 2, 3] * 5, particles=4, max_tokens=21, seed=0)
    assert ran[0] == 20  # the prompt
    assert sum(ran[1:]) <= 4 * 20  # each token of each particle once
    assert reward.calls == len(ran) - 1 <= len(post.rounds)


def test_under_a_scheduler_forwards_are_shared(model):
    lm = tiny_llama(7, eos=6, context=64, kv_pages=600)
    plain = Reward.model(model, lm.vocab, at="round", kv_pages=600)
    options = {"particles": 4, "max_tokens": 8}
    words = Target(lm) * Grammar.regex("[a-f]{7}")
    alone = [(words * plain).sample([i], seed=i, **options) for i in range(3)]
    passes = []
    for count in (1, 3):
        reward = Reward.model(model, lm.vocab, at="round", kv_pages=600)
        with Scheduler() as scheduler:
            with scheduler._changed:
                handles = [
                    scheduler.submit(words * reward, [i], seed=i, **options) for i in range(count)
                ]
            posts = [h.result() for h in handles]
        passes.append(scheduler.passes)
        for post, want in zip(posts, alone, strict=False):
            assert [p.tokens for p in post] == [p.tokens for p in want]
            assert post.log_evidence == pytest.approx(want.log_evidence, abs=1e-9)
        assert reward.lm.pages_in_use == 0
        reward.lm.check_pages()
    assert passes[1] <= passes[0] + 3 < 2 * passes[0]
    assert (words * reward).sample([[0], [1]], seed=[0, 1], **options)[1].text == alone[1].text


def test_memory_is_reserved(model):
    """Requests that do not fit beside each other wait for the reward model's pages, too."""
    lm = tiny_llama(7, eos=6, context=64)
    reward = Reward.model(model, lm.vocab, at="round", kv_pages=20)
    target = Target(lm) * Grammar.regex("[a-f]{14}") * reward
    options = {"particles": 6, "max_tokens": 15}
    assert reward.memory(request_for(lm, max_tokens=15), 6) == {reward.lm: 18}
    with Scheduler() as scheduler:
        posts = scheduler.submit(target, [[0, 1], [2, 3]], seed=[0, 1], **options).result()
    assert all(p.alive for p in posts)
    assert len(target.sample([[0, 1], [2, 3]], seed=[0, 1], **options)) == 2


def test_strength_shares_the_model(model):
    lm = tiny_llama(7, eos=6)
    reward = Reward.model(model, lm.vocab, name="judge", kv_pages=500)
    twice = reward**2
    assert twice.lm is reward.lm and twice.beta == 2
    one, two = (
        (Target(lm) * r).sample([0], particles=1, max_tokens=4, seed=0) for r in (reward, twice)
    )
    assert two.log_evidence == pytest.approx(2 * one.log_evidence)
    assert reward.calls == 1
    assert reward.name == "Reward(judge)"


def test_scores_outside_of_a_target(model):
    reward = Reward.model(model, VOCAB, kv_pages=200)
    want = [float(plain_logits(model, ids)[0]) for ids in ([3], [1, 0, 2])]
    # The tokenizer writes "ab" as one token.
    assert reward(["ab", "a\n"], ["", "b"]) == pytest.approx(want, abs=1e-9)


def test_deterministic_bits(model):
    lm = tiny_llama(7, eos=6)
    target = Target(lm) * Reward.model(model, lm.vocab, at="round", kv_pages=900)
    options = {"particles": 5, "max_tokens": 8, "seed": 4, "deterministic": True}
    reward = target.factors[1]
    first = target.sample([0], **options)
    took = reward.calls
    usual = {**options, "deterministic": False}
    target.sample([0], **usual)
    assert reward.calls == 2 * took
    target.sample([0], **usual)
    assert reward.calls == 2 * took  # all known; but known from passes of whatever shape, so
    again = target.sample([0], **options)
    assert reward.calls == 3 * took
    assert [p.log_weight for p in first] == [p.log_weight for p in again]


@pytest.mark.parametrize("kind", ["GPT2", "Gemma2"])
def test_other_decoders(kind):
    common = {"vocab_size": 7, "num_labels": 2}
    common |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    if kind == "GPT2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **common)
        plain = GPT2ForSequenceClassification(config).eval()
    else:
        config = Gemma2Config(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, sliding_window=4, **common,
        )  # fmt: skip
        plain = Gemma2ForSequenceClassification(config).eval()
    reward = Reward.model(plain, VOCAB, label=1, kv_pages=64)
    want = [
        float(plain_logits(plain, ids).log_softmax(0)[1]) for ids in ([3, 0, 2, 3, 1, 1], [1, 0])
    ]
    assert reward(["aba\nabbb", "ba"]) == pytest.approx(want, abs=1e-4)


# ------------------------------------------------------------- encoders


def test_an_encoder_judges_whole_texts_in_batches():
    words = ["good", "bad", "very", "film"]
    plain, tokenizer = tiny_bert(words)
    reward = Reward.model(plain, tokenizer, label="good", at="round", beta=2.0)
    lm = table([b" good", b" bad", b" very", b"<eos>"], eos=3)
    post = (Target(lm) * reward).sample("\u0000", particles=8, max_tokens=6, seed=0)
    assert reward.calls <= len(post.rounds)
    for particle in post:
        encoded = tokenizer("\u0000" + particle.text, return_tensors="pt")
        with torch.no_grad():
            want = float(plain(**encoded).logits[0].log_softmax(0)[1])
        model_part = sum(particle.logprobs)
        assert particle.log_target == pytest.approx(model_part + 2 * want, abs=1e-4)
    long = reward(["good " * 50, "very bad film"])
    assert long[0] == pytest.approx(reward(["good " * 60])[0], abs=1e-5)  # cut at its beginning
    check_potential(reward, request_for(lm), samples=20, atol=1e-4)


# ------------------------------------------------------------- loading, and what is refused


def test_from_a_folder(tmp_path):
    tokenizer = byte_level()
    tokenizer.chat_template = CHAT
    plain = tiny_classifier(len(tokenizer), labels=2, context=128, id2label={0: "x", 1: "y"})
    plain.save_pretrained(tmp_path / "judge")
    tokenizer.save_pretrained(tmp_path / "judge")
    reward = Reward.model(tmp_path / "judge", label="y", at="round", kv_pages=200, device="cpu")
    assert reward.name == "Reward(judge:y)"
    want = float(plain_logits(plain, tokenizer("hello")["input_ids"]).log_softmax(0)[1])
    assert reward(["llo"], ["he"])[0] == pytest.approx(want, abs=1e-4)
    # As a chat for prompts that are one, with the same tokenizer in the target.
    lm = LM.from_model(
        tiny_model(len(tokenizer), eos=tokenizer.eos_token_id, context=128), tokenizer
    )
    messages = [{"role": "user", "content": "he"}]
    post = (Target(lm) * reward).sample(messages, particles=2, max_tokens=3, seed=1, stop="\ue000")
    particle = post.particles[0]
    before = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    tokens = [t for t in particle.tokens if t != tokenizer.eos_token_id]
    after = tokenizer("<|im_end|>\n", add_special_tokens=False)["input_ids"]
    if "\ufffd" not in particle.text:
        want = float(plain_logits(plain, [*before, *tokens, *after]).log_softmax(0)[1])
        got = particle.log_target - sum(particle.logprobs)
        assert got == pytest.approx(want, abs=1e-4)


def test_a_language_model_is_no_reward_model(tmp_path):
    tokenizer = byte_level()
    tiny_model(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no trained sequence classifier.*score\.weight"):
        Reward.model(tmp_path)
    with pytest.raises(ModelError, match="no model"):
        Reward.model(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Reward.model(tiny_classifier(7)), "tokenizer"),
        (lambda: Reward.model(len), "sequence classifier"),
        (lambda: Reward.model(tiny_bert(["a"])[0], VOCAB, label=1), "an encoder needs"),
        (lambda: Reward.model(tiny_classifier(7, 2), VOCAB), "2 labels .*say which"),
        (lambda: Reward.model(tiny_classifier(7, 2), VOCAB, label="joy"), "'joy' is none"),
        (lambda: Reward.model(tiny_classifier(7, 2), VOCAB, label=2), "label=2 is none"),
        (lambda: Reward.model(tiny_classifier(7, 2), VOCAB, label=True), "label=True is none"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, label=1), "leave label out"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, chat=True), "no[nt]e?|has none"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, prompt=1), "prompt must be"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, template="x"), "template must be"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, time_limit=1.0), "time_limit"),
        (lambda: Reward.model(tiny_classifier(7), VOCAB, kind="sum"), "kind"),
    ],
)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(SettingError, match=words):
        make()


def test_a_context_that_is_too_short_is_named():
    lm = tiny_llama(7, eos=6, context=64)
    reward = Reward.model(tiny_classifier(7, context=8), lm.vocab, at="round", kv_pages=100)
    target = Target(lm) * Grammar.regex("[a-f]{9}") * reward
    with pytest.raises(PotentialError, match="9 tokens, and the model's context is 8"):
        target.sample([0, 1], particles=2, max_tokens=10, seed=0)
