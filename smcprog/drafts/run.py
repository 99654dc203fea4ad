"""The folder of a distillation: what it was started with, and its finished parts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smcprog.drafts.files import read_json, read_tensors, write_json, write_tensors
from smcprog.drafts.layers import layer_count
from smcprog.drafts.load import difference, sample_rows, shape
from smcprog.drafts.prompts import instruction
from smcprog.drafts.settings import DistillSettings
from smcprog.drafts.targets import Classes, TargetHead, choose_kept
from smcprog.drafts.text import Text, read_text, sample_text, write_text
from smcprog.engine.linears import weight_count
from smcprog.engine.lm import LM
from smcprog.errors import ModelError, PromptError, SettingError

__all__ = [
    "Progress",
    "check_space",
    "open_run",
    "run_classes",
    "run_summaries",
    "run_text",
]

RUN, TARGET = "run.json", "target.safetensors"
CLASSES, SUMMARIES = "classes.safetensors", "summaries.safetensors"
SAMPLE = 16_384
"""Positions from which the kept tokens are chosen."""
HELD_EVERY = 8
"""One prompt of so many is held out."""

Progress = Callable[[str, int, int, str], None]
"""Called with stage, done, total and a note."""


def open_run(
    lm: LM,
    folder: Path,
    settings: DistillSettings,
    prompts: list[list[int]] | None,
    resume: bool,
) -> None:
    """Start the run of `folder`, or check that it is the one to go on with."""
    if prompts is not None and len(prompts) < 2:
        raise PromptError("at least two prompts are needed: one is held out for the report")
    digest = "built-in" if prompts is None else _digest(prompts)
    run = {
        "settings": json.loads(json.dumps(dataclasses.asdict(settings))),
        "prompts": digest,
        "target": lm.name,
    }
    path = folder / RUN
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise SettingError(
                f"the folder {os.fspath(folder)} is not empty and holds no run of distill; give a "
                "new or empty folder"
            )
        if resume:
            raise SettingError(f"there is no run to resume in {os.fspath(folder)}")
        write_tensors(folder / TARGET, {"target.rows": sample_rows(lm.model)})
        write_json(path, run | {"shape": shape(lm.model)})
        return
    if not resume:
        raise SettingError(
            f"{os.fspath(folder)} holds a run already; resume it (--resume), or give a new folder"
        )
    before = read_json(path)
    packed = read_tensors(folder / TARGET)
    differs = difference(lm.model, {"target": before.get("shape", {})}, packed)
    if differs:
        raise ModelError(
            f"the run in {os.fspath(folder)} has the target {before.get('target')!r}, not "
            f"{lm.name!r}: {differs}; resume it with its own target"
        )
    if before.get("prompts") != digest:
        raise SettingError(f"the run in {os.fspath(folder)} was started with other prompts")
    usual = json.loads(json.dumps(dataclasses.asdict(DistillSettings())))
    old, new = usual | dict(before.get("settings", {})), dict(run["settings"])
    for name in sorted((set(old) | set(new)) - {"tokens", "storage"}):
        if old.get(name) != new.get(name):
            raise SettingError(
                f"the run in {os.fspath(folder)} has {name}={old.get(name)!r}, not "
                f"{new.get(name)!r}; resume with its settings, or give a new folder"
            )


def check_space(lm: LM, folder: Path, settings: DistillSettings) -> None:
    """Raise ModelError where the folder cannot hold the run."""
    weight = lm.model.get_input_embeddings().weight
    vocabulary, width = weight.shape
    if settings.layers is None:
        student = width * ((1 + settings.context) * width + 3 * settings.inner) + vocabulary
    else:
        body = weight_count(lm.model) - weight.numel()
        student = body * len(settings.layers) // layer_count(lm.model) + vocabulary
    tokens = settings.text_tokens + settings.held_tokens
    need = tokens * (2 * width + 8) + student * (2 * 12 + 4)
    have = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    free = shutil.disk_usage(folder).free
    if free < need - have:
        raise ModelError(
            f"not enough disk space in {os.fspath(folder)}: the run needs about "
            f"{need / 1e6:.0f} MB, {free / 1e6:.0f} MB are free; make room, choose another folder, "
            "or lower text_tokens"
        )


def run_text(
    lm: LM,
    plain: Any,
    folder: Path,
    settings: DistillSettings,
    prompts: list[list[int]] | None,
    kind: str,
    wanted: int,
    tell: Progress,
) -> Text:
    """Text of `kind`, read from its files; those that are missing are drawn and stored."""
    text = Text([], [], [])
    stage = "Drawing held-out text" if kind == "held" else "Drawing text"
    source = _prompt_batches(lm, settings, prompts, held=kind == "held")
    number = 0
    while text.new_tokens < wanted:
        path = folder / f"{kind}-{number:04d}.safetensors"
        batch = next(source)
        if not path.exists():
            seed = _seed(settings.seed, kind, number)
            # Half of the texts at the temperature that drafts are most used at.
            tau = [1.0 if i % 2 == 0 else 0.7 for i in range(len(batch))]
            drawn = sample_text(lm, plain, batch, tau, settings.text_length, seed)
            write_text(drawn, path)
        # Always from the file, whose hidden states are rounded, so that a resumed run agrees.
        text.extend(read_text(path))
        number += 1
        tell(stage, min(text.new_tokens, wanted), wanted, "")
    return text


def _prompt_batches(
    lm: LM, settings: DistillSettings, prompts: list[list[int]] | None, held: bool
) -> Iterator[list[list[int]]]:
    """Batches of prompts without end: those held out, or all others."""
    count = None if prompts is None else len(prompts)
    position = 0
    while True:
        rows: list[list[int]] = []
        while len(rows) < settings.text_batch:
            index = position if count is None else position % count
            position += 1
            last_of_few = count is not None and count < HELD_EVERY and index == count - 1
            if (index % HELD_EVERY == HELD_EVERY - 1 or last_of_few) != held:
                continue
            if prompts is None:
                rows.append(_instruct(lm, instruction(index, settings.seed)))
            else:
                rows.append(prompts[index])
        yield sorted(rows, key=len)


def _instruct(lm: LM, text: str) -> list[int]:
    if getattr(lm.tokenizer, "chat_template", None):
        return lm.encode([{"role": "user", "content": text}])
    return lm.encode(text)


def run_classes(
    folder: Path, text: Text, weight_V_D: Tensor, bias_V: Tensor | None, count: int
) -> Classes | None:
    """The classes of a run's students; None for a full head."""
    if not count:
        return None
    path = folder / CLASSES
    if path.exists():
        found = read_tensors(path)
        return Classes(found["kept_M"], found["log_rest_V"])
    every = max(1, text.new_tokens // SAMPLE)
    classes = choose_kept((h[::every] for h in text.hidden), weight_V_D, bias_V, count)
    write_tensors(path, {"kept_M": classes.kept_M, "log_rest_V": classes.log_rest_V})
    return classes


def run_summaries(folder: Path, text: Text, head: TargetHead, tell: Progress) -> list[Tensor]:
    """``head.summaries`` of every sequence, computed once a run."""
    path = folder / SUMMARIES
    lengths = [len(h) for h in text.hidden]
    if path.exists():
        found = read_tensors(path).get("summaries")
        if found is not None and len(found) == sum(lengths):
            return list(found.split(lengths))
    parts = []
    for i, hidden in enumerate(text.hidden):
        parts.append(head.summaries(hidden))
        tell("Reading the text", i + 1, len(text), "")
    write_tensors(path, {"summaries": torch.cat(parts)})
    return parts


def _digest(prompts: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


def _seed(*parts: int | str) -> int:
    """A seed that depends on every part."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:7], "little")
