"""GGUF weights → a Hugging Face folder: float32 safetensors, configuration, tokenizer."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smcprog.errors import ModelError

__all__ = ["convert"]


def convert(gguf: Path, folder: Path) -> None:
    """Convert the model in `gguf` into `folder`.

    The quantised weights are expanded to float32 exactly as llama.cpp reads them, so the
    result is the quantised model, not the one it was made from.

    Raises
    ------
    ModelError
        If `transformers` cannot read the file, or the weights cannot be written.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    with _quiet():
        try:
            model = AutoModelForCausalLM.from_pretrained(
                source,
                gguf_file=name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
        except (ImportError, ValueError, RuntimeError, KeyError, OSError) as error:
            raise ModelError(
                f"transformers could not read {gguf.name}: {error}; "
                "check that transformers, gguf and accelerate are installed and up to date"
            ) from error
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        _restore_pre_tokenizer(tokenizer)
        tokenizer.model_max_length = model.config.max_position_embeddings
        try:
            model.save_pretrained(folder)
        except SafetensorError as error:  # what it makes of a full disk
            raise ModelError(
                f"could not write the converted weights to {folder}: {error}"
            ) from error
        tokenizer.save_pretrained(folder)
    _clean_config(folder / "config.json")


def _restore_pre_tokenizer(tokenizer: Any) -> None:
    """Split digits off one by one before byte-level pieces, as the model was trained.

    GGUF names this rule ``smollm``; `transformers` reads the vocabulary and merges but not
    the rule, which shows where white space precedes a digit.
    """
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def _clean_config(path: Path) -> None:
    """Drop entries that describe the file converted from, not the model."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and notices that `transformers` prints on its own.

    Its bar over GGUF tensors heeds no setting, so standard error is set aside as well.
    """
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
