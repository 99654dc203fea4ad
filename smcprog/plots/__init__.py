"""Figures of results. matplotlib is imported only when one is drawn."""

from smcprog.plots.bias import plot_bias
from smcprog.plots.pareto import plot_pareto
from smcprog.plots.posterior import plot_posterior
from smcprog.plots.rewards import plot_rewards

__all__ = ["plot_bias", "plot_pareto", "plot_posterior", "plot_rewards"]
