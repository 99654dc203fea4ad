"""The SMC core: rounds, waves of populations, and the posteriors they end in."""

from smcprog.smc.posterior import Particle, Posterior, RoundInfo
from smcprog.smc.sample import sample
from smcprog.smc.settings import RoundEvent, Settings

__all__ = ["Particle", "Posterior", "RoundEvent", "RoundInfo", "Settings", "sample"]
