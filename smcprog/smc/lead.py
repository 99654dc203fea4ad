"""The models of a target, and the one that leads: found, and checked to fit the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from smcprog.errors import SettingError
from smcprog.potentials.models.factor import ModelFactor, lead_index
from smcprog.potentials.product import Product
from smcprog.smc.fed_draft import is_fed
from smcprog.smc.settings import Settings

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM

__all__ = ["find_lead", "models_of"]


def models_of(product: Product) -> list[tuple[LM, Any]]:
    """Every model that keeps rows, as often as it does, with its own prompt or None."""
    return [m for f in product.factors if isinstance(f, ModelFactor) for m in f.models]


def find_lead(product: Product, settings: Settings) -> ModelFactor:
    """The model factor whose tokenizer the outputs are made of.

    Raises
    ------
    SettingError
        There is none, or the draft does not belong to it.
    VocabularyMismatchError
        Models have different token ids.
    """
    at = lead_index(product.factors)
    if at is None:
        which = "of positive power " if models_of(product) else ""
        raise SettingError(
            f"{product.name} has no language model {which}to draw from: multiply it by Target(lm)"
        )
    lead = cast("ModelFactor", product.factors[at])
    for other, _ in models_of(product):
        lead.lm.vocab.check_same(other.vocab, this=lead.lm.name, that=other.name)
    if settings.draft is not None:
        lead.lm.vocab.check_same(
            settings.draft.vocab,
            this=f"target {lead.lm.name}",
            that=f"draft {settings.draft.name}",
        )
        if is_fed(settings.draft):
            _check_fed(settings.draft, lead)
    return lead


def _check_fed(draft: FedDraft, lead: ModelFactor) -> None:
    if draft.fed_by is not lead.lm:
        raise SettingError(
            f"the draft {draft.name} is fed by another model than the target {lead.lm.name}: get "
            "it from this one, with lm.draft()"
        )
    if len(lead.models) > 1:
        raise SettingError(
            f"the draft {draft.name} is fed with the hidden states of one row a particle, and "
            f"{lead.name} keeps {len(lead.models)}: use a draft that is an LM"
        )
