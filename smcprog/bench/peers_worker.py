"""The peer's side of ``smcprog bench peers``: genlm-control, run by its own interpreter.

Started as a script, so that the peer may live in another environment; it imports nothing of
this package. One JSON object a line on standard input, one answer a line on standard output.

Settings that make it fast: float32 weights under SDPA, adaptive weighted rejection (AWRS) with
a deterministic automaton over bytes whose states stay cached from run to run; and, if asked for,
queries sent as soon as there are N (else after a millisecond, not its 20), and the prompt's keys
and values cached before the clock starts. What the language model returned is forgotten between
runs: the next one is to draw anew.
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


class _OutOfTime(Exception):
    pass


def _load(order: dict[str, Any]) -> dict[str, Any]:
    import importlib.metadata

    import torch
    import transformers
    from genlm.backend.llm import AsyncTransformer
    from genlm.control import PromptedLLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(order["threads"])
    model = AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(order["model"])
    backend = AsyncTransformer(model, tokenizer, **order["batching"])
    eos = [bytes(backend.byte_vocab[i]) for i in order["eos_ids"]]
    _STATE["llm"] = PromptedLLM(backend, eos_byte_strings=eos)
    _STATE["fsa"] = {}
    return {
        "genlm-control": importlib.metadata.version("genlm-control"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


_STATE: dict[str, Any] = {}


def _automaton(pattern: str) -> Any:
    """The potential over bytes; a character of the pattern is the byte of its number."""
    if pattern not in _STATE["fsa"]:
        from genlm.control import BoolFSA
        from genlm.grammar import WFSA
        from genlm.grammar.lark_interface import interegular_to_wfsa
        from genlm.grammar.semiring import Boolean

        letters = interegular_to_wfsa(pattern, charset={chr(b) for b in range(256)})
        over_bytes = WFSA(Boolean)
        for state, _ in letters.I:
            over_bytes.add_I(state, Boolean.one)
        for state, _ in letters.F:
            over_bytes.add_F(state, Boolean.one)
        for state, letter, successor, _ in letters.arcs():
            over_bytes.add_arc(state, ord(letter), successor, Boolean.one)
        _STATE["fsa"] = {pattern: BoolFSA(over_bytes)}  # the last one only: they are large
    return _STATE["fsa"][pattern]


def _condition(order: dict[str, Any]) -> Any:
    """The automaton over tokens: ordinary ones, since special tokens are no text."""
    from genlm.control.potential.coerce import Coerced

    special = set(order["special_ids"])
    tokens = [t for t in _STATE["llm"].vocab if t.token_id not in special]
    return Coerced(_automaton(order["pattern"]), tokens, f=b"".join)


def _accepts(order: dict[str, Any]) -> dict[str, Any]:
    automaton = _automaton(order["pattern"])
    known = set(automaton.vocab)

    async def answer(text: str) -> bool:
        data = text.encode()
        return set(data) <= known and await automaton.complete(data) == 0

    async def answers() -> list[bool]:
        return [await answer(text) for text in order["texts"]]

    return {"accepts": asyncio.run(answers())}


def _score(order: dict[str, Any]) -> dict[str, Any]:
    """log γ of complete outputs given as token ids, EOS left out."""
    llm = _STATE["llm"]
    condition = _condition(order)

    async def score(ids: list[int]) -> float:
        llm.prompt_ids = order["prompt"]
        context = llm.decode_tokens(ids)
        return float(await llm.complete(context) + await condition.complete(context))

    async def scores() -> list[float]:
        return [await score(ids) for ids in order["outputs"]]

    llm.model.clear_cache()
    return {"log_target": asyncio.run(scores())}


def _sample(order: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch
    from genlm.control import AWRS, direct_token_sampler

    llm = _STATE["llm"]
    condition = _condition(order)
    np.random.seed(order["seed"])  # noqa: NPY002 - its resampling draws from there
    torch.manual_seed(order["seed"])
    drawn = 0
    deadline = float("inf")

    async def run() -> tuple[Any, float]:
        nonlocal deadline
        llm.prompt_ids = order["prompt"]
        if order["sampler"] == "awrs":
            sampler = AWRS(llm, condition, seed=order["seed"])
        else:
            sampler = direct_token_sampler(llm * condition)
        plain = sampler.sample

        async def counted(context: Any, draw: Any = None) -> Any:
            nonlocal drawn
            if time.perf_counter() > deadline:
                raise _OutOfTime
            result = await plain(context, draw)
            drawn += 1
            return result

        sampler.sample = counted
        begun = time.perf_counter()
        deadline = begun + order["cap_s"]
        try:
            found = await sampler.smc(
                n_particles=order["particles"],
                ess_threshold=order["ess_threshold"],
                max_tokens=order["max_tokens"],
                resampling_method=order["resampling"],
            )
        except _OutOfTime:
            found = None
        return found, time.perf_counter() - begun

    llm.model.clear_cache()
    llm.model.reset_async_queries()
    if order["keep_prompt"]:
        llm.model.cache_kv(order["prompt"])
    found, seconds = asyncio.run(run())
    if found is None:
        return {"seconds": seconds, "tokens": drawn, "complete": False}
    alive = bool(np.isfinite(found.log_ml))
    living = [(tokens, weight) for tokens, weight in found if weight > -np.inf]
    outputs = [b"".join(tokens[:-1]).decode("utf-8", errors="replace") for tokens, _ in living]
    return {
        "seconds": seconds,
        "tokens": sum(len(tokens) for tokens in found.contexts),
        "complete": True,
        "log_evidence": float(found.log_ml) if alive else None,
        "ess": float(found.ess) if alive else 0.0,
        "texts": outputs,
        "log_weights": [float(weight) for _, weight in living],
    }


_DO = {"load": _load, "accepts": _accepts, "score": _score, "sample": _sample}


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
