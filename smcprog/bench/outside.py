"""The outside baseline: `transformers.generate` with the same weights, prompts and tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from smcprog.bench.agreement import output_logps
from smcprog.bench.cells import Cell
from smcprog.bench.runs import Output, Run
from smcprog.errors import SettingError

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["Generate"]


class Generate:
    """A model of `transformers` as it comes, loaded from the folder of `lm`.

    Parameters
    ----------
    lm : LM
        Its folder, type and device are used, nothing else of it.
    model : transformers.PreTrainedModel, optional
        The model itself, in place of the folder.
    assistant : transformers.PreTrainedModel, optional
        Drafts K tokens at a time for it, K being the cell's; one sequence only.

    Raises
    ------
    SettingError
        If `lm` has no folder, and no model is given.
    """

    def __init__(self, lm: LM, model: Any = None, assistant: Any = None) -> None:
        self._lm = lm
        self._model = _loaded(lm) if model is None else model
        self._assistant = assistant
        self._model.generation_config.top_k = None  # sample from the whole vocabulary
        self._model.generation_config.top_p = None

    def run(
        self,
        cell: Cell,
        prompts: Sequence[tuple[int, Any]],
        *,
        max_tokens: int,
        seed: int,
        quality: bool = True,
    ) -> tuple[Run, list[list[list[int]]]]:
        """Run a cell of mode ``generate`` once; also the output tokens of each request.

        Several requests are one padded batch. Log-probabilities are computed afterwards, off
        the clock.
        """
        lm = self._lm
        encoded = [lm.encode(prompt) for _, prompt in prompts]
        width = max(map(len, encoded))
        ids = torch.zeros((len(encoded), width), dtype=torch.int64, device=lm.device)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(encoded):
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = 1
        torch.manual_seed(seed)
        eos = list(lm.vocab.eos_ids)
        self._model.generation_config.eos_token_id = eos or None
        if self._assistant is not None:  # as many drafts as ours, whatever it thinks of them
            drafting = self._assistant.generation_config
            drafting.num_assistant_tokens = int(cell.draft_tokens)
            drafting.num_assistant_tokens_schedule = "constant"
            drafting.assistant_confidence_threshold = 0.0
        begun = time.perf_counter()
        with torch.inference_mode():
            drawn = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=cell.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=max_tokens,
                num_return_sequences=cell.particles,
                pad_token_id=eos[0] if eos else 0,
                assistant_model=self._assistant,
            )
        if lm.device.type == "cuda":
            torch.cuda.synchronize(lm.device)
        seconds = time.perf_counter() - begun
        new = drawn[:, width:].tolist()
        outputs, texts = [], []
        for i, (number, _) in enumerate(prompts):
            rows = [_cut(r, eos) for r in new[i * cell.particles : (i + 1) * cell.particles]]
            count = len(rows)
            mean = sum(map(len, rows)) / count
            logp = math.nan
            if quality:
                logp = sum(output_logps(lm, encoded[i], rows, cell.temperature)) / count
            outputs.append(
                Output(
                    prompt=number,
                    tokens=mean,
                    logp=logp,
                    particle_tokens=sum(map(len, rows)),
                    ess=1.0,
                    distinct=len({tuple(r) for r in rows}) / count,
                )
            )
            texts.append(rows)
        context = sum(map(len, encoded)) / len(encoded)
        return Run(seconds, math.nan, outputs, [], context), texts


def _loaded(lm: LM) -> Any:
    from transformers import AutoModelForCausalLM

    if not lm.path:
        raise SettingError(f"--modes generate needs a model from a folder, not {lm.name!r}")
    model = AutoModelForCausalLM.from_pretrained(
        lm.path, dtype=lm.dtype, attn_implementation="sdpa", local_files_only=True
    ).to(lm.device)
    return model.eval()


def _cut(tokens: list[int], eos: list[int]) -> list[int]:
    """Up to and with the first end-of-sequence token."""
    for i, token in enumerate(tokens):
        if token in eos:
            return tokens[: i + 1]
    return tokens
