"""What `smcprog bench gpu` measures, in order of importance: what comes last is left out first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from smcprog.bench.cells import Cell, Mode
from smcprog.errors import SettingError

__all__ = ["ASSISTED", "ForwardShape", "GpuCell", "Grid", "output_tokens", "plan"]

AUTO, GENERATE = Mode("auto"), Mode("generate")
LOSSLESS, SMC = Mode("lossless", 1.0), Mode("smc", math.inf)
ASSISTED = "assisted"
"""`generate` of `transformers` with the draft as its assistant."""
DECODE_ROWS = (1, 8, 288, 32, 128, 2, 4, 16, 64, 256)


@dataclasses.dataclass(frozen=True)
class ForwardShape:
    """A forward by itself.

    Attributes
    ----------
    model : str
        "target" or "draft".
    rows, columns : int
        Sequences, and new tokens of each.
    context : int
        Tokens before, a prompt that all rows share.
    """

    model: str
    rows: int
    columns: int
    context: int

    @property
    def name(self) -> str:
        """Short name, unique in a plan."""
        return f"forward {self.model} {self.rows}×{self.columns} P={self.context}"


@dataclasses.dataclass(frozen=True)
class GpuCell:
    """Rounds of one setting.

    Attributes
    ----------
    cell : Cell
    prompt_tokens : int
        Of every prompt; requests have different ones.
    cascade : bool
        Attention reads the prompt once a request, not once a particle.
    graphs : bool
        A round is one launch.
    assisted : bool
        `generate` gets the draft as its assistant.
    """

    cell: Cell
    prompt_tokens: int
    cascade: bool = True
    graphs: bool = True
    assisted: bool = False

    @property
    def mode(self) -> str:
        """As tables and JSON call it."""
        return ASSISTED if self.assisted else self.cell.mode.name

    @property
    def name(self) -> str:
        """Short name, unique in a plan."""
        c = self.cell
        parts = [self.mode, f"N={c.particles}"]
        if c.draft_tokens:
            parts.append(f"K={c.draft_tokens}")
        parts += [f"R={c.requests}", f"P={self.prompt_tokens}"]
        if not c.mode.outside:
            parts += [] if self.cascade else ["no cascade"]
            parts += [] if self.graphs else ["no graphs"]
        return " ".join(parts)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Values that are combined.

    Attributes
    ----------
    particles, draft_tokens, prompts, requests : tuple of int
        N, K, tokens of a prompt, and prompts worked on together.
    """

    particles: tuple[int, ...] = (4, 8, 16, 32)
    draft_tokens: tuple[int, ...] = (4, 8, 16)
    prompts: tuple[int, ...] = (256, 1024, 4096, 8192)
    requests: tuple[int, ...] = (1, 8)

    def __post_init__(self) -> None:
        for name, values in dataclasses.asdict(self).items():
            if not values or min(values) < 1:
                raise SettingError(f"bench gpu: {name} must be whole numbers from 1, got {values}")

    @property
    def base(self) -> tuple[int, int]:
        """N and K of the setting that all others are varied from: 8 where they are there."""
        n, k = self.particles, self.draft_tokens
        return (8 if 8 in n else n[0]), (8 if 8 in k else k[0])


def output_tokens(rounds: int, draft_tokens: int) -> int:
    """Tokens of an output: one with the prompt, and rounds of K + 1 if all drafts are kept."""
    return 1 + rounds * (draft_tokens + 1)


def plan(grid: Grid) -> list[ForwardShape | GpuCell]:
    """Forwards and cells, each once, the most important first.

    First the base (N = 8, K = 8, one request, the shortest prompt) with what it is compared with;
    then N × K; longer prompts with and without cascade; without graphs; several requests; last the
    rest of the full grid with everything on.
    """
    return list(dict.fromkeys(_ordered(grid)))


def _ordered(grid: Grid) -> Iterator[ForwardShape | GpuCell]:
    n0, k0 = grid.base
    short, long = min(grid.prompts), max(grid.prompts)
    one, many = min(grid.requests), max(grid.requests)
    most = max(grid.particles)

    yield _smc(n0, k0, one, short)
    for n in (1, n0):
        yield _plain(AUTO, n, one, short)
    yield from _forwards(grid, short, DECODE_ROWS[:3], [(n0, k0 + 1), (most, k0 + 1)])
    yield _plain(GENERATE, 1, one, short)
    yield _lossless(1, k0, one, short)
    yield dataclasses.replace(_smc(n0, k0, one, short), graphs=False)
    yield dataclasses.replace(_plain(AUTO, 1, one, short), graphs=False)

    for n in grid.particles:
        for k in grid.draft_tokens:
            yield _smc(n, k, one, short)
    for prompt in sorted(grid.prompts, reverse=True):
        yield from _both(_smc(n0, k0, one, prompt))
        yield _plain(AUTO, 1, one, prompt)
    yield from _both(_smc(n0, k0, many, short))
    yield from _both(_smc(n0, k0, many, long))
    for mode in (AUTO, GENERATE):
        yield _plain(mode, 1, many, short)
    yield _lossless(1, k0, many, short)
    if one == 1:  # `transformers` has assistants for one sequence only
        yield GpuCell(Cell(GENERATE, 1, k0, 1.0, 1), short, assisted=True)

    scoring = [(n, k + 1) for n in grid.particles for k in grid.draft_tokens]
    yield from _forwards(grid, short, DECODE_ROWS, scoring)
    yield from _both(_smc(most, k0, one, long))
    yield from _both(_smc(most, k0, many, long))
    yield _lossless(n0, k0, one, short)
    for k in grid.draft_tokens:
        yield _lossless(1, k, one, short)
    yield _plain(GENERATE, n0, one, short)
    for requests in (many, one):
        for prompt in sorted(grid.prompts):
            for n in grid.particles:
                for k in grid.draft_tokens:
                    yield _smc(n, k, requests, prompt)
    yield from _forwards(grid, long, DECODE_ROWS, scoring)


def _forwards(
    grid: Grid, context: int, rows: Sequence[int], scoring: Sequence[tuple[int, int]]
) -> Iterator[ForwardShape]:
    most = max(grid.particles) * (max(grid.draft_tokens) + 1)
    for m in (m for m in rows if m <= most):
        for model in ("target", "draft"):
            yield ForwardShape(model, m, 1, context)
    for m, columns in scoring:
        yield ForwardShape("target", m, columns, context)


def _smc(n: int, k: int, requests: int, prompt: int) -> GpuCell:
    return GpuCell(Cell(SMC, n, k, 1.0, requests), prompt)


def _lossless(n: int, k: int, requests: int, prompt: int) -> GpuCell:
    return GpuCell(Cell(LOSSLESS, n, k, 1.0, requests), prompt)


def _plain(mode: Mode, n: int, requests: int, prompt: int) -> GpuCell:
    return GpuCell(Cell(mode, n, 0, 1.0, requests), prompt)


def _both(cell: GpuCell) -> Iterator[GpuCell]:
    yield cell
    yield dataclasses.replace(cell, cascade=False)
