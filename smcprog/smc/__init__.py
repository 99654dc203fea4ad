"""The SMC core: rounds, waves of populations, and the posteriors they end in."""

from smcprog.potentials.base import set_sampler
from smcprog.smc.posterior import Particle, Posterior, RoundInfo
from smcprog.smc.sample import sample
from smcprog.smc.scheduler import RequestHandle, Scheduler, asample
from smcprog.smc.settings import RoundEvent, Settings

__all__ = [
    "Particle",
    "Posterior",
    "RequestHandle",
    "RoundEvent",
    "RoundInfo",
    "Scheduler",
    "Settings",
    "asample",
    "sample",
]

set_sampler(sample, asample)
