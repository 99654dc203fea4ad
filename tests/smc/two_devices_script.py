"""What `test_two_devices.py` runs in a process of its own, since a far device is there for good."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

# Wrapped tensors cannot be views in inference mode; nothing else depends on it.
torch.inference_mode = lambda mode=True: torch.no_grad()  # type: ignore[assignment,misc]

from smcprog import LM, Grammar, Reward, Target  # noqa: E402
from smcprog.engine.vocab import Vocabulary  # noqa: E402
from tests.far_device import FAR, FarDevice, to_far  # noqa: E402
from tests.tiny import tiny_model  # noqa: E402

V, EOS = 8, 2
JOBS: dict[str, dict[str, Any]] = {
    "SMC-SD": {},
    "lossless, two paths": {"coupling": 1.0, "draft_paths": 2},
    "coupled": {"coupling": 2.0, "ess_threshold": 0.9},
}
PLACES = {"near": (False, False), "draft far": (False, True), "target far": (True, False)}


def lm_of(seed: int, far: bool, **options: Any) -> LM:
    model = tiny_model(V, EOS, seed=seed)
    letters = [b"<eos>" if i == EOS else bytes([ord("a") + i]) for i in range(V)]
    vocab = Vocabulary.from_tokens(letters, [EOS])
    return LM.from_model(to_far(model) if far else model, vocab, kv_pages=800, **options)


def run(lm: LM, small: LM, **options: Any) -> tuple[list[list[int]], float]:
    score = Reward(lambda texts: [text.count("a") / 5 for text in texts], at="round")
    target = Target(lm, temperature=0.9) * Grammar.regex("[abde]{3,6}f") * score
    settings = {"particles": 4, "draft_tokens": 3, "max_tokens": 9, "seed": 1, **options}
    post = target.sample([0, 1], draft=small, **settings)
    return [p.tokens for p in post.particles], post.log_evidence


def main() -> None:
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    with FarDevice():
        try:
            results["mixed"] = str(torch.ones(2, device=FAR) + torch.ones(2))
        except RuntimeError as error:
            results["mixed"] = f"RuntimeError: {error}"
        models = {(seed, far): lm_of(seed, far) for seed in (0, 5) for far in (False, True)}
        static = [lm_of(seed, True, graphs=True) for seed in (0, 5)]
        results["devices"] = [str(models[0, False].device), str(models[0, True].device)]
        for job, options in JOBS.items():
            for place, (target_far, draft_far) in PLACES.items():
                pair = models[0, target_far], models[5, draft_far]
                results[f"{job}: {place}"] = run(*pair, **options)
            if "paths" not in job:
                results[f"{job}: static rounds, far"] = run(*static, **options)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
