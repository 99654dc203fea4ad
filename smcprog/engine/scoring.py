"""Sequence classifiers and reward models over paged memory: rows that end in a score.

The classifiers of `transformers` for decoders (`LlamaForSequenceClassification` and its like)
put a head `score` in the place of the output head and read it at the last token. Here it is
read wherever asked, so that rows grow token by token and fork like those of any `LM`.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from smcprog.attention import IMPLEMENTATION
from smcprog.attention.choose import default_page_size
from smcprog.engine import loading
from smcprog.engine.checks import check_dispatchable, check_logits
from smcprog.engine.engine import Engine
from smcprog.engine.linears import install
from smcprog.engine.lm import LM, max_context
from smcprog.engine.quantised import loading_error, placement
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import ModelError

__all__ = ["ScoringLM", "is_decoder", "load_classifier"]


def load_classifier(
    path: str | os.PathLike[str],
    device: str | torch.device | None,
    dtype: str | torch.dtype | None,
) -> tuple[Any, Any, Path]:
    """A sequence classifier, its tokenizer and its folder; safetensors only, no remote code.

    Raises
    ------
    ModelError
        It is not there, is no classifier, or cannot be loaded safely.
    """
    folder, place = loading.resolve_path(path), loading.resolve_device(device)
    if not (folder / "config.json").is_file():
        raise ModelError(f"no model at {str(folder)!r}: the folder has no config.json")
    loading.check_safetensors(folder)
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with loading.quiet():
        try:
            config = AutoConfig.from_pretrained(folder, **local)
            placed = placement(config, place)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder,
                config=config,
                dtype=loading.resolve_dtype(dtype, config, place),
                use_safetensors=True,
                output_loading_info=True,
                **placed,
                **local,
            )
            model = model if placed else model.to(place)
            tokenizer = AutoTokenizer.from_pretrained(folder, **local)
        except ModelError:
            raise
        except torch.OutOfMemoryError as error:
            raise loading_error(error, folder, config, place) from error
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(
                f"cannot load a sequence classifier from {str(folder)!r}: "
                f"{type(error).__name__}: {reason}"
            ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"the model in {str(folder)!r} is no trained sequence classifier: {len(missing)} "
            f"tensors are missing, the first is {missing[0]!r}"
        )
    return model.eval(), tokenizer, folder


def is_decoder(model: Any) -> bool:
    """Whether a classifier reads its score at the last token of a causal model."""
    return isinstance(getattr(model, "score", None), torch.nn.Module)


class ScoringLM(LM):
    """A sequence classifier for decoders; `next_logits` of its rows are the logits of its labels.

    Made with `from_model`, of a model in memory. Its `vocab` tells ids and their names only.
    """

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
        self.model = EveryToken(model)
        self.tokenizer = tokenizer
        self.config = model.config
        self.device = model.device
        self.dtype = model.dtype
        self.page_size = page_size = page_size or default_page_size(self.device)
        self.max_context = max_context(model.config)
        labels, bytes_per_page = check_logits(self.model, page_size, self.max_context)
        size = model.get_input_embeddings().weight.shape[0]
        self.vocab = tokenizer if isinstance(tokenizer, Vocabulary) else _names(tokenizer, size)
        pool_size = self._pool_size(kv_pages, bytes_per_page)
        first = pool_size.pages if pool_size.settled else 1
        attention = self._make_attention(first + 1)
        self._engine = Engine(self.model, attention, self.max_context, labels, pool_size)
        if prefix_cache:
            self._engine.keep_prefixes()

    @classmethod
    def own(cls, model: Any, tokenizer: Any, folder: Path, **memory: Any) -> ScoringLM:
        """Of a model that nobody else uses, which is changed."""
        check_dispatchable(model.config, type(model))
        model.set_attn_implementation(IMPLEMENTATION)
        install(model, pack=True)
        lm = cls.__new__(cls)
        sizes = {"kv_pages": None, "page_size": None, "prefix_cache": True, **memory}
        lm._set_up(model, tokenizer, str(folder), folder.name, **sizes)
        return lm

    def __repr__(self) -> str:
        return f"ScoringLM({self.name!r}, device={str(self.device)!r}, dtype={self.dtype})"


class EveryToken(torch.nn.Module):
    """A classifier whose logits are those at every token, as a language model's are."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.classifier = model
        self.config = model.config

    @property
    def device(self) -> torch.device:
        return self.classifier.device

    def get_input_embeddings(self) -> Any:
        return self.classifier.get_input_embeddings()

    def set_attn_implementation(self, name: str) -> None:
        self.classifier.set_attn_implementation(name)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int | Tensor = 0,
        **arguments: Any,
    ) -> Any:
        hidden_M_T_D = self.classifier.base_model(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, **arguments
        )[0]
        if isinstance(logits_to_keep, Tensor):
            kept = hidden_M_T_D.index_select(1, logits_to_keep)
        else:
            kept = hidden_M_T_D[:, -logits_to_keep:]
        return SimpleNamespace(logits=self.classifier.score(kept))


def _names(tokenizer: Any, size: int) -> Vocabulary:
    """Ids by name, which is enough to tell whether two tokenizers are one."""
    eos = getattr(tokenizer, "eos_token_id", None)

    def make_ids() -> dict[str, int]:
        return {token: i for token, i in tokenizer.get_vocab().items() if i < size}

    return Vocabulary(
        size, [0 if eos is None else eos], make_bytes=dict, make_ids=make_ids, tokenizer=tokenizer
    )
