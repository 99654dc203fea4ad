"""Potentials of genlm-control as factors: the laws, vocabularies, calls, what goes wrong."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import numpy as np
import pytest
import torch

from smcprog import Genlm, Scheduler, Target
from smcprog.errors import (
    BatchError,
    PotentialError,
    RequestTimeoutError,
    SettingError,
    VocabularyMismatchError,
)
from smcprog.testing import TabularLM, check_potential

from .theirs import Letters, Tokens, bytes_wfsa, control, potentials, request, table, tokenization

GUIDES = [None, "mask", "reject", "weights"]


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("name", list(potentials()))
def test_laws(name, guide):
    check_potential(Genlm(potentials()[name], guide=guide), request(), max_length=4, samples=24)


def values(potential, rows, ended, vocab=None, **options):
    """log ψ of some outputs, given in one block each."""
    req = request() if vocab is None else type(request())([0], (0,), vocab, 8)
    factor = Genlm(potential, **options)
    state = factor.start(req, len(rows))
    width = max(map(len, rows))
    tokens = torch.tensor([[*r, *[0] * (width - len(r))] for r in rows]).view(len(rows), width)
    lengths = torch.tensor([len(r) for r in rows])
    return factor.advance(state, tokens.long(), lengths, torch.tensor(ended))[1].tolist()


def test_prefix_and_complete_are_told_apart_and_every_eos_is_the_sentinel():
    got = values(
        bytes_wfsa(), [[0, 1], [0, 1, 3], [2, 4], [0], [0]], [False, True, True, False, True]
    )
    want = [math.log(3.0 + 3 * 0.5 / (0.75 - 0.5)), math.log(3), math.log(3)]
    assert got[1:3] == pytest.approx(want[1:])
    assert got[0] > got[1]  # what may follow counts
    assert got[3] > -math.inf
    assert got[4] == -math.inf  # "a" ended by the length limit, and is no word


def test_what_their_vocabulary_does_not_hold_is_impossible():
    only_a = control.BoolFSA.from_regex("a*")
    assert values(only_a, [[0], [1], [2], [0, 2, 0]], [False] * 4) == [0, *[-math.inf] * 3]
    # special tokens are no text
    lm = TabularLM([b"a", b"<pad>", b"<eos>"], [1, 2], np.zeros((1, 3)), np.zeros((1, 3)))
    assert values(control.BoolFSA.from_regex(".*"), [[0, 1]], [False], lm.vocab) == [-math.inf]


def test_tokens_with_equal_bytes_are_told_apart_where_theirs_are_tokens():
    class Second(control.Potential):
        async def prefix(self, context):
            return float(sum(t.token_id == 1 for t in context))

        complete = prefix

    twice = [tokenization.Token(0, b"a"), tokenization.Token(1, b"a")]
    lm = TabularLM([b"a", b"a", b"<eos>"], [2], np.zeros((1, 3)), np.zeros((1, 3)))
    assert values(Second(twice), [[0, 1], [1, 1], [0, 0]], [False] * 3, lm.vocab) == [1, 2, 0]


def test_vocabularies_that_do_not_fit_are_refused():
    class Any(control.Potential):
        async def prefix(self, context):
            return 0.0

        complete = prefix

    def sample(vocab):
        (Target(table()) * Any(vocab)).sample([0], particles=2, max_tokens=3)

    with pytest.raises(
        VocabularyMismatchError, match=r"token id 1 stands for b'x' there and for b'b'"
    ):
        sample([tokenization.Token(0, b"a"), tokenization.Token(1, b"x")])
    with pytest.raises(SettingError, match="a vocabulary of str has no translation"):
        sample(["a", "b"])
    with pytest.raises(SettingError, match="holds no token of the target's model"):
        sample([b"xyz"])
    with pytest.raises(SettingError, match="takes a potential of genlm-control, got str"):
        Genlm("a*")
    with pytest.raises(SettingError, match="guide must be None or one of"):
        Genlm(Letters(), guide="next")


class Counted(Letters):
    def __init__(self):
        super().__init__()
        self.calls = []
        self.sizes = []

    async def batch_score(self, contexts):
        self.calls.append("batch_score")
        self.sizes.append(len(contexts))
        return await super().batch_score(contexts)

    async def batch_logw_next(self, contexts):
        self.calls.append("batch_logw_next")
        return await super().batch_logw_next(contexts)


class CountedTokens(Counted):
    def __init__(self):
        super().__init__()
        control.Potential.__init__(self, Tokens.vocab)

    async def prefix(self, context):
        return -0.1 * len(context)

    async def logw_next(self, context):
        return self.make_lazy_weights(np.array([-0.1, -0.1, -0.1, -1.5]))


@pytest.mark.parametrize("prompts", [[0], [[0], [1], [0, 1]]])
def test_a_round_of_drafts_makes_one_call(prompts):
    lm, small = table(), table((0.2, 0.2, 0.3, 0.15, 0.15))
    counted = Counted()
    rounds = 0

    def on_round(event):
        nonlocal rounds
        rounds = max(rounds, event.round + 1)

    target = Target(lm) * counted
    target.sample(
        prompts, particles=8, draft=small, draft_tokens=4, max_tokens=16, seed=2, on_round=on_round
    )
    assert rounds >= 3
    assert counted.calls == ["batch_score"] * (rounds + 1)  # one of them for the empty output
    assert counted.sizes[0] == 1  # what is equal is asked about once


@pytest.mark.parametrize(("guide", "logw", "score"), [("weights", 1, 1), ("mask", 5, 0)])
def test_what_guided_rounds_cost(guide, logw, score):
    counted = CountedTokens()
    lm = table((0.4, 0.3, 0.3, 0.0, 0.0))  # never ends by itself
    target = Target(lm) * Genlm(counted, guide=guide)
    post = target.sample(
        [0], particles=8, draft=lm, draft_tokens=4, max_tokens=11, truncate=True, seed=0
    )
    blocks = len(post.rounds) - 1  # the first draws one token
    assert blocks == 2
    assert counted.calls.count("batch_logw_next") == 1 + logw * blocks
    # the empty output, and the tokens that `max_tokens` makes the last
    assert counted.calls.count("batch_score") == 2 + score * blocks


def test_terminal_potentials_are_asked_at_the_end_only():
    ends = potentials()["ends"]
    asked = []

    async def batch_score(contexts):
        asked.extend(contexts)
        return np.zeros(len(contexts))

    ends.batch_score = batch_score
    (Target(table()) * ends).sample([0], particles=16, max_tokens=6, seed=1)
    assert asked
    finished = [c for c in asked if c[-1:] == [control.EOS]]
    assert finished == asked


@pytest.mark.parametrize("guide", GUIDES)
def test_works_inside_a_running_loop_and_beside_others(guide):
    target = Target(table()) * Genlm(bytes_wfsa(), guide=guide)
    plain = target.sample([0], particles=32, max_tokens=6, seed=3)

    async def main():
        inside = target.sample([0], particles=32, max_tokens=6, seed=3)
        others = await asyncio.gather(
            *[target.asample([0], particles=32, max_tokens=6, seed=3) for _ in range(3)]
        )
        return [inside, *others]

    for post in asyncio.run(main()):
        assert post.tokens == plain.tokens
        assert post.log_evidence == pytest.approx(plain.log_evidence)


class Waits(Letters):
    """Answers once `let_go` is set, which another request does."""

    def __init__(self):
        super().__init__()
        self.let_go = threading.Event()

    async def prefix(self, context):
        while not self.let_go.is_set():
            await asyncio.sleep(0.002)
        return 0.0


def test_a_slow_potential_lets_other_requests_go_on():
    waits = Waits()
    with Scheduler() as scheduler:
        slow = scheduler.submit(Target(table()) * waits, [0], particles=4, max_tokens=5, seed=0)
        quick = scheduler.submit(Target(table()), [0], particles=4, max_tokens=5, seed=0)
        quick.result(timeout=30)  # it would never come if the slow one blocked the others
        assert not slow.done()
        waits.let_go.set()
        assert slow.result(timeout=30).log_evidence == pytest.approx(-1.5, abs=1.6)


def test_a_request_that_waits_can_be_given_up():
    waits = Waits()
    with Scheduler() as scheduler:
        handle = scheduler.submit(Target(table()) * waits, [0], particles=4, timeout=0.2)
        with pytest.raises(RequestTimeoutError):
            handle.result(timeout=30)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_potential_that_hangs_fails_its_own_request(blocks):
    class Hangs(Letters):
        async def prefix(self, context):
            if blocks:
                time.sleep(1.5)
            else:
                await asyncio.sleep(60)
            return 0.0

    target = Target(table()) * Genlm(Hangs(), time_limit=0.05)
    with pytest.raises(PotentialError, match=r"Genlm\(Hangs\).*did not return within 0.05 seconds"):
        target.sample([0], particles=2, max_tokens=3)
    # whoever comes next is not held up, even by a thread that is blocked
    (Target(table()) * Genlm(Letters(), time_limit=20)).sample(
        [0], particles=2, max_tokens=3, seed=0
    )


class Returns(Letters):
    def __init__(self, value):
        super().__init__()
        self.value = value

    async def batch_score(self, contexts):
        if isinstance(self.value, Exception):
            raise self.value
        if callable(self.value):
            return self.value(contexts)
        return np.full(len(contexts), self.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.inf, r"batch_score is \+inf for b''"),
        (KeyError("z"), r"batch_score raised KeyError: 'z' \(called with 1 contexts"),
        (lambda contexts: [0.0, 0.0], r"one number a context, shape \(1,\), got shape \(2,\)"),
        (lambda contexts: "no", "must return numbers, got str"),
    ],
)
def test_wrong_values_are_errors(value, said):
    with pytest.raises(PotentialError, match=said) as caught:
        (Target(table()) * Returns(value)).sample([0], particles=2, max_tokens=3)
    assert caught.value.potential == "Genlm(Returns)"


def test_nan_counts_as_impossible_with_a_warning():
    def scores(contexts):
        return [math.nan if b"b" in c else 0.0 for c in contexts]

    with pytest.warns(RuntimeWarning, match=r"batch_score of .* is NaN; taken as -inf"):
        post = (Target(table()) * Returns(scores)).sample([0], particles=64, max_tokens=4, seed=0)
    assert {t for t in post.probabilities() if "b" in t} == set()


def test_an_error_in_one_request_stays_there():
    class Picky(Letters):
        async def prefix(self, context):
            if len(context) > 3:
                raise ValueError("too long")
            return 0.0

    always_a = table((1.0, 0.0, 0.0, 0.0, 0.0))
    target = Target(always_a) * Picky()
    with pytest.raises(PotentialError, match="ValueError: too long"):
        target.sample([0], particles=2, max_tokens=8)
    with pytest.raises(BatchError) as caught:
        (Target(table()) * Picky()).sample(
            [[0]] * 12, particles=1, max_tokens=8, seed=list(range(12))
        )
    failed = [isinstance(r, PotentialError) for r in caught.value.results]
    assert 0 < sum(failed) < 12


def test_a_prompted_model_keeps_the_prompt_it_had():
    import contextvars

    prompt = contextvars.ContextVar("prompt", default="none")
    seen = set()

    class Prompted(Letters):
        async def prefix(self, context):
            seen.add(prompt.get())
            return 0.0

    prompt.set("mine")
    target = Target(table()) * Prompted()
    prompt.set("another")
    target.sample([0], particles=2, max_tokens=3, seed=0)
    asyncio.run(target.asample([0], particles=2, max_tokens=3, seed=0))
    assert seen == {"mine"}


def test_tokens_alone_need_no_coercion():
    class First(control.Potential):
        async def prefix(self, context):
            return 0.0 if not context or context[0] == Tokens.vocab[1] else -math.inf

        async def complete(self, context):
            return await self.prefix(context) if context else -math.inf

    post = (Target(table()) * First(Tokens.vocab)).sample([0], particles=200, max_tokens=6, seed=5)
    assert all(text.startswith("b") for text in post.probabilities())
