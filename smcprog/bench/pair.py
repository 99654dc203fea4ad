"""The models of a benchmark: a target, a draft by name, and outputs that never end early."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["as_chats", "endless", "keep_prefixes", "load_pair"]


def load_pair(
    model: str | None, draft: str | None, threads: int | None = None
) -> tuple[LM, LM | FedDraft | None]:
    """The target and its draft, both without a prefix cache.

    A benchmark runs the same prompts again and again, and what it is compared with runs each
    of them whole. `threads` is set first: what an `LM` measures at loading depends on it.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    from transformers.utils import logging

    from smcprog.drafts.named import named_draft
    from smcprog.engine.lm import LM

    logging.disable_progress_bar()  # standard error is for ours
    lm = LM(model, prefix_cache=False)
    small = None if draft is None else named_draft(lm, draft)
    if isinstance(small, LM):
        small.engine.prefixes = None
    return lm, small


def keep_prefixes(lm: LM) -> None:
    """From now on, a prompt starts where the known part of it ends."""
    from smcprog.engine.prefix import PrefixStore

    engine = lm.engine
    if engine.prefixes is None:
        with engine.lock:
            engine.prefixes = PrefixStore(engine.pages(), lm.kv_pages // 4)


@contextlib.contextmanager
def endless(*models: LM | FedDraft | None) -> Iterator[None]:
    """While this lasts, outputs go on to `max_tokens`: equal work for all that is compared.

    End-of-sequence tokens are then tokens like others. Not thread-safe.
    """
    present = [lm for lm in models if lm is not None]
    for lm in present:
        _ = lm.vocab.token_bytes  # built once, and with the real end-of-sequence tokens
    old = [lm.vocab.eos_ids for lm in present]
    try:
        for lm in present:
            lm.vocab.eos_ids = ()
        yield
    finally:
        for lm, ids in zip(present, old, strict=True):
            lm.vocab.eos_ids = ids


def as_chats(lm: LM, prompts: list[Any]) -> list[Any]:
    """Texts as messages of a user, where the model has a chat template; the rest as it is."""
    if not getattr(lm.tokenizer, "chat_template", None):
        return prompts
    return [[{"role": "user", "content": p}] if isinstance(p, str) else p for p in prompts]
