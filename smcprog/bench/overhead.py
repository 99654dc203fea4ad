"""What a round costs beyond the model: a population's step against the bare forward.

The bare forward is the plain `transformers` model with a filled `DynamicCache`, one token
for each of N rows. A round is everything `Target.sample` does for the same N rows at the
same context length without a draft: forward, sampling, weights, resampling, bookkeeping;
and once more with a JSON Schema as a factor. The three run in turn, step by step, so that
drift of the machine meets all alike; medians are compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch

from smcprog.engine.checks import own_copy
from smcprog.engine.lm import LM
from smcprog.potentials import Grammar, Potential, Product, Request, Target
from smcprog.smc.settings import Settings
from smcprog.smc.wave import Wave, WaveRequest

__all__ = ["main", "run"]

PROMPT = [{"role": "user", "content": "Write a long inventory of a museum, as a list of objects."}]
SCHEMA = {
    "type": "array",
    "minItems": 20,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 60},
            "year": {"type": "integer", "minimum": 1000, "maximum": 2030},
            "kind": {"enum": ["painting", "coin", "tool", "dress", "map"]},
        },
        "required": ["name", "year", "kind"],
        "additionalProperties": False,
    },
}


def run(
    rounds: int = 60, particles: int = 8, path: str | None = None, warmup: int = 5
) -> dict[str, Any]:
    """Measure, and return medians in milliseconds and their ratios.

    Parameters
    ----------
    rounds : int
        Steps that count.
    particles : int
        N, rows of the forward.
    path : str, optional
        Model; by default the embedded one.
    warmup : int
        Steps before, not counted.

    Returns
    -------
    dict
        ``bare_ms``, ``plain_ms``, ``schema_ms`` (medians) and the ratios ``plain`` and
        ``schema`` over the bare forward, with the setting they were measured in.
    """
    lm = LM(path)
    model = own_copy(lm.model)  # the same weights under the model's own attention
    model.set_attn_implementation("sdpa")
    prompt = lm.encode(PROMPT)
    times: dict[str, list[float]] = {"bare": [], "plain": [], "schema": []}
    steps = {
        "bare": _bare(model, prompt, particles),
        "plain": _rounds(Target(lm), lm, prompt, particles),
        "schema": _rounds(Target(lm) * Grammar(SCHEMA), lm, prompt, particles),
    }
    for step in range(warmup + rounds):
        for name, stepper in steps.items():
            elapsed = next(stepper)
            if step >= warmup:
                times[name].append(elapsed)
    for stepper in steps.values():
        stepper.close()  # type: ignore[attr-defined]
    median = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    return {
        "model": lm.name,
        "particles": particles,
        "rounds": rounds,
        "prompt_tokens": len(prompt),
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": value for name, value in median.items()},
        "plain": median["plain"] / median["bare"],
        "schema": median["schema"] / median["bare"],
    }


def _bare(model: Any, prompt: list[int], rows: int) -> Iterator[float]:
    """One forward a step, the cache growing by a token as the population's does."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        ids = torch.tensor(prompt).expand(rows, -1)
        token = model(ids, cache=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)
        while True:
            begun = time.perf_counter()
            model(token, cache=cache, use_cache=True)
            yield time.perf_counter() - begun


def _rounds(target: Potential, lm: LM, prompt: list[int], rows: int) -> Iterator[float]:
    """One round a step; a population that loses a row makes way for a fresh one."""
    seed = 0
    while True:
        product = target if isinstance(target, Product) else Product([target])
        settings = Settings(particles=rows, max_tokens=1024)
        request = Request(prompt, tuple(prompt), lm.vocab, settings.max_tokens)
        wave = Wave(product, [WaveRequest(0, request, seed)], settings, truncate=True)
        try:
            wave.start()
            wave.play_round()  # the first token needs no forward: not the shape in question
            while wave.running == rows:
                begun = time.perf_counter()
                wave.play_round()
                if wave.running == rows:
                    yield time.perf_counter() - begun
        finally:
            wave.release()
        seed += 1


def main(rounds: int, particles: int, as_json: bool, path: str | None = None) -> None:
    """Print the table, or one JSON object."""
    result = run(rounds=rounds, particles=particles, path=path)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['model']}, N={particles}, {rounds} rounds, {result['threads']} threads")
    print(f"{'step':<28}{'median ms':>10}{'ratio':>8}")
    print(f"{'bare forward':<28}{result['bare_ms']:>10.1f}{1.0:>8.2f}")
    print(f"{'round, no draft':<28}{result['plain_ms']:>10.1f}{result['plain']:>8.2f}")
    print(f"{'round with a JSON Schema':<28}{result['schema_ms']:>10.1f}{result['schema']:>8.2f}")
