"""`LM`: a causal language model and the memory its sequences live in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from smcprog.attention import IMPLEMENTATION, TorchPagedAttention
from smcprog.engine import loading
from smcprog.engine.checks import check_dispatchable, check_logits, own_copy
from smcprog.engine.engine import Engine
from smcprog.engine.memory import default_pages
from smcprog.engine.prompts import check_tokens, encode_prompt
from smcprog.engine.sequences import PagedSequences, Sequences
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import ModelError
from smcprog.validate import whole

__all__ = ["LM"]

MAX_PAGE_SIZE = 1 << 16
MAX_PAGES = 1 << 30


class LM:
    """A causal language model of `transformers`, run over paged key/value memory.

    Any architecture that dispatches its attention through the attention interface and keeps
    no other state runs; a short check at loading compares its logits with the plain model's.

    Parameters
    ----------
    path : str or path, optional
        A local folder or a hub id; None is the embedded default model. Weights must be
        safetensors, and no code from the folder is run. A local folder is read without
        network access.
    device : str or torch.device, optional
        Default: CUDA where there is one, else the CPU.
    dtype : str or torch.dtype, optional
        Default: float32 on the CPU, the checkpoint's own type elsewhere.
    kv_pages : int, optional
        Pages of keys and values to keep. Default: a quarter of the memory that is free once
        the model is loaded, at most 2,097,152 tokens. On the CPU under Linux, memory is taken
        as pages are first used.
    page_size : int, default 8
        Tokens a page.

    Attributes
    ----------
    path : str
        Local folder; empty for a model from memory.
    name : str
        How messages call the model.
    tokenizer, config
        From `transformers`.
    device : torch.device
    dtype : torch.dtype
    vocab : Vocabulary
    max_context : int
        Longest sequence, prompt included.
    kv_pages, page_size : int

    Raises
    ------
    ModelError
        If the model is not there, cannot be loaded safely, or cannot be run by the engine.
    SettingError
        If `kv_pages` or `page_size` is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        kv_pages: int | None = None,
        page_size: int = 8,
    ) -> None:
        _check_sizes(kv_pages, page_size)
        folder = loading.resolve_path(path)
        model, tokenizer = loading.load(folder, loading.resolve_device(device), dtype)
        name = folder.name if path is None or os.path.isdir(path) else os.fspath(path)
        self._set_up(model, tokenizer, str(folder), name, kv_pages, page_size)

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        kv_pages: int | None = None,
        page_size: int = 8,
    ) -> LM:
        """LM of a model in memory, on its device and in its type.

        The weights are shared with `model`, which itself stays as it is.

        Parameters
        ----------
        model : transformers.PreTrainedModel
        tokenizer : transformers.PreTrainedTokenizerFast or Vocabulary
        name : str, optional
        kv_pages, page_size
            As for `LM`.
        """
        _check_sizes(kv_pages, page_size)
        check_dispatchable(model.config, type(model))
        twin = own_copy(model)
        twin.set_attn_implementation(IMPLEMENTATION)
        lm = cls.__new__(cls)
        label = name or getattr(model, "name_or_path", "") or type(model).__name__
        lm._set_up(twin, tokenizer, "", label, kv_pages, page_size)
        return lm

    def _set_up(
        self,
        model: Any,
        tokenizer: Any,
        path: str,
        name: str,
        kv_pages: int | None,
        page_size: int,
    ) -> None:
        self.path = path
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.page_size = page_size
        self.max_context = _max_context(model.config)
        size, bytes_per_page = check_logits(model, page_size, self.max_context)
        if isinstance(tokenizer, Vocabulary):
            if tokenizer.size != size:
                raise ModelError(
                    f"the vocabulary has {tokenizer.size} ids, and the model's logits {size}"
                )
            self.vocab = tokenizer
        else:
            self.vocab = Vocabulary.from_tokenizer(tokenizer, size, _eos_ids(model, tokenizer))
        self.kv_pages = kv_pages or default_pages(bytes_per_page, page_size, self.device)
        attention = TorchPagedAttention(self.kv_pages + 1, page_size, self.device)
        self._engine = Engine(model, attention, self.max_context, size)

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of a prompt.

        Parameters
        ----------
        prompt : str or list of dict or list of int
            A text, tokenised as it stands by the tokenizer's own rule (special tokens
            included); chat messages with "role" and "content", through the model's chat
            template; or token ids.

        Raises
        ------
        PromptError
            If it is empty, too long, of another form, or a chat without a chat template.
        """
        return encode_prompt(prompt, self.tokenizer, self.vocab, self.max_context)

    def sequences(self, prompt_tokens: Sequence[int], n: int) -> PagedSequences:
        """`n` rows that continue a prompt, which is run once and stored once.

        Raises
        ------
        PromptError
            If the prompt is empty, too long, or holds an unknown id.
        PagesExhaustedError
            If the pool is too small for it.
        """
        tokens = check_tokens(prompt_tokens, self.vocab, self.max_context)
        with PagedSequences.empty(self._engine, 1) as prompt:
            prompt.append(torch.tensor([tokens], dtype=torch.int64))
            prompt.next_logits()
            return prompt.fork([0] * n)

    def join(self, parts: Sequence[Sequences]) -> PagedSequences:
        """The rows of several sequences of this LM, in order. Consumes the parts."""
        for part in parts:
            if not isinstance(part, PagedSequences) or part.engine is not self._engine:
                raise ValueError("join takes sequences of this LM")
        return PagedSequences.join(parts)  # type: ignore[arg-type]

    def pages_needed(self, prompt_len: int, n: int, new_tokens: int) -> int:
        """Pages that `n` rows with a common prompt hold when each has grown by `new_tokens`."""
        shared = prompt_len // self.page_size
        if n == 0 or new_tokens == 0:
            return -(-prompt_len // self.page_size)
        return shared + n * (-(-(prompt_len + new_tokens) // self.page_size) - shared)

    @property
    def pages_free(self) -> int:
        """Pages that can be allocated now."""
        with self._engine.lock:
            return self._engine.pages().free

    @property
    def pages_in_use(self) -> int:
        """Pages held by live sequences; shared ones count once."""
        with self._engine.lock:
            return self._engine.pages().in_use

    def check_pages(self) -> None:
        """Raise AssertionError unless the page counts add up to the live sequences' tables."""
        self._engine.check()

    def __repr__(self) -> str:
        return f"LM({self.name!r}, device={str(self.device)!r}, dtype={self.dtype})"


def _check_sizes(kv_pages: int | None, page_size: int) -> None:
    whole("page_size", page_size, 1, MAX_PAGE_SIZE)
    if kv_pages is not None:
        whole("kv_pages", kv_pages, 1, MAX_PAGES)


def _max_context(config: Any) -> int:
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or 1 << 20)


def _eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """All ids that end a sequence: the generation config's, the model's, the tokenizer's."""
    ids: list[int] = []
    for source in (model.generation_config, model.config.get_text_config(), tokenizer):
        eos = getattr(source, "eos_token_id", None)
        ids.extend([] if eos is None else eos if isinstance(eos, (list, tuple)) else [eos])
    return tuple(dict.fromkeys(int(i) for i in ids))
