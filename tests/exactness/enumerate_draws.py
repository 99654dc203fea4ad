"""Every path a wave of one-particle populations can take, with its probability.

Each request of the wave follows a script: its seed is the script's number. Where a script
ends, the run notes the distribution it met, and the next pass has one script for each
choice there. What is enumerated is exactly what the production code would have drawn from.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from smcprog.potentials import Potential, Product, Request
from smcprog.smc.draws import Draws
from smcprog.smc.settings import Settings
from smcprog.smc.wave import Wave, WaveRequest


@dataclasses.dataclass
class Script:
    tokens: tuple[int, ...]
    log_q: float = 0.0
    used: int = 0
    ended_in_block: bool = False
    choices: dict[int, float] | None = None  # of the first draw past the script's end


@dataclasses.dataclass(frozen=True)
class Path:
    """One way the run can go: its probability, what came out, and its weight."""

    log_q: float
    outcome: tuple[int, ...]
    log_z: float
    finish: int


class ScriptedDraws(Draws):
    def __init__(self, scripts, eos_ids, seeds_M: Tensor, particles_M, round_index, positions):
        self._rows = [scripts[s] for s in seeds_M.tolist()]
        self._eos_ids = eos_ids
        for row in self._rows:
            row.ended_in_block = False

    def choose(self, weights_M_V: Tensor, position: int) -> Tensor:
        chosen = []
        for row, weights in zip(self._rows, weights_M_V.double().tolist(), strict=True):
            total = sum(weights)
            if total == 0 or row.ended_in_block or row.choices is not None:
                # Nothing is drawn, or nothing depends on it: any possible token will do.
                chosen.append(max(range(len(weights)), key=weights.__getitem__))
                continue
            if row.used == len(row.tokens):
                row.choices = {v: math.log(w / total) for v, w in enumerate(weights) if w > 0}
                chosen.append(next(iter(row.choices)))
                continue
            token = row.tokens[row.used]
            row.used += 1
            row.log_q += math.log(weights[token] / total)
            row.ended_in_block = token in self._eos_ids
            chosen.append(token)
        return torch.tensor(chosen)


def enumerate_paths(target: Potential, prompt, settings: Settings, truncate: bool) -> list[Path]:
    """All paths of a run with one particle."""
    assert settings.particles == 1
    product = target if isinstance(target, Product) else Product([target])
    lm = next(f.lm for f in product.factors if hasattr(f, "lm"))
    request = Request(
        prompt, tuple(lm.encode(prompt)), lm.vocab, settings.max_tokens, truncate, settings.stop
    )
    frontier: list[tuple[int, ...]] = [()]
    done: list[Path] = []
    while frontier:
        scripts = [Script(tokens) for tokens in frontier]
        wave = Wave(
            product,
            [WaveRequest(i, request, i) for i in range(len(scripts))],
            settings,
            truncate,
            make_draws=lambda *a, s=scripts: ScriptedDraws(s, lm.vocab.eos_ids, *a),
        )
        wave.run()
        assert not wave.failed, wave.failed
        frontier = []
        for i, script in enumerate(scripts):
            assert script.used == len(script.tokens)
            if script.choices is None:
                length = int(wave.lengths_B[i])
                done.append(
                    Path(
                        script.log_q,
                        tuple(wave.tokens_B_T[i, :length].tolist()),
                        float(wave.log_evidence_R[i] + wave.log_w_R_N[i, 0]),
                        int(wave.finish_B[i]),
                    )
                )
            else:
                frontier.extend((*script.tokens, v) for v in script.choices)
    return done
