"""The score that a classifier's logits stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smcprog.errors import SettingError

__all__ = ["Label"]


class Label:
    """log p(label), or the logit itself of a model that has one only.

    Parameters
    ----------
    config : transformers.PretrainedConfig
    label : int, str or None
        Which label's log-probability is the score; None for a reward model, with one logit.

    Raises
    ------
    SettingError
        There is no such label, or more than one and none was named.
    """

    def __init__(self, config: Any, label: int | str | None) -> None:
        count = int(config.num_labels)
        names = {int(i): str(name) for i, name in (config.id2label or {}).items()}
        shown = ", ".join(f"{i}: {names.get(i, i)!r}" for i in range(min(count, 12)))
        self.several = getattr(config, "problem_type", None) == "multi_label_classification"
        if count == 1:
            if label not in (None, 0, names.get(0)):
                raise SettingError(
                    f"label={label!r}: the model has one logit, which is the score: leave label out"
                )
            self.index = None
            self.name = ""
            return
        if label is None:
            raise SettingError(f"the model has {count} labels ({shown}): say which with label=")
        index = label
        if isinstance(label, str):
            index = next((i for i, name in names.items() if name == label), -1)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise SettingError(f"label={label!r} is none of the model's: {shown}")
        self.index = index
        self.name = names.get(index, str(index))

    def scores(self, logits_M_L: Tensor) -> list[float]:
        """One number a row."""
        logits_M_L = logits_M_L.double()
        if self.index is None:
            return logits_M_L[:, 0].tolist()
        if self.several:
            return torch.nn.functional.logsigmoid(logits_M_L[:, self.index]).tolist()
        return logits_M_L.log_softmax(1)[:, self.index].tolist()
