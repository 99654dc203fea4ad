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
from smcprog.smc.urn import Urn
from smcprog.smc.wave import Wave, WaveRequest


@dataclasses.dataclass
class Script:
    tokens: tuple[int, ...]
    log_q: float = 0.0
    used: int = 0
    ended_in_block: bool = False
    choices: dict[int, float] | None = None  # of the first draw past the script's end

    def follow(self, weights):
        """The script's next choice, given unnormalised weights; None where it has none."""
        total = sum(weights)
        if total == 0 or self.choices is not None:
            return None
        if self.used == len(self.tokens):
            self.choices = {v: math.log(w / total) for v, w in enumerate(weights) if w > 0}
            return next(iter(self.choices))
        choice = self.tokens[self.used]
        self.used += 1
        self.log_q += math.log(weights[choice] / total)
        return choice


@dataclasses.dataclass(frozen=True)
class Path:
    """One way the run can go: its probability, what came out, and its weight."""

    log_q: float
    outcome: tuple[int, ...]
    log_z: float
    finish: int


class ScriptedUrn(Urn):
    """Candidates for a check are choices of the script, too."""

    def __init__(self, weights_V, row: Script):
        super().__init__(weights_V.copy(), lambda i: math.nan)
        self._row = row

    def draw(self) -> int:
        at = self._row.follow(self._weights_V.tolist())
        return int(self._weights_V.argmax()) if at is None else at


class ScriptedDraws(Draws):
    def __init__(
        self, scripts, eos_ids, seeds_M, particles_M, round_index, positions, keys_M=None, paths=1
    ):
        self._args = (scripts, eos_ids, seeds_M, particles_M, round_index, positions, keys_M)
        self._keys_P = None
        self._rows = [scripts[s] for s in seeds_M.tolist() for _ in range(paths)]
        self._eos_ids = eos_ids
        for row in self._rows:
            row.ended_in_block = False

    def paths(self, count):
        return ScriptedDraws(*self._args, paths=count)

    def choose(self, weights_M_V: Tensor, position: int, rows: Tensor | None = None) -> Tensor:
        if rows is not None:  # every one of these rows needs its token
            return self._follow(rows, weights_M_V)
        chosen = []
        for row, weights in zip(self._rows, weights_M_V.double().tolist(), strict=True):
            token = None if row.ended_in_block else row.follow(weights)
            if token is None:  # nothing depends on it: any possible token will do
                token = max(range(len(weights)), key=weights.__getitem__)
            chosen.append(token)
        return torch.tensor(chosen)

    def took(self, tokens_M: Tensor, rows: Tensor | None = None) -> None:
        if rows is None:
            for row, token in zip(self._rows, tokens_M.tolist(), strict=True):
                row.ended_in_block |= token in self._eos_ids and row.choices is None

    def urns(self, weights_S_V: Tensor, position: int, rows: Tensor) -> list[Urn]:
        return [
            ScriptedUrn(weights, self._rows[row])
            for row, weights in zip(rows.tolist(), weights_S_V.double().numpy(), strict=True)
        ]

    def accept(self, log_chance_M: Tensor, position: int, rows: Tensor) -> Tensor:
        keep_M = log_chance_M.exp().clamp(max=1)
        return self._follow(rows, torch.stack([1 - keep_M, keep_M], dim=1)).bool()

    def redraw(self, weights_M_V: Tensor, position: int, rows: Tensor) -> Tensor:
        return self._follow(rows, weights_M_V)

    def _follow(self, rows: Tensor, weights_M_V: Tensor) -> Tensor:
        chosen = []
        for row, weights in zip(rows.tolist(), weights_M_V.double().tolist(), strict=True):
            at = self._rows[row].follow(weights)
            chosen.append(max(range(len(weights)), key=weights.__getitem__) if at is None else at)
        return torch.tensor(chosen, dtype=torch.int64)


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
