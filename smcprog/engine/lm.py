"""`LM`: a causal language model and the memory its sequences live in."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.attention import IMPLEMENTATION
from smcprog.attention.choose import checked_kind, default_page_size, make_attention
from smcprog.attention.kv_dtype import resolve_kv_dtype
from smcprog.engine import loading
from smcprog.engine.batching import current_runner
from smcprog.engine.checks import check_dispatchable, check_logits, own_copy
from smcprog.engine.engine import Engine
from smcprog.engine.linears import install
from smcprog.engine.parallel import split_over
from smcprog.engine.prefix import sharing_allowed
from smcprog.engine.prompts import check_tokens, encode_prompt
from smcprog.engine.sequences import PagedSequences, Sequences
from smcprog.engine.sizing import PoolSize, activation_bytes
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import ModelError, SettingError
from smcprog.validate import whole

if TYPE_CHECKING:
    from smcprog.attention import PagedAttention
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.parallel.split import Parallel

__all__ = ["LM", "max_context"]

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
        Pages of keys and values to keep. Default, on the CPU: a quarter of the memory that is
        free once the model is loaded; under Linux it is taken as pages are first used. On CUDA:
        most of what is free when the first sequence begins, shared with the other models loaded
        by then, so that all of them hold as many tokens. At most 2,097,152 tokens.
    page_size : int, optional
        Tokens a page. Default: 16 on CUDA, else 8.
    kv_dtype : str or torch.dtype, optional
        Type in which keys and values are stored: "float8_e4m3fn", "float8_e5m2", "bfloat16",
        "float16" or "float32". Default: that of the model. A narrower type holds more tokens in
        the same memory, and changes the model's distribution a little; see ``docs/numbers.md``.
    attention : {"auto", "flashinfer", "torch"}
        What computes attention; see ``docs/gpu-attention.md``. "auto": FlashInfer on CUDA, where
        it is installed and can run the model, and PyTorch otherwise.
    graphs : bool or "auto", default "auto"
        Whether `sample` plays rounds of fixed shape, each of them one CUDA graph, where the target
        allows it; see ``docs/gpu-rounds.md``. "auto": on CUDA. True: also elsewhere, as plain
        operations, which is slower there. The results are the same.
    prefix_cache : bool, default True
        Keep the pages of prompts that were run, so that a prompt with the same beginning
        starts where it ends. They count as free, and go when pages run short; at most a
        quarter of the pool.
    tensor_parallel : int, optional
        Processes over which the model is split; see ``docs/multi-gpu.md``. Under a launcher such
        as `torchrun`, as many as it has started; otherwise this process starts the others.

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
    page_size : int
    kv_dtype : torch.dtype or None
    attention : str
        What was asked for.
    parallel : Ranks or Crew or None
        The processes that the model is split over.

    Raises
    ------
    ModelError
        If the model is not there, cannot be loaded safely, or cannot be run by the engine.
    SettingError
        If `kv_pages` or `page_size` is out of range, `kv_dtype` is no such type, there are not
        `tensor_parallel` processes or devices, or `attention` names what cannot run the model.
    PagesExhaustedError
        If so many pages do not fit in memory; the message says how many do.
    """

    kv_dtype: torch.dtype | None = None
    attention: str = "auto"
    graphs: bool | str = "auto"
    parallel: Parallel | None = None

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        kv_pages: int | None = None,
        page_size: int | None = None,
        prefix_cache: bool = True,
        kv_dtype: str | torch.dtype | None = None,
        attention: str = "auto",
        graphs: bool | str = "auto",
        tensor_parallel: int | None = None,
    ) -> None:
        _check_sizes(kv_pages, page_size)
        self.kv_dtype = resolve_kv_dtype(kv_dtype)
        self.attention = checked_kind(attention)
        self.graphs = _checked_graphs(graphs)
        folder = loading.resolve_path(path)
        name = folder.name if path is None or os.path.isdir(path) else os.fspath(path)
        memory = (kv_pages, page_size, prefix_cache)
        self.parallel = split_over(tensor_parallel, folder, device)
        if self.parallel is None:
            model, tokenizer = loading.load(folder, loading.resolve_device(device), dtype)
            install(model, pack=True)
            self._set_up(model, tokenizer, str(folder), name, *memory)
            return
        # What followers make their parts with.
        options = {
            "kv_pages": kv_pages,
            "page_size": page_size,
            "attention": attention,
            "prefix_cache": False,
            "kv_dtype": None if kv_dtype is None else str(self.kv_dtype).removeprefix("torch."),
        }
        with self.parallel.loading(folder, dtype, options) as (model, tokenizer):
            self._set_up(model, tokenizer, str(folder), name, *memory)
            self.parallel.adopt(self._engine)

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str | None = None,
        kv_pages: int | None = None,
        page_size: int | None = None,
        prefix_cache: bool = True,
        pack: bool = False,
        kv_dtype: str | torch.dtype | None = None,
        attention: str = "auto",
        graphs: bool | str = "auto",
    ) -> LM:
        """LM of a model in memory, on its device and in its type.

        The weights are shared with `model`, which itself stays as it is.

        Parameters
        ----------
        model : transformers.PreTrainedModel
        tokenizer : transformers.PreTrainedTokenizerFast or Vocabulary
        name : str, optional
        kv_pages, page_size, prefix_cache, kv_dtype, attention, graphs
            As for `LM`.
        pack : bool, default False
            Hold a second copy of the weights of linear layers, packed as `LM` packs those
            that it loads itself (float32 on the CPU): steps take about half the time.
        """
        _check_sizes(kv_pages, page_size)
        check_dispatchable(model.config, type(model))
        twin = own_copy(model)
        twin.set_attn_implementation(IMPLEMENTATION)
        install(twin, pack=pack)
        lm = cls.__new__(cls)
        lm.kv_dtype = resolve_kv_dtype(kv_dtype)
        lm.attention = checked_kind(attention)
        lm.graphs = _checked_graphs(graphs)
        label = name or getattr(model, "name_or_path", "") or type(model).__name__
        lm._set_up(twin, tokenizer, "", label, kv_pages, page_size, prefix_cache)
        return lm

    def _set_up(
        self,
        model: Any,
        tokenizer: Any,
        path: str,
        name: str,
        kv_pages: int | None,
        page_size: int | None,
        prefix_cache: bool,
    ) -> None:
        self.path = path
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.page_size = page_size = page_size or default_page_size(self.device)
        self.max_context = max_context(model.config)
        size, bytes_per_page = check_logits(model, page_size, self.max_context)
        if isinstance(tokenizer, Vocabulary):
            if tokenizer.size != size:
                raise ModelError(
                    f"the vocabulary has {tokenizer.size} ids, and the model's logits {size}"
                )
            self.vocab = tokenizer
        else:
            self.vocab = Vocabulary.from_tokenizer(tokenizer, size, _eos_ids(model, tokenizer))
        pool_size = self._pool_size(kv_pages, bytes_per_page)
        first = pool_size.pages if pool_size.settled else 1
        attention = self._make_attention(first + 1)
        self._engine = Engine(model, attention, self.max_context, size, pool_size)
        if prefix_cache:
            self._engine.keep_prefixes()

    def _make_attention(self, num_pages: int) -> PagedAttention:
        return make_attention(
            self.config,
            num_pages,
            self.page_size,
            self.device,
            self.dtype,
            name=self.name,
            kind=self.attention,
            kv_dtype=self.kv_dtype,
        )

    def _pool_size(self, kv_pages: int | None, bytes_per_page: int) -> PoolSize:
        """Of a model whose pages take so many bytes in its own type."""
        if self.kv_dtype is not None:
            bytes_per_page = bytes_per_page * self.kv_dtype.itemsize // self.dtype.itemsize
        return PoolSize(
            self.name,
            self.device,
            kv_pages,
            bytes_per_page,
            self.page_size,
            activation_bytes(self.config, self.dtype),
        )

    @property
    def kv_pages(self) -> int:
        """Pages for keys and values. Where their number is not settled: as it would be now.

        Another number may be set while no sequence holds pages; prompts kept are forgotten.
        """
        return self._engine.capacity

    @kv_pages.setter
    def kv_pages(self, pages: int) -> None:
        pages = whole("kv_pages", pages, 1, MAX_PAGES)
        engine = self._engine
        with engine.lock:
            engine.resize(engine.capacity)
            assert engine.pool_size is not None
            engine.pool_size.set(pages)
            engine.resize(pages)

    @property
    def engine(self) -> Engine:
        """What runs the model and owns its pages."""
        return self._engine

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

    def draft(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        design: str | None = None,
        kv_pages: int | None = None,
    ) -> LM | FedDraft:
        """A small draft that was trained to follow this model; see `smcprog.drafts.load_draft`.

        What is returned is an `LM`, or a draft that is fed with this model's hidden states; both
        are what ``draft=`` takes. Without `path`, the one that comes with smcprog, which has two
        for the default model: of few layers, and ``design="recurrent"``.
        """
        return _drafts(self).load_draft(self, path, design=design, kv_pages=kv_pages)

    def with_layers(self, layers: Sequence[int], *, kv_pages: int | None = None) -> LM:
        """A draft: this model with only the given layers; the weights are shared.

        See `smcprog.drafts.with_layers`.
        """
        return _drafts(self).with_layers(self, layers, kv_pages=kv_pages)

    def without_layers(self, layers: Sequence[int], *, kv_pages: int | None = None) -> LM:
        """A draft: this model without the given layers; the weights are shared.

        See `smcprog.drafts.without_layers`.
        """
        return _drafts(self).without_layers(self, layers, kv_pages=kv_pages)

    def sequences(self, prompt_tokens: Sequence[int], n: int) -> PagedSequences:
        """`n` rows that continue a prompt, which is run once and stored once.

        Full pages that an earlier prompt of the same beginning left behind are not run again.

        Raises
        ------
        PromptError
            If the prompt is empty, too long, or holds an unknown id.
        PagesExhaustedError
            If the pool is too small for it.
        """
        tokens = check_tokens(prompt_tokens, self.vocab, self.max_context)
        engine = self._engine
        with engine.lock:
            engine.pages()  # the pool gets its size now, if it had none
        store = engine.prefixes
        if store is None or not sharing_allowed() or engine.ranks is not None:
            with PagedSequences.empty(engine, 1) as prompt:
                return self._run_prompt(prompt, tokens, n)
        runner = current_runner()
        if runner is not None:
            runner.wait(lambda: not store.coming(tokens))
        with engine.lock:
            claim = store.claim(tokens)
            pages = store.take(tokens)
            prompt = PagedSequences(
                engine,
                pages[None],
                np.array([len(pages) * self.page_size]),
                np.zeros(1, dtype=np.int64),
                torch.empty((1, 0), dtype=torch.int64, device=self.device),
                None,
            )
        try:
            with prompt:
                rows = self._run_prompt(prompt, tokens[len(pages) * self.page_size :], n)
                with engine.lock:
                    store.put(tokens, prompt.live_pages())
                return rows
        finally:
            with engine.lock:
                store.unclaim(claim)

    @staticmethod
    def _run_prompt(prompt: PagedSequences, tokens: list[int], n: int) -> PagedSequences:
        prompt.append(torch.tensor([tokens], dtype=torch.int64))
        prompt.next_logits()
        return prompt.fork([0] * n)

    def join(self, parts: Sequence[Sequences]) -> PagedSequences:
        """The rows of several sequences of this LM, in order. Consumes the parts."""
        # Rows of a program are followed by it, and joined in its own way.
        tracked = getattr(parts[0], "join_rows", None) if parts else None
        if tracked is not None:
            return tracked(self, parts)
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
        """Pages that can be allocated now; those that only the prefix cache holds count."""
        with self._engine.lock:
            if not self._engine.sized:
                return self.kv_pages
            return self._engine.pages().free + self._idle()

    @property
    def pages_in_use(self) -> int:
        """Pages held by live sequences; shared ones count once."""
        with self._engine.lock:
            return self._engine.pages().in_use - self._idle() if self._engine.sized else 0

    def _idle(self) -> int:
        store = self._engine.prefixes
        return 0 if store is None else store.idle

    def check_pages(self) -> None:
        """Raise AssertionError unless the page counts add up to the live sequences' tables."""
        self._engine.check()

    def __repr__(self) -> str:
        return f"LM({self.name!r}, device={str(self.device)!r}, dtype={self.dtype})"


def _drafts(lm: LM) -> Any:
    """The room above that makes drafts of an LM, loaded when one is asked for."""
    if lm.parallel is not None:
        raise ModelError(
            f"{lm.name} is split over {lm.parallel.size} processes, and a draft is made of whole "
            "weights: use a model of its own, LM(folder), as its draft"
        )
    return importlib.import_module("smcprog.drafts")


def _check_sizes(kv_pages: int | None, page_size: int | None) -> None:
    if page_size is not None:
        whole("page_size", page_size, 1, MAX_PAGE_SIZE)
    if kv_pages is not None:
        whole("kv_pages", kv_pages, 1, MAX_PAGES)


def _checked_graphs(graphs: bool | str) -> bool | str:
    if graphs is True or graphs is False or graphs == "auto":
        return graphs
    raise SettingError(f'graphs must be True, False or "auto", got {graphs!r}')


def max_context(config: Any) -> int:
    """Longest sequence of a model, in tokens."""
    text = config.get_text_config()
    return int(getattr(text, "max_position_embeddings", None) or 1 << 20)


def _eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """All ids that end a sequence: the generation config's, the model's, the tokenizer's."""
    ids: list[int] = []
    for source in (model.generation_config, model.config.get_text_config(), tokenizer):
        eos = getattr(source, "eos_token_id", None)
        ids.extend([] if eos is None else eos if isinstance(eos, (list, tuple)) else [eos])
    return tuple(dict.fromkeys(int(i) for i in ids))
