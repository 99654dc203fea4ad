"""The peer's side of ``smcprog bench infilling``: llamppl, run by its own interpreter.

Started as a script; imports nothing of this package. One JSON object a line on standard input,
one answer a line on standard output.
"""

# mypy: disable-error-code="import-not-found"
# (the peer is not installed beside this package)
from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from typing import Any

_STATE: dict[str, Any] = {}


def _load(order: dict[str, Any]) -> dict[str, Any]:
    import importlib.metadata

    import torch
    from genlm.backend.llm import AsyncTransformer
    from llamppl import CachedCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(order["threads"])
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(order["model"])
    _STATE["lm"] = CachedCausalLM(AsyncTransformer(model, tokenizer, **order["batching"]))
    return {
        name: importlib.metadata.version(name) for name in ("llamppl", "genlm-backend", "torch")
    }


def _infill(order: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    from llamppl import LMContext, Model, smc_standard

    lm = _STATE["lm"]

    class Infilling(Model):
        """Before each segment, some tokens that are not EOS."""

        def __init__(self, context: Any) -> None:
            super().__init__()
            self.context = context
            self.left = [list(segment) for segment in order["segments"]]

        async def step(self) -> None:
            for _ in range(order["blank"]):
                token = await self.sample(self.context.next_token())
                self.condition(token.token_id not in order["eos_ids"])
                if self.finished:
                    return
            for token in self.left.pop(0):
                await self.observe(self.context.next_token(), token)
            if not self.left:
                self.finish()

    async def run() -> tuple[Any, float]:
        begun = time.perf_counter()
        context = await LMContext.create(lm, order["prompt"])
        if context.tokens != order["prompt_ids"]:
            raise ValueError("the prompt is read as other tokens here")
        particles = await smc_standard(
            Infilling(context),
            order["particles"],
            ess_threshold=0.5,
            resampling_method="systematic",
        )
        return particles, time.perf_counter() - begun

    np.random.seed(order["seed"])  # noqa: NPY002 - it draws from there
    lm.clear_cache()
    lm.reset_async_queries()
    if order["keep_prompt"]:
        lm.cache_kv(order["prompt_ids"])
    particles, seconds = asyncio.run(run())
    return {
        "seconds": seconds,
        "log_weights": [float(p.weight) for p in particles],
        "texts": [str(p.context) for p in particles],
    }


_DO = {"load": _load, "infill": _infill}


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is no answer
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if p != here]  # whose files have names like `coverage`
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = _DO[order["do"]](order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()
