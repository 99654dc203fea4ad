"""What a reward says of every prefix: values by hand, the laws, and arguments refused by name."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from smcprog import PotentialError, Reward, SettingError, Target
from smcprog.potentials import Request
from smcprog.testing import TabularLM, check_potential

from ..exactness.toys import random_toy

# Tokens that hold, span and split boundaries and characters.
TOKENS = [b"a", b"\n", b"b\n", b"a\nb", "é".encode()[:1], "é".encode()[1:], b"<eos>"]
EOS = 6


def table(tokens=TOKENS, eos=EOS):
    size = len(tokens)
    return TabularLM(tokens, [eos], np.zeros((1, size)), np.zeros((1, size), dtype=int))


LM = table()


def request_for(lm=LM, prompt=(0,), **options):
    options = {"max_tokens": 12, **options}
    return Request(prompt, tuple(lm.encode(prompt)), lm.vocab, **options)


def values(reward, tokens, request=None, size=1):
    """log ψ after each block of `size` tokens of one output; EOS ends it."""
    request = request or request_for()
    state = reward.start(request, 1)
    out = []
    for at in range(0, len(tokens), size):
        block = tokens[at : at + size]
        ended = torch.tensor([block[-1] == EOS])
        state, value = reward.advance(
            state, torch.tensor([block]), torch.tensor([len(block)]), ended
        )
        out.append(float(value))
    return out


def length(texts):
    return [float(len(text)) for text in texts]


A, NL, BNL, ANLB, E1, E2 = range(6)

CASES = {
    "end": ({"at": "end"}, [A, NL, A, EOS], [0, 0, 0, 3]),
    "round": ({"at": "round"}, [A, NL, A, EOS], [1, 2, 3, 3]),
    "round, half a character": ({"at": "round"}, [E1, A, E1, E2, E1, EOS], [0, 2, 2, 3, 3, 4]),
    "string": ({"at": "\n"}, [A, A, NL, A, NL, A, EOS], [0, 0, 3, 3, 5, 5, 6]),
    "string at the end of a token": ({"at": "\n"}, [A, BNL, A, EOS], [0, 3, 3, 4]),
    "string inside of a token": ({"at": "\n"}, [A, ANLB, A, EOS], [0, 3, 3, 5]),
    "string over two tokens": ({"at": "a\n"}, [A, NL, A, EOS], [0, 2, 2, 3]),
    "string over half characters": ({"at": "é"}, [A, E1, E2, E1, EOS], [0, 0, 2, 2, 3]),
    "string that overlaps itself": ({"at": "aa"}, [A, A, A, A, EOS], [0, 2, 2, 4, 4]),
    "pattern": ({"at": re.compile("a+")}, [NL, A, A, NL, EOS], [0, 2, 3, 3, 4]),
    "pattern of no width": ({"at": re.compile(r"(?<=\n)")}, [A, NL, A, EOS], [0, 2, 2, 3]),
    "pattern, nothing said yet": ({"at": re.compile("^|b")}, [A, BNL, EOS], [0, 2, 3]),
    "tokens": ({"at": {NL, BNL}}, [A, NL, ANLB, BNL, EOS], [0, 2, 2, 7, 7]),
    "tokens, a list": ({"at": [E1]}, [A, E1, E2, E1, EOS], [0, 1, 1, 2, 3]),
    "tokens, EOS": ({"at": {EOS}}, [A, A, EOS], [0, 0, 2]),
    "sum": ({"at": "\n", "kind": "sum"}, [A, NL, A, NL, A, EOS], [0, 2, 2, 6, 6, 11]),
    "sum that ends at a boundary": ({"at": "\n", "kind": "sum"}, [A, NL, NL, EOS], [0, 2, 5, 5]),
    "sum without boundary": ({"at": "\n", "kind": "sum"}, [A, A, EOS], [0, 0, 2]),
    "sum of nothing": ({"at": "\n", "kind": "sum"}, [EOS], [0]),
    "sum, two in one token": ({"at": re.compile("[ab]"), "kind": "sum"}, [ANLB, EOS], [4, 4]),
    "sum, a match that grows": ({"at": re.compile("a+"), "kind": "sum"}, [A, A, EOS], [1, 2, 2]),
    "sum, tokens": ({"at": {NL}, "kind": "sum"}, [NL, A, NL, A, EOS], [1, 1, 4, 4, 8]),
    "beta": ({"at": "round", "beta": -0.5}, [A, A, EOS], [-0.5, -1, -1]),
    "no beta": ({"at": "round", "beta": 0.0}, [A, A, EOS], [0, 0, 0]),
}


@pytest.mark.parametrize(("options", "tokens", "want"), CASES.values(), ids=CASES)
def test_by_hand(options, tokens, want):
    reward = Reward(length, **options)
    assert values(reward, tokens) == want
    for size in (2, 3):  # whatever the blocks, the same values where they end
        got = values(Reward(length, **options), tokens, size=size)
        assert got == [*want[size - 1 :: size], want[-1]][: len(got)]


def test_an_output_may_end_without_a_token():
    reward = Reward(length, at="\n")
    nothing, none = torch.zeros((1, 0), dtype=torch.int64), torch.tensor([0])
    state, value = reward.advance(
        reward.start(request_for(), 1), torch.tensor([[A, NL, A]]), torch.tensor([3]), none > 0
    )
    assert float(value) == 2
    state, value = reward.advance(state, nothing, none, none == 0)
    assert float(value) == 3
    state, value = reward.advance(state, nothing, none, none > 0)  # others of its block go on
    assert float(value) == 3


def test_stop_strings_are_not_part_of_the_text():
    stop = request_for(stop=("\n\n",))
    assert values(Reward(length, at="round"), [A, NL, A, NL], stop) == [1, 1, 3, 3]
    # A line end that may begin the stop string counts once it is known not to.
    assert values(Reward(length, at="\n"), [A, NL, A, NL, A], stop) == [0, 0, 2, 2, 4]
    state = (reward := Reward(length, at="\n", kind="sum")).start(stop, 1)
    tokens = torch.tensor([[A, NL, A, NL, NL]])
    _, value = reward.advance(state, tokens, torch.tensor([5]), torch.tensor([True]))
    assert float(value) == 2 + 3  # "a\n", and "a\na", which the stop string ended


MOMENTS = {"end": {"at": "end"}, "round": {"at": "round"}}
BOUNDARIES = {
    **{f"{at!r}": {"at": at} for at in ("\n", "a\n", "é", "aa", "\n\n")},
    **{f"{p}": {"at": re.compile(p)} for p in ("a+", r"\n(?!\n)", r"(?<=\n)", ".", r"(\n|a)+$")},
    "tokens": {"at": {NL, BNL, E1}},
    "tokens and EOS": {"at": [ANLB, EOS]},
}


LAWFUL = {
    **MOMENTS,
    **BOUNDARIES,
    **{f"sum, {name}": {**options, "kind": "sum"} for name, options in BOUNDARIES.items()},
}


@pytest.mark.parametrize("stop", [(), ("\n\n", "é")])
@pytest.mark.parametrize("options", LAWFUL.values(), ids=LAWFUL)
def test_laws(options, stop):
    """A score that depends on every character, and forbids some texts."""

    def score(texts):
        return [-math.inf if t.endswith("aa") else math.sin(hash_of(t)) for t in texts]

    def hash_of(text):
        return sum((i + 1) * ord(c) for i, c in enumerate(text))

    reward = Reward(score, 1.5, **options)
    check_potential(reward, request_for(stop=stop), max_length=7, samples=40)


def test_laws_with_prompts():
    def score(texts, prompts):
        return [len(t) * len(p) for t, p in zip(texts, prompts, strict=True)]

    check_potential(Reward(score, at="round"), request_for(prompt="a\na"), samples=30)


def test_what_forbids_an_unfinished_text():
    def no_a(texts):
        return [-math.inf if "a" in t else 1.0 for t in texts]

    tokens = [A, NL, NL, EOS]
    assert values(Reward(no_a, at="round"), tokens) == [0, 0, 0, -math.inf]
    assert values(Reward(no_a, at="round", prune=True), tokens) == [-math.inf] * 4
    # A summand stays, so that nothing can come of it any more; but a match may grow.
    summed = Reward(no_a, at="\n", kind="sum")
    assert values(summed, tokens) == [0, -math.inf, -math.inf, -math.inf]
    growing = Reward(no_a, at=re.compile("\n+"), kind="sum")
    assert values(growing, tokens) == [0, 0, 0, -math.inf]


def test_powers_scale_the_strength_and_share_the_scores():
    seen = []

    def score(texts):
        seen.extend(texts)
        return length(texts)

    reward = Reward(score, 2.0)
    scaled = reward**-0.25
    assert (reward.beta, scaled.beta) == (2, -0.5)
    assert values(reward, [A, A, EOS])[-1] == 4
    assert values(scaled, [A, A, EOS])[-1] == -1
    assert seen == ["aa"]
    assert repr(scaled) == "Reward(score, beta=-0.5)"
    for power in (math.nan, math.inf, "2"):
        with pytest.raises(SettingError, match="power"):
            reward**power


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": "prefix"}, r"re\.compile\('prefix'\)"),
        ({"at": "rounds"}, "not supported"),
        ({"at": ""}, "boundary string"),
        ({"at": None}, "boundary string"),
        ({"at": 5}, "boundary string"),
        ({"at": set()}, "non-empty set"),
        ({"at": {1.5}}, "token id"),
        ({"at": [-1]}, "token id"),
        ({"at": [True]}, "token id"),
        ({"at": {"a"}}, "token id"),
        ({"at": re.compile(b"a")}, "bytes"),
        ({"at": "\ud800"}, "no text"),
        ({"kind": "sum"}, "kind=\"sum\" .* at='end'"),
        ({"kind": "sum", "at": "round"}, "kind=\"sum\" .* at='round'"),
        ({"kind": "mean"}, "kind"),
        ({"beta": math.inf}, "beta"),
        ({"beta": "1"}, "beta"),
        ({"anneal": 1}, "anneal"),
        ({"prune": None}, "prune"),
        ({"time_limit": -1}, "time_limit"),
        ({"time_limit": math.inf}, "time_limit"),
    ],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(SettingError, match=words):
        Reward(length, **options)


def test_what_is_no_function_or_no_token_is_named():
    with pytest.raises(SettingError, match="function"):
        Reward([1.0])
    target = Target(LM) * Reward(length, at={7})
    with pytest.raises(SettingError, match=r"7 is no token id .* 0 to 6"):
        target.sample([0], max_tokens=3)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda texts: ["1"] * len(texts), "numbers"),
        (lambda texts: np.ones(len(texts), dtype=complex), "numbers"),
        (lambda texts: torch.ones(len(texts), 1), "one number per text"),
        (lambda texts: dict.fromkeys(texts, 1), "dict"),
        (lambda texts: [math.inf if len(t) == 2 else 0.0 for t in texts], "[+]inf for text 'aa'"),
        (lambda texts: [math.nan if len(t) == 2 else 0.0 for t in texts], "NaN for text 'aa'"),
    ],
)
def test_bad_scores_of_a_prefix_are_named(score, words):
    with pytest.raises(PotentialError, match=words):
        values(Reward(score, at="round"), [A, A, A, EOS])


@pytest.mark.parametrize(
    "give",
    [
        lambda n: torch.ones(n, dtype=torch.bfloat16, requires_grad=True),
        lambda n: [torch.tensor(1.0)] * n,
        lambda n: np.ones(n, dtype=np.int8),
        lambda n: (True,) * n,
    ],
)
def test_numbers_of_many_kinds(give):
    assert values(Reward(lambda texts: give(len(texts))), [A, EOS]) == [0, 1]


def test_joined_requests_keep_their_prompts():
    lm = random_toy(np.random.default_rng(3)).lm()
    seen = []

    def score(texts, *, prompts):
        seen.extend(prompts)
        return [float(len(p)) for p in prompts]

    target = Target(lm) * Reward(score)
    posts = target.sample(["a", "abb", [1, 0]], seed=0, max_tokens=3, particles=1)
    assert [round(p.log_evidence, 9) for p in posts] == [1, 3, 2]
    assert set(seen) == {"a", "abb", "ba"}
    assert [p.prompt_text for p in posts] == ["a", "abb", "ba"]
