"""What `test_tensor_parallel.py` has every rank of a launcher run; not a test itself.

Arguments: the folder of the models, that for what comes out, a port. The environment of each rank
is that of `torchrun`; both are forked from one process, whose imports take seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smcprog import LM, Reward, Target, program
from smcprog.engine import memory, sizing
from tests.engine.split_models import JOBS, MEMORY, PROMPT, main_job, outcome


def error_of(call: Callable[[], Any]) -> str:
    """Type and words of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def settled_late(models: Path, rank: int) -> dict[str, Any]:
    """As on CUDA: memory is shared out by the first call, and rank 1 finds less of it."""
    found = memory.available_bytes
    sizing.SHARED_ON.add("cpu")
    memory.available_bytes = lambda device: (3 - rank) << 27
    try:
        options = {**MEMORY, "kv_pages": None, "tensor_parallel": 2}
        lm, small = LM(models / "big", **options), LM(models / "small", **options)
        before = lm.kv_pages
        return {**main_job(lm, small), "pages": [before, lm.kv_pages, small.kv_pages]}
    finally:
        sizing.SHARED_ON.remove("cpu")
        memory.available_bytes = found


def main(models: Path, out: Path) -> None:
    rank = int(os.environ["RANK"])
    results: dict[str, Any] = {}
    results["wrong size"] = error_of(lambda: LM(models / "big", **MEMORY, tensor_parallel=4))
    # Memory is found to differ: rank 1 has less.
    pages = MEMORY["kv_pages"] - rank
    lm = LM(models / "big", **{**MEMORY, "kv_pages": pages}, tensor_parallel=2)
    small = LM(models / "small", **MEMORY)
    split = LM(models / "small", **MEMORY, tensor_parallel=2)
    results["pages"] = lm.kv_pages
    results["layer"] = list(lm.model.model.layers[0].mlp.up_proj.weight.to_local().shape)
    for name, options in JOBS.items():
        results[name] = main_job(lm, small, **options)
        results[f"{name}, draft split"] = main_job(lm, split, **options)
    results["settled late"] = settled_late(models, rank)
    fixed = LM(models / "big", **MEMORY, tensor_parallel=2, graphs=True)
    for name in ("main", "coupled"):
        results[f"{name}, fixed shapes"] = main_job(fixed, small, **JOBS[name])
    target = Target(lm)
    plain = {"particles": 3, "max_tokens": 6}

    many = target.sample([PROMPT, "he", PROMPT], seed=[1, 2, 3], **plain)
    results["many"] = [outcome(post) for post in many]
    results["fresh seed"] = outcome(target.sample(PROMPT, **plain))
    auto = target.sample(
        PROMPT, draft=small, draft_tokens="auto", seed=1, particles=3, max_tokens=30
    )
    results["auto"] = outcome(auto)

    @program
    def walk(p: Any) -> None:
        p.prompt("he")
        p.extend(target, max_tokens=5)
        p.observe("ll")

    results["program"] = outcome(walk(particles=4, seed=5, max_tokens=20))
    results["program without seed"] = error_of(lambda: walk(particles=4, max_tokens=20))

    # What is not the same in all ranks is an error in all of them, and the next call works.
    results["other seeds"] = error_of(lambda: target.sample(PROMPT, seed=rank, **plain))
    results["other prompts"] = error_of(lambda: target.sample("abb"[rank:], seed=0, **plain))
    other = {**plain, "particles": 3 + rank}
    results["other settings"] = error_of(lambda: target.sample(PROMPT, seed=0, **other))
    odd = Reward(lambda texts: [float(rank)] * len(texts), at="round")
    results["other rewards"] = error_of(lambda: (target * odd).sample(PROMPT, seed=0, **plain))

    def fail_once(event: Any) -> None:
        if rank == 1 and event.round == 2:
            raise ValueError("only here")

    results["one fails"] = error_of(
        lambda: target.sample([PROMPT, "he"], seed=0, on_round=fail_once, **plain)
    )
    results["asample"] = error_of(lambda: asyncio.run(target.asample(PROMPT, seed=0, **plain)))
    results["still works"] = outcome(target.sample(PROMPT, seed=0, **plain))
    lm.check_pages()
    results["pages in use"] = lm.pages_in_use
    out.write_text(json.dumps(results))


def fork(rank: int, models: Path, folder: Path, port: str) -> int:
    """Start a rank; its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="2",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
        )
        main(models, folder / f"{rank}")
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


if __name__ == "__main__":
    where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    ranks = [fork(rank, *where) for rank in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    sys.exit(max(map(abs, codes)))
