"""Every path a program of one particle can take, and γ of every outcome from the definition."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import NormalDist

import numpy as np

from smcprog.programs.decorator import Program, play
from smcprog.programs.options import Options
from smcprog.programs.run import Run
from tests.exactness.enumerate_draws import Script, ScriptedDraws
from tests.exactness.toys import softened

Tokens = tuple[int, ...]


class LongScript(Script):
    """Where it ends it goes on with the first choice, and notes the others: one run a path."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__(tokens)
        self.others: list[LongScript] = []

    def follow(self, weights):
        if self.used == len(self.tokens) and sum(weights) > 0:
            first, *others = [v for v, w in enumerate(weights) if w > 0]
            self.others.extend(LongScript((*self.tokens, v)) for v in others)
            self.tokens = (*self.tokens, first)
        return super().follow(weights)


def enumerate_program(program: Program, lm, *args, **options) -> dict[Tokens, float]:
    """E[Ẑ · 1{outcome}] of every outcome, over all draws; and it must be all of them."""
    mean: dict[Tokens, float] = defaultdict(float)
    mass = 0.0
    scripts = [LongScript(())]
    while scripts:
        script = scripts.pop()
        run = Run(
            Options(particles=1, **options),
            0,
            make_draws=lambda *a, s=script: ScriptedDraws([s], lm.vocab.eos_ids, *a),
        )
        post, log_z = None, -math.inf
        try:
            post = play(program.function, run, args, {})
            log_z = post.log_evidence
        except Exception as error:
            post = getattr(error, "posterior", None)
            if post is None:
                raise
        assert script.used == len(script.tokens)
        scripts.extend(script.others)
        mass += math.exp(script.log_q)
        if log_z > -math.inf:
            mean[tuple(post[0].tokens)] += math.exp(script.log_q + log_z)
    assert abs(mass - 1) < 1e-9, mass
    return dict(mean)


class Truth:
    """γ of the runs of a program, step by step; a state is the tokens, and whether EOS is last.

    Everything is worked out from the toy's conditional probabilities, by brute force.
    """

    def __init__(self, toy) -> None:
        self.toy = toy
        self.states: dict[tuple[Tokens, bool], float] = {((), False): 1.0}

    def step(self, tokens: Tokens, temperature: float = 1.0):
        return softened(self.toy.conditional(tokens[-self.toy.order :]), temperature)

    def extend(
        self,
        max_tokens: int,
        accepts=lambda text: True,
        until=lambda tokens: False,
        power: float = 1.0,
        log_reward=lambda text: 0.0,
        truncate: bool = True,
    ) -> Truth:
        after: dict[tuple[Tokens, bool], float] = defaultdict(float)

        def visit(before: Tokens, new: Tokens, g: float) -> None:
            for v, p in enumerate(self.step((*before, *new))):
                if p == 0:
                    continue
                tokens, mass = (*new, v), g * p**power
                ended = v == self.toy.eos
                if ended or until(tokens) or (truncate and len(tokens) == max_tokens):
                    text = self.toy.text(tokens)
                    if accepts(text):
                        mass *= math.exp(log_reward(text))
                        after[((*before, *tokens), ended)] += mass
                elif len(tokens) < max_tokens:
                    visit(before, tokens, mass)

        for (before, ended), g in self.states.items():
            visit(before[:-1] if ended else before, (), g)
        self.states = dict(after)
        return self

    def choose(self, options: list[Tokens], power: float = 1.0) -> Truth:
        after: dict[tuple[Tokens, bool], float] = defaultdict(float)
        for (before, ended), g in self.states.items():
            text = before[:-1] if ended else before
            for option in options:
                mass = g
                for t, v in enumerate(option):
                    mass *= self.step((*text, *option[:t]))[v] ** power
                after[((*text, *option), False)] += mass
        self.states = dict(after)
        return self

    def observe(self, tokens: Tokens, power: float = 1.0) -> Truth:
        return self.choose([tokens], power)

    def append(self, tokens: Tokens) -> Truth:
        after: dict[tuple[Tokens, bool], float] = defaultdict(float)
        for (before, ended), g in self.states.items():
            after[((*(before[:-1] if ended else before), *tokens), False)] += g
        self.states = dict(after)
        return self

    def weigh(self, phi) -> Truth:
        self.states = {s: g * phi(self.toy.text(s[0])) for s, g in self.states.items()}
        return self

    def where(self, condition, then, otherwise=lambda truth: truth) -> Truth:
        parts = []
        for wanted, steps in ((True, then), (False, otherwise)):
            part = Truth(self.toy)
            part.states = {
                s: g for s, g in self.states.items() if condition(self.toy.text(s[0])) == wanted
            }
            parts.append(steps(part))
        self.states = defaultdict(float)
        for part in parts:
            for s, g in part.states.items():
                self.states[s] += g
        return self

    @property
    def gamma(self) -> dict[Tokens, float]:
        out: dict[Tokens, float] = defaultdict(float)
        for (tokens, _), g in self.states.items():
            out[tokens] += g
        return {y: g for y, g in out.items() if g > 0}

    @property
    def z(self) -> float:
        return sum(self.gamma.values())


def assert_same(mean: dict[Tokens, float], gamma: dict[Tokens, float]) -> None:
    """Both measures, to rounding."""
    got = {y: m for y, m in mean.items() if m > 0}
    assert got.keys() == gamma.keys(), got.keys() ^ gamma.keys()
    for y, g in gamma.items():
        assert math.isclose(got[y], g, rel_tol=1e-9), (y, got[y], g)


def assert_unbiased(program, truth: Truth, runs: int, *args, particles: int, **options) -> None:
    """|mean Ẑ − Z| < 4 SE, and so for the weight in each bin of outcomes, over `runs` seeds.

    The weight in a bin is that of all particles there, which varies less than whether the sample
    is one of them. Runs are seeds 0, 1, …, so that a test is deterministic; for another choice
    of seeds the chance of a false alarm, with 40 runs and Student's t, is about 3e-4 for Z and
    5e-4 for all bins together.
    """
    from tests.exactness.toys import bins

    gammas = truth.gamma
    groups = list(bins(gammas, 0.15))
    worst = NormalDist().inv_cdf(1 - 1e-4 / (2 * len(groups)))
    z, weight_R_G = np.zeros(runs), np.zeros((runs, len(groups)))
    for seed in range(runs):
        try:
            post = program(*args, seed=seed, particles=particles, **options)
        except Exception as error:
            if getattr(error, "posterior", None) is None:
                raise
            continue
        z[seed] = math.exp(post.log_evidence)
        assert tuple(post.tokens) in gammas
        for particle in post:
            y, weight = tuple(particle.tokens), math.exp(particle.log_weight) / particles
            assert y in gammas or not weight
            weight_R_G[seed] += [weight * (y in group) for group in groups]
    error = z.std(ddof=1) / math.sqrt(runs)
    assert abs(z.mean() - truth.z) < 4 * error + 1e-12, (z.mean(), truth.z, error)
    want_G = np.array([sum(gammas[y] for y in group) for group in groups])
    error_G = weight_R_G.std(axis=0, ddof=1) / math.sqrt(runs)
    off_G = np.abs(weight_R_G.mean(axis=0) - want_G) / error_G
    assert (off_G < worst).all(), (off_G, worst, groups)
