"""From a target to a trained student: text, training, report, each kept in files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from smcprog.drafts.fed import FedDraft
from smcprog.drafts.load import load_draft, save_draft
from smcprog.drafts.report import Figures, measure
from smcprog.drafts.run import (
    Progress,
    check_space,
    open_run,
    run_classes,
    run_summaries,
    run_text,
)
from smcprog.drafts.settings import DistillSettings
from smcprog.drafts.student import (
    build_recurrent,
    build_student,
    check_head,
    head_of,
    plain_twin,
)
from smcprog.drafts.targets import TargetHead
from smcprog.drafts.text import Text
from smcprog.drafts.train import StepInfo, Trainer, deadline
from smcprog.engine.lm import LM
from smcprog.validate import real

__all__ = ["distill", "measure_draft"]

CHECKPOINT = "checkpoint.safetensors"


def distill(
    lm: LM,
    out: str | os.PathLike[str],
    settings: DistillSettings | None = None,
    *,
    prompts: Sequence[Any] | None = None,
    resume: bool = False,
    minutes: float | None = None,
    checkpoint_minutes: float = 5.0,
    progress: Progress | None = None,
) -> list[Figures]:
    """Train a student of `lm` on text that `lm` itself draws, and keep it in a folder.

    A run that was stopped goes on with ``resume=True``: finished text is kept, and training
    starts at the last checkpoint, with the data in the same order.

    Parameters
    ----------
    lm : LM
        The target.
    out : str or path
        Folder for the draft and the run's own files.
    settings : DistillSettings, optional
    prompts : list of prompts, optional
        What the target continues, as in `LM.encode`; each eighth is held out for the report.
        Default: built-in instructions.
    resume : bool
        Go on with the run in `out`. Its settings must be the same, but `tokens` may differ.
    minutes : float, optional
        Stop after so many minutes of training. The draft is written then, too.
    checkpoint_minutes : float
        Time between checkpoints.
    progress : callable, optional
        Told of every batch and step: stage, done, total, note.

    Returns
    -------
    list of Figures
        On held-out text, at temperatures 1 and 0.7.

    Raises
    ------
    SettingError
        If a setting is out of range, or not that of the run to be resumed.
    PromptError
        If a prompt is not valid, or there are fewer than two.
    ModelError
        If the target is not the run's, its layers or head are of an unknown kind, training
        diverges, or the file system refuses.
    """
    chosen = (settings or DistillSettings()).checked(lm)
    if minutes is not None:
        real("minutes", minutes, 0.0)
    real("checkpoint_minutes", checkpoint_minutes, 0.0)
    tell = progress or (lambda stage, done, total, note: None)
    encoded = None if prompts is None else [lm.encode(p) for p in prompts]
    folder = Path(out).expanduser()
    plain = plain_twin(lm.model)
    check_head(plain)
    open_run(lm, folder, chosen, encoded, resume)
    check_space(lm, folder, chosen)

    held = run_text(lm, plain, folder, chosen, encoded, "held", chosen.held_tokens, tell)
    text = run_text(lm, plain, folder, chosen, encoded, "text", chosen.text_tokens, tell)
    head = head_of(plain)
    weight_V_D = head.weight.detach()
    bias_V = None if head.bias is None else head.bias.detach()
    classes = run_classes(folder, text, weight_V_D, bias_V, chosen.vocabulary)
    target_head = TargetHead(weight_V_D, bias_V, classes, bool(chosen.bfloat16))
    summaries = run_summaries(folder, text, target_head, tell)
    kept = (None, None) if classes is None else (classes.kept_M, classes.log_rest_V)
    student = _student(plain, chosen, text, *kept)
    trainer = Trainer(
        student,
        target_head,
        text,
        summaries,
        tokens=chosen.tokens,
        batch_tokens=chosen.batch,
        rate=chosen.rate,
        chi2=chosen.chi2 if chosen.objective == "forward-kl+chi2" else 0.0,
        seed=chosen.seed,
        bfloat16=bool(chosen.bfloat16),
        steps=chosen.unroll,
    )
    if (folder / CHECKPOINT).exists():
        trainer.restore(folder / CHECKPOINT)
    _train(trainer, folder / CHECKPOINT, minutes, checkpoint_minutes, tell)

    save_draft(folder, lm.model, lm.name, student, chosen)
    tell("Measuring", 0, 1, "")
    figures = measure_draft(lm, folder, held, plain)
    report: dict[str, Any] = {
        "trained_tokens": trainer.tokens,
        "held_out": [dataclasses.asdict(f) for f in figures],
    }
    save_draft(folder, lm.model, lm.name, student, chosen, report)
    tell("Measuring", 1, 1, "")
    return figures


def measure_draft(
    lm: LM, folder: str | os.PathLike[str] | None, held: Text, plain: Any = None
) -> list[Figures]:
    """`measure` a stored draft, just as it will be loaded."""
    if plain is None:
        plain = plain_twin(lm.model)
    draft = load_draft(lm, folder, kv_pages=1)
    if isinstance(draft, FedDraft):
        return measure(plain, draft.network, held)
    return measure(plain, plain_twin(draft.model), held)


def _student(
    plain: Any,
    chosen: DistillSettings,
    text: Text,
    kept_M: Tensor | None,
    log_rest_V: Tensor | None,
) -> Any:
    if chosen.layers is None:
        student = build_recurrent(plain, chosen.inner, chosen.context, kept_M, log_rest_V)
        return student.start(text, chosen.seed)
    student = build_student(plain, chosen.layers, kept_M, log_rest_V)
    student.set_attn_implementation("eager")  # for short texts on CPUs, faster to train than sdpa
    return student


def _train(
    trainer: Trainer,
    checkpoint: Path,
    minutes: float | None,
    checkpoint_minutes: float,
    tell: Progress,
) -> None:
    over, due = deadline(minutes), deadline(checkpoint_minutes)
    smooth = None

    def on_step(info: StepInfo) -> bool:
        nonlocal due, smooth
        smooth = info.kl if smooth is None else 0.9 * smooth + 0.1 * info.kl
        tell("Training", min(info.tokens, trainer.total), trainer.total, f"KL {smooth:.3f}")
        if due():
            trainer.save(checkpoint)
            due = deadline(checkpoint_minutes)
        return over()

    trainer.run(on_step)
    trainer.save(checkpoint)
