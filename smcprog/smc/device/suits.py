"""Which calls can be played in rounds of fixed shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from smcprog.engine.lm import LM
from smcprog.potentials.models.factor import ModelFactor
from smcprog.potentials.models.target import Target

if TYPE_CHECKING:
    from smcprog.potentials.product import Product
    from smcprog.smc.settings import Settings

__all__ = ["reason_against", "wanted"]


def wanted(lm: object) -> bool:
    """Whether rounds of a model should be of fixed shape where they can."""
    if not isinstance(lm, LM):
        return False
    return lm.device.type == "cuda" if lm.graphs == "auto" else bool(lm.graphs)


def reason_against(product: Product, settings: Settings) -> str | None:
    """Why a call cannot be played so, in words; None where it can.

    Such calls are played in rounds whose shapes follow the rows (`smc.wave`): the same results.
    """
    models = [f for f in product.factors if isinstance(f, ModelFactor)]
    if len(models) != 1 or type(models[0]) is not Target:
        return "the target has several models"
    target, s = models[0], settings
    draft = s.draft if s.most_draft_tokens else None
    if not isinstance(target.lm, LM) or not isinstance(draft, (LM, type(None))):
        return "a model keeps no pages"
    reasons = {
        "another factor that tokens are drawn from": any(
            f.lm_like for f in product.factors if f is not target
        ),
        "greedy decoding": target.greedy,
        "negative powers": target.power < 0,
        "checks that draw by rejection": any(f.rejects for f in product.factors),
        "annealed rewards": any(getattr(f, "anneal", False) for f in product.factors),
        "stop strings": bool(s.stop),
        'draft_tokens="auto"': isinstance(s.draft_tokens, str),
        "several draft paths": s.draft_paths > 1 and s.coupling < math.inf,
        "moves, waste-free SMC, rollouts": s.moves or s.waste_free > 1 or s.lookahead,
        "first tokens without replacement": s.first_tokens != "drawn",
        "deterministic=True": s.deterministic,
        "a draft on another device": draft is not None and draft.device != target.lm.device,
        "a model whose other parts are in followers": _any(_follows, target.lm, draft),
        "positions that are scaled by the length": _any(_scales_positions, target.lm, draft),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _any(holds: Callable[[LM], bool], *models: LM | None) -> bool:
    return any(holds(lm) for lm in models if lm is not None)


def _follows(lm: LM) -> bool:
    return lm.engine.follows


def _scales_positions(lm: LM) -> bool:
    """Whether rotary positions depend on the longest row, which the host would have to ask for."""
    config = lm.config.get_text_config()
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [given, *given.values()] if isinstance(given, dict) else []
    return any(
        isinstance(k, dict) and k.get("rope_type", k.get("type")) in ("dynamic", "longrope")
        for k in kinds
    )
