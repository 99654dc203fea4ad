"""A pair of models in the engine, and the switches that cells set."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from smcprog.attention.choose import default_page_size
from smcprog.bench.accelerator import Size, size_of
from smcprog.bench.gpu.cells import Grid, output_tokens
from smcprog.bench.gpu.shapes import ModelPair, build_pair
from smcprog.engine.arena import arena_pages
from smcprog.engine.lm import LM
from smcprog.engine.memory import available_bytes

__all__ = ["LoadedPair", "pool_pages"]

SPARE = 1.25
"""Pages of the pools over those that the largest cell is known to need."""
NEVER = 1 << 62
MOST_MEMORY = 0.35
"""Of what is free, for the pool of either model."""


def pool_pages(grid: Grid, rounds: int, page_size: int) -> int:
    """Pages of keys and values that the largest cell of a grid needs in one model.

    Prompts are stored once a request; the rest is what rounds of fixed shape take for its rows.
    """
    k, requests, prompt = max(grid.draft_tokens), max(grid.requests), max(grid.prompts)
    longest = prompt + output_tokens(rounds, k)
    rows = arena_pages(prompt, max(grid.particles), longest, k + 2, page_size)
    return requests * (-(-prompt // page_size) + rows)


class LoadedPair:
    """Target and draft as `LM`, and as `transformers` made them.

    Parameters
    ----------
    name : str
        Of the pair.
    device : torch.device
    dtype : torch.dtype
    grid : Grid
        What will be run, for the size of the pools.
    rounds : int
    attention : str
        As for `LM`.

    Attributes
    ----------
    lm, draft : LM
    models_of_transformers : tuple
        Target and draft; the weights are shared with `lm` and `draft`.
    sizes : tuple of Size
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        grid: Grid,
        rounds: int,
        attention: str = "auto",
    ) -> None:
        pair = build_pair(name, device, dtype)
        self.name = name
        self.models_of_transformers: tuple[Any, Any] = (pair.target, pair.draft)
        self.lm = _load(pair, 0, grid, rounds, attention)
        self.draft = _load(pair, 1, grid, rounds, attention)
        self.sizes: tuple[Size, Size] = (size_of(self.lm), size_of(self.draft))

    @property
    def models(self) -> tuple[LM, LM]:
        """Target and draft."""
        return self.lm, self.draft

    @contextlib.contextmanager
    def variant(self, cascade: bool, graphs: bool) -> Iterator[None]:
        """While this lasts, both models run so.

        Programs of another variant must not be kept (`forget_programs`).
        """
        with contextlib.ExitStack() as stack:

            def put(thing: Any, name: str, value: Any) -> None:
                stack.callback(setattr, thing, name, getattr(thing, name))
                setattr(thing, name, value)

            for lm in self.models:
                put(lm, "graphs", graphs)
                attention = lm.engine.attention
                if hasattr(attention, "cascade"):
                    put(attention, "cascade", cascade)
                elif not cascade:  # in PyTorch: a prefix never saves enough
                    put(attention, "min_saved", NEVER)
            yield

    def report(self) -> list[dict[str, Any]]:
        """What the models are, for JSON."""
        return [
            {
                "name": lm.name,
                "weights": size.weights,
                "kv_numbers_a_token": size.kv,
                "kv_pages": lm.kv_pages,
                "page_size": lm.page_size,
                "attention": type(lm.engine.attention).__name__,
            }
            for lm, size in zip(self.models, self.sizes, strict=True)
        ]


def _load(pair: ModelPair, which: int, grid: Grid, rounds: int, attention: str) -> LM:
    model = (pair.target, pair.draft)[which]
    shape = pair.shapes[which]
    page_size = default_page_size(model.device)
    sizes = shape.sizes
    kv = 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_dim"]
    a_page = kv * model.dtype.itemsize * page_size
    wanted = int(SPARE * pool_pages(grid, rounds, page_size))
    most = int(MOST_MEMORY * available_bytes(model.device)) // a_page
    return LM.from_model(
        model,
        pair.vocab,
        name=shape.name,
        kv_pages=max(1, min(wanted, most)),
        page_size=page_size,
        prefix_cache=False,
        attention=attention,
    )
