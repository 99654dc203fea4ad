"""A language model of genlm-control that runs in our engine."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from genlm.backend.llm import AsyncLM as GenlmAsyncLM
from genlm.backend.tokenization import Token
from genlm.control.util import join_batch
from torch import Tensor

from smcprog.engine.lm import LM
from smcprog.engine.parallel import ranks_of
from smcprog.errors import SettingError
from smcprog.genlm.histories import Histories
from smcprog.validate import whole

__all__ = ["AsyncLM"]

MOST_ROWS, MOST_BYTES = 1 << 16, 1 << 40


class AsyncLM(GenlmAsyncLM):
    """What `PromptedLLM` takes as its model, with keys and values kept in our engine.

    A query that is a token longer than an earlier one costs one token, wherever the earlier one
    came from; queries made at the same time run as one batch, without a wait.

    Parameters
    ----------
    lm : LM, str or path, optional
        A model, or what `LM` takes to load one; by default the default model.
    rows : int
        Most token histories whose keys and values are kept for later queries.
    cache_bytes : int
        Most bytes of log-probabilities kept for queries that are made again.

    Attributes
    ----------
    lm : LM
    histories : Histories
        What is kept, and how many tokens were run.

    Examples
    --------
    >>> from genlm.control import PromptedLLM
    >>> from smcprog.genlm import AsyncLM
    >>> llm = PromptedLLM(AsyncLM("path-or-hub-id"))  # doctest: +SKIP
    """

    def __init__(self, lm: Any = None, *, rows: int = 256, cache_bytes: int = 1 << 27) -> None:
        self.lm: LM = lm if hasattr(lm, "sequences") else LM(lm)
        if ranks_of([self.lm]) is not None:
            raise SettingError(
                "genlm-control asks a model whenever its tasks come to it, which differs between "
                f"the processes of a launcher: start one process, and load {self.lm.name} there "
                "with tensor_parallel"
            )
        self.histories = Histories(
            self.lm,
            whole("rows", rows, 1, MOST_ROWS),
            whole("cache_bytes", cache_bytes, 0, MOST_BYTES),
        )
        self._batches: Any = None
        self.reset_async_queries()
        if self.lm.vocab.tokenizer is not None:
            super().__init__(self.lm.tokenizer)
        else:
            self.tokenizer = _Table(self.lm)
            self.byte_vocab = _byte_vocab(self.lm)
            self.str_vocab = [bytes(t).decode("latin-1") for t in self.byte_vocab]

    @classmethod
    def from_name(cls, name: str, **options: Any) -> AsyncLM:
        """Load a model by path or hub id; options are those of `LM` and of this class."""
        own = {k: options.pop(k) for k in ("rows", "cache_bytes") if k in options}
        return cls(LM(name, **options), **own)

    @property
    def eos_byte_strings(self) -> list[bytes]:
        """The model's EOS tokens, as `PromptedLLM(..., eos_byte_strings=)` takes them."""
        strings = [bytes(self.byte_vocab[v]) for v in self.lm.vocab.eos_ids]
        return list(dict.fromkeys(strings))

    async def next_token_logprobs(
        self, token_ids: Sequence[int], lora_name: str | None = None
    ) -> Tensor:
        """Log-probabilities of the next token, [V]."""
        (found,) = await self._ask([_history(token_ids, lora_name)])
        return found

    async def batch_next_token_logprobs(
        self, token_ids_list: Sequence[Sequence[int]], lora_name: str | None = None
    ) -> Tensor:
        """Log-probabilities after each of several histories, [N, V]."""
        return torch.stack(await self._ask([_history(ids, lora_name) for ids in token_ids_list]))

    def next_token_logprobs_sync(
        self, token_ids: Sequence[int], lora_name: str | None = None
    ) -> Tensor:
        """Log-probabilities of the next token, [V]."""
        return self.histories.logprobs([_history(token_ids, lora_name)])[0]

    def batch_next_token_logprobs_sync(
        self, token_ids_list: Sequence[Sequence[int]], lora_name: str | None = None
    ) -> Tensor:
        """Log-probabilities after each of several histories, [N, V]."""
        histories = [_history(ids, lora_name) for ids in token_ids_list]
        return torch.stack(self.histories.logprobs(histories))

    def clear_cache(self) -> None:
        """Forget all log-probabilities, keys and values."""
        self.histories.clear()

    def clear_kv_cache(self) -> None:
        """The same as `clear_cache`."""
        self.histories.clear()

    def reset_async_queries(self) -> None:
        """Forget queries that wait; none do unless their event loop was broken off."""
        self._batches = weakref.WeakKeyDictionary()

    def cache_kv(self, prompt_tokens: Sequence[int], lora_name: str | None = None) -> None:
        """Nothing has to be done: what was run is kept."""

    async def _ask(self, histories: list[tuple[int, ...]]) -> list[Tensor]:
        known = [self.histories.known(h) for h in histories]
        found = [p for p in known if p is not None]
        if len(found) == len(histories):
            return found
        future: asyncio.Future[list[Tensor]] = asyncio.get_running_loop().create_future()
        batch = await join_batch(self._batches, (histories, future))
        if batch is not None:
            self._answer(batch)
        return await future

    def _answer(self, batch: list[tuple[list[tuple[int, ...]], Any]]) -> None:
        """Run what several callers ask for; an error that one alone causes is its own."""
        try:
            found = self.histories.logprobs([h for histories, _ in batch for h in histories])
        except Exception as error:
            if len(batch) > 1:
                for entry in batch:
                    self._answer([entry])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        at = 0
        for histories, future in batch:
            if not future.done():
                future.set_result(found[at : at + len(histories)])
            at += len(histories)


def _history(token_ids: Sequence[int], lora_name: str | None) -> tuple[int, ...]:
    if lora_name is not None:
        raise SettingError(
            f"unknown LoRA adapter: {lora_name!r}; smcprog.genlm.AsyncLM has none, merge it into "
            "the model first"
        )
    if not token_ids:
        raise SettingError("Token ids must not be empty: a model needs at least one token")
    return tuple(int(t) for t in token_ids)


class _Table:
    """What PromptedLLM asks of a tokenizer, for a vocabulary given by its bytes."""

    def __init__(self, lm: LM) -> None:
        self._lm = lm
        self.eos_token_id = lm.vocab.eos_ids[0]
        self.name_or_path = lm.name

    def encode(self, text: str) -> list[int]:
        return self._lm.encode(text)


def _byte_vocab(lm: LM) -> list[Any]:
    names = {v: name.encode("latin-1") for name, v in lm.vocab.ids().items()}
    texts = lm.vocab.token_bytes
    return [Token(v, texts[v] or names.get(v, b"")) for v in range(lm.vocab.size)]
