"""Decoding from language models written as a Sequential Monte Carlo program.

A target is a product of potentials, one of which is the language model:

>>> import smcprog as smc
>>> from smcprog import LM, Target, Grammar
>>> target = Target(LM(), temperature=0.7) * Grammar.regex(r"[0-9]{4}")  # doctest: +SKIP
>>> post = target.sample("The year of the moon landing:", particles=16, seed=0)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.errors import (
        AllDeadError,
        BatchError,
        CountsTwiceWarning,
        DeviceLostError,
        DeviceMemoryError,
        GrammarError,
        GrammarLimitError,
        GrammarTimeoutError,
        InputError,
        ModelError,
        PagesExhaustedError,
        ParallelError,
        PotentialError,
        PromptError,
        RanksDivergedError,
        RequestTimeoutError,
        SchedulerClosedError,
        SettingError,
        SlowAttentionWarning,
        SlowDraftWarning,
        SMCError,
        StepLimitError,
        ToolError,
        ToolTimeoutError,
        VocabularyMismatchError,
    )
    from smcprog.potentials import (
        Canonical,
        Check,
        Genlm,
        Grammar,
        Guidance,
        Mixture,
        Potential,
        Product,
        Reward,
        Target,
        Twist,
    )
    from smcprog.programs import Population, Program, program
    from smcprog.smc import (
        GibbsChain,
        Particle,
        PooledPosterior,
        Posterior,
        RequestHandle,
        RoundEvent,
        RoundInfo,
        Scheduler,
        grow,
        particle_gibbs,
        pool,
    )

__version__ = "0.1.0"

__all__ = [
    "LM",
    "AllDeadError",
    "BatchError",
    "Canonical",
    "Check",
    "CountsTwiceWarning",
    "DeviceLostError",
    "DeviceMemoryError",
    "Genlm",
    "GibbsChain",
    "Grammar",
    "GrammarError",
    "GrammarLimitError",
    "GrammarTimeoutError",
    "Guidance",
    "InputError",
    "Mixture",
    "ModelError",
    "PagesExhaustedError",
    "ParallelError",
    "Particle",
    "PooledPosterior",
    "Population",
    "Posterior",
    "Potential",
    "PotentialError",
    "Product",
    "Program",
    "PromptError",
    "RanksDivergedError",
    "RequestHandle",
    "RequestTimeoutError",
    "Reward",
    "RoundEvent",
    "RoundInfo",
    "SMCError",
    "Scheduler",
    "SchedulerClosedError",
    "SettingError",
    "SlowAttentionWarning",
    "SlowDraftWarning",
    "StepLimitError",
    "Target",
    "ToolError",
    "ToolTimeoutError",
    "Twist",
    "VocabularyMismatchError",
    "__version__",
    "grow",
    "particle_gibbs",
    "pool",
    "program",
]

# Names are imported when first used: the command line prints its help without waiting for
# torch and transformers.
_HOMES = {
    "LM": "smcprog.engine.lm",
    **dict.fromkeys(
        (
            "Canonical",
            "Check",
            "Genlm",
            "Grammar",
            "Guidance",
            "Mixture",
            "Potential",
            "Product",
            "Reward",
            "Target",
            "Twist",
        ),
        "smcprog.potentials",
    ),
    **dict.fromkeys(("Population", "Program", "program"), "smcprog.programs"),
    **dict.fromkeys(
        (
            "GibbsChain",
            "Particle",
            "PooledPosterior",
            "Posterior",
            "RequestHandle",
            "RoundEvent",
            "RoundInfo",
            "Scheduler",
            "grow",
            "particle_gibbs",
            "pool",
        ),
        "smcprog.smc",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "smcprog.errors")
    if home != "smcprog.errors":
        importlib.import_module("smcprog.smc")  # hands its sampler to the potentials
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
