"""What drawing jointly saves: the variance of log Ẑ, with and without, at the same cost.

The same prompt and target are run over many seeds twice, in turn: once with the tokens of
particles that share a history drawn jointly, once independently. Populations, rounds and
passes of the model are the same; what differs is how far the estimates of the evidence
scatter, and so how many particles one accuracy costs.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from scipy import stats

from smcprog.errors import AllDeadError, SettingError
from smcprog.potentials import Potential

__all__ = ["run"]


def run(
    target: Potential, prompt: Any, *, runs: int = 32, seed: int = 0, **settings: Any
) -> dict[str, Any]:
    """Measure both ways of drawing over seeds ``seed`` … ``seed + runs − 1``.

    Parameters
    ----------
    target : Potential
    prompt
        As for `Potential.sample`.
    runs : int
        Seeds, at least 3; each is run both ways.
    **settings
        Of `Potential.sample`.

    Returns
    -------
    dict
        For ``joint`` and ``independent``: mean and standard deviation of log Ẑ over the runs
        that had survivors, how many had none, median seconds a run. ``variance_ratio`` is
        joint over independent, with a 95 % interval under normal log Ẑ (F distribution).

    Raises
    ------
    SettingError
        If there are too few runs, or too few had survivors.
    """
    if runs < 3:
        raise SettingError(f"runs must be at least 3 to tell a variance, got {runs}")
    log_z: dict[str, list[float]] = {"joint": [], "independent": []}
    seconds: dict[str, list[float]] = {"joint": [], "independent": []}
    for at in range(seed, seed + runs):
        for way in log_z:
            begun = time.perf_counter()
            try:
                post = target.sample(prompt, seed=at, joint_draws=way == "joint", **settings)
            except AllDeadError:
                continue
            seconds[way].append(time.perf_counter() - begun)
            log_z[way].append(post.log_evidence)
    if min(map(len, log_z.values())) < 3:
        raise SettingError(f"fewer than 3 of {runs} runs had survivors: use more particles or runs")
    report: dict[str, Any] = {
        way: {
            "mean_log_evidence": statistics.fmean(log_z[way]),
            "sd_log_evidence": statistics.stdev(log_z[way]),
            "dead_runs": runs - len(log_z[way]),
            "median_s": statistics.median(seconds[way]),
        }
        for way in log_z
    }
    spread = {way: statistics.variance(log_z[way]) for way in log_z}
    ratio = spread["joint"] / spread["independent"] if spread["independent"] else math.nan
    freedom = (len(log_z["joint"]) - 1, len(log_z["independent"]) - 1)
    report["variance_ratio"] = ratio
    report["variance_ratio_95"] = [
        ratio / float(stats.f.ppf(0.975, *freedom)),
        ratio / float(stats.f.ppf(0.025, *freedom)),
    ]
    return report
