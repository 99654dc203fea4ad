"""Drafts as the command line names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from smcprog.drafts.load import CONFIG, load_draft, with_layers
from smcprog.errors import SettingError

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["named_draft"]


def named_draft(lm: LM, name: str) -> LM | FedDraft:
    """A draft for `lm`.

    Parameters
    ----------
    lm : LM
        The target.
    name : str
        ``distilled``, the draft that comes with the package for this target, or
        ``distilled:recurrent``, the one of that design; ``layers:0,1,2``,
        the target with only these layers; else a folder that ``smcprog distill`` wrote, or any
        model's folder or hub id.

    Raises
    ------
    SettingError, ModelError
    """
    from smcprog.engine.lm import LM

    kind, _, design = name.partition(":")
    if kind == "distilled":
        return load_draft(lm, design=design or None)
    if name.startswith("layers:"):
        try:
            layers = [int(part) for part in name.removeprefix("layers:").split(",")]
        except ValueError:
            raise SettingError(
                f"draft {name!r}: layers must be indices with commas between them, such as "
                "layers:0,1,2"
            ) from None
        return with_layers(lm, layers)
    if (Path(name).expanduser() / CONFIG).is_file():
        return load_draft(lm, name)
    return LM(name)
