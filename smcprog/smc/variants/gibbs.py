"""Particle Gibbs: a Markov chain on outputs, each step a conditional SMC run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from smcprog.engine.linears import fixed_kernels
from smcprog.engine.prefix import without_sharing
from smcprog.errors import InputError, SettingError, SMCError
from smcprog.potentials.base import Potential, Request
from smcprog.rng import seed_word
from smcprog.smc.call import Call, outcome
from smcprog.smc.posterior import Particle, Posterior
from smcprog.smc.variants.conditional import ConditionalWave
from smcprog.smc.wave import WaveRequest
from smcprog.validate import whole

__all__ = ["GibbsChain", "particle_gibbs"]

MOST_SWEEPS = 1_000_000
FIXED = {
    "coupling": "an infinite coupling (a drafted token is kept, and weighed)",
    "draft_paths": "one drafted path",
    "joint_draws": "independent draws",
    "resampling": "multinomial resampling",
    "moves": "no moves",
    "waste_free": "no chains",
    "lookahead": "no rollouts",
    "rollouts": "no rollouts",
    "first_tokens": "first tokens drawn independently",
}
Answer = TypeVar("Answer", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class GibbsChain:
    """The outputs that the chain went through; it is a sequence of them.

    Attributes
    ----------
    samples : tuple of Particle
        The output after each sweep.
    renewed : tuple of bool
        Whether the sweep changed its tokens.
    masses : tuple of dict
        Text → normalised weight among the final particles of each sweep. Their mean has the
        posterior as its limit, as the share of the samples has, with less noise.
    seed : int
        Repeats the chain.
    """

    samples: tuple[Particle, ...]
    renewed: tuple[bool, ...]
    masses: tuple[dict[str, float], ...]
    seed: int

    @property
    def texts(self) -> list[str]:
        """Text after each sweep."""
        return [particle.text for particle in self.samples]

    @property
    def renewal_rate(self) -> float:
        """Share of the sweeps that changed the output; near 0 the chain needs more particles."""
        return sum(self.renewed) / len(self.renewed)

    @overload
    def probabilities(self, *, burn: int = 0) -> dict[str, float]: ...
    @overload
    def probabilities(
        self, key: Callable[[str], Answer], *, burn: int = 0
    ) -> dict[Answer, float]: ...

    def probabilities(
        self, key: Callable[[str], Any] | None = None, *, burn: int = 0
    ) -> dict[Any, float]:
        """Estimated posterior mass of each distinct text, or of each answer.

        Parameters
        ----------
        key : callable, optional
            Maps a text to the answer it stands for.
        burn : int
            How many of the first sweeps to leave out.

        Returns
        -------
        dict
            Answer → mass, largest first; the masses sum to 1.

        Raises
        ------
        SettingError
            If no sweep is left.
        """
        whole("burn", burn, 0, len(self.samples) - 1)
        mass: dict[Any, float] = {}
        for masses in self.masses[burn:]:
            for text, share in masses.items():
                answer = text if key is None else key(text)
                mass[answer] = mass.get(answer, 0.0) + share / (len(self.masses) - burn)
        return dict(sorted(mass.items(), key=lambda item: -item[1]))

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Particle]:
        return iter(self.samples)

    def __getitem__(self, index: int) -> Particle:
        return self.samples[index]


def particle_gibbs(
    target: Potential,
    prompt: Any = None,
    *,
    sweeps: int = 100,
    particles: int = 8,
    init: Particle | Posterior | Sequence[int] | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    **settings: Any,
) -> GibbsChain:
    """Walk through outputs with the target as the limit distribution, for any N ≥ 2.

    Parameters
    ----------
    target : Potential
    prompt
        One prompt, as for `Potential.sample`.
    sweeps : int
        Steps of the chain, each a run of `particles` particles.
    particles : int
        N, at least 2; one of them is the output of the step before.
    init : Particle, Posterior or token ids, optional
        The output that the chain starts from (of a posterior, its sample). By default that of
        an ordinary run.
    seed : int, optional
        The chain of one seed begins alike for any number of sweeps.
    stop, **settings
        As for `Potential.sample`; without those that would tie particles together: coupling,
        joint draws, other resampling than multinomial, moves, rollouts, ``draft_tokens="auto"``.

    Returns
    -------
    GibbsChain

    Raises
    ------
    SettingError, PromptError
        A setting that particle Gibbs cannot have, or more than one prompt.
    InputError
        `init` is no complete output, or has weight zero.
    SMCError
        As `Potential.sample`.

    Notes
    -----
    One run of N particles is biased in its samples by O(1/N); the chain is not, in the limit of
    many sweeps. Factors whose tokens are drawn by rejection elsewhere kill what they refuse
    here. See `smcprog.smc.variants.conditional`.
    """
    sweeps = whole("sweeps", sweeps, 1, MOST_SWEEPS)
    particles = whole("particles", particles, 2, 2**31)
    for name, wanted in FIXED.items():
        if name in settings:
            raise SettingError(f"particle_gibbs needs {wanted}: leave {name} out")
    if settings.get("draft_tokens") == "auto":
        raise SettingError(
            'particle_gibbs cannot follow measured times, draft_tokens="auto": give a number'
        )
    call = Call.of(
        target, stop, particles=particles, resampling="multinomial", joint_draws=False, **settings
    )
    prompts, many = call.prompts(prompt)
    if many:
        raise SettingError("particle_gibbs walks from one prompt: call it once for each")
    request = call.request(prompts[0])
    (seed,) = call.seeds(seed, 1)
    seeds = np.random.SeedSequence(seed % 2**64).generate_state(sweeps + 1, np.uint64).tolist()
    if init is None:
        [(_, begun)] = call.run([WaveRequest(0, request, seed_word(seeds[0]))])
        if isinstance(begun, SMCError):
            raise begun
        init = begun
    now = _complete_tokens(init, request)
    samples, renewed, masses = [], [], []
    for sweep in range(sweeps):
        post = _sweep(call, request, seed_word(seeds[sweep + 1]), now)
        drawn = post.sample
        assert drawn is not None  # the retained particle is alive
        samples.append(drawn)
        renewed.append(drawn.tokens != now)
        masses.append(post.probabilities())
        now = drawn.tokens
    return GibbsChain(tuple(samples), tuple(renewed), tuple(masses), seed)


def _sweep(call: Call, request: Request, seed: int, retained: list[int]) -> Posterior:
    """One conditional run."""
    wave = ConditionalWave(
        call.product, [WaveRequest(0, request, seed)], call.settings, call.truncate, [retained]
    )
    deterministic = call.settings.deterministic
    with without_sharing(deterministic), fixed_kernels(deterministic):
        wave.run()
    result = outcome(wave, 0)
    length = int(wave.lengths_B[0])
    if wave.log_w_R_N[0, 0] == -np.inf and 0 not in wave.failed:
        raise InputError(
            f"the initial output has weight zero under {call.product.name} (seen at token "
            f"{length}): particle Gibbs must start from an output that the target allows"
        )
    if isinstance(result, SMCError):
        raise result
    if wave.tokens_B_T[0, :length].tolist() != retained:
        raise InputError(
            f"the initial output goes on after its end: token {length} of {len(retained)} "
            "completes it"
        )
    return result


def _complete_tokens(init: Particle | Posterior | Sequence[int], request: Request) -> list[int]:
    """Tokens of an output to start from, found to be complete.

    Raises
    ------
    InputError
    """
    if isinstance(init, (Posterior, Particle)):
        init = init.tokens
    size = request.vocab.size
    try:
        tokens = [int(t) for t in init]
    except (TypeError, ValueError):
        tokens = []
    if not tokens or not all(0 <= t < size for t in tokens):
        raise InputError(f"init must be token ids from 0 to {size - 1}, at least one: {init!r}")
    ends = tokens[-1] in request.vocab.eos_ids
    if request.stop:
        data = request.vocab.to_bytes(tokens)
        ends |= any(s.encode() in data for s in request.stop)
    at_limit = len(tokens) == request.max_tokens and request.truncate
    if len(tokens) > request.max_tokens or not (ends or at_limit):
        raise InputError(
            f"init must be a complete output of at most max_tokens={request.max_tokens} tokens: "
            "its last token an EOS, or the one that completes a stop string"
        )
    return tokens
