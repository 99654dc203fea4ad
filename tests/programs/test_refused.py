"""What programs refuse: every message names the verb or the setting, and what was wrong."""

from __future__ import annotations

import math
import re

import pytest

from smcprog import (
    Grammar,
    InputError,
    PotentialError,
    PromptError,
    Reward,
    SettingError,
    ToolError,
)
from smcprog.programs import program

from .test_programs import TARGET, run


@pytest.mark.parametrize(
    ("steps", "error", "words"),
    [
        (lambda p: p.extend("no target"), SettingError, "takes a target"),
        (lambda p: p.extend(Grammar.regex("a")), SettingError, "no language model"),
        (lambda p: p.extend(TARGET, until=""), SettingError, "until"),
        (lambda p: p.extend(TARGET, until=[]), SettingError, "until is empty"),
        (lambda p: p.extend(TARGET, until=re.compile(b"0")), SettingError, "until"),
        (lambda p: p.extend(TARGET, max_tokens=0), SettingError, "max_tokens"),
        (lambda p: p.extend(TARGET, ess_threshold=2), SettingError, "ess_threshold"),
        (lambda p: p.extend(TARGET, until=3), SettingError, "no token id of the model"),
        (lambda p: p.extend(TARGET, until="\ud800"), SettingError, "until takes"),
        (lambda p: p.observe(["0"]), InputError, "1 texts for 5 particles"),
        (lambda p: p.observe("x"), InputError, "cannot tokenise"),
        (lambda p: p.observe(7), InputError, "a str or one a particle"),
        (lambda p: p.observe("0", Grammar.regex("0")), SettingError, "no language model"),
        (lambda p: p.choose([]), InputError, "not empty"),
        (lambda p: p.choose(None), InputError, "NoneType"),
        (lambda p: p.choose(["0", "0"]), InputError, "twice"),
        (lambda p: p.weigh("judge"), InputError, "5 log-weights"),
        (lambda p: p.weigh([0.0] * 4), InputError, "5 log-weights"),
        (lambda p: p.weigh([math.nan] * 5), InputError, "NaN"),
        (lambda p: p.weigh(Reward(lambda t: [math.nan] * len(t))), PotentialError, "NaN"),
        (lambda p: p.resample(threshold=2), SettingError, "threshold"),
        (lambda p: p.fork(0), SettingError, "n must be"),
        (lambda p: p.fork(60_000), SettingError, "fork"),
        (lambda p: p.branch(lambda t: 1, print), InputError, "bool"),
        (lambda p: p.branch([True], print), InputError, "5 bools"),
        (lambda p: p.branch(lambda t: True, None), SettingError, "then"),
        (lambda p: p.branch(lambda t: True, lambda q: p.resample()), SettingError, "divided"),
        (lambda p: p.map("tool"), SettingError, "takes a function"),
        (lambda p: p.map(lambda texts: dict.fromkeys(texts, "0")), ToolError, "got dict"),
        (lambda p: p.map(lambda texts: [*p.texts, p.finish()]), ToolError, "cannot act on it"),
        (lambda p: p.branch(lambda text: p.finish(), print), SettingError, "cannot act on it"),
        (lambda p: p.map(len, time_limit=-1), SettingError, "time_limit"),
        (lambda p: p.map(len, on_failure="ignore"), SettingError, "on_failure"),
        (lambda p: p.prompt([1, 2]), SettingError, "begins with"),
    ],
)
def test_refused(steps, error, words):
    with pytest.raises(error, match=words):
        run(steps)


def test_populations_that_are_over_are_refused():
    kept = []

    def steps(p):
        kept.append(p)
        p.branch(lambda text: True, kept.append)
        with pytest.raises(SettingError, match="was a branch"):
            kept[1].resample()

    run(steps)
    with pytest.raises(SettingError, match="run that is over"):
        kept[0].extend(TARGET)


async def _coroutine(p):
    pass


def _generator(p):
    yield


def test_refused_settings():
    with pytest.raises(SettingError, match="'seed' is a setting"):
        program(lambda p, seed: None)
    with pytest.raises(SettingError, match="no parameter"):
        program(lambda: None)
    with pytest.raises(SettingError, match="takes a function"):
        program("p")
    for kind in (_coroutine, _generator):
        with pytest.raises(SettingError, match="plain function"):
            program(kind)
    for inputs in ("ab", None):
        with pytest.raises(SettingError, match="a list of inputs"):
            program(lambda p, text: None).map(inputs)
    with pytest.raises(SettingError, match="timeout is for runs under a scheduler"):
        run(lambda p: None, timeout=3)
    for bad in (
        *({"particles": 0}, {"max_steps": 0}, {"resampling": "best"}, {"seed": 1.5}),
        *({"truncate": "no"}, {"deterministic": 1}),
    ):
        with pytest.raises(SettingError, match=next(iter(bad))):
            run(lambda p: None, **bad)
    with pytest.raises(SettingError, match="no prompt yet"):
        program(lambda p: p.extend(TARGET))()
    with pytest.raises(PromptError):
        program(lambda p: p.prompt(""))()
    with pytest.raises(SettingError, match="no target was used"):
        program(lambda p: [p.prompt([0]), p.observe("0")])()
