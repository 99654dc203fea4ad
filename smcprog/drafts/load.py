"""Drafts made from a target: by leaving layers out, or from a trained student's folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.drafts.fed import FedDraft
from smcprog.drafts.files import pack, read_json, read_tensors, unpack, write_json, write_tensors
from smcprog.drafts.layers import check_layers, keep_layers, layer_count
from smcprog.drafts.recurrent import RecurrentDraft
from smcprog.drafts.settings import DESIGNS
from smcprog.drafts.student import build_recurrent, build_student, stored
from smcprog.engine.checks import own_copy
from smcprog.engine.lm import LM
from smcprog.errors import ModelError, SettingError
from smcprog.validate import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from smcprog.drafts.settings import DistillSettings

__all__ = [
    "SHIPPED",
    "difference",
    "load_draft",
    "sample_rows",
    "save_draft",
    "shape",
    "with_layers",
    "without_layers",
]

CONFIG, WEIGHTS = "draft.json", "draft.safetensors"
FORMAT, RECURRENT_FORMAT = 1, 2
SHIPPED = Path(__file__).with_name("data")
"""Folder of the drafts that come with the package."""

_ROWS = 64
_ALIKE = 0.98
_TARGET_ROWS = "target.rows"


def with_layers(lm: LM, layers: Sequence[int], *, kv_pages: int | None = None) -> LM:
    """A draft that is `lm` with only the given layers.

    It shares the weights and has a key/value pool of its own; `lm` stays as it is.

    Parameters
    ----------
    lm : LM
    layers : list of int
        Indices of the layers that stay.
    kv_pages : int, optional
        As for `LM`.

    Raises
    ------
    SettingError
        If a layer is unknown or named twice, or none is left.
    ModelError
        If the model does not keep its layers in one list.
    """
    chosen = check_layers("layers", layers, layer_count(lm.model))
    twin = own_copy(lm.model)
    keep_layers(twin, chosen)
    name = f"{lm.name}, {len(chosen)} of {layer_count(lm.model)} layers"
    return LM.from_model(
        twin,
        lm.tokenizer,
        name=name,
        kv_pages=kv_pages,
        page_size=lm.page_size,
        kv_dtype=lm.kv_dtype,
        attention=lm.attention,
    )


def without_layers(lm: LM, layers: Sequence[int], *, kv_pages: int | None = None) -> LM:
    """A draft that is `lm` without the given layers; see `with_layers`."""
    count = layer_count(lm.model)
    left_out = check_layers("layers", layers, count)
    kept = [i for i in range(count) if i not in left_out]
    return with_layers(lm, kept, kv_pages=kv_pages)


def load_draft(
    lm: LM,
    path: str | os.PathLike[str] | None = None,
    *,
    design: str | None = None,
    kv_pages: int | None = None,
) -> LM | FedDraft:
    """The student that was made for `lm`, on the device and in the type of `lm`.

    Embeddings (and a full head) are the target's own; layers come from the folder.

    Parameters
    ----------
    lm : LM
        The target.
    path : str or path, optional
        A folder that ``smcprog distill`` wrote. None: the draft that comes with the package
        for this target.
    design : {"layers", "recurrent"}, optional
        Which of those that come with the package; default "layers".
    kv_pages : int, optional
        As for `LM`; a draft that is fed by its target needs none.

    Returns
    -------
    LM or FedDraft
        By the design that was trained; both are what ``draft=`` takes.

    Raises
    ------
    ModelError
        If there is none, it is damaged, or it was made for another target.
    SettingError
        If the design is unknown, or a path is given as well.
    """
    if path is not None and design is not None:
        raise SettingError("design chooses among the drafts of the package; leave it out, or path")
    folder = _shipped(lm, design or DESIGNS[0]) if path is None else Path(path).expanduser()
    if path is not None and not (folder / CONFIG).is_file():
        raise ModelError(
            f"no draft in {os.fspath(path)!r}: the folder must hold {CONFIG} and {WEIGHTS}, as "
            "`smcprog distill` writes them"
        )
    config = read_json(folder / CONFIG)
    packed = read_tensors(folder / WEIGHTS)
    differs = difference(lm.model, config, packed)
    if differs:
        made_for = config.get("target", {})
        raise ModelError(
            f"the draft in {os.fspath(folder)} was made for {made_for.get('name')!r}, not for "
            f"{lm.name!r}: {differs}; load it with its own target, or distill one for this model"
        )
    student = _filled(lm.model, config, packed, folder)
    if isinstance(student, RecurrentDraft):
        return FedDraft(lm, student, str(config.get("name") or folder.name))
    return LM.from_model(
        student,
        lm.tokenizer,
        name=str(config.get("name") or folder.name),
        kv_pages=kv_pages,
        page_size=lm.page_size,
        kv_dtype=lm.kv_dtype,
        attention="torch" if lm.attention == "torch" else "auto",
        pack=True,
    )


def save_draft(
    folder: Path,
    target: Any,
    target_name: str,
    student: Any,
    settings: DistillSettings,
    report: Mapping[str, Any] | None = None,
) -> None:
    """Write a draft's folder.

    Parameters
    ----------
    folder : Path
    target, student : transformers.PreTrainedModel
    target_name : str
    settings : DistillSettings
        That the student was made with, every default filled in.
    report : dict, optional
        Figures on held-out text.

    Raises
    ------
    ModelError
        If the file system refuses.
    """
    packed = pack(stored(student), settings.storage)
    if settings.layers is None:
        made: dict[str, Any] = {"format": RECURRENT_FORMAT, "inner": settings.inner}
        made["tokens"], what = settings.context, "recurrent"
    else:
        made = {"format": FORMAT, "layers": list(settings.layers)}
        what = f"{len(settings.layers)} layers"
    packed[_TARGET_ROWS] = sample_rows(target).cpu().to(torch.float16).contiguous()
    write_tensors(folder / WEIGHTS, packed)
    write_json(
        folder / CONFIG,
        {
            "name": f"draft of {target_name}, {what}",
            "target": {"name": target_name, **shape(target)},
            **made,
            "storage": settings.storage,
            "report": dict(report or {}),
        },
    )


def sample_rows(model: Any) -> Tensor:
    """A few rows of the input embeddings, [R, D]: they tell one target from another."""
    weight_V_D = model.get_input_embeddings().weight.detach()
    rows = min(_ROWS, len(weight_V_D))
    return weight_V_D[torch.linspace(0, len(weight_V_D) - 1, rows).long()]


def difference(model: Any, config: Mapping[str, Any], packed: Mapping[str, Tensor]) -> str:
    """What tells `model` from the target a draft was made for; empty if nothing does.

    Embeddings are compared by direction, so another type or quantisation of the same weights
    is the same target.
    """
    made_for = config.get("target", {})
    for what, value in shape(model).items():
        if made_for.get(what) != value:
            return f"{what} {made_for.get(what)} there, {value} here"
    theirs, ours = packed.get(_TARGET_ROWS), sample_rows(model)
    if theirs is None or theirs.shape != ours.shape:
        return "its sample of the embeddings is missing"
    alike = torch.cosine_similarity(theirs.float(), ours.float().cpu(), dim=1).median()
    if not alike >= _ALIKE:
        return f"the embeddings differ (cosine {float(alike):.2f})"
    return ""


def shape(model: Any) -> dict[str, Any]:
    """What is compared first of two targets."""
    weight = model.get_input_embeddings().weight
    return {
        "type": model.config.model_type,
        "layers": layer_count(model),
        "vocabulary": int(weight.shape[0]),
        "width": int(weight.shape[1]),
    }


def _shipped(lm: LM, design: str) -> Path:
    if design not in DESIGNS:
        raise SettingError(f"design must be one of {', '.join(DESIGNS)}, got {design!r}")
    for folder in sorted(SHIPPED.glob("*/")):
        if (folder / CONFIG).is_file():
            config = read_json(folder / CONFIG)
            recurrent = config.get("format") == RECURRENT_FORMAT
            if recurrent == (design == "recurrent") and all(
                config.get("target", {}).get(k) == v for k, v in shape(lm.model).items()
            ):
                return folder
    raise ModelError(
        f"no draft for {lm.name!r} comes with smcprog (those that do are for the default model, "
        "LM()); make one with `smcprog distill` and give its folder"
    )


def _filled(target: Any, config: Mapping[str, Any], packed: dict[str, Tensor], folder: Path) -> Any:
    """A student of `target` with the stored weights."""
    where = os.fspath(folder / CONFIG)
    if config.get("format") not in (FORMAT, RECURRENT_FORMAT):
        raise ModelError(
            f"{where} has format {config.get('format')!r}, and this version reads {FORMAT} and "
            f"{RECURRENT_FORMAT}"
        )
    recurrent = config["format"] == RECURRENT_FORMAT
    try:
        if recurrent:
            inner = whole("inner", config.get("inner"), 1, 1 << 20)
            count = whole("tokens", config.get("tokens"), 1, 64)
        else:
            layers = check_layers("layers", config.get("layers"), layer_count(target))
    except SettingError as error:
        raise ModelError(f"{where} is damaged: {error}") from error
    embeddings = target.get_input_embeddings().weight
    tensors = unpack(packed, embeddings.dtype)
    kept = next((v for n, v in tensors.items() if n.endswith("kept_M")), None)
    rest = next((v for n, v in tensors.items() if n.endswith("log_rest_V")), None)
    if recurrent:
        student: Any = build_recurrent(target, inner, count, kept, rest)
    else:
        student = build_student(target, layers, kept, rest)
    wanted = stored(student)
    tensors.pop(_TARGET_ROWS, None)
    odd = sorted(set(wanted) ^ set(tensors))
    odd += [n for n in wanted if n in tensors and wanted[n].shape != tensors[n].shape]
    if odd:
        raise ModelError(
            f"{os.fspath(folder / WEIGHTS)} is damaged: tensor {odd[0]!r} is missing, unknown or "
            "of another shape"
        )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(tensors[name])
    return student
