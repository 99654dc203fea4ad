"""The models of a benchmark: a target, a draft by name, and outputs that never end early."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smcprog.errors import SettingError

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["as_chats", "endless", "keep_prefixes", "load_draft", "load_pair"]


def load_pair(
    model: str | None, draft: str | None, threads: int | None = None
) -> tuple[LM, LM | None]:
    """The target and its draft, both without a prefix cache.

    A benchmark runs the same prompts again and again, and what it is compared with runs each
    of them whole. `threads` is set first: what an `LM` measures at loading depends on it.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    from transformers.utils import logging

    from smcprog.engine.lm import LM

    logging.disable_progress_bar()  # standard error is for ours
    lm = LM(model, prefix_cache=False)
    small = None if draft is None else load_draft(lm, draft)
    if small is not None:
        small.engine.prefixes = None
    return lm, small


def load_draft(lm: LM, name: str) -> LM:
    """A draft for `lm`, as named on the command line.

    Parameters
    ----------
    lm : LM
    name : str
        ``distilled``, the draft that comes with the package; ``int8``, the target with weights
        of eight bits; ``layers:0,1,2``, the target with only these layers; else a folder that
        ``smcprog distill`` wrote, or any model's folder or hub id.

    Raises
    ------
    SettingError, ModelError
    """
    from smcprog.engine.lm import LM

    if name == "distilled":
        return lm.draft()
    if name.startswith("layers:"):
        text = name.removeprefix("layers:")
        try:
            layers = [int(part) for part in text.split(",")]
        except ValueError:
            raise SettingError(
                f"--draft {name}: layers must be indices with commas between them, such as "
                "layers:0,1,2"
            ) from None
        return lm.with_layers(layers)
    if name == "int8":
        quantized: Any = getattr(lm, "quantized", None)
        if quantized is None:
            raise SettingError("--draft int8: this version has no quantised models")
        small: LM = quantized(bits=8)
        return small
    if (Path(name).expanduser() / "draft.json").is_file():
        return lm.draft(name)
    return LM(name, prefix_cache=False)


def keep_prefixes(lm: LM) -> None:
    """From now on, a prompt starts where the known part of it ends."""
    from smcprog.engine.prefix import PrefixStore

    engine = lm.engine
    if engine.prefixes is None:
        with engine.lock:
            engine.prefixes = PrefixStore(engine.pages(), lm.kv_pages // 4)


@contextlib.contextmanager
def endless(*models: LM | None) -> Iterator[None]:
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
